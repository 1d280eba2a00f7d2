//! A context: what all of a device's objects are made in.

#![expect(unsafe_code, reason = "the door for contexts of other libraries")]

use super::retire::Retirement;
use super::{Device, DeviceBuffer, Event, Module, PinnedBuffer, Stream};
use crate::result::{self, CallError};
use crate::sys::{CuContext, CuResult, DeviceAttribute};
use crate::{CudaError, Image};
use std::ffi::c_void;
use std::sync::Arc;

/// A device's primary context: the one that the CUDA runtime uses, and so PyTorch and NCCL. Clones are the same one; it
/// lives as long as anything made in it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

pub(super) struct Inner {
    pub(super) raw: Arc<result::Context>,
    device: Device,
    pub(super) limits: Limits,
    pub(super) retirement: Retirement,
}

/// What a launch must stay within.
pub(super) struct Limits {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

impl Limits {
    fn of(device: &Device) -> Result<Self, CudaError> {
        let get = |attribute| device.attribute(attribute);
        Ok(Self {
            grid: [
                get(DeviceAttribute::MAX_GRID_DIM_X)?,
                get(DeviceAttribute::MAX_GRID_DIM_Y)?,
                get(DeviceAttribute::MAX_GRID_DIM_Z)?,
            ],
            block: [
                get(DeviceAttribute::MAX_BLOCK_DIM_X)?,
                get(DeviceAttribute::MAX_BLOCK_DIM_Y)?,
                get(DeviceAttribute::MAX_BLOCK_DIM_Z)?,
            ],
            threads: get(DeviceAttribute::MAX_THREADS_PER_BLOCK)?,
            shared_bytes: get(DeviceAttribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
        })
    }
}

impl Context {
    pub(super) fn retain(device: &Device) -> Result<Self, CudaError> {
        let limits = Limits::of(device)?;
        let raw = result::Context::retain(device.driver().api().clone(), device.handle())?;
        Ok(Self::new(device, limits, raw))
    }

    fn new(device: &Device, limits: Limits, raw: result::Context) -> Self {
        let retirement = Retirement::default();
        Self(Arc::new(Inner { raw: Arc::new(raw), device: device.clone(), limits, retirement }))
    }

    /// A context that another library made and destroys.
    ///
    /// # Errors
    /// When the device's limits cannot be asked for.
    ///
    /// # Safety
    /// `raw` is a `CUcontext` of this device, made through the same driver, and lives as long as the result and all
    /// that is made in it.
    pub unsafe fn from_raw(device: &Device, raw: *mut c_void) -> Result<Self, CudaError> {
        let limits = Limits::of(device)?;
        // SAFETY: promised by the caller.
        let raw = unsafe { result::Context::borrow(device.driver().api().clone(), device.handle(), CuContext(raw)) };
        Ok(Self::new(device, limits, raw))
    }

    /// The `CUcontext`, for other libraries; valid as long as this.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.raw.raw().0
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Makes it the calling thread's current one, for calls of other libraries. Calls here do so by themselves.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn make_current(&self) -> Result<(), CudaError> {
        Ok(self.0.raw.make_current()?)
    }

    /// Waits for all work on it, and frees what was dropped in the meantime.
    ///
    /// # Errors
    /// The first error of the work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.raw.synchronize()?;
        self.0.retirement.collect();
        Ok(())
    }

    /// Bytes of the device's memory: free, and in all.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        Ok(self.0.raw.memory()?)
    }

    /// Number of resources that were dropped and wait for work in flight to be freed.
    #[must_use]
    pub fn waiting_to_be_freed(&self) -> usize {
        self.0.retirement.collect();
        self.0.retirement.waiting()
    }

    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    /// When the driver cannot make one.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::new(self)
    }

    /// A new event for order alone, which is cheaper than one that tells the time.
    ///
    /// # Errors
    /// When the driver cannot make one.
    pub fn event(&self) -> Result<Event, CudaError> {
        Event::new(self, false)
    }

    /// A new event that tells the time: for [`Event::since`].
    ///
    /// # Errors
    /// When the driver cannot make one.
    pub fn timing_event(&self) -> Result<Event, CudaError> {
        Event::new(self, true)
    }

    /// Memory on the device, with unknown content. The driver aligns it to 256 bytes.
    ///
    /// # Errors
    /// When the device has not as much left.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        DeviceBuffer::new(self, bytes)
    }

    /// Page-locked memory of the host, all zero.
    ///
    /// # Errors
    /// When the host has not as much left.
    pub fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        PinnedBuffer::new(self, bytes)
    }

    /// Loads kernels.
    ///
    /// # Errors
    /// [`CudaError::OldDriver`] for PTX that is too new, [`CudaError::Module`] with the assembler's log for all else.
    pub fn load_module(&self, image: &Image) -> Result<Module, CudaError> {
        Module::load(self, image)
    }

    /// Makes it the calling thread's current one, as [`make_current`](Self::make_current), for an owner of memory that
    /// the context itself holds until work on it has ended.
    pub fn current_maker(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let raw = self.0.raw.clone();
        move || raw.make_current().is_ok()
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    /// That an object is of this context too.
    ///
    /// # Errors
    /// [`CudaError::Invalid`], naming `call`, `what` and both GPUs.
    pub fn expect_same(&self, other: &Self, call: &'static str, what: &str) -> Result<(), CudaError> {
        if self.0.raw.raw() == other.0.raw.raw() {
            return Ok(());
        }
        let (here, there) = (self.device().ordinal(), other.device().ordinal());
        Err(CudaError::invalid(call, format!("the {what} is of a context of GPU {there}, the stream of GPU {here}")))
    }

    /// Runs an allocation; when memory is short, once more after waiting a while for what was dropped in flight.
    pub(super) fn allocate<T>(
        &self,
        bytes: usize,
        make: impl Fn(&Arc<result::Context>) -> Result<T, CallError>,
    ) -> Result<T, CudaError> {
        self.0.retirement.collect();
        let is_short = |error: &CallError| error.code == CuResult::OUT_OF_MEMORY;
        let mut made = make(&self.0.raw);
        if made.as_ref().err().is_some_and(is_short) && self.0.retirement.settle() {
            made = make(&self.0.raw);
        }
        made.map_err(|error| {
            if !is_short(&error) {
                return error.into();
            }
            let (free, total) = self.0.raw.memory().unwrap_or_default();
            CudaError::OutOfMemory { bytes, free, total, error }
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.retirement.finish();
    }
}
