//! What can be wrong with exported programs.

use crate::SourceLocation;
use serde_json::value::RawValue;

/// A fault in an exported program, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// The member of the archive that it stands in, if it is an archive.
    pub member: Option<String>,
    /// Where it stands in the JSON; none for faults of the archive itself.
    pub place: Option<SourceLocation>,
    /// What is wrong, in a sentence.
    pub problem: String,
    /// What would have been right.
    pub expected: String,
}

impl ExportError {
    /// A fault of an archive.
    pub(super) fn of_archive(problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { member: None, place: None, problem: problem.into(), expected: expected.into() }
    }

    /// The sentence, with the member it is about.
    pub(crate) fn what(&self) -> String {
        match &self.member {
            Some(member) => format!("{member}: {}", self.problem),
            None => self.problem.clone(),
        }
    }
}

impl std::fmt::Display for ExportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "line {}, column {}: ", place.line, place.column)?;
        }
        f.write_str(&self.what())?;
        if self.expected.is_empty() { Ok(()) } else { write!(f, "; expected {}", self.expected) }
    }
}

impl std::error::Error for ExportError {}

/// A fault at a byte of the JSON, before line and column are worked out.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: usize,
    pub problem: String,
    pub expected: String,
}

impl Fault {
    pub fn new(at: usize, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), expected: expected.into() }
    }

    /// What serde_json found wrong in the part of the text that starts at `start`.
    pub fn of_json(part: &str, start: usize, error: &serde_json::Error) -> Self {
        let line = error.line().saturating_sub(1);
        let line_start = match line {
            0 => 0,
            _ => memchr::memchr_iter(b'\n', part.as_bytes()).nth(line - 1).map_or(part.len(), |at| at + 1),
        };
        let at = (line_start + error.column().saturating_sub(1)).min(part.len());
        let message = error.to_string();
        // The place is told beside the message, and for the whole text.
        let problem = message.rsplit_once(" at line ").map_or(&*message, |(problem, _)| problem);
        Self::new(start + at, problem, "")
    }

    pub fn in_text(self, text: &str, member: Option<&str>) -> ExportError {
        ExportError {
            member: member.map(str::to_owned),
            place: Some(SourceLocation::of_byte(text.as_bytes(), self.at)),
            problem: self.problem,
            expected: self.expected,
        }
    }
}

/// Where a part of a text starts in it.
pub(super) fn offset(text: &str, part: &RawValue) -> usize {
    part.get().as_ptr() as usize - text.as_ptr() as usize
}
