//! Collectives on buffers, between ranks. Nothing here knows of graphs or programs.
//!
//! | part | is |
//! |---|---|
//! | [`Backend`] | one rank's handle on its groups, in c10d's terms; each call returns [`Work`] |
//! | [`Arena`], [`Buffer`] | comm buffers at fixed offsets, lent to calls in flight |
//! | [`Call`], [`Op`], [`Reduction`] | what a call does, as data |
//! | [`CommError`] | what went wrong, with group, op, sequence number and ranks by name |
//! | [`nccl`] | ranks as processes with a GPU each, on NVIDIA's NCCL |
//! | [`store`] | where the ranks of several processes meet |
//! | [`rendezvous`] | which rank a process is, as its launcher says it |
//! | [`local`] | ranks as threads of one process, with a model of a network and faults on request |
//! | `mpi` | ranks as processes of MPI, for clusters of CPUs; with the feature `mpi` |
//! | [`fake`] | a rank without others |
//!
//! A failing call names the ranks at fault and releases all others; then the group goes on without them:
//!
//! ```
//! use bucketeer_types::GlobalRank;
//! use bucketeer_comm::local::{LocalOptions, run};
//! use bucketeer_comm::{Backend, CallOptions};
//! use std::time::Duration;
//!
//! let members = [0, 1, 2].map(GlobalRank);
//! let options = LocalOptions { timeout: Duration::from_millis(50), ..LocalOptions::default() };
//! let results = run(3, options, |rank| {
//!     let group = rank.new_group("world", &members)?;
//!     if rank.rank() == GlobalRank(1) {
//!         return Ok(String::new()); // leaves before the barrier
//!     }
//!     let error = rank.barrier(&group, &CallOptions::blocking()).expect_err("rank 1 is missing");
//!     let smaller = rank.shrink(&group, &error.culprits())?;
//!     rank.barrier(&smaller, &CallOptions::blocking())?;
//!     Ok::<_, bucketeer_comm::CommError>(format!("{error}; {} go on", smaller.size()))
//! })?;
//! let text = results[0].as_ref().expect("no panic").as_ref().unwrap();
//! assert!(text.ends_with("rank 1 dropped its handle; 2 go on"), "{text}");
//! # Ok::<(), bucketeer_comm::CommError>(())
//! ```

#![deny(unsafe_code)]

mod backend;
mod buffer;
mod call;
mod compare;
mod device;
mod error;
pub mod fake;
#[cfg(any(feature = "mpi", feature = "nccl"))]
mod forms;
mod group;
mod groups;
pub mod kernels;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
#[cfg(feature = "tcp")]
pub mod rendezvous;
mod signature;
pub mod store;
mod ticket;
mod transport;
mod work;

pub use backend::{Announced, Backend};
pub use buffer::{ALIGN_BYTES, Arena, Buffer, BufferError, Holder, ReadGuard, WriteGuard};
pub use call::{Call, Op, Operands, Reduction};
pub use error::{CommError, Fate, Site};
pub use group::Group;
pub use signature::{CallSignature, Described};
pub use work::{CallOptions, Completion, Work};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a holder panicked: what our locks guard is whole at every point where a holder may panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
