//! What can go wrong with a GPU.

use super::result::CallError;
use super::safe::Version;
use super::sys::load::LoadError;

/// Why something on a GPU failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call of the driver failed. After a code that [is sticky](super::CuResult::is_sticky), the context is lost.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The arguments are wrong; nothing was enqueued.
    #[error("{call}: {reason}")]
    Invalid {
        /// What was called.
        call: &'static str,
        /// What was found, and what was expected.
        reason: String,
    },
    /// No such device.
    #[error("there is no GPU {ordinal}: the driver sees {count}, counted from 0")]
    NoDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// Memory is used up.
    #[error("{bytes} bytes cannot be allocated, {free} of {total} are free: {error}")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What the device has left; 0 when it could not be asked.
        free: usize,
        /// What the device has.
        total: usize,
        /// The driver's answer.
        error: CallError,
    },
    /// The driver refuses an image.
    #[error("the driver cannot load this {kind}: {error}{}", indented(log))]
    Module {
        /// PTX or CUBIN.
        kind: super::ImageKind,
        /// The driver's answer.
        error: CallError,
        /// What its assembler said.
        log: String,
    },
    /// PTX that is newer than the driver.
    #[error(
        "the PTX is of version {ptx}, and the driver, for CUDA {driver}, is too old for it: update the driver, or \
         compile to a CUBIN for the device's own architecture, or compile with an NVRTC no newer than CUDA {driver} ({error})"
    )]
    OldDriver {
        /// The text's `.version`.
        ptx: String,
        /// What the driver knows.
        driver: Version,
        /// The driver's answer.
        error: CallError,
    },
}

impl CudaError {
    /// That a call cannot be made so, and why.
    #[must_use]
    pub fn invalid(call: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { call, reason: reason.into() }
    }

    /// The driver's code, where a call of it failed.
    #[must_use]
    pub const fn code(&self) -> Option<super::CuResult> {
        match self {
            Self::Call(error)
            | Self::OutOfMemory { error, .. }
            | Self::Module { error, .. }
            | Self::OldDriver { error, .. } => Some(error.code),
            Self::Load(_) | Self::Invalid { .. } | Self::NoDevice { .. } => None,
        }
    }
}

/// A log below the line that it belongs to.
fn indented(log: &str) -> String {
    log.lines().map(|line| format!("\n  {line}")).collect()
}
