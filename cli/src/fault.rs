//! Faults of the input, and how they look.
//!
//! ```text
//! error: found `)`, expected a value
//!   graph.txt:12:27
//!   12 |     mm = torch.ops.aten.mm.default(x, );
//!      |                                       ^ expected a value
//! ```

use bucketeer::ir::{Graph, VerifyErrors};
use bucketeer_formats::fx::FxError;
use bucketeer_formats::{Document, ReadError, SourceLocation};
use std::fmt;

/// The input is at fault: exit code 1. Holds the whole message, and where the first fault stands if it stands anywhere.
#[derive(Debug)]
pub struct InputFault {
    message: String,
    file: Option<String>,
    place: Option<SourceLocation>,
}

impl fmt::Display for InputFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InputFault {}

/// Columns of a source line that are shown.
const WINDOW: usize = 160;
/// Longest text of a file that a message repeats.
const LONGEST_QUOTE: usize = 200;
/// Faults of one graph that are shown.
const MOST_FAULTS: usize = 20;

impl InputFault {
    /// A fault of a whole file.
    pub fn of_file(file: &str, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}\n  {file}"), file: Some(file.to_owned()), place: None }
    }

    /// A fault of a node that [`place_of`] found; of the whole file if it did not.
    pub fn of_place(file: &str, place: Option<SourceLocation>, what: impl fmt::Display) -> Self {
        match place {
            None => Self::of_file(file, what),
            Some(place) => {
                let message = format!("{what}\n{}", excerpt(file, &place, None));
                Self { message, file: Some(file.to_owned()), place: Some(place) }
            }
        }
    }

    /// A file that is not a document.
    pub fn of_read(file: &str, error: &ReadError) -> Self {
        let what = shorten(&error.what());
        match error.place() {
            None => Self::of_file(file, what),
            Some(place) => {
                let message = format!("{what}\n{}", excerpt(file, &place, error.expected()));
                Self { message, file: Some(file.to_owned()), place: Some(place) }
            }
        }
    }

    /// The file, as messages name it; several are a line each.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Where the first fault stands.
    pub const fn place(&self) -> Option<&SourceLocation> {
        self.place.as_ref()
    }

    /// A graph that could not be read, of a file in which others could.
    pub fn of_unread(file: &str, error: &FxError) -> Self {
        Self::of_read(file, &ReadError::Fx(error.clone()))
    }

    /// A graph that was never text and is not well-formed.
    pub fn of_graph(graph: &Graph, errors: &VerifyErrors) -> Self {
        let mut message = format!("graph `{}` is not well-formed", graph.name);
        for error in errors.0.iter().take(MOST_FAULTS) {
            message.push_str(&format!("\n  {}", shorten(&error.to_string())));
        }
        message.push_str(&and_more(errors));
        Self { message, file: None, place: None }
    }

    /// A graph of a document that is not well-formed.
    pub fn of_verify(file: &str, document: &Document, graph: usize, errors: &VerifyErrors) -> Self {
        let text = document.source();
        let name = &document.graphs()[graph].name;
        let mut message = format!("graph `{name}` is not well-formed");
        let mut first = None;
        for error in errors.0.iter().take(MOST_FAULTS) {
            let start = document.start_of(graph);
            let place = error.node().and_then(|node| definition(text, start, &node.name));
            let error = error.to_string();
            match place {
                Some(place) => {
                    let bare = excerpt(file, &place, None);
                    message.push_str(&format!("\n  {}\n{bare}", shorten(&error)));
                    first = first.or(Some(place));
                }
                None => message.push_str(&format!("\n  {}\n  {file}", shorten(&error))),
            }
        }
        message.push_str(&and_more(errors));
        Self { message, file: Some(file.to_owned()), place: first }
    }
}

/// How many faults are not shown.
fn and_more(errors: &VerifyErrors) -> String {
    match errors.0.len().saturating_sub(MOST_FAULTS) {
        0 => String::new(),
        rest => format!("\n  ... and {rest} more"),
    }
}

