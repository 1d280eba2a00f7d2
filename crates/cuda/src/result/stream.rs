//! Streams and events.

use super::{CallError, Context};
use crate::sys::{CuEvent, CuStream, EventFlags, StreamFlags};
use std::sync::Arc;

/// A queue of work that runs in order.
pub struct Stream {
    pub(super) context: Arc<Context>,
    raw: CuStream,
    owned: bool,
}

impl Stream {
    /// A new one, which does not wait for the legacy default stream.
    pub fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        context.make_current()?;
        let mut raw = CuStream::NULL;
        let api = &context.api;
        // SAFETY: writes one handle.
        let code = unsafe { (api.sys.cuStreamCreate)(&raw mut raw, StreamFlags::NON_BLOCKING) };
        api.check("cuStreamCreate", code)?;
        Ok(Self { context: context.clone(), raw, owned: true })
    }

    /// A stream of someone else, who destroys it.
    ///
    /// # Safety
    /// `raw` is a stream of this context, and lives as long as the result.
    pub unsafe fn borrow(context: &Arc<Context>, raw: CuStream) -> Self {
        Self { context: context.clone(), raw, owned: false }
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The handle.
    pub fn raw(&self) -> CuStream {
        self.raw
    }

    /// Waits for all work enqueued so far.
    pub fn synchronize(&self) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: the stream lives as long as `self`.
        api.check("cuStreamSynchronize", unsafe { (api.sys.cuStreamSynchronize)(self.raw) })
    }

    /// Whether all work enqueued so far has ended.
    pub fn is_idle(&self) -> Result<bool, CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: the stream lives as long as `self`.
        api.check_ready("cuStreamQuery", unsafe { (api.sys.cuStreamQuery)(self.raw) })
    }

    /// Later work waits for what the event was last recorded for.
    pub fn wait(&self, event: &Event) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: both live as long as they are borrowed; an event may be destroyed with waits for it in flight.
        api.check("cuStreamWaitEvent", unsafe { (api.sys.cuStreamWaitEvent)(self.raw, event.raw, 0) })
    }

    /// The event is over when all work enqueued so far has ended.
    pub fn record(&self, event: &Event) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: both live as long as they are borrowed; an event may be destroyed with a record of it in flight.
        api.check("cuEventRecord", unsafe { (api.sys.cuEventRecord)(event.raw, self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned && self.context.make_current().is_ok() {
            // SAFETY: made by `new`. Work in flight goes on and the driver frees the stream after it. An error leaves
            // it to the context's end.
            let _ = unsafe { (self.context.api.sys.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A point in a stream's work.
pub struct Event {
    context: Arc<Context>,
    raw: CuEvent,
}

impl Event {
    /// A new one, which counts as over until it is recorded.
    pub fn new(context: &Arc<Context>, flags: EventFlags) -> Result<Self, CallError> {
        context.make_current()?;
        let mut raw = CuEvent::NULL;
        let api = &context.api;
        // SAFETY: writes one handle.
        api.check("cuEventCreate", unsafe { (api.sys.cuEventCreate)(&raw mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The handle.
    pub fn raw(&self) -> CuEvent {
        self.raw
    }

    /// Waits for it.
    pub fn synchronize(&self) -> Result<(), CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: the event lives as long as `self`.
        api.check("cuEventSynchronize", unsafe { (api.sys.cuEventSynchronize)(self.raw) })
    }

    /// Whether it is over.
    pub fn is_done(&self) -> Result<bool, CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        // SAFETY: the event lives as long as `self`.
        api.check_ready("cuEventQuery", unsafe { (api.sys.cuEventQuery)(self.raw) })
    }

    /// Milliseconds from `start` to this one.
    pub fn milliseconds_since(&self, start: &Self) -> Result<f32, CallError> {
        self.context.make_current()?;
        let api = &self.context.api;
        let mut milliseconds = 0.0;
        // SAFETY: writes one float; both events live as long as they are borrowed.
        let code = unsafe { (api.sys.cuEventElapsedTime)(&raw mut milliseconds, start.raw, self.raw) };
        api.check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: made by `new`. Records and waits in flight stay valid, says the driver's manual. An error leaves
            // it to the context's end.
            let _ = unsafe { (self.context.api.sys.cuEventDestroy_v2)(self.raw) };
        }
    }
}
