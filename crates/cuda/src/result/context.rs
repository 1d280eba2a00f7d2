//! A device's primary context.

use super::{Api, CallError};
use crate::sys::{CuContext, CuDevice};
use std::sync::Arc;

/// A device's primary context, which is the one that the CUDA runtime, and so PyTorch and NCCL, use too.
pub struct Context {
    pub(super) api: Arc<Api>,
    device: CuDevice,
    raw: CuContext,
    /// Whether it is to be released.
    retained: bool,
}

impl Context {
    /// Retains a device's primary context; made if there is none yet.
    pub fn retain(api: Arc<Api>, device: CuDevice) -> Result<Self, CallError> {
        let mut raw = CuContext::NULL;
        // SAFETY: writes one handle.
        let code = unsafe { (api.sys.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { api, device, raw, retained: true })
    }

    /// A context of someone else, who destroys it.
    ///
    /// # Safety
    /// `raw` is a context of this driver on this device, and lives as long as the result.
    pub unsafe fn borrow(api: Arc<Api>, device: CuDevice, raw: CuContext) -> Self {
        Self { api, device, raw, retained: false }
    }

    /// The handle.
    pub fn raw(&self) -> CuContext {
        self.raw
    }

    /// Makes it the calling thread's context.
    pub fn make_current(&self) -> Result<(), CallError> {
        // SAFETY: the context lives as long as `self`.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.sys.cuCtxSetCurrent)(self.raw) })
    }

    /// Waits for all work on the context.
    pub fn synchronize(&self) -> Result<(), CallError> {
        self.make_current()?;
        // SAFETY: takes no pointer.
        self.api.check("cuCtxSynchronize", unsafe { (self.api.sys.cuCtxSynchronize)() })
    }

    /// Bytes of the device's memory: free, and in all.
    pub fn memory(&self) -> Result<(usize, usize), CallError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        let code = unsafe { (self.api.sys.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.api.check("cuMemGetInfo_v2", code)?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: retained once by `retain`; all that was made in it holds it by `Arc`, so is gone. An error leaves
            // the context to the process's end, which harms nobody.
            let _ = unsafe { (self.api.sys.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
