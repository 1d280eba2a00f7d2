//! From bytes to plain code: what logs and terminals add is taken off, and put back when printing.
//!
//! The reader sees text without ANSI colours, without the prefixes that logging puts before every line
//! (`V0101 12:00:00.000 123 file.py:45] [0/0] [__graph_code] `, `[rank0]:`), and with `\n` as line end. Most files
//! have none of these and are read as they are, without a copy.
//!
//! A log into which several ranks wrote at once is taken apart: lines without a rank first, then those of each rank.

use super::error::{Fault, FxError};
use memchr::{memchr, memchr_iter, memchr2, memrchr};

const ESCAPE: u8 = 0x1b;

/// A file into which several ranks wrote at once.
#[derive(Clone, Debug)]
struct Mixed {
    /// As it was read.
    text: String,
    /// The number in the file of each line of what was taken apart, from 1.
    lines: Vec<u32>,
}

/// A line's start in the file and in the cleaned text.
#[derive(Clone, Copy, Debug)]
struct Line {
    raw: u32,
    clean: u32,
}

/// A file and its cleaned text.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The bytes of the file; of a log of several ranks, those of each rank together.
    raw: String,
    mixed: Option<Mixed>,
    cleaned: Option<(String, Vec<Line>)>,
}

impl Source {
    /// Checks that the bytes are text, and cleans it.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, FxError> {
        let raw = String::from_utf8(bytes).map_err(|error| not_text(&error))?;
        if u32::try_from(raw.len()).is_err() {
            let fault = Fault::problem(0, 0, "the file has more than 4 GiB".into(), "a file of at most 4 GiB");
            return Err(locate(&raw, 0, &fault));
        }
        let (raw, mixed) = match by_rank(&raw) {
            Some((sorted, lines)) => (sorted, Some(Mixed { text: raw, lines })),
            None => (raw, None),
        };
        let cleaned = needs_cleaning(raw.as_bytes()).then(|| clean(&raw));
        Ok(Self { raw, mixed, cleaned })
    }

    /// The cleaned text.
    pub(super) fn text(&self) -> &str {
        self.cleaned.as_ref().map_or(&self.raw, |(text, _)| text)
    }

    /// The bytes of the file.
    pub(super) fn file(&self) -> &str {
        self.mixed.as_ref().map_or(&self.raw, |mixed| &mixed.text)
    }

    /// The bytes of the file; of a log of several ranks, those of each rank together.
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    /// The lines of each rank, without those that no rank wrote.
    pub(super) fn logs(&self) -> Vec<(u32, String)> {
        let mut logs = std::collections::BTreeMap::<u32, String>::new();
        for line in self.raw.split_inclusive('\n') {
            if let Some(rank) = rank_of_line(line.as_bytes()) {
                logs.entry(rank).or_default().push_str(line);
            }
        }
        logs.into_iter().collect()
    }

    /// The byte of the file at which the line of a byte of the cleaned text begins.
    pub(super) fn file_offset(&self, clean: usize) -> usize {
        let Some(mixed) = &self.mixed else { return self.raw_offset(clean) };
        let before = self.line_of(clean) - 1;
        before
            .checked_sub(1)
            .and_then(|last| memchr_iter(b'\n', mixed.text.as_bytes()).nth(last))
            .map_or(0, |at| at + 1)
    }

    /// The rank whose log the line of a byte of the cleaned text is from, if it says so.
    pub(super) fn rank(&self, clean: usize) -> Option<u32> {
        rank_of_line(self.style(clean).0.as_bytes())
    }

    /// The file's bytes for a span of cleaned text that begins and ends where a line does.
    pub(super) fn raw_lines(&self, start: usize, end: usize) -> &str {
        &self.raw[self.raw_offset(start)..self.raw_offset(end)]
    }

    fn raw_offset(&self, clean: usize) -> usize {
        let Some((text, lines)) = &self.cleaned else { return clean };
        if clean >= text.len() {
            return self.raw.len();
        }
        let line = lines.partition_point(|line| (line.clean as usize) < clean);
        lines.get(line).map_or(self.raw.len(), |line| line.raw as usize)
    }

    /// What logging put before the line that holds a byte of the cleaned text, without colours; and its line end.
    pub(super) fn style(&self, clean: usize) -> (String, &'static str) {
        let Some((_, lines)) = &self.cleaned else { return (String::new(), "\n") };
        let index = lines.partition_point(|line| line.clean as usize <= clean).saturating_sub(1);
        let start = lines.get(index).map_or(0, |line| line.raw as usize);
        let end = lines.get(index + 1).map_or(self.raw.len(), |line| line.raw as usize);
        let mut plain = String::new();
        strip_colours(&self.raw[start..end], &mut plain);
        let line_end = if plain.ends_with("\r\n") { "\r\n" } else { "\n" };
        plain.truncate(prefix_len(plain.as_bytes()));
        (plain, line_end)
    }

    /// The error for a fault in the cleaned text.
    pub(super) fn error(&self, fault: &Fault) -> FxError {
        let text = self.text();
        let start = memrchr(b'\n', &text.as_bytes()[..fault.at.min(text.len())]).map_or(0, |at| at + 1);
        let prefix = self.style(start).0.chars().count();
        FxError { line: self.line_of(fault.at), ..locate(text, prefix, fault) }
    }

    /// The line number, from 1, of a byte of the cleaned text.
    pub(super) fn line_of(&self, at: usize) -> usize {
        let line = line_of(self.text(), at);
        match &self.mixed {
            Some(mixed) => mixed.lines.get(line - 1).map_or(line, |&line| line as usize),
            None => line,
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    memchr_iter(b'\n', &text.as_bytes()[..at.min(text.len())]).count() + 1
}

fn locate(text: &str, prefix: usize, fault: &Fault) -> FxError {
    let at = fault.at.min(text.len());
    let start = memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |found| found + 1);
    let end = memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |found| at + found);
    let rest = text.get(at..end).unwrap_or_default();
    let found = if fault.len > 0 { rest.get(..fault.len).unwrap_or(rest) } else { excerpt(rest) };
    let found = match found {
        "" if at >= text.len() => "end of file".to_owned(),
        "" => "end of line".to_owned(),
        found => found.to_owned(),
    };
    let before = text.get(start..at).unwrap_or_default();
    let shown = before.chars().count().saturating_sub(100);
    let source_line = before.chars().skip(shown).chain(rest.chars().take(100)).collect();
    FxError {
        line: line_of(text, at),
        column: prefix + before.chars().count() + 1,
        found,
        expected: fault.expected.clone(),
        problem: fault.problem.clone(),
        source_line,
        caret: before.chars().count() - shown,
    }
}

