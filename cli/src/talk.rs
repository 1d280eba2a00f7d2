//! Talk: what goes to stderr, or to whoever listens on this thread.

use clap::ColorChoice;
use clap::builder::styling::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How much is said on stderr, and whether in colours. Of what is given twice the last goes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TalkArgs {
    /// Say nothing on standard error but errors, and warnings of results that are wrong, unproven or incomplete
    #[arg(short, long, global = true, overrides_with = "quiet")]
    quiet: bool,
    /// Whether help and what is said on standard error have colours; `auto` is where a terminal shows them, unless
    /// NO_COLOR or CLICOLOR_FORCE is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", overrides_with = "color")]
    color: ColorChoice,
}

static QUIET: AtomicBool = AtomicBool::new(false);
static COLOURS: AtomicBool = AtomicBool::new(false);

impl TalkArgs {
    /// Does as these options say from now on.
    pub fn apply(&self) {
        QUIET.store(self.quiet, Ordering::Relaxed);
        COLOURS.store(colours(self.color), Ordering::Relaxed);
        SOME_ERROR.store(false, Ordering::Relaxed);
    }

    /// Whether only what is wrong is to be said.
    pub const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The same options, for another process of this program.
    #[cfg(unix)]
    pub fn words(&self) -> Vec<&'static str> {
        let color = match self.color {
            ColorChoice::Auto => None,
            ColorChoice::Always => Some("--color=always"),
            ColorChoice::Never => Some("--color=never"),
        };
        self.quiet.then_some("--quiet").into_iter().chain(color).collect()
    }
}

/// What `--color` says, before the options are read: reading them may fail, which is said in colours or not. What is
/// none of its values is left for clap to refuse.
pub fn color_choice(arguments: impl IntoIterator<Item = OsString>) -> ColorChoice {
    let mut arguments = arguments.into_iter().take_while(|argument| argument != "--");
    let mut choice = ColorChoice::Auto;
    while let Some(argument) = arguments.next() {
        let value = match argument.to_str() {
            Some("--color") => arguments.next().and_then(|value| value.into_string().ok()),
            Some(word) => word.strip_prefix("--color=").map(ToOwned::to_owned),
            None => None,
        };
        choice = value.and_then(|value| value.parse().ok()).unwrap_or(choice);
    }
    choice
}

/// Whether stderr gets colours: by the rules that clap has for its own output.
fn colours(choice: ColorChoice) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if is_set("NO_COLOR") => false,
        ColorChoice::Auto if is_set("CLICOLOR_FORCE") => true,
        ColorChoice::Auto => std::io::stderr().is_terminal() && shows_colours(),
    }
}

/// Whether a terminal shows colours, as far as the environment tells.
fn shows_colours() -> bool {
    let (clicolor, term) = (std::env::var_os("CLICOLOR"), std::env::var_os("TERM"));
    match clicolor {
        Some(value) if value == "0" => false,
        Some(_) => true,
        None => term.is_some_and(|term| term != "dumb"),
    }
}

/// What is said on one thread while somebody listens.
#[derive(Debug, Default)]
struct Listener {
    quiet: bool,
    lines: Vec<String>,
}

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Works, and gives back what was said meanwhile on this thread, none of which goes to stderr. Threads that the work starts
/// are not heard.
pub fn listen<T>(quiet: bool, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    /// Who listened before does so again, however the work ends.
    struct Before(Option<Listener>);
    impl Drop for Before {
        fn drop(&mut self) {
            LISTENER.set(self.0.take());
        }
    }
    let _before = Before(LISTENER.replace(Some(Listener { quiet, lines: Vec::new() })));
    let done = work();
    (done, LISTENER.take().map_or_else(Vec::new, |listener| listener.lines))
}

/// Whether nothing is to be said but what is wrong.
fn is_quiet() -> bool {
    let of_listener = LISTENER.with_borrow(|listener| listener.as_ref().map(|listener| listener.quiet));
    of_listener.unwrap_or_else(|| QUIET.load(Ordering::Relaxed))
}

/// Gives a text to whoever listens on this thread; false if nobody does.
fn is_heard(text: &str) -> bool {
    LISTENER.with_borrow_mut(|listener| {
        let heard = listener.as_mut().map(|listener| listener.lines.push(text.to_owned()));
        heard.is_some()
    })
}

/// Says a line, unless nothing is to be said but what is wrong.
pub fn say(text: &str) {
    if !is_quiet() {
        insist(text);
    }
}

