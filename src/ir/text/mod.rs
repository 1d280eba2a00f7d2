//! The native text form: test input, dump and documentation at once.
//!
//! `parse(&print(g)) == g` for a graph whose collectives have [normal arguments](normalize), and `print` is canonical:
//! equal graphs give equal bytes. The grammar is in `docs/ir.md`.

mod call;
mod lex;
mod normal;
mod parse;
mod print;

pub use normal::{normalize, normalize_collective_args};
pub use parse::parse;
pub use print::print;

#[cfg(feature = "serde")]
pub(super) use lex::is_name;
#[cfg(feature = "serde")]
pub(super) use parse::Parser;
#[cfg(feature = "serde")]
pub(super) use print::Printer;

/// Deepest nesting of calls, lists and regions.
pub(super) const MAX_DEPTH: u32 = 64;

/// Where and why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}\n{}", self.excerpt())]
pub struct TextError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What stands there.
    pub found: String,
    /// What would have been right.
    pub expected: String,
    /// The line itself.
    pub source_line: String,
}

impl TextError {
    fn new(text: &str, at: usize, found: String, expected: impl Into<String>) -> Self {
        let mut at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |end| start + end);
        Self {
            line: before.matches('\n').count() + 1,
            column: text[start..at].chars().count() + 1,
            found,
            expected: expected.into(),
            source_line: text[start..line_end].trim_end_matches('\r').to_owned(),
        }
    }

    fn excerpt(&self) -> String {
        // A caret under tabs has to repeat them to stand right.
        let pad: String =
            self.source_line.chars().take(self.column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        let line = self.line.to_string();
        format!("  {line} | {}\n  {:width$} | {pad}^", self.source_line, "", width = line.len())
    }
}