/// The first word of a text, or the first few characters.
fn excerpt(rest: &str) -> &str {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
    let length = if length == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { length };
    rest.char_indices().nth(60).map_or(&rest[..length], |(cut, _)| &rest[..length.min(cut)])
}

fn not_text(error: &std::string::FromUtf8Error) -> FxError {
    let valid = error.utf8_error().valid_up_to();
    let bytes = error.as_bytes();
    let start = memrchr(b'\n', &bytes[..valid]).map_or(0, |at| at + 1);
    let before = String::from_utf8_lossy(&bytes[start..valid]);
    let shown = before.chars().count().saturating_sub(200);
    FxError {
        line: memchr_iter(b'\n', &bytes[..valid]).count() + 1,
        column: before.chars().count() + 1,
        found: bytes.get(valid).map_or_else(String::new, |byte| format!("\\x{byte:02x}")),
        expected: "UTF-8 text".into(),
        problem: None,
        source_line: before.chars().skip(shown).collect(),
        caret: before.chars().count() - shown,
    }
}

/// The lines of a log of several ranks, sorted by rank, and their numbers. None for a file in which the lines of each rank
/// stand together.
fn by_rank(raw: &str) -> Option<(String, Vec<u32>)> {
    let bytes = raw.as_bytes();
    let has_prefix = |words: &str| memchr::memmem::find(bytes, words.as_bytes()).is_some();
    if !has_prefix("[rank") && !has_prefix("[default") {
        return None;
    }
    let mut lines: Vec<(Option<u32>, u32, &str)> = Vec::new();
    let (mut ended, mut is_mixed) = (hashbrown::HashSet::with_hasher(rustc_hash::FxBuildHasher), false);
    let mut last = None;
    for (line, number) in raw.split_inclusive('\n').zip(1..) {
        let rank = rank_of_line(line.as_bytes());
        if rank.is_some() && rank != last {
            ended.extend(last);
            is_mixed |= ended.contains(&rank.unwrap_or_default());
            last = rank;
        }
        lines.push((rank, number, line));
    }
    if !is_mixed {
        return None;
    }
    lines.sort_by_key(|&(rank, number, _)| (rank, number));
    let mut sorted = String::with_capacity(raw.len() + 1);
    for (_, _, line) in &lines {
        sorted.push_str(line);
        // The last line of the file may lack its end, and is no longer the last.
        if !line.ends_with('\n') {
            sorted.push('\n');
        }
    }
    Some((sorted, lines.into_iter().map(|(_, number, _)| number).collect()))
}

