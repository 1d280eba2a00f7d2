//! One Rust function for each call of the driver and of NVRTC, and an owner for each thing that they make.
//!
//! A call answers with a [`Result`] whose error has the call's name, the code, and the driver's own words for it. An
//! owner destroys what it owns when dropped, at once and whether or not the device still works with it: that no work is
//! in flight then is what [`safe`](super::safe) keeps. Owners make their context current before each call and leave it
//! so, as the CUDA runtime does.

#![expect(unsafe_code, reason = "calls into C; each says why it may")]

mod api;
mod context;
mod error;
mod memory;
mod module;
mod nvrtc;
mod stream;

pub use api::Api;
pub use context::Context;
pub use error::{CallError, NvrtcCallError};
pub use memory::{DeviceMemory, HostMemory};
pub use module::{Function, Module};
pub use nvrtc::{Compiler, Program};
pub use stream::{Event, Stream};
