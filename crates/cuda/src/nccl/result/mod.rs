//! One Rust function for each call of NCCL, and an owner for a communicator.
//!
//! A call answers with a [`Result`] whose error has the call's name, the code, and NCCL's own words for it. That a
//! communicator does not block is not an error: the call answers [`Progress::Pending`]. What the buffers of a call are, and
//! that they live long enough, is what [`safe`](super::safe) keeps.

#![expect(unsafe_code, reason = "calls into C; each says why it may")]

mod api;
mod comm;
mod error;

pub use api::{Api, Progress};
pub use comm::{Comm, Operands, Slot};
pub use error::CallError;
