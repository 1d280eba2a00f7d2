//! Memory of a device and page-locked memory of the host, and what moves bytes between them.

use super::{CallError, Context, Stream};
use crate::sys::{CuDevicePtr, CuResult};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// An allocation on a device, freed at once when dropped.
pub struct DeviceMemory {
    context: Arc<Context>,
    pointer: CuDevicePtr,
}

impl DeviceMemory {
    /// `bytes` of it, not zero, with unknown content.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        context.make_current()?;
        let mut pointer = 0;
        let api = &context.api;
        // SAFETY: writes one pointer.
        api.check("cuMemAlloc_v2", unsafe { (api.sys.cuMemAlloc_v2)(&raw mut pointer, bytes) })?;
        Ok(Self { context: context.clone(), pointer })
    }

    /// Its address.
    pub fn pointer(&self) -> CuDevicePtr {
        self.pointer
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: made by `new`, freed here only. An error leaves it to the context's end.
            let _ = unsafe { (self.context.api.sys.cuMemFree_v2)(self.pointer) };
        }
    }
}

/// Page-locked memory of the host, which a device copies from and to by itself; freed at once when dropped.
pub struct HostMemory {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is this owner's alone, and may be used and freed by any thread.
unsafe impl Send for HostMemory {}
// SAFETY: a shared owner gives no access to the bytes but through unsafe functions.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `bytes` of it, not zero in number, all of them zero.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        context.make_current()?;
        let mut pointer: *mut c_void = std::ptr::null_mut();
        let api = &context.api;
        // SAFETY: writes one pointer.
        api.check("cuMemAllocHost_v2", unsafe { (api.sys.cuMemAllocHost_v2)(&raw mut pointer, bytes) })?;
        let pointer = NonNull::new(pointer.cast::<u8>())
            .ok_or_else(|| api.error("cuMemAllocHost_v2", CuResult::OUT_OF_MEMORY))?;
        // SAFETY: just allocated with `bytes` bytes; a slice of it later needs them written once.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), pointer, bytes })
    }

    /// Its address on the host.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// All of its bytes.
    ///
    /// # Safety
    /// No copy from or to it is in flight while the slice lives.
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes, written by `new`; `&mut self` keeps the host apart, the caller the device.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: made by `new`, freed here only. An error leaves it to the context's end.
            let _ = unsafe { (self.context.api.sys.cuMemFreeHost)(self.pointer.as_ptr().cast()) };
        }
    }
}

impl Stream {
    /// Enqueues a copy to a device.
    ///
    /// # Safety
    /// Until the copy has ended, both ranges of `bytes` bytes are allocated, and nobody writes to `from`.
    pub unsafe fn copy_to_device(&self, to: CuDevicePtr, from: *const u8, bytes: usize) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: promised by the caller.
        let code = unsafe { (api.sys.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.raw()) };
        api.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Enqueues a copy to the host.
    ///
    /// # Safety
    /// Until the copy has ended, both ranges of `bytes` bytes are allocated, and nobody touches `to`.
    pub unsafe fn copy_to_host(&self, to: *mut u8, from: CuDevicePtr, bytes: usize) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: promised by the caller.
        let code = unsafe { (api.sys.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.raw()) };
        api.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Enqueues a copy within a device.
    ///
    /// # Safety
    /// Until the copy has ended, both ranges of `bytes` bytes are allocated on the device; they do not overlap.
    pub unsafe fn copy(&self, to: CuDevicePtr, from: CuDevicePtr, bytes: usize) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: promised by the caller.
        let code = unsafe { (api.sys.cuMemcpyDtoDAsync_v2)(to, from, bytes, self.raw()) };
        api.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Enqueues a fill with one byte.
    ///
    /// # Safety
    /// Until the fill has ended, `bytes` bytes at `to` are allocated on the device.
    pub unsafe fn fill(&self, to: CuDevicePtr, value: u8, bytes: usize) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: promised by the caller.
        let code = unsafe { (api.sys.cuMemsetD8Async)(to, value, bytes, self.raw()) };
        api.check("cuMemsetD8Async", code)
    }
}
