//! libnccl as C sees it: handles, codes, and the table of functions, loaded at run time.
//!
//! Codes, dtypes and reductions are integers with names for the values that we know, never closed enums: NCCL adds
//! codes (8 came with 2.30), and makes reductions at run time. Functions are called by [`result`](super::result) alone.

#![expect(unsafe_code, reason = "functions are taken out of a library by name, with the types that C's header gives")]

mod codes;
mod handles;
mod nccl;

pub use codes::{NcclDataType, NcclRedOp, NcclResult, ScalarResidence, WindowFlags};
pub use handles::{NcclComm, NcclConfig, NcclUniqueId, NcclWindow};
pub use nccl::Library;
