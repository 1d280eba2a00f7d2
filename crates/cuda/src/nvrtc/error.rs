//! What can go wrong with the compiler.

use super::Request;
use crate::result::NvrtcCallError;
use crate::{Arch, ImageError, LoadError, Version};

/// Why nothing was compiled.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// The library is missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call failed for another reason than the source and the options.
    #[error("{0}")]
    Call(String),
    /// The source is at fault.
    #[error("the kernel does not compile:\n{log}{}", excerpt(lines))]
    Compile {
        /// What the compiler said.
        log: String,
        /// The lines of the source that it names, by number counted from 1.
        lines: Vec<(usize, String)>,
    },
    /// The architecture or an option is not known.
    #[error("NVRTC {version} refuses the options for {arch}: {log}; it compiles for {archs}")]
    Option {
        /// What was asked for.
        arch: Arch,
        /// Who refuses.
        version: Version,
        /// What it can do.
        archs: String,
        /// Its words.
        log: String,
    },
    /// A text cannot be handed to C.
    #[error("the {what} has a zero byte at {at}")]
    ZeroByte {
        /// Which text.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Request(&'static str),
    /// The compiler's answer is not an image.
    #[error("NVRTC's answer cannot be used: {0}")]
    Image(#[from] ImageError),
}

impl From<NvrtcCallError> for NvrtcError {
    fn from(error: NvrtcCallError) -> Self {
        Self::Call(error.to_string())
    }
}

/// Most lines to show.
const SHOWN: usize = 5;

/// The first lines of the source that a log names as `NAME(12)` or `NAME:12`.
pub fn lines_at_fault(request: &Request<'_>, log: &str) -> Vec<(usize, String)> {
    let mut numbers: Vec<usize> = Vec::new();
    for (at, _) in log.match_indices(request.name) {
        let rest = &log[at + request.name.len()..];
        let digits = rest.strip_prefix(['(', ':']).unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        numbers.extend(digits[..end].parse::<usize>().ok().filter(|number| !numbers.contains(number)));
    }
    let text = |number: usize| request.source.lines().nth(number.checked_sub(1)?).map(|line| (number, line.to_owned()));
    numbers.into_iter().filter_map(text).take(SHOWN).collect()
}

fn excerpt(lines: &[(usize, String)]) -> String {
    lines.iter().map(|(number, line)| format!("\n{number:>5} | {line}")).collect()
}