/// What the options ask for makes no sense, or is not to be had of this input.
#[derive(Debug)]
pub struct OptionFault(anyhow::Error);

impl OptionFault {
    /// That this is so is what an error says.
    pub fn of(error: anyhow::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for OptionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for OptionFault {}

/// A check says no, or cannot decide. Holds the whole message.
#[derive(Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Where a node of a document's graph is defined; none where lines mean little, as in JSON.
pub fn place_of(document: &Document, graph: usize, node: &str) -> Option<SourceLocation> {
    definition(document.source(), document.start_of(graph), node)
}

/// The line that defines a node of a document's graph; none where lines mean little, as in JSON.
pub fn point_at(file: &str, document: &Document, graph: usize, node: &str) -> Option<String> {
    Some(excerpt(file, &place_of(document, graph, node)?, None))
}

/// A text without what would scramble a terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// A text without what would scramble a terminal, cut if it is long.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST_QUOTE).map(visible).collect();
    if text.chars().nth(LONGEST_QUOTE).is_some() {
        short.push_str("...");
    }
    short
}

/// Control characters take one column and do nothing.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// The place, its line and a caret. Of a long line only the part around the caret is shown.
fn excerpt(file: &str, place: &SourceLocation, expected: Option<&str>) -> String {
    let chars: Vec<char> = place.source_line.chars().map(visible).collect();
    let start =
        if chars.len() <= WINDOW { 0 } else { place.caret.saturating_sub(WINDOW / 2).min(chars.len() - WINDOW) };
    let end = chars.len().min(start + WINDOW);
    let before = if start > 0 { "..." } else { "" };
    let after = if end < chars.len() { "..." } else { "" };
    let line: String = chars[start..end].iter().collect();
    let number = place.line.to_string();
    let pad = " ".repeat(place.caret.min(end).saturating_sub(start) + before.len());
    let label = expected.map_or_else(String::new, |text| format!(" expected {}", shorten(text)));
    format!(
        "  {file}:{number}:{}\n  {number} | {before}{line}{after}\n  {:width$} | {pad}^{label}",
        place.column,
        "",
        width = number.len()
    )
}

/// Where a node is defined: its name followed by `=` or `:`, in the graph that begins at that byte.
fn definition(text: &str, from: usize, name: &str) -> Option<SourceLocation> {
    if name.is_empty() {
        return None;
    }
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let defines = |&at: &usize| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].trim_start_matches(' ');
        let assigned = after.starts_with(':') || (after.starts_with('=') && !after.starts_with("=="));
        assigned && !before.is_some_and(word)
    };
    let at = text.get(from..)?.match_indices(name).map(|(at, _)| from + at).find(defines)?;
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    let caret = text[start..at].chars().count();
    Some(SourceLocation {
        line: text[..at].matches('\n').count() + 1,
        column: caret + 1,
        source_line: text[start..end].trim_end_matches('\r').to_owned(),
        caret,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_only_the_part_around_the_caret_is_shown() {
        for caret in [0, 79, 80, 81, 30_000, 59_950, 60_000] {
            let mut line: Vec<char> = vec!['x'; 60_001];
            line[caret] = '!';
            let place = SourceLocation { line: 7, column: caret + 1, source_line: line.into_iter().collect(), caret };
            let text = excerpt("f", &place, Some("more"));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("  f:7:{}", caret + 1));
            assert_eq!(lines[1].find('!'), lines[2].find('^'), "{caret}");
            assert!(lines.iter().all(|line| line.len() < 200), "{caret}");
        }
    }

    #[test]
    fn definitions_are_found_by_name() {
        let text = "s1 = f(s)\ndef forward(self, s: 'f32[2]'):\n    r: \"f32\" = g(s)\n    x == s\n";
        let from = text.find("def").unwrap();
        let place = definition(text, from, "r").unwrap();
        assert_eq!((place.line, place.column), (3, 5));
        assert_eq!(definition(text, from, "s").map(|p| p.line), Some(2));
        assert!(definition(text, 0, "").is_none());
        assert!(definition(text, 0, "t").is_none());
    }
}
