//! Collectives between GPUs: NVIDIA's NCCL, loaded at run time.
//!
//! Nothing here links to NCCL. A library that is missing or too old is an error with every place tried; a function that
//! the loaded version does not have is [`NcclError::Unsupported`] when it is called.
//!
//! | part | is |
//! |---|---|
//! | [`Nccl`] | the library: its version, new names of communicators, communicators of one or several ranks |
//! | [`UniqueId`] | the name that the ranks of a communicator share |
//! | [`Comm`] | one rank's handle on a group of ranks; its calls are enqueued on a [`Stream`](crate::Stream) |
//! | [`Group`] | calls that are launched together |
//!
//! A call is checked before NCCL sees it: lengths, dtypes, alignment, ranks, devices, what may overlap. Buffers are
//! freed after the work on them, also when they are dropped earlier.
//!
//! Communicators do not block, where NCCL can that (2.14): no call waits for another rank longer than
//! [`InitOptions::timeout`]. Work on the device may wait longer, for a rank that never comes: a watchdog asks
//! [`Comm::check`] and ends it by [`Comm::abort`], from any thread. A [`Comm`] that is dropped without
//! [`Comm::close`] is aborted.
//!
//! Layers, as those of [the driver](crate): `sys` has C's names and types, `result` a function for each call and an
//! owner for each communicator, `safe` checks and lives.
//!
//! ```
//! use bucketeer_types::{DType, ReduceOp};
//! use bucketeer_cuda::Driver;
//! use bucketeer_cuda::nccl::{InitOptions, Nccl};
//!
//! let (nccl, driver) = match (Nccl::load(None), Driver::load(None)) {
//!     (Ok(nccl), Ok(driver)) => (nccl, driver),
//!     (nccl, driver) => {
//!         println!("no collectives here: {:?} {:?}", nccl.err(), driver.err());
//!         return Ok(());
//!     }
//! };
//! // A world of one; others get the bytes of the id, and their own rank.
//! let context = driver.device(0)?.context()?;
//! let comm = nccl.comm(&context, 0, 1, &nccl.unique_id()?, &InitOptions::default())?;
//! let (stream, buffer) = (context.stream()?, context.alloc(1024)?);
//! comm.all_reduce(&stream, &buffer, &buffer, DType::F32, ReduceOp::Sum.into())?;
//! stream.synchronize()?;
//! comm.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod result;
mod safe;
mod sys;

pub use error::NcclError;
pub use result::CallError;
#[doc(hidden)]
pub use safe::expect_reducible;
pub use safe::{Comm, Group, InitOptions, Nccl, NcclVersion, Registration, UniqueId};
pub use sys::{NcclDataType, NcclResult};
