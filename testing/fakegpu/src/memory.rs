//! Allocations, poisoned and guarded.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Bytes before and behind each allocation that nobody may touch: a page, which keeps an allocation's alignment.
const GUARD: usize = 4096;
const ALIGN: usize = 256;
const FRESH: u8 = 0xcd;
const FREED: u8 = 0xdd;
const FENCE: u8 = 0xfd;
/// Most freed allocations that are kept: each has guards, too.
const QUARANTINED: usize = 1024;
/// Freed bytes that are kept, and of one block the bytes at each end that are looked at.
const QUARANTINE_BYTES: usize = 16 << 20;
const LOOKED_AT: usize = 64 << 10;

/// Whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressSpace {
    Device(i32),
    Host,
}

/// Raw memory with guards.
pub struct Block {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is reached through raw pointers only, by whoever the simulated device lets.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.checked_add(2 * GUARD)?, align).ok()?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        let block = Self { base, layout };
        block.fill(0, GUARD, FENCE);
        block.fill(GUARD, bytes, FRESH);
        block.fill(GUARD + bytes, GUARD, FENCE);
        Some(block)
    }

    fn fill(&self, at: usize, len: usize, value: u8) {
        debug_assert!(at + len <= self.layout.size());
        // SAFETY: inside of the block.
        unsafe { self.base.add(at).write_bytes(value, len) };
    }

    fn holds_only(&self, at: usize, len: usize, value: u8) -> bool {
        debug_assert!(at + len <= self.layout.size());
        // SAFETY: inside of the block, all of which was written. A kernel in flight may write to it at the same time;
        // then either answer is right.
        unsafe { std::slice::from_raw_parts(self.base.add(at), len) }.iter().all(|byte| *byte == value)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// An allocation.
#[derive(Clone)]
pub struct Allocation {
    /// Number in order of allocation.
    pub id: u64,
    pub place: AddressSpace,
    pub start: usize,
    pub bytes: usize,
    block: Arc<Block>,
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            AddressSpace::Device(device) => write!(f, "memory {} of {} bytes on GPU {device}", self.id, self.bytes),
            AddressSpace::Host => write!(f, "page-locked memory {} of {} bytes", self.id, self.bytes),
        }
    }
}

/// All memory.
#[derive(Default)]
pub struct Heap {
    live: BTreeMap<usize, Allocation>,
    freed: VecDeque<Allocation>,
    next_id: u64,
}

impl Heap {
    /// Bytes, not zero in number. None when the host has no more.
    pub fn allocate(&mut self, place: AddressSpace, bytes: usize) -> Option<usize> {
        self.allocate_aligned(place, bytes, ALIGN)
    }

    /// The same from an address on that is a multiple of `align`, a power of two up to that of a page.
    pub fn allocate_aligned(&mut self, place: AddressSpace, bytes: usize, align: usize) -> Option<usize> {
        let block = Arc::new(Block::new(bytes, align)?);
        let start = block.base as usize + GUARD;
        let id = self.next_id;
        self.next_id += 1;
        self.live.insert(start, Allocation { id, place, start, bytes, block });
        Some(start)
    }

    /// Frees what starts at an address; whether there was something.
    pub fn free(&mut self, start: usize, host: bool) -> bool {
        if self.live.get(&start).is_none_or(|found| (found.place == AddressSpace::Host) != host) {
            return false;
        }
        let Some(allocation) = self.live.remove(&start) else { return false };
        allocation.block.fill(GUARD, allocation.bytes, FREED);
        self.freed.push_back(allocation);
        let mut kept: usize = self.freed.iter().map(|freed| freed.bytes).sum();
        while kept > QUARANTINE_BYTES && self.freed.len() > 1 || self.freed.len() > QUARANTINED {
            kept -= self.freed.pop_front().map_or(0, |freed| freed.bytes);
        }
        true
    }

    /// Frees all of a device; how many there were.
    pub fn free_device(&mut self, device: i32) -> usize {
        let of_device = |allocation: &&Allocation| allocation.place == AddressSpace::Device(device);
        let starts: Vec<usize> = self.live.values().filter(of_device).map(|allocation| allocation.start).collect();
        starts.iter().filter(|start| self.free(**start, false)).count()
    }

    /// The live allocation that holds all of a range, or why there is none.
    pub fn find(&self, at: usize, bytes: usize) -> Result<&Allocation, String> {
        let before = self.live.range(..=at).next_back().map(|(_, allocation)| allocation);
        match before {
            Some(found) if at - found.start + bytes <= found.bytes => Ok(found),
            Some(found) if at - found.start <= found.bytes => {
                let excess = at - found.start + bytes - found.bytes;
                Err(format!("{bytes} bytes from byte {} of {found} on: {excess} too many", at - found.start))
            }
            _ => Err(match self.freed_at(at) {
                Some(freed) => format!("byte {} of {freed}, which is freed", at - freed.start),
                None => self.beside(at).unwrap_or_else(|| "an address of no memory".to_owned()),
            }),
        }
    }

