//! Memory of a device.

#![expect(unsafe_code, reason = "the door for memory of other libraries")]

use super::retire::{Resource, Uses};
use super::{Context, Stream};
use crate::result::DeviceMemory;
use crate::{CudaError, sys::CuDevicePtr};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A range of bytes on a device. Clones and [slices](Self::slice) share the bytes, which are freed when the last of
/// them is dropped and the work is over that was enqueued on them.
#[derive(Clone)]
pub struct DeviceBuffer {
    allocation: Arc<Allocation>,
    range: Range<usize>,
}

struct Allocation {
    context: Context,
    pointer: CuDevicePtr,
    owner: Owner,
    uses: Uses,
}

/// Whose the memory is.
enum Owner {
    /// Freed here. None for no bytes.
    Driver(Option<DeviceMemory>),
    /// Freed by dropping this. None in the drop alone.
    Other(Option<Box<dyn Any + Send + Sync>>),
}

impl DeviceBuffer {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let memory = match bytes {
            0 => None,
            _ => Some(context.allocate(bytes, |raw| DeviceMemory::new(raw, bytes))?),
        };
        let pointer = memory.as_ref().map_or(0, DeviceMemory::pointer);
        Ok(Self::of(context, pointer, bytes, Owner::Driver(memory)))
    }

    /// Memory that another library allocated. `owner` frees it by its drop: after the last clone's, as soon as the work
    /// on the buffer has ended. Give `()` when someone else sees to that.
    ///
    /// # Safety
    /// `bytes` bytes at `pointer` are memory of this context's device until `owner` is dropped and all work on the
    /// buffer has ended, and not memory that the host uses.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, pointer: u64, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self::of(context, pointer, bytes, Owner::Other(Some(owner)))
    }

    fn of(context: &Context, pointer: CuDevicePtr, bytes: usize, owner: Owner) -> Self {
        let allocation = Allocation { context: context.clone(), pointer, owner, uses: Uses::default() };
        Self { allocation: Arc::new(allocation), range: 0..bytes }
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.allocation.context
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The address of its first byte on the device, for kernels and other libraries; valid as long as this.
    #[must_use]
    pub fn pointer(&self) -> u64 {
        self.allocation.pointer + self.range.start as u64
    }

    /// A part of it, counted from its start in bytes. Shares the memory.
    ///
    /// # Errors
    /// When the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, CudaError> {
        self.expect_inside(&range, "DeviceBuffer::slice")?;
        let start = self.range.start;
        Ok(Self { allocation: self.allocation.clone(), range: start + range.start..start + range.end })
    }

    /// Tells that work on `stream` uses the buffer that was, or is about to be, enqueued without being given it: by
    /// another library, or by a kernel that finds its address in a table. The buffer's memory then outlives the work
    /// that the stream holds when it is dropped.
    pub fn used_on(&self, stream: &Stream) {
        self.allocation.uses.add(stream.raw());
    }

    pub(super) fn expect_inside(&self, range: &Range<usize>, call: &'static str) -> Result<(), CudaError> {
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        Err(CudaError::invalid(call, format!("bytes {range:?} are not inside of {self:?}")))
    }

    /// Whether a byte of one is a byte of the other, too.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.pointer(), other.pointer());
        a < b + other.len() as u64 && b < a + self.len() as u64 && !self.is_empty() && !other.is_empty()
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a buffer of {} bytes on GPU {}", self.len(), self.context().device().ordinal())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let resource = match &mut self.owner {
            Owner::Driver(memory) => memory.take().map(Resource::Device),
            // Nobody's drop waits for the work.
            Owner::Other(owner) if owner.as_deref().is_some_and(|owner| owner.is::<()>()) => None,
            Owner::Other(owner) => owner.take().map(Resource::Other),
        };
        if let Some(resource) = resource {
            self.context.inner().retirement.retire(&self.uses.take(), resource);
        }
    }
}
