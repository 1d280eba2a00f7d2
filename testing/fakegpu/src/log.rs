//! The log: a JSON object for each call, and for each violation. Kept in memory until taken, and appended to the file
//! in `FAKEGPU_LOG`. Addresses and handles are shown by number in order of making, so that logs can be compared.

use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// More than this is kept in the file alone.
const KEPT: usize = 1 << 18;

struct Log {
    lines: Vec<String>,
    file: Option<File>,
    violations: u64,
}

static LOG: LazyLock<Mutex<Log>> = LazyLock::new(|| {
    let open = |path| File::options().append(true).create(true).open(path);
    let file = std::env::var_os("FAKEGPU_LOG").map(|path| open(path).expect("FAKEGPU_LOG can be written"));
    Mutex::new(Log { lines: Vec::new(), file, violations: 0 })
});

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(line: &Value) {
    let mut log = log();
    let line = line.to_string();
    if let Some(file) = &mut log.file {
        let _ = writeln!(file, "{line}");
    }
    if log.lines.len() < KEPT {
        log.lines.push(line);
    }
}

/// A call and its answer.
pub fn call(name: &str, args: Value, code: i32) {
    write(&json!({ "call": name, "args": args, "code": code }));
}

/// A misuse that a real device would, at best, answer with code 700.
pub fn violation(text: &str) {
    write(&json!({ "violation": text }));
    log().violations += 1;
}

/// Number of violations since the last [`clear`].
pub fn violations() -> u64 {
    log().violations
}

/// All lines so far.
pub fn text() -> String {
    let mut text = log().lines.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Forgets the lines, and with `violations` their number.
pub fn clear(violations: bool) {
    let mut log = log();
    log.lines.clear();
    if violations {
        log.violations = 0;
    }
}
