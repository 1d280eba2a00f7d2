//! Page-locked memory of the host.

#![expect(unsafe_code, reason = "the bytes are reached when no copy is in flight")]

use super::retire::{Resource, Uses};
use super::{Context, Stream};
use crate::CudaError;
use crate::lock;
use crate::result::{self, CallError, HostMemory};
use crate::sys::EventFlags;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Page-locked memory of the host, from and to which a device copies by itself. Its bytes can be reached when no copy
/// is in flight; one that is dropped earlier is freed after its copies.
pub struct PinnedBuffer {
    context: Context,
    /// None for no bytes.
    memory: Option<HostMemory>,
    bytes: usize,
    /// One for each stream that copies from or to it.
    copies: Mutex<Vec<Copies>>,
    uses: Uses,
}

/// The copies of one stream.
struct Copies {
    stream: Arc<result::Stream>,
    /// Recorded after the last of them; none when that failed, and the stream must tell.
    event: Option<result::Event>,
}

impl Copies {
    fn wait(&self) -> Result<(), CudaError> {
        Ok(self.event.as_ref().map_or_else(|| self.stream.synchronize(), result::Event::synchronize)?)
    }

    fn is_over(&self) -> Result<bool, CudaError> {
        Ok(self.event.as_ref().map_or_else(|| self.stream.is_idle(), result::Event::is_done)?)
    }
}

impl PinnedBuffer {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let memory = match bytes {
            0 => None,
            _ => Some(context.allocate(bytes, |raw| HostMemory::new(raw, bytes))?),
        };
        Ok(Self { context: context.clone(), memory, bytes, copies: Mutex::default(), uses: Uses::default() })
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether no copy from or to it is in flight.
    ///
    /// # Errors
    /// The first error of the work before the copies' end.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let copies = lock(&self.copies);
        copies.iter().try_fold(true, |idle, copies| Ok(idle & copies.is_over()?))
    }

    /// Its bytes, to read and write: waits for all copies from and to it.
    ///
    /// # Errors
    /// The first error of the work before the copies' end. The bytes cannot be reached then.
    pub fn bytes(&mut self) -> Result<&mut [u8], CudaError> {
        let copies = self.copies.get_mut().unwrap_or_else(PoisonError::into_inner);
        copies.iter().try_for_each(Copies::wait)?;
        Ok(match &mut self.memory {
            None => &mut [],
            // SAFETY: every copy has been waited for, and none can be enqueued while the slice borrows `self`.
            Some(memory) => unsafe { memory.bytes_mut() },
        })
    }

    /// The address of a range that is inside.
    pub(super) fn pointer(&self, range: &Range<usize>) -> NonNull<u8> {
        let start = self.memory.as_ref().map_or_else(NonNull::dangling, HostMemory::pointer);
        debug_assert!(range.end <= self.bytes, "checked by the caller");
        // SAFETY: the range is inside of the memory; without memory it is empty.
        unsafe { start.add(range.start) }
    }

    pub(super) fn expect_inside(&self, range: &Range<usize>, call: &'static str) -> Result<(), CudaError> {
        if range.start <= range.end && range.end <= self.bytes {
            return Ok(());
        }
        Err(CudaError::invalid(call, format!("bytes {range:?} are not inside of {self:?}")))
    }

    /// Enqueues a copy from or to it. From then on a drop waits for the stream's work, and the bytes for the copy.
    pub(super) fn copy_on(
        &self,
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), CallError>,
    ) -> Result<(), CudaError> {
        let stream = stream.raw();
        self.uses.add(stream);
        // Held until the event is recorded, so that no other thread's copy comes between.
        let mut copies = lock(&self.copies);
        let nth = copies.iter().position(|known| Arc::ptr_eq(&known.stream, stream)).unwrap_or_else(|| {
            copies.push(Copies { stream: stream.clone(), event: None });
            copies.len() - 1
        });
        let last = copies[nth].event.take();
        enqueue()?;
        let event = last.map_or_else(|| result::Event::new(stream.context(), EventFlags::DISABLE_TIMING), Ok)?;
        stream.record(&event)?;
        copies[nth].event = Some(event);
        Ok(())
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a page-locked buffer of {} bytes", self.bytes)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.context.inner().retirement.retire(&self.uses.take(), Resource::Host(memory));
        }
    }
}
