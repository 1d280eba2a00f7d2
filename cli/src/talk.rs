//! Talk: what goes to stderr.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Says a line. If nobody listens any more, that is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Whether something was wrong that the work went on without.
static SOME_ERROR: AtomicBool = AtomicBool::new(false);

/// Says what is wrong with a part of the input that is left out; [`had_error`] remembers.
pub fn error(text: &str) {
    SOME_ERROR.store(true, Ordering::Relaxed);
    say(&format!("error: {text}"));
}

/// Whether [`error`] was called.
pub fn had_error() -> bool {
    SOME_ERROR.load(Ordering::Relaxed)
}

/// Says what deserves attention.
pub fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

/// A line that says what is being done; shown on terminals only, and gone when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self(bar)
    }

    pub fn set(&self, text: String) {
        self.0.set_message(text);
    }

    /// Takes the line away while something else is said.
    pub fn pause<T>(&self, talk: impl FnOnce() -> T) -> T {
        self.0.suspend(talk)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
