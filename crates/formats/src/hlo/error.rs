//! What can be wrong with HLO text.

use crate::SourceLocation;

/// A fault in HLO text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HloError {
    /// Where it stands.
    pub place: SourceLocation,
    /// What is wrong, in a sentence.
    pub problem: String,
    /// What would have been right.
    pub expected: String,
}

impl std::fmt::Display for HloError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}: {}", self.place.line, self.place.column, self.problem)?;
        if self.expected.is_empty() { Ok(()) } else { write!(f, "; expected {}", self.expected) }
    }
}

impl std::error::Error for HloError {}

/// A fault at a byte of the text, before line and column are worked out.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: usize,
    pub problem: String,
    pub expected: String,
}

impl Fault {
    pub(super) fn new(at: usize, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), expected: expected.into() }
    }

    /// The same fault in a text that begins `by` bytes further on.
    pub(super) fn shifted(self, by: usize) -> Self {
        Self { at: self.at + by, ..self }
    }

    pub(super) fn in_text(self, text: &str) -> HloError {
        HloError {
            place: SourceLocation::of_byte(text.as_bytes(), self.at),
            problem: self.problem,
            expected: self.expected,
        }
    }
}
