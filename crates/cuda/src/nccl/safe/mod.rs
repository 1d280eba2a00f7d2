//! Communicators as their users see them: arguments are checked, nothing is freed while in use, nothing hangs.
//!
//! A communicator's handle is behind a lock ([`comm`]), which no wait for another rank holds: so any thread can abort
//! it. Buffers of a call that NCCL has not launched yet, in a group or because it does not block, are held until then;
//! from then on the stream's work keeps them, as for kernels.

#![expect(unsafe_code, reason = "arguments are checked here, and buffers held until their work is enqueued")]

mod calls;
mod check;
mod comm;
mod group;
mod init;
mod nccl;
mod register;

pub use check::expect_reducible;
pub use comm::Comm;
pub use group::Group;
pub use init::InitOptions;
pub use nccl::{Nccl, NcclVersion, UniqueId};
pub use register::Registration;