/// The rank that a line's prefix names; the inner one of two.
fn rank_of_line(mut line: &[u8]) -> Option<u32> {
    let mut rank = None;
    while let Some(length) = rank_prefix(line) {
        let digits = line[..length].iter().filter(|byte| byte.is_ascii_digit()).map(|&byte| char::from(byte));
        rank = digits.collect::<String>().parse().ok();
        line = &line[length..];
    }
    rank
}

fn needs_cleaning(bytes: &[u8]) -> bool {
    memchr2(ESCAPE, b'\r', bytes).is_some()
        || prefix_len(bytes) > 0
        || memchr_iter(b'\n', bytes).any(|at| prefix_len(&bytes[at + 1..]) > 0)
}

fn clean(raw: &str) -> (String, Vec<Line>) {
    let mut text = String::with_capacity(raw.len());
    let mut lines = Vec::new();
    let mut plain = String::new();
    let mut at = 0;
    for line in raw.split_inclusive('\n') {
        lines.push(Line { raw: at as u32, clean: text.len() as u32 });
        at += line.len();
        let line = if memchr(ESCAPE, line.as_bytes()).is_some() {
            plain.clear();
            strip_colours(line, &mut plain);
            &plain
        } else {
            line
        };
        let line = &line[prefix_len(line.as_bytes())..];
        match line.strip_suffix("\r\n") {
            Some(line) => {
                text.push_str(line);
                text.push('\n');
            }
            None => text.push_str(line),
        }
    }
    (text, lines)
}

/// Appends `line` without its escape sequences.
fn strip_colours(line: &str, plain: &mut String) {
    let mut rest = line;
    while let Some(at) = rest.find('\x1b') {
        plain.push_str(&rest[..at]);
        let bytes = rest.as_bytes();
        let mut end = at + 1;
        if bytes.get(end) == Some(&b'[') {
            end += 1;
            while bytes.get(end).is_some_and(|byte| (0x20..0x40).contains(byte)) {
                end += 1;
            }
            if bytes.get(end).is_some_and(|byte| (0x40..0x7f).contains(byte)) {
                end += 1;
            }
        }
        rest = &rest[end..];
    }
    plain.push_str(rest);
}

/// How many bytes at the start of a line are a log's.
fn prefix_len(line: &[u8]) -> usize {
    if !matches!(line.first(), Some(b'[' | b'V' | b'I' | b'W' | b'E' | b'C' | b'D' | b'F' | 0xef)) {
        return 0;
    }
    let mut at = if line.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
    while let Some(length) = rank_prefix(&line[at..]) {
        at += length;
    }
    if let Some(length) = glog_prefix(&line[at..]) {
        at += length;
    }
    at
}