/// Says a line that belongs to an error, however quiet it is to be. If nobody listens any more, that is no reason to
/// stop.
pub fn insist(text: &str) {
    if is_heard(text) {
        return;
    }
    let _ = writeln!(std::io::stderr().lock(), "{}", painted(text, COLOURS.load(Ordering::Relaxed)));
}

/// A line whose first word says how much it matters has that word in colour.
fn painted(text: &str, colours: bool) -> Cow<'_, str> {
    const WORDS: [(&str, AnsiColor); 3] =
        [("error:", AnsiColor::Red), ("warning:", AnsiColor::Yellow), ("note:", AnsiColor::Cyan)];
    let found = WORDS.into_iter().find_map(|(word, colour)| Some((word, colour, text.strip_prefix(word)?)));
    match found.filter(|_| colours) {
        Some((word, colour, rest)) => {
            let style = Style::new().fg_color(Some(colour.into())).bold();
            format!("{style}{word}{style:#}{rest}").into()
        }
        None => text.into(),
    }
}

/// Whether something was wrong that the work went on without.
static SOME_ERROR: AtomicBool = AtomicBool::new(false);

/// Says what is wrong with a part of the input that is left out; [`had_error`] remembers, unless somebody listens.
pub fn error(text: &str) {
    if LISTENER.with_borrow(Option::is_none) {
        SOME_ERROR.store(true, Ordering::Relaxed);
    }
    insist(&format!("error: {text}"));
}

/// Whether [`error`] was called.
pub fn had_error() -> bool {
    SOME_ERROR.load(Ordering::Relaxed)
}

/// Says that a result is wrong, unproven, or not all that was asked for.
pub fn warn(text: &str) {
    insist(&format!("warning: {text}"));
}

/// Says what deserves attention, though the result is right.
pub fn advise(text: &str) {
    say(&format!("warning: {text}"));
}

/// A warning that is kept for later. Machines get its text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Warning {
    /// As [`warn`] has it.
    OfResult(String),
    /// As [`advise`] has it.
    Advice(String),
}

impl Warning {
    pub fn say(&self) {
        match self {
            Self::OfResult(text) => warn(text),
            Self::Advice(text) => advise(text),
        }
    }
}

/// A line that says what is being done; shown on terminals only, unless it is to be quiet, and gone when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn start() -> Self {
        let is_heard = LISTENER.with_borrow(Option::is_some);
        let bar = if is_heard || is_quiet() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        let colours = COLOURS.load(Ordering::Relaxed);
        let template = if colours { "{spinner} {msg} {elapsed:.dim}" } else { "{spinner} {msg} {elapsed}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(line: &str) -> ColorChoice {
        color_choice(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_choice_of_colours_is_found_wherever_it_stands() {
        assert_eq!(choice("bucketeer rewrite g.txt"), ColorChoice::Auto);
        assert_eq!(choice("bucketeer --color never rewrite g.txt"), ColorChoice::Never);
        assert_eq!(choice("bucketeer rewrite g.txt --color=always"), ColorChoice::Always);
        assert_eq!(choice("bucketeer --color"), ColorChoice::Auto);
        assert_eq!(choice("bucketeer --color=blue"), ColorChoice::Auto);
        // That is for the processes of a launch.
        assert_eq!(choice("bucketeer launch --nproc 2 -- doctor --color always"), ColorChoice::Auto);
    }

    #[test]
    fn what_is_said_is_heard_on_the_same_thread_only_and_only_for_as_long_as_somebody_listens() {
        let ((inner, lines), outer) = listen(false, || {
            say("one");
            let other = std::thread::spawn(|| listen(true, || say("quiet")).1).join().unwrap();
            assert!(other.is_empty());
            listen(true, || {
                say("not said");
                advise("nor this");
                warn("but this");
                error("and this");
                7
            })
        });
        assert_eq!((inner, outer), (7, vec!["one".to_owned()]));
        assert_eq!(lines, ["warning: but this", "error: and this"]);
        let stopped = std::panic::catch_unwind(|| listen(false, || panic!("on purpose")));
        assert!(stopped.is_err() && LISTENER.with_borrow(Option::is_none) && !had_error());
    }

    #[test]
    fn only_the_word_that_says_how_much_it_matters_is_painted() {
        assert_eq!(painted("error: no", false), "error: no");
        assert_eq!(painted("graph `g`: error: no", true), "graph `g`: error: no");
        let painted = painted("error: no", true);
        assert!(painted.starts_with("\u{1b}[") && painted.contains("error:\u{1b}[0m no"), "{painted:?}");
    }
}
