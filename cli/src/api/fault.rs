//! What went wrong, as data.

use crate::fault::{InputFault, OptionFault, Refusal};
use std::any::Any;
use std::fmt;

/// What is at fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// The input.
    Input,
    /// The options, by themselves or for this input.
    Options,
    /// A proof or a check says no, or cannot decide.
    Refused,
    /// Anything else: a file that cannot be read, or bucketeer.
    Other,
}

/// Why there is no result. Prints as the command line says it, without `error:`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What is at fault.
    pub kind: FaultKind,
    /// All there is to say, in one or several lines.
    pub message: String,
    /// The file in which the fault stands. None where the graph was given as content, or where it is not known.
    pub file: Option<String>,
    /// Its line, from 1.
    pub line: Option<usize>,
    /// Its column in characters, from 1.
    pub column: Option<usize>,
    /// The line itself, or the part of it around the column.
    pub source_line: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    fn new(kind: FaultKind, message: String) -> Self {
        Self { kind, message, file: None, line: None, column: None, source_line: None }
    }

    /// Flags that the command line does not have, or not like this.
    pub(super) fn of_flags(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        // How the command is called, and where its help is, mean nothing here.
        let end = ["\n\nUsage:", "\n\nFor more information"].into_iter().filter_map(|mark| text.find(mark)).min();
        Self::new(FaultKind::Options, text[..end.unwrap_or(text.len())].trim_end().to_owned())
    }

    /// What a command says.
    pub(super) fn of_error(error: &anyhow::Error) -> Self {
        if let Some(fault) = error.downcast_ref::<InputFault>() {
            let place = fault.place();
            // Content has a name such as `<graph>`, and several files are a line each.
            let file = fault.file().filter(|file| !file.starts_with('<') && !file.contains('\n'));
            return Self {
                file: file.map(str::to_owned),
                line: place.map(|place| place.line),
                column: place.map(|place| place.column),
                source_line: place.map(|place| place.source_line.clone()),
                ..Self::new(FaultKind::Input, fault.to_string())
            };
        }
        let kind = if error.downcast_ref::<OptionFault>().is_some() {
            FaultKind::Options
        } else if error.downcast_ref::<Refusal>().is_some() {
            FaultKind::Refused
        } else {
            FaultKind::Other
        };
        Self::new(kind, format!("{error:#}"))
    }

    /// A promise of our own that was broken.
    pub(super) fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason is given");
        Self::new(FaultKind::Other, format!("{text}. That is a fault of bucketeer, please report it"))
    }
}
