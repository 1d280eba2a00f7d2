//! The bytes of an arena: one allocation, read and written through ranges.
//!
//! Only this file, `guard.rs` and, for the transfers of the local backend, `local/plan.rs` and `local/round.rs` say
//! `unsafe`. What makes it sound is kept by [`Leases`](super::leases::Leases): a range is handed out as `&mut` only to the holder of a lease for writing, as `&`
//! only to the holder of a lease for reading, and leases for writing overlap no other lease.

#![expect(unsafe_code, reason = "ranges of one allocation are borrowed apart from one another, checked at run time")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

/// Alignment of an arena's first byte: a line of cache, and more than any dtype needs.
pub const ALIGN_BYTES: usize = 64;

/// Zeroed bytes at a fixed address, freed on drop.
pub struct HostAllocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `HostAllocation` owns its bytes, which are tied to no thread. All access goes through `bytes` and `bytes_mut`,
// whose callers promise that no two threads use overlapping ranges at once unless both only read.
unsafe impl Send for HostAllocation {}
// SAFETY: as above.
unsafe impl Sync for HostAllocation {}

impl HostAllocation {
    /// Allocates; pages that nobody touches cost nothing. `None` when the size is above `isize::MAX` or the system
    /// refuses.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGN_BYTES).ok()?;
        if bytes == 0 {
            return Some(Self { start: NonNull::dangling(), layout });
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// The address of a byte; inside the allocation, or at its end, if `at` is.
    #[cfg(feature = "mpi")]
    pub const fn pointer(&self, at: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(at)
    }

    /// # Safety
    /// While the slice lives, nobody writes to the range.
    ///
    /// # Panics
    /// When the range is not inside the allocation.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} is outside of {} bytes", self.len());
        // SAFETY: the range is inside the allocation, which is initialised (zeroed) and lives as long as `self`; the
        // caller keeps writers away. With no allocation the slice is empty and the pointer dangling but not null.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// While the slice lives, nobody else reads or writes the range.
    ///
    /// # Panics
    /// When the range is not inside the allocation.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the range is its own")]
    pub unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} is outside of {} bytes", self.len());
        // SAFETY: as in `bytes`; the caller keeps all others away.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for HostAllocation {
    fn drop(&mut self) {
        if self.layout.size() != 0 {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and is freed once.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}
