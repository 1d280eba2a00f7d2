//! What can go wrong with NCCL.

use super::NcclVersion;
use super::result::CallError;
use super::sys::NcclResult;
use crate::{CudaError, LoadError};
use std::path::PathBuf;
use std::time::Duration;

/// Why something with NCCL failed.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// The library is missing, or lacks a function that every version has.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library is older than what is needed at least.
    #[error("NCCL at {} is {found}, and {needed} is needed at least: install a newer nvidia-nccl package, or name another library in BUCKETEER_NCCL_LIB", path.display())]
    TooOld {
        /// Where it is.
        path: PathBuf,
        /// Its version.
        found: NcclVersion,
        /// What is needed.
        needed: NcclVersion,
    },
    /// The driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A call of NCCL failed, or work that was enqueued earlier.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The loaded version does not have a function.
    #[error("{call}: this NCCL is {found}, which does not have it; it came with {since}")]
    Unsupported {
        /// What was called.
        call: &'static str,
        /// The version that is loaded.
        found: NcclVersion,
        /// The first that has it.
        since: NcclVersion,
    },
    /// The arguments are wrong; nothing was enqueued.
    #[error("{call}: {reason}")]
    Invalid {
        /// What was called.
        call: &'static str,
        /// What was found, and what was expected.
        reason: String,
    },
    /// NCCL was still at a call when the time was over. The communicator is to be aborted.
    #[error("{call} on rank {rank} of {size} is not over after {timeout:?}: another rank did not come, or is gone")]
    Timeout {
        /// What was called.
        call: &'static str,
        /// The rank that waited.
        rank: u32,
        /// The number of ranks.
        size: u32,
        /// How long it waited.
        timeout: Duration,
    },
    /// The communicator was closed or aborted.
    #[error("{call}: the communicator of rank {rank} of {size} is closed or aborted")]
    Closed {
        /// What was called.
        call: &'static str,
        /// Its rank.
        rank: u32,
        /// Its size.
        size: u32,
    },
}

impl NcclError {
    pub(super) fn invalid(call: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { call, reason: reason.into() }
    }

    /// NCCL's code, where a call of it failed.
    #[must_use]
    pub const fn code(&self) -> Option<NcclResult> {
        match self {
            Self::Call(error) => Some(error.code),
            _ => None,
        }
    }
}
