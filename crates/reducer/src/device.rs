//! Buckets in the memory of a device: what is enqueued on the stream of the group's calls.
//!
//! All that touches a bucket runs on that one stream, in the order of the calls below, so that copies into a bucket come before
//! its collective, and reads of it afterwards. Texts of errors are for whoever knows which parameter it is about.

use crate::layout::Layout;
use bucketeer_comm::{Arena, Backend, Buffer, Group};
use bucketeer_cuda::{CudaError, DeviceBuffer, Event, Stream};
use std::time::Duration;

/// What was in a slot.
pub type Memory = DeviceBuffer;

/// The device of a group, and the stream of its calls.
pub struct OnDevice {
    stream: Stream,
}

/// A gradient in memory of a device, and what comes before and after it on other streams.
#[derive(Clone, Copy)]
pub struct DeviceGradient<'a> {
    pub(crate) memory: &'a DeviceBuffer,
    pub(crate) strides: Option<&'a [u64]>,
    pub(crate) after: Option<&'a Event>,
    pub(crate) copied: Option<&'a Event>,
}

impl<'a> DeviceGradient<'a> {
    /// A gradient of a parameter's elements, in the parameter's own order of memory (row-major, if that has holes), that is
    /// there already or was written on the reducer's own [`stream`](crate::Reducer::stream).
    #[must_use]
    pub const fn new(memory: &'a DeviceBuffer) -> Self {
        Self { memory, strides: None, after: None, copied: None }
    }

    /// The same of other strides, in elements.
    #[must_use]
    pub const fn strides(self, strides: &'a [u64]) -> Self {
        Self { strides: Some(strides), ..self }
    }

    /// The same once an event is over: recorded by its producer behind what writes it. Of this or another device.
    #[must_use]
    pub const fn after(self, event: &'a Event) -> Self {
        Self { after: Some(event), ..self }
    }

    /// Records an event behind the copy into the bucket: when that is over, the gradient's memory may be written again. Without
    /// one, it may when the step's results are there; who only drops the memory need not wait. Not recorded for a gradient
    /// that is in its slot, as that stays in use until the results are there.
    #[must_use]
    pub const fn copied(self, event: &'a Event) -> Self {
        Self { copied: Some(event), ..self }
    }
}

fn text(error: &CudaError) -> String {
    error.to_string()
}

/// A slot's bytes on the device.
pub fn memory_of(slot: &Buffer) -> Result<DeviceBuffer, String> {
    slot.device().ok_or_else(|| "its slot is memory of the host".to_owned())
}

impl OnDevice {
    /// Where a group's calls run, if that is a device.
    pub fn of(backend: &dyn Backend, group: &Group) -> Option<Self> {
        backend.stream(group).map(|stream| Self { stream })
    }

    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The ordinal of the device.
    pub fn gpu(&self) -> u32 {
        self.stream.context().device().ordinal()
    }

    /// Memory of zeros. Waits for these, and for nothing else.
    pub fn arena(&self, bytes: u64) -> Result<Arena, String> {
        let context = self.stream.context();
        let filled = || {
            let memory = context.alloc(usize::try_from(bytes).unwrap_or(usize::MAX))?;
            let own = context.stream()?;
            own.fill(&memory, 0..memory.len(), 0)?;
            own.synchronize()?;
            Ok(memory)
        };
        let memory = filled().map_err(|error| format!("{bytes} bytes for the buckets: {}", text(&error)))?;
        Arena::on_device(memory).map_err(|error| error.to_string())
    }

    /// Why a gradient cannot come from there, if it cannot.
    pub fn expect_here(&self, gradient: &DeviceGradient<'_>) -> Result<(), String> {
        let own = self.stream.context();
        let (found, gpu) = (gradient.memory.context(), self.gpu());
        if found.as_raw() != own.as_raw() {
            let other = found.device().ordinal();
            return Err(format!(
                "its gradient is memory of a context of GPU {other}, and its bucket that of GPU {gpu}: a parameter that \
                 moved to another device needs another reducer"
            ));
        }
        match gradient.copied {
            Some(event) if event.context().as_raw() != own.as_raw() => {
                let other = event.context().device().ordinal();
                Err(format!("the event to record behind its copy is of GPU {other}, and the copy runs on GPU {gpu}"))
            }
            _ => Ok(()),
        }
    }

    /// What is enqueued from now on comes after the event.
    pub fn wait(&self, event: &Event) -> Result<(), String> {
        self.stream.wait(event).map_err(|error| text(&error))
    }

    /// Copies a gradient to its slot.
    pub fn take(&self, gradient: &DeviceGradient<'_>, slot: &DeviceBuffer) -> Result<(), String> {
        gradient.after.map_or(Ok(()), |event| self.wait(event))?;
        let copied = self.stream.copy(gradient.memory, 0..gradient.memory.len(), slot, 0);
        let recorded = copied.and_then(|()| gradient.copied.map_or(Ok(()), |event| self.stream.record(event)));
        recorded.map_err(|error| text(&error))
    }

    /// Fills a slot with zeros.
    pub fn zero(&self, slot: &Buffer) -> Result<(), String> {
        let memory = memory_of(slot)?;
        self.stream.fill(&memory, 0..memory.len(), 0).map_err(|error| text(&error))
    }

    /// Copies what is in a slot elsewhere.
    pub fn save(&self, slot: &Buffer) -> Result<Memory, String> {
        let from = memory_of(slot)?;
        let saved = self.stream.context().alloc(from.len());
        let saved = saved.and_then(|to| self.stream.copy(&from, 0..from.len(), &to, 0).map(|()| to));
        saved.map_err(|error| text(&error))
    }

    /// Copies it back.
    pub fn restore(&self, saved: &Memory, slot: &Buffer) -> Result<(), String> {
        self.stream.copy(saved, 0..saved.len(), &memory_of(slot)?, 0).map_err(|error| text(&error))
    }

    /// Copies a slot to the host, behind all that is enqueued, and waits for it.
    pub fn download(&self, slot: &Buffer, target: &mut [u8]) -> Result<(), String> {
        self.stream.download(&memory_of(slot)?, 0, target).map_err(|error| text(&error))
    }

    /// Copies all gradients from their places to those of `next`, which lies in other memory, and waits for it, up to a limit:
    /// nobody who is told of a new slot writes to it too early.
    pub fn move_slots(&self, from: &Layout, next: &Layout, limit: Duration) -> Result<(), String> {
        for (from, to) in from.places.iter().zip(&next.places).filter(|(from, _)| from.slot.bytes() > 0) {
            self.restore(&memory_of(&from.slot)?, &to.slot)?;
        }
        match self.record()?.wait_timeout(limit) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("gradients have not moved to their new slots after {limit:?}")),
            Err(error) => Err(text(&error)),
        }
    }

    /// What is enqueued here comes after all that `old` has.
    pub fn follow(&self, old: &Self) -> Result<(), String> {
        old.record().and_then(|event| self.wait(&event))
    }

    /// An event behind all that is enqueued.
    pub fn record(&self) -> Result<Event, String> {
        let event = self.stream.context().event();
        let event = event.and_then(|event| self.stream.record(&event).map(|()| event));
        event.map_err(|error| text(&error))
    }
}
