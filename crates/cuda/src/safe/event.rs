//! Events.

use super::{Context, Stream};
use crate::sys::EventFlags;
use crate::{CudaError, result};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// A point in a stream's work. It is over from the start, until it is recorded.
pub struct Event {
    context: Context,
    pub(super) raw: result::Event,
    timing: bool,
}

impl Event {
    pub(super) fn new(context: &Context, timing: bool) -> Result<Self, CudaError> {
        let flags = if timing { EventFlags::DEFAULT } else { EventFlags::DISABLE_TIMING };
        Ok(Self { context: context.clone(), raw: result::Event::new(&context.inner().raw, flags)?, timing })
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The `CUevent`, for other libraries; valid as long as this.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.raw().0
    }

    /// Waits for it, however long.
    ///
    /// # Errors
    /// The first error of the work before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.raw.synchronize()?)
    }

    /// Whether it is over.
    ///
    /// # Errors
    /// The first error of the work before it.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        Ok(self.raw.is_done()?)
    }

    /// Waits for it for at most `timeout`; whether it is over.
    ///
    /// # Errors
    /// The first error of the work before it.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, CudaError> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        while !self.is_done()? {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Time from `start` to this one; both are over.
    ///
    /// # Errors
    /// When one is not over, or was made without timing.
    pub fn since(&self, start: &Self) -> Result<Duration, CudaError> {
        if !self.timing || !start.timing {
            return Err(CudaError::invalid(
                "Event::since",
                "the event does not tell the time: make it by timing_event",
            ));
        }
        let milliseconds = self.raw.milliseconds_since(&start.raw)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default())
    }
}

impl Stream {
    /// The event is over when all work enqueued so far has ended.
    ///
    /// # Errors
    /// When the event is of another context, or the driver refuses.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context().expect_same(event.context(), "Stream::record", "event")?;
        Ok(self.raw().record(&event.raw)?)
    }

    /// Work enqueued from now on waits for what the event was last recorded for. The event may be of another device.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        Ok(self.raw().wait(&event.raw)?)
    }
}
