//! Leases and the guards that lend their bytes.

#![expect(unsafe_code, reason = "a lease is what makes a borrow of the arena sound; see `memory`")]

use super::Buffer;
use crate::lock;
use std::ops::{Deref, DerefMut, Range};

/// The right to use a range, given back on drop. Losing one without a drop leaves the range in use for good, which is
/// safe.
pub struct Lease(Buffer);

impl Lease {
    /// The lease on the range of `buffer`, which was taken.
    pub(super) fn new(buffer: Buffer) -> Self {
        Self(buffer)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.0.arena.0.leases).give_back(&self.0.range());
    }
}

/// Bytes borrowed to read. Made by [`Buffer::read`].
pub struct ReadGuard(Lease);

impl ReadGuard {
    pub(super) fn new(lease: Lease) -> Self {
        Self(lease)
    }
}

impl Deref for ReadGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let buffer = &self.0.0;
        // SAFETY: this guard was made from a lease to read, so nobody holds one to write, and writers hold one.
        unsafe { buffer.arena.0.memory.bytes(buffer.range()) }
    }
}

/// Bytes borrowed to read and write. Made by [`Buffer::write`].
pub struct WriteGuard(Lease);

impl WriteGuard {
    pub(super) fn new(lease: Lease) -> Self {
        Self(lease)
    }
}

impl Deref for WriteGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let buffer = &self.0.0;
        // SAFETY: this guard was made from a lease to write, so nobody else holds any on the range.
        unsafe { buffer.arena.0.memory.bytes(buffer.range()) }
    }
}

impl DerefMut for WriteGuard {
    fn deref_mut(&mut self) -> &mut [u8] {
        let buffer = &self.0.0;
        // SAFETY: as above; `&mut self` keeps this guard's own borrows apart.
        unsafe { buffer.arena.0.memory.bytes_mut(buffer.range()) }
    }
}

impl Buffer {
    /// The bytes of `range`, counted from this buffer's start.
    ///
    /// # Safety
    /// Someone holds a lease on the range for as long as the slice lives, and nobody writes to it in that time.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    pub(crate) unsafe fn leased(&self, range: Range<usize>) -> &[u8] {
        let range = self.inside(range);
        // SAFETY: promised by the caller.
        unsafe { self.arena.0.memory.bytes(range) }
    }

    /// The bytes of `range`, counted from this buffer's start.
    ///
    /// # Safety
    /// Someone holds a lease to write the range for as long as the slice lives, and nobody else touches it in that
    /// time.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the range is its own")]
    pub(crate) unsafe fn leased_mut(&self, range: Range<usize>) -> &mut [u8] {
        let range = self.inside(range);
        // SAFETY: promised by the caller.
        unsafe { self.arena.0.memory.bytes_mut(range) }
    }

    /// Where the bytes begin, for libraries that take addresses. Whoever gives it away keeps a lease meanwhile.
    #[cfg(feature = "mpi")]
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.arena.0.memory.pointer(self.range.start)
    }

    fn inside(&self, range: Range<usize>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} is outside of {self:?}");
        self.range.start + range.start..self.range.start + range.end
    }
}