    /// The freed allocation that an address is in, newest first.
    pub fn freed_at(&self, at: usize) -> Option<&Allocation> {
        self.freed.iter().rev().find(|freed| (freed.start..freed.start + freed.bytes).contains(&at))
    }

    /// The live allocation whose guard an address is in, in words.
    fn beside(&self, at: usize) -> Option<String> {
        let next = self.live.range(at..).next().map(|(start, allocation)| (start - at, "before", allocation));
        let last = self.live.range(..at).next_back();
        let last = last.map(|(start, allocation)| (at - start - allocation.bytes, "behind", allocation));
        let near = [last, next].into_iter().flatten().find(|(distance, ..)| *distance <= GUARD);
        near.map(|(distance, side, allocation)| format!("{distance} bytes {side} {allocation}"))
    }

    /// Whether an address is in or beside page-locked memory, live or freed.
    pub fn is_pinned(&self, at: usize) -> bool {
        let mut all = self.live.range(..=at).next_back().map(|(_, allocation)| allocation).into_iter();
        let near = |found: &Allocation| found.place == AddressSpace::Host && at < found.start + found.bytes + GUARD;
        all.any(near) || self.freed_at(at).is_some_and(|freed| freed.place == AddressSpace::Host)
    }

    /// The number and offset of an address, for the log.
    pub fn name(&self, at: u64) -> String {
        let Ok(at) = usize::try_from(at) else { return "?".to_owned() };
        let found = self.live.range(..=at).next_back().map(|(_, allocation)| allocation);
        match found.filter(|found| at - found.start <= found.bytes).or_else(|| self.freed_at(at)) {
            Some(found) => format!("{}+{}", found.id, at - found.start),
            None if at == 0 => "null".to_owned(),
            None => "?".to_owned(),
        }
    }

    /// What was written where nothing may be written. Mends it, so that it is told once.
    pub fn damage(&self) -> Vec<String> {
        let mut found = Vec::new();
        for allocation in self.live.values() {
            let (block, behind) = (&allocation.block, GUARD + allocation.bytes);
            for (at, side) in [(0, "before"), (behind, "behind")] {
                if !block.holds_only(at, GUARD, FENCE) {
                    found.push(format!("bytes {side} {allocation} were written"));
                    block.fill(at, GUARD, FENCE);
                }
            }
        }
        for freed in &self.freed {
            let ends = [GUARD, (GUARD + freed.bytes).saturating_sub(LOOKED_AT).max(GUARD)];
            let len = freed.bytes.min(LOOKED_AT);
            if ends.iter().any(|at| !freed.block.holds_only(*at, len, FREED)) {
                found.push(format!("{freed} was written after its free"));
                freed.block.fill(GUARD, freed.bytes, FREED);
            }
        }
        found
    }

    /// Bytes in use on a device.
    pub fn in_use(&self, device: i32) -> usize {
        self.live.values().filter(|found| found.place == AddressSpace::Device(device)).map(|found| found.bytes).sum()
    }

    /// Number of live allocations.
    pub fn len(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, value: u8) {
        // SAFETY: the tests write into blocks, guards included.
        unsafe { (at as *mut u8).write(value) };
    }

    #[test]
    fn a_range_is_found_up_to_its_last_byte() {
        let mut memory = Heap::default();
        let start = memory.allocate(AddressSpace::Device(0), 100).unwrap();
        assert_eq!(memory.find(start + 90, 10).map(|found| found.id), Ok(0));
        assert!(memory.find(start + 90, 11).is_err_and(|text| text.contains("1 too many")));
        assert!(memory.find(start - 1, 1).is_err_and(|text| text.contains("1 bytes before memory 0")));
        assert_eq!(memory.name(start as u64 + 7), "0+7");
    }

    #[test]
    fn freed_memory_is_known_as_such() {
        let mut memory = Heap::default();
        let start = memory.allocate(AddressSpace::Device(0), 100).unwrap();
        assert!(!memory.free(start, true), "not page-locked");
        assert!(memory.free(start, false) && !memory.free(start, false));
        assert!(memory.find(start + 3, 1).is_err_and(|text| text.contains("freed")));
        write(start + 99, 1);
        assert_eq!(memory.damage().len(), 1);
        assert!(memory.damage().is_empty(), "told once");
    }

    #[test]
    fn a_write_beside_an_allocation_is_seen() {
        let mut memory = Heap::default();
        let start = memory.allocate(AddressSpace::Device(0), 100).unwrap();
        assert!(memory.damage().is_empty());
        write(start + 100, 1);
        write(start - 1, 1);
        let damage = memory.damage();
        assert!(damage[0].contains("before") && damage[1].contains("behind"), "{damage:?}");
        write(start, 1);
        write(start + 99, 1);
        assert!(memory.damage().is_empty(), "inside");
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        assert!(Heap::default().allocate(AddressSpace::Host, usize::MAX - 5).is_none());
    }
}
