//! Why bytes are not a document, and why a document cannot be said in another form.

use super::document::Format;
use super::export::ExportError;
use super::fx::{FxError, FxPrintError};
use super::hlo::HloError;
use bucketeer::ir::json::JsonError;
use bucketeer::ir::text::TextError;

/// Where in a text a fault stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line, or the part of it around the column.
    pub source_line: String,
    /// Characters of `source_line` before the fault.
    pub caret: usize,
}

impl SourceLocation {
    /// The place of a byte in a text; bytes that are not UTF-8 are shown as `U+FFFD`.
    pub(super) fn of_byte(text: &[u8], at: usize) -> Self {
        let at = at.min(text.len());
        let start = memchr::memrchr(b'\n', &text[..at]).map_or(0, |newline| newline + 1);
        let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |newline| at + newline);
        let caret = String::from_utf8_lossy(&text[start..at]).chars().count();
        Self {
            line: memchr::memchr_iter(b'\n', &text[..at]).count() + 1,
            column: caret + 1,
            source_line: String::from_utf8_lossy(&text[start..end]).trim_end_matches('\r').to_owned(),
            caret,
        }
    }
}

/// Why bytes are not a document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is nothing in it.
    #[error("it is empty; expected FX text, HLO text, a program of torch.export, native text or JSON")]
    Empty,
    /// It begins as gzip does, but is not.
    #[error("it begins as gzip does, but does not decompress: {0}")]
    Gzip(#[source] std::io::Error),
    /// It decompresses to more than it could honestly hold.
    #[error("{compressed} bytes of gzip decompress to more than {limit} bytes, the most that is read of them")]
    TooLarge {
        /// Bytes of the file.
        compressed: usize,
        /// The most that is read.
        limit: u64,
    },
    /// Not UTF-8.
    #[error("found the byte {byte:#04x}, which is not UTF-8")]
    NotText {
        /// The first byte that is not.
        byte: u8,
        /// Where it stands.
        place: SourceLocation,
    },
    /// None of the forms.
    #[error("it is neither FX text, HLO text, a program of torch.export, native text nor JSON")]
    UnknownForm {
        /// The first line that says so.
        place: SourceLocation,
    },
    /// StableHLO, which is read to be inspected only.
    #[error(
        "it is StableHLO, which can only be inspected; rewriting happens on HLO text: `lowered.compile().as_text()`, or what \
         XLA_FLAGS=--xla_dump_to=FOLDER writes"
    )]
    StableHlo,
    /// A fault in a program of torch.export, or the archive around it.
    #[error(transparent)]
    Export(ExportError),
    /// A fault in FX text.
    #[error(transparent)]
    Fx(FxError),
    /// A fault in HLO text.
    #[error(transparent)]
    Hlo(HloError),
    /// A fault in native text.
    #[error("found {}, expected {}", .0.found, .0.expected)]
    Native(TextError),
    /// A fault in JSON.
    #[error("{error}")]
    Json {
        /// What is wrong.
        error: Box<JsonError>,
        /// Where, for faults of the JSON itself.
        place: Option<SourceLocation>,
    },
}

impl ReadError {
    /// Where the fault stands, if it stands anywhere.
    #[must_use]
    pub fn place(&self) -> Option<SourceLocation> {
        match self {
            Self::Empty | Self::Gzip(_) | Self::TooLarge { .. } | Self::StableHlo => None,
            Self::NotText { place, .. } | Self::UnknownForm { place } => Some(place.clone()),
            Self::Fx(error) => Some(SourceLocation {
                line: error.line,
                column: error.column,
                source_line: error.source_line.clone(),
                caret: error.caret,
            }),
            Self::Export(error) => error.place.clone(),
            Self::Hlo(error) => Some(error.place.clone()),
            Self::Native(error) => Some(SourceLocation {
                line: error.line,
                column: error.column,
                source_line: error.source_line.clone(),
                caret: error.column - 1,
            }),
            Self::Json { place, .. } => place.clone(),
        }
    }

    /// What is wrong, in a line, without its place.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Fx(error) => match &error.problem {
                Some(problem) => problem.clone(),
                None => format!("found `{}`", error.found),
            },
            Self::Export(error) => match &error.place {
                Some(_) => error.what(),
                None if error.expected.is_empty() => error.what(),
                None => format!("{}; expected {}", error.what(), error.expected),
            },
            Self::Hlo(error) => error.problem.clone(),
            Self::Native(error) => format!("found {}", error.found),
            other => other.to_string(),
        }
    }

    /// What would have been right, where one thing would have been.
    #[must_use]
    pub fn expected(&self) -> Option<&str> {
        match self {
            Self::Fx(error) => Some(&error.expected).filter(|text| !text.is_empty()).map(String::as_str),
            Self::Export(error) => Some(&error.expected).filter(|text| !text.is_empty()).map(String::as_str),
            Self::Hlo(error) => Some(&error.expected).filter(|text| !text.is_empty()).map(String::as_str),
            Self::Native(error) => Some(&error.expected),
            Self::UnknownForm { .. } => {
                Some("`class GraphModule(torch.nn.Module):`, `HloModule`, `x = input f32[8]` or `{`")
            }
            Self::NotText { .. } => Some("UTF-8 text"),
            Self::Empty | Self::Gzip(_) | Self::TooLarge { .. } | Self::StableHlo | Self::Json { .. } => None,
        }
    }
}

/// Why a document cannot be said in another form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// Only FX text holds several.
    #[error("it holds {found} graphs ({names}); {} holds exactly one", .to.title())]
    GraphCount {
        /// How many there are.
        found: usize,
        /// Their names.
        names: String,
        /// The form that was asked for.
        to: Format,
    },
    /// HLO text needs layouts and bodies of fusions, which only HLO text has.
    #[error("HLO text is made from HLO text only, and this is {}", .from.title())]
    IntoHlo {
        /// What it is.
        from: Format,
    },
    /// A program needs weights, a signature and schemas of operators, which only programs have.
    #[error(
        "a program of torch.export is made from one only, for its weights and signature have no counterpart elsewhere, \
         and this is {}", .from.title()
    )]
    IntoExport {
        /// What it is.
        from: Format,
    },
    /// FX text has no words for it.
    #[error(transparent)]
    Fx(#[from] FxPrintError),
    /// FX text has no words for it, which showed when it was read back.
    #[error("its FX text does not read back: {0}")]
    FxReadBack(FxError),
}
