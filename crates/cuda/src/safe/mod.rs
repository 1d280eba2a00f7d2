//! Devices, streams and memory as their users see them: lengths are checked, and nothing is freed while in use.
//!
//! What the device works with is remembered by the streams it was given to ([`retire`]); a drop records an event on
//! each, and the resource is freed once all are over, at a later call or with its context.

mod context;
mod copy;
mod device;
mod event;
mod launch;
mod memory;
mod module;
mod pinned;
mod retire;
mod stream;

pub use context::Context;
pub use device::{Arch, Device, Driver, Version};
pub use event::Event;
pub use launch::{Arg, Launch};
pub use memory::DeviceBuffer;
pub use module::{Function, Module};
pub use pinned::PinnedBuffer;
pub use stream::Stream;
