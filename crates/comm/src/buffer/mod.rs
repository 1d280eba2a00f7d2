//! Comm buffers: ranges of an arena, lent to collectives while these are in flight.
//!
//! An [`Arena`] is one allocation. A [`Buffer`] is a range of it, a handle that can be copied, cut and kept: an executor
//! places its comm buffers at fixed offsets once and uses them in each iteration. Neither holds the bytes; to touch them
//! one takes a **lease** on the range. [`Buffer::read`] and [`Buffer::write`] take one for as long as their guard lives.
//! Launching a collective takes one on its input (to read) and on its output (to write), and gives both back when the
//! collective ends: done, or failed and no longer touched by anyone. A lease to write overlaps no other lease, so a
//! buffer cannot be packed again, freed or read while a collective uses it; who tries gets
//! [`BufferError::InUse`], which names the holder. The allocation lives until the last buffer, guard and collective let
//! go of it.
//!
//! ```
//! use bucketeer_comm::Arena;
//!
//! let arena = Arena::new(1024)?;
//! let slot = arena.buffer(64, 16)?;
//! slot.write()?[0] = 7;
//! let reader = slot.read()?;
//! assert_eq!(reader[0], 7);
//! assert!(slot.write().is_err());
//! # Ok::<(), bucketeer_comm::BufferError>(())
//! ```

mod guard;
mod leases;
mod memory;

pub(super) use guard::Lease;
pub use guard::{ReadGuard, WriteGuard};
pub(super) use leases::Access;
pub use memory::ALIGN_BYTES;

use super::device::{DeviceBuffer, ordinal};
use super::lock;
use leases::Leases;
use memory::HostAllocation;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Why a range cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The arena cannot be allocated.
    #[error("an arena of {bytes} bytes cannot be allocated; {}", if *bytes > isize::MAX as u64 { "no arena has more than 2^63 bytes" } else { "there is not enough memory" })]
    Memory {
        /// How large it was to be.
        bytes: u64,
    },
    /// The range is not inside the arena or buffer.
    #[error("a range of {bytes} bytes at offset {offset} is not inside of {size} bytes")]
    Outside {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
        /// How long the whole is.
        size: u64,
    },
    /// Someone else uses part of the range.
    #[error("bytes {} to {} of the arena are in use by {holder}; wait for it first", range.start, range.end)]
    InUse {
        /// The range asked for, in bytes of the arena.
        range: Range<usize>,
        /// Who uses it.
        holder: Holder,
    },
    /// The host cannot reach the bytes.
    #[error(
        "{bytes} bytes of GPU {gpu} are not the host's to touch; give this backend memory of the host, or copy them first"
    )]
    OnDevice {
        /// How long the range is.
        bytes: u64,
        /// The ordinal of the device.
        gpu: u32,
    },
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A guard of [`Buffer::read`] or [`Buffer::write`].
    Host,
    /// A collective in flight.
    Call {
        /// What it does: `all_reduce`.
        op: &'static str,
        /// The name of its group.
        group: Arc<str>,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("a guard on the host"),
            Self::Call { op, group } => write!(f, "{op} of group {group}"),
        }
    }
}

struct Inner {
    /// Empty for memory of a device.
    memory: HostAllocation,
    device: Option<DeviceBuffer>,
    leases: Mutex<Leases>,
}

/// One allocation, zeroed, aligned to [`ALIGN_BYTES`]; see the module docs. Copies are handles to the same bytes.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

impl Arena {
    /// Allocates an arena. Pages are taken from the system when they are first touched.
    ///
    /// # Errors
    /// [`BufferError::Memory`] above 2^63 bytes, or when the system refuses.
    pub fn new(bytes: u64) -> Result<Self, BufferError> {
        let memory = usize::try_from(bytes).ok().and_then(HostAllocation::new).ok_or(BufferError::Memory { bytes })?;
        Ok(Self(Arc::new(Inner { memory, device: None, leases: Mutex::default() })))
    }

