//! Memory that a communicator is told of beforehand.

use super::comm::{Inner, wait};
use super::{Comm, Group};
use crate::DeviceBuffer;
use crate::lock;
use crate::nccl::NcclError;
use crate::nccl::result::{Progress, Slot};
use crate::nccl::sys::{NcclWindow, WindowFlags};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Weak};

/// Memory that is registered. Dropped, it stays registered until its communicator is gone.
pub struct Registration {
    /// Whose it is.
    comm: Weak<Inner>,
    number: u64,
    handle: Handle,
}

enum Handle {
    Buffer(*mut c_void),
    Window(NcclWindow),
}

// SAFETY: the handle is given to calls that hold its communicator's lock, and to no others.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// NCCL maps whole pages of a window.
const WINDOW_ALIGN_BYTES: u64 = 4096;

impl Comm {
    /// Registers memory of [`Nccl::alloc`](super::Nccl::alloc), so that NCCL works in it without copies. The memory is
    /// held until it is deregistered or the communicator is closed.
    ///
    /// # Errors
    /// When the buffer is empty or of another device, or NCCL fails or is older than 2.19.
    pub fn register(&self, buffer: &DeviceBuffer) -> Result<Registration, NcclError> {
        const CALL: &str = "ncclCommRegister";
        self.expect_registrable(CALL, buffer)?;
        self.0.with(CALL, |comm, state| {
            // SAFETY: the buffer's memory is held below, until it is deregistered or the communicator is gone.
            let handle = unsafe { comm.register(buffer.pointer(), buffer.len()) };
            let handle = handle.ok_or_else(|| self.nccl().unsupported(CALL, 21_900))??;
            let number = state.registered.last().map_or(0, |(last, _)| last + 1);
            state.registered.push((number, buffer.clone()));
            Ok(self.registration(number, Handle::Buffer(handle)))
        })
    }

    /// Registers memory of [`Nccl::alloc`](super::Nccl::alloc) as this rank's part of a window, at the same offset on
    /// all ranks, who all call. Held as by [`register`](Self::register).
    ///
    /// # Errors
    /// As [`register`](Self::register), when the buffer does not begin at a page of 4096 bytes, when another rank does
    /// not come in time, and when NCCL is older than 2.27.
    pub fn register_window(&self, buffer: &DeviceBuffer) -> Result<Registration, NcclError> {
        const CALL: &str = "ncclCommWindowRegister";
        self.expect_registrable(CALL, buffer)?;
        if !buffer.pointer().is_multiple_of(WINDOW_ALIGN_BYTES) {
            return Err(NcclError::invalid(CALL, "a window begins at a page of 4096 bytes"));
        }
        let slot = Slot::default();
        let started = self.0.with(CALL, |comm, state| {
            // Held for good when NCCL may be at it still: it is not taken out again below.
            let number = state.registered.last().map_or(0, |(last, _)| last + 1);
            state.registered.push((number, buffer.clone()));
            // SAFETY: the slot is kept or leaked below; the memory as in `register`.
            let made = unsafe { comm.register_window(&slot, buffer.pointer(), buffer.len(), WindowFlags::SYMMETRIC) };
            Ok((number, made.ok_or_else(|| self.nccl().unsupported(CALL, 22_700))??))
        });
        let ready = started.and_then(|(number, progress)| {
            if progress == Progress::Pending {
                self.0.settle(CALL)?;
            }
            Ok(number)
        });
        match (ready, slot.written()) {
            (Ok(number), Some(raw)) => Ok(self.registration(number, Handle::Window(NcclWindow(raw)))),
            (Ok(_), None) => Err(NcclError::invalid(CALL, "NCCL made no window: the memory must be of Nccl::alloc")),
            (Err(error), _) => {
                slot.leak();
                Err(error)
            }
        }
    }

    fn registration(&self, number: u64, handle: Handle) -> Registration {
        Registration { comm: Arc::downgrade(&self.0), number, handle }
    }

    fn expect_registrable(&self, call: &'static str, buffer: &DeviceBuffer) -> Result<(), NcclError> {
        Group::expect_none(call)?;
        if buffer.is_empty() || buffer.context().as_raw() != self.context().as_raw() {
            return Err(NcclError::invalid(call, "the buffer is empty, or of another device than the communicator"));
        }
        Ok(())
    }

    /// Forgets registered memory; waits, at most for the communicator's timeout, for all work on it.
    ///
    /// # Errors
    /// When it is not of this communicator, the work fails or takes too long, or NCCL fails.
    pub fn deregister(&self, registration: Registration) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommDeregister";
        Group::expect_none(CALL)?;
        if !std::ptr::eq(registration.comm.as_ptr(), Arc::as_ptr(&self.0)) {
            return Err(NcclError::invalid(CALL, "it is of another communicator"));
        }
        wait(&self.0, CALL, || {
            self.0.with(CALL, |comm, state| {
                if comm.progress(CALL)? == Progress::Pending || !state.is_idle()? {
                    return Ok(None);
                }
                // SAFETY: made by this communicator and used once, as it is given up; no work is in flight.
                match registration.handle {
                    Handle::Buffer(handle) => unsafe { comm.deregister(handle) }?,
                    Handle::Window(window) => unsafe { comm.deregister_window(window) }?,
                }
                state.registered.retain(|(number, _)| *number != registration.number);
                Ok(Some(()))
            })
        })
    }

    /// Number of buffers that are registered.
    #[must_use]
    pub fn registered(&self) -> usize {
        lock(&self.0.state).registered.len()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registration {}", self.number)
    }
}
