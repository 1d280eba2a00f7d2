//! GPUs: NVIDIA's driver, its run-time compiler and its collectives, loaded at run time.
//!
//! Nothing here links to CUDA. A library or function that is missing is a [`LoadError`] with every place tried, so a
//! program that may run on a machine without a GPU asks, and goes on without.
//!
//! | part | is |
//! |---|---|
//! | [`Driver`], [`Device`] | the driver, and what it drives |
//! | [`Context`] | a device's primary context; makes all of the following |
//! | [`Stream`], [`Event`] | work in order, and order between streams |
//! | [`DeviceBuffer`], [`PinnedBuffer`] | memory of the device, and of the host for the device to copy from and to |
//! | [`Module`], [`Function`], [`Launch`] | kernels |
//! | [`nccl`] | collectives between GPUs: communicators, and calls on streams and device buffers |
//! | [`nvrtc`] | CUDA C++ to PTX or CUBIN, with a cache on disk |
//!
//! Copies, fills and launches return when they are enqueued. Whatever is dropped while the device still works with it
//! is freed after that work has ended; no drop waits for it. The bytes of a [`PinnedBuffer`] can be reached only when
//! no copy from or to it is in flight. Which stream waits for which is the caller's to say, with events: two streams
//! that use one device buffer without one race with each other, which gives wrong values, not broken memory.
//!
//! All handles may be sent to and used by any thread. Every call makes its context the thread's current one and leaves
//! it so, as the CUDA runtime does.
//!
//! Layers, as in `docs/design.md`: `sys` has C's names and types, `result` a function for each call and an owner for
//! each handle, `safe` lengths and lives. Handles of other libraries come in by [`Stream::from_raw`],
//! [`Context::from_raw`] and [`DeviceBuffer::from_raw`], and go out by `as_raw` and `pointer`.
//!
//! ```
//! use bucketeer_cuda::Driver;
//!
//! let driver = match Driver::load(None) {
//!     Ok(driver) => driver,
//!     Err(error) => {
//!         println!("no GPU here: {error}");
//!         return Ok(());
//!     }
//! };
//! let context = driver.device(0)?.context()?;
//! let stream = context.stream()?;
//! let buffer = context.alloc(8)?;
//! stream.upload(&[1, 2, 3, 4, 5, 6, 7, 8], &buffer, 0)?;
//! let mut half = [0; 4];
//! stream.download(&buffer, 4, &mut half)?;
//! assert_eq!(half, [5, 6, 7, 8]);
//! # Ok::<(), bucketeer_cuda::CudaError>(())
//! ```

#![deny(unsafe_code)]

mod error;
mod image;
mod load;
pub mod nccl;
pub mod nvrtc;
mod result;
mod safe;
mod sys;

pub use error::CudaError;
pub use image::{Image, ImageError, ImageKind};
pub use result::CallError;
pub use safe::{
    Arch, Arg, Context, Device, DeviceBuffer, Driver, Event, Function, Launch, Module, PinnedBuffer, Stream, Version,
};
pub use sys::CuResult;
pub use sys::load::{Attempt, LoadError};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a holder panicked: what our locks guard is whole at every point where a holder may panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