/// `[rank0]:` or `[default0]:`, and a blank after it.
fn rank_prefix(line: &[u8]) -> Option<usize> {
    let close = 1 + line.strip_prefix(b"[")?.iter().take(40).position(|byte| !byte.is_ascii_alphanumeric())?;
    let is_rank = close > 2 && line.get(close..close + 2)? == b"]:" && line[close - 1].is_ascii_digit();
    is_rank.then(|| close + 2 + usize::from(line.get(close + 2) == Some(&b' ')))
}

/// `V0101 12:00:00.000 123 file.py:45] `, and the `[0/0] [__name] ` after it.
fn glog_prefix(line: &[u8]) -> Option<usize> {
    let digits = |from: usize, to: usize| line.get(from..to).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    let clock = |at: usize| line.get(at) == Some(&b':');
    let is_log = line.first()?.is_ascii_uppercase() && digits(1, 5) && line.get(5) == Some(&b' ');
    if !is_log || !digits(6, 8) || !clock(8) || !digits(9, 11) || !clock(11) || !digits(12, 14) {
        return None;
    }
    let head = &line[..line.len().min(400)];
    let mut at = memchr(b']', head)? + 1;
    if memchr(b'\n', &head[..at]).is_some() {
        return None;
    }
    at += usize::from(line.get(at) == Some(&b' '));
    while let Some(inner) = line[at..].strip_prefix(b"[") {
        let tag = |byte: &u8| byte.is_ascii_alphanumeric() || b"_/.!:-".contains(byte);
        let Some(close) = inner.iter().position(|byte| !tag(byte)).filter(|&close| inner[close] == b']') else { break };
        at += close + 2;
        at += usize::from(line.get(at) == Some(&b' '));
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_logs_are_known_and_code_is_not_one() {
        for (line, rest) in [
            ("V0101 12:00:00.000 123 a/b.py:45] [0/0] [__graph_code]     x", "    x"),
            ("V0101 12:00:00.000000 123 a/b.py:45] [0/0_1] [__graph_code]", ""),
            ("[rank0]:I0101 12:00:00.000 123 a.py:4] x", "x"),
            ("[default12]: [rank3]:  x", " x"),
            ("[a, b]", "[a, b]"),
            ("[rank]: x", "[rank]: x"),
            ("V0101 = x[0]", "V0101 = x[0]"),
            ("View = x[0]", "View = x[0]"),
            ("        x", "        x"),
            ("", ""),
        ] {
            assert_eq!(&line[prefix_len(line.as_bytes())..], rest, "{line}");
        }
    }

    #[test]
    fn a_log_of_several_ranks_is_taken_apart_and_keeps_its_line_numbers() {
        let log = b"[rank1]: a\nwarning\n[rank0]: b\n[default0]:[rank1]: c\n[rank0]: d".to_vec();
        let source = Source::new(log.clone()).unwrap();
        assert_eq!(source.text(), "warning\nb\nd\na\nc\n");
        assert_eq!(source.file().as_bytes(), log);
        let lines: Vec<usize> =
            (0..5).map(|line| source.line_of(source.text().match_indices('\n').nth(line).unwrap().0)).collect();
        assert_eq!(lines, [2, 3, 5, 1, 4]);
        assert_eq!([0, 8, 12].map(|at| source.rank(at)), [None, Some(0), Some(1)]);
        let apart = b"[rank1]: a\nwarning\n[rank1]: b\n[rank0]: c\n".to_vec();
        assert_eq!(Source::new(apart).unwrap().text(), "a\nwarning\nb\nc\n");
    }

    #[test]
    fn cleaned_text_knows_its_lines() {
        let source = Source::new(b"\x1b[1mI0101 12:00:00.000 1 a.py:4] ab\x1b[0m\r\ncd\r\n".to_vec()).unwrap();
        assert_eq!(source.text(), "ab\ncd\n");
        assert_eq!(source.raw_lines(3, 6), "cd\r\n");
        assert_eq!(source.raw_lines(0, 6), source.raw());
        assert_eq!(source.style(1), ("I0101 12:00:00.000 1 a.py:4] ".to_owned(), "\r\n"));
        assert_eq!(source.style(4).0, "");
        assert_eq!(source.line_of(4), 2);
    }
}