    /// Memory of a device, for backends whose calls run there. The host cannot touch it, and nobody takes leases on it:
    /// which of two users comes first is the order of streams and events, which the caller sees to.
    ///
    /// # Errors
    /// [`BufferError::Memory`] when not even its bookkeeping can be allocated.
    #[cfg(feature = "nccl")]
    pub fn on_device(memory: DeviceBuffer) -> Result<Self, BufferError> {
        let none = HostAllocation::new(0).ok_or(BufferError::Memory { bytes: 0 })?;
        Ok(Self(Arc::new(Inner { memory: none, device: Some(memory), leases: Mutex::default() })))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.device.as_ref().map_or(self.0.memory.len(), DeviceBuffer::len) as u64
    }

    /// The range of `bytes` bytes at `offset`. Ranges may overlap; leases keep their users apart.
    ///
    /// # Errors
    /// [`BufferError::Outside`].
    pub fn buffer(&self, offset: u64, bytes: u64) -> Result<Buffer, BufferError> {
        // As long as memory of the host or of a device, whose lengths are of type `usize`.
        Buffer { arena: self.clone(), range: 0..self.bytes() as usize }.part(offset, bytes)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.0.device.is_some() { " on a device" } else { "" };
        write!(f, "Arena({} bytes{place})", self.bytes())
    }
}

/// A range of an arena; see the module docs. Equal when it is the same range of the same arena.
#[derive(Clone)]
pub struct Buffer {
    arena: Arena,
    range: Range<usize>,
}

impl Buffer {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.len() as u64
    }

    /// Where it begins in its arena, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.range.start as u64
    }

    /// The part of `bytes` bytes at `offset`, counted from this buffer's start.
    ///
    /// # Errors
    /// [`BufferError::Outside`].
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Self, BufferError> {
        let size = self.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(BufferError::Outside { offset, bytes, size });
        }
        // Both are at most the size, which is a `usize`.
        let start = self.range.start + offset as usize;
        Ok(Self { arena: self.arena.clone(), range: start..start + bytes as usize })
    }

    /// The bytes on their device; none for memory of the host.
    #[cfg(feature = "nccl")]
    #[must_use]
    pub fn device(&self) -> Option<DeviceBuffer> {
        // A buffer's range is inside of its arena.
        self.arena.0.device.as_ref().and_then(|memory| memory.slice(self.range()).ok())
    }

    /// Borrows the bytes to read.
    ///
    /// # Errors
    /// [`BufferError::InUse`] while part of the range is being written, by a guard or a collective;
    /// [`BufferError::OnDevice`].
    pub fn read(&self) -> Result<ReadGuard, BufferError> {
        self.read_as(Holder::Host)
    }

    /// The same for a call in flight.
    pub(super) fn read_as(&self, holder: Holder) -> Result<ReadGuard, BufferError> {
        self.lease(Access::Read, holder).map(ReadGuard::new)
    }

    /// Borrows the bytes to read and write.
    ///
    /// # Errors
    /// [`BufferError::InUse`] while part of the range is used, by a guard or a collective; [`BufferError::OnDevice`].
    pub fn write(&self) -> Result<WriteGuard, BufferError> {
        self.write_as(Holder::Host)
    }

    /// The same for a call in flight.
    pub(super) fn write_as(&self, holder: Holder) -> Result<WriteGuard, BufferError> {
        self.lease(Access::Write, holder).map(WriteGuard::new)
    }

    /// Whether both are ranges of one arena that share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.arena.0, &other.arena.0)
            && self.range.start.max(other.range.start) < self.range.end.min(other.range.end)
    }

    /// Whether byte `offset` of this buffer is byte `other_offset` of the other.
    pub(super) fn is_at(&self, offset: usize, other: &Self, other_offset: usize) -> bool {
        Arc::ptr_eq(&self.arena.0, &other.arena.0) && self.range.start + offset == other.range.start + other_offset
    }

    pub(super) fn lease(&self, access: Access, holder: Holder) -> Result<Lease, BufferError> {
        if let Some(memory) = &self.arena.0.device {
            return Err(BufferError::OnDevice { bytes: self.bytes(), gpu: ordinal(memory) });
        }
        let taken = lock(&self.arena.0.leases).take(&self.range, access, &holder);
        match taken {
            Ok(()) => Ok(Lease::new(self.clone())),
            Err(holder) => Err(BufferError::InUse { range: self.range.clone(), holder }),
        }
    }

    /// The range in bytes of the arena.
    fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.arena.0, &other.arena.0) && self.range == other.range
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?} of {:?})", self.range, self.arena)
    }
}
