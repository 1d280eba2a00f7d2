//! A call that failed.

use crate::sys::{CuResult, NvrtcResult};

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name} ({}): {text}", code.0)]
pub struct CallError {
    /// The function, as the library exports it.
    pub call: &'static str,
    /// What it answered.
    pub code: CuResult,
    /// The code's name in C, or "unknown code" when the driver does not know it either.
    pub name: String,
    /// The driver's words for it.
    pub text: String,
}

/// A call of NVRTC that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name} ({})", code.0)]
pub struct NvrtcCallError {
    /// The function.
    pub call: &'static str,
    /// What it answered.
    pub code: NvrtcResult,
    /// The code's name in C.
    pub name: String,
}
