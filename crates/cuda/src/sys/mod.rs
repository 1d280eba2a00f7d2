//! libcuda and libnvrtc as C sees them: handles, codes, and the tables of functions, loaded at run time.
//!
//! A code is an integer with a name for each value that we know, never a closed enum: a newer library may answer with
//! one that we do not. Functions are called by [`result`](super::result) alone.

#![expect(unsafe_code, reason = "functions are taken out of a library by name, with the types that C's headers give")]

mod codes;
mod driver;
mod handles;
mod nvrtc;

pub(super) use crate::load;
use crate::load::library;
pub use codes::{CuResult, NvrtcResult};
pub use driver::{DeviceAttribute, Driver, EventFlags, FunctionAttribute, JitOption, StreamFlags};
pub use handles::{CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuModule, CuStream, NvrtcProgram};
pub use nvrtc::Nvrtc;
