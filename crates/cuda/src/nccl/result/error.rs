//! A call that failed.

use crate::nccl::sys::NcclResult;
use std::fmt;

/// A call of NCCL that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The function, as the library exports it.
    pub call: &'static str,
    /// What it answered.
    pub code: NcclResult,
    /// NCCL's words for the code.
    pub text: String,
    /// What `ncclGetLastError` had to say; empty when nothing, or when NCCL is older than 2.13.
    pub last: String,
    /// The communicator's rank and size, where the call was on one.
    pub rank: Option<(u32, u32)>,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.call)?;
        if let Some((rank, size)) = self.rank {
            write!(f, " on rank {rank} of {size}")?;
        }
        write!(f, " with {} ({}): {}", self.code.name(), self.code.0, self.text)?;
        if self.last.is_empty() { Ok(()) } else { write!(f, "; NCCL says: {}", self.last) }
    }
}

impl std::error::Error for CallError {}
