//! Streams.

#![expect(unsafe_code, reason = "the door for streams of other libraries")]

use super::Context;
use crate::sys::CuStream;
use crate::{CudaError, result};
use std::ffi::c_void;
use std::sync::Arc;

/// A queue of work on a device, done in order. Clones are the same one.
#[derive(Clone)]
pub struct Stream {
    context: Context,
    raw: Arc<result::Stream>,
}

impl Stream {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        let raw = result::Stream::new(&context.inner().raw)?;
        Ok(Self { context: context.clone(), raw: Arc::new(raw) })
    }

    /// A stream that another library made and destroys.
    ///
    /// # Safety
    /// `raw` is a `CUstream` of this context and lives until the result, its clones and every buffer that was used on
    /// it are dropped.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: *mut c_void) -> Self {
        // SAFETY: promised by the caller.
        let raw = unsafe { result::Stream::borrow(&context.inner().raw, CuStream(raw)) };
        Self { context: context.clone(), raw: Arc::new(raw) }
    }

    /// The `CUstream`, for other libraries; valid as long as this. Buffers that they use on it are to be told by
    /// [`DeviceBuffer::used_on`](super::DeviceBuffer::used_on).
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.raw().0
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for all work enqueued so far, however long; an [`Event`](super::Event) waits with a limit.
    ///
    /// # Errors
    /// The first error of the work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.raw.synchronize()?)
    }

    /// Whether all work enqueued so far has ended.
    ///
    /// # Errors
    /// The first error of the work.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        Ok(self.raw.is_idle()?)
    }

    pub(super) fn raw(&self) -> &Arc<result::Stream> {
        &self.raw
    }
}
