//! The memory plan: where in an arena each buffer lies, so that buffers in use at the same time never overlap.
//!
//! This is interval packing. Two ways are tried, and the smaller plan is taken:
//!
//! - **By time**: buffers in the order of their first step, each into the smallest hole that fits. Near-linear.
//! - **By size**: buffers in the order of their size, or of size by time, each at the lowest place that is free for all
//!   of its life. Costs the number of pairs that are in use at the same time, so it is tried only where that is bounded.
//!
//! Double buffering needs no rule of its own: two buckets in flight at once are in use at once, so they lie apart, and a
//! third takes the place of the first. Offsets do not change between runs.

use super::lives::lives;
use super::{Arena, ArenaOffset, Buffer, BufferKind, Program};
use std::collections::{BTreeMap, BTreeSet};

/// Most pairs of buffers in use at the same time for which placing by size is tried.
const MAX_PAIRS: u64 = 8_000_000;
/// How far above the largest live set a plan is good: percent, and the work in pairs and the times that it may be made
/// anew for that, with what lies on top placed earlier. A plan that is far off is worth more work.
const GOALS: [(u64, u64, u64); 2] = [(1, 4_000_000, 400), (5, 60_000_000, 8_000)];
/// Most buffers for which placing by size is tried.
const MAX_BUFFERS: usize = 200_000;

/// A buffer to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First step.
    pub start: u32,
    /// Last step; included.
    pub end: u32,
    /// Size, a multiple of the alignment.
    pub bytes: u64,
    /// Alignment, a power of two.
    pub align: u64,
}

/// Where intervals lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each, in the order given.
    pub offsets: Vec<u64>,
    /// Bytes of the arena.
    pub bytes: u64,
    /// The largest sum of sizes at one step.
    pub live_bytes: u64,
}

/// A plan would need more than 2^63 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffers in use at once pass 2^63 bytes")]
pub struct TooLarge;

impl Program {
    /// Gives every device, output and comm buffer that a step touches its place, and makes the arenas.
    ///
    /// # Errors
    /// [`TooLarge`]
    pub fn place_buffers(&mut self) -> Result<(), TooLarge> {
        let lives = lives(self);
        self.arenas.clear();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            buffer.place = None;
            let kind = match buffer.kind {
                BufferKind::Input | BufferKind::Constant => continue,
                BufferKind::Output | BufferKind::Device => BufferKind::Device,
                BufferKind::Comm => BufferKind::Comm,
            };
            if lives[index].is_none() {
                continue;
            }
            let same = |arena: &Arena| arena.kind == kind && arena.device == buffer.device;
            let arena = self.arenas.iter().position(same).unwrap_or_else(|| {
                self.arenas.push(Arena { kind, device: buffer.device.clone(), bytes: 0, live_bytes: 0 });
                members.push(Vec::new());
                members.len() - 1
            });
            members[arena].push(index);
        }
        for (arena, members) in members.iter().enumerate() {
            let interval = |&index: &usize| {
                let Buffer { bytes, align, .. } = self.buffers[index];
                let (start, end) = lives[index].unwrap_or_default();
                let bytes = bytes.checked_next_multiple_of(align).ok_or(TooLarge)?;
                Ok(Interval { start, end, bytes, align })
            };
            let intervals: Vec<Interval> = members.iter().map(interval).collect::<Result<_, TooLarge>>()?;
            let packing = pack(&intervals)?;
            self.arenas[arena].bytes = packing.bytes;
            self.arenas[arena].live_bytes = packing.live_bytes;
            for (&index, &offset) in members.iter().zip(&packing.offsets) {
                self.buffers[index].place = Some(ArenaOffset { arena: arena as u32, offset });
            }
        }
        Ok(())
    }
}

/// Packs intervals; see the module docs.
///
/// # Errors
/// [`TooLarge`]
pub fn pack(intervals: &[Interval]) -> Result<Packing, TooLarge> {
    let by_start = by_start(intervals);
    let (live_bytes, pairs) = live(intervals, &by_start)?;
    let mut best = by_time(intervals, &by_start)?;
    let within = |bytes: u64, percent: u64| bytes <= live_bytes.saturating_add(live_bytes / 100 * percent);
    if !within(best.1, GOALS[0].0) && pairs <= MAX_PAIRS && intervals.len() <= MAX_BUFFERS {
        let (mut best_order, mut least) = (by_start.clone(), u64::MAX);
        for order in orders::ALL {
            let order = order(intervals);
            let tried = by_size(intervals, &by_start, &order)?;
            if tried.1 < least {
                (best_order, least) = (order, tried.1);
            }
            if tried.1 < best.1 {
                best = tried;
            }
            if within(best.1, GOALS[0].0) {
                break;
            }
        }
        let work = pairs + 20 * intervals.len() as u64 + 1;
        let mut order = best_order;
        for (percent, most_work, most_rounds) in GOALS {
            let rounds = (most_work / work).min(most_rounds);
            climb(intervals, &by_start, &mut order, &mut best, rounds, &|bytes| within(bytes, percent))?;
        }
    }
    Ok(Packing { offsets: best.0, bytes: best.1, live_bytes })
}

/// Places what lies on top earlier, again and again; keeps the best plan and the last order.
fn climb(
    intervals: &[Interval],
    by_start: &[u32],
    order: &mut [u32],
    best: &mut Offsets,
    rounds: u64,
    good_enough: &dyn Fn(u64) -> bool,
) -> Result<(), TooLarge> {
    for round in 0..rounds {
        if good_enough(best.1) {
            break;
        }
        let tried = by_size(intervals, by_start, order)?;
        let top = order.iter().rposition(|&at| tried.0[at as usize] + intervals[at as usize].bytes == tried.1);
        if tried.1 < best.1 {
            *best = tried;
        }
        let Some(top) = top.filter(|&top| top > 0) else { break };
        // To the front, or only halfway: by turns, so that what is moved does not always displace the same.
        let to = if round % 3 == 2 { 0 } else { top / 2 };
        order[to..=top].rotate_right(1);
    }
    Ok(())
}

/// Indices in order of first steps; intervals without bytes take no part.
fn by_start(intervals: &[Interval]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..intervals.len() as u32).filter(|&at| intervals[at as usize].bytes > 0).collect();
    order.sort_by_key(|&at| intervals[at as usize].start);
    order
}

/// The largest live set, and how many pairs are in use at the same time.
fn live(intervals: &[Interval], by_start: &[u32]) -> Result<(u64, u64), TooLarge> {
    let mut by_end: Vec<u32> = by_start.to_vec();
    by_end.sort_by_key(|&at| intervals[at as usize].end);
    let (mut bytes, mut most, mut count, mut pairs, mut ended) = (0u64, 0u64, 0u64, 0u64, 0);
    for &at in by_start {
        let interval = intervals[at as usize];
        while let Some(&old) = by_end.get(ended)
            && intervals[old as usize].end < interval.start
        {
            bytes -= intervals[old as usize].bytes;
            count -= 1;
            ended += 1;
        }
        bytes = bytes.checked_add(interval.bytes).filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or(TooLarge)?;
        pairs = pairs.saturating_add(count);
        count += 1;
        most = most.max(bytes);
    }
    Ok((most, pairs))
}

type Offsets = (Vec<u64>, u64);

/// Holes of an arena that grows at its end.
#[derive(Default)]
struct Holes {
    /// Size by offset.
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    end: u64,
}

impl Holes {
    fn add(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before + size == offset
        {
            self.remove(before, size);
            (offset, bytes) = (before, bytes + size);
        }
        if let Some(&size) = self.by_offset.get(&(offset + bytes)) {
            self.remove(offset + bytes, size);
            bytes += size;
        }
        if bytes > 0 {
            self.by_offset.insert(offset, bytes);
            self.by_size.insert((bytes, offset));
        }
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(bytes, offset));
    }

    /// A place in the smallest hole that fits, or at the end.
    fn take(&mut self, bytes: u64, align: u64) -> Result<u64, TooLarge> {
        let fits = |&&(size, offset): &&(u64, u64)| offset.next_multiple_of(align) - offset + bytes <= size;
        let found = self.by_size.range((bytes, 0)..).take(16).find(fits).copied();
        if let Some((size, offset)) = found {
            self.remove(offset, size);
            let at = offset.next_multiple_of(align);
            self.add(offset, at - offset);
            self.add(at + bytes, offset + size - at - bytes);
            return Ok(at);
        }
        let last = self.by_offset.iter().next_back().map(|(&offset, &size)| (offset, size));
        let open = last.filter(|(offset, size)| offset + size == self.end);
        let start = open.map_or(self.end, |(offset, _)| offset);
        if let Some((offset, size)) = open {
            self.remove(offset, size);
        }
        let at = start.checked_next_multiple_of(align).ok_or(TooLarge)?;
        self.add(start, at - start);
        self.end = at.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok()).ok_or(TooLarge)?;
        Ok(at)
    }
}

fn by_time(intervals: &[Interval], by_start: &[u32]) -> Result<Offsets, TooLarge> {
    let mut by_end: Vec<u32> = by_start.to_vec();
    by_end.sort_by_key(|&at| intervals[at as usize].end);
    let mut offsets = vec![0; intervals.len()];
    let mut holes = Holes::default();
    let mut ended = 0;
    for &at in by_start {
        let Interval { start, bytes, align, .. } = intervals[at as usize];
        while let Some(&old) = by_end.get(ended)
            && intervals[old as usize].end < start
        {
            holes.add(offsets[old as usize], intervals[old as usize].bytes);
            ended += 1;
        }
        offsets[at as usize] = holes.take(bytes, align)?;
    }
    Ok((offsets, holes.end))
}

mod orders {
    use super::Interval;

    type Order = fn(&[Interval]) -> Vec<u32>;

    /// Every order that is tried.
    pub const ALL: [Order; 6] = [by_bytes, by_area, by_pressure, by_length, by_first, by_last];

    fn sorted(intervals: &[Interval], key: impl Fn(&Interval) -> (u128, u128)) -> Vec<u32> {
        let mut order: Vec<u32> = (0..intervals.len() as u32).filter(|&at| intervals[at as usize].bytes > 0).collect();
        order.sort_by_key(|&at| (std::cmp::Reverse(key(&intervals[at as usize])), at));
        order
    }

    fn length(interval: &Interval) -> u128 {
        u128::from(interval.end - interval.start) + 1
    }

    pub fn by_bytes(intervals: &[Interval]) -> Vec<u32> {
        sorted(intervals, |interval| (interval.bytes.into(), length(interval)))
    }

    pub fn by_length(intervals: &[Interval]) -> Vec<u32> {
        sorted(intervals, |interval| (length(interval), interval.bytes.into()))
    }

    pub fn by_first(intervals: &[Interval]) -> Vec<u32> {
        sorted(intervals, |interval| (u128::from(u32::MAX - interval.start), interval.bytes.into()))
    }

    pub fn by_last(intervals: &[Interval]) -> Vec<u32> {
        sorted(intervals, |interval| (interval.end.into(), interval.bytes.into()))
    }

    pub fn by_area(intervals: &[Interval]) -> Vec<u32> {
        sorted(intervals, |interval| (u128::from(interval.bytes) * length(interval), interval.bytes.into()))
    }

    /// Those that are in use at the step with the largest live set first, the largest of them first.
    pub fn by_pressure(intervals: &[Interval]) -> Vec<u32> {
        let mut changes: Vec<(u32, bool, i128)> = Vec::with_capacity(2 * intervals.len());
        for interval in intervals {
            changes.push((interval.start, false, interval.bytes.into()));
            changes.push((interval.end, true, -i128::from(interval.bytes)));
        }
        changes.sort_unstable();
        let (mut live, mut most, mut peak) = (0, 0, 0);
        for (step, _, change) in changes {
            live += change;
            if live > most {
                (most, peak) = (live, step);
            }
        }
        sorted(intervals, |interval| {
            let there = (interval.start..=interval.end).contains(&peak);
            (u128::from(there), interval.bytes.into())
        })
    }
}

/// Which placed intervals are in use at a step: a segment tree over places in order of first steps.
struct Placed<'a> {
    intervals: &'a [Interval],
    by_start: &'a [u32],
    /// By place: whether it is placed.
    placed: Vec<bool>,
    /// Lists of intervals, by node of the tree; an interval is in the few nodes that its life is made of.
    lists: Vec<Vec<u32>>,
    leaves: usize,
}

impl<'a> Placed<'a> {
    fn new(intervals: &'a [Interval], by_start: &'a [u32]) -> Self {
        let leaves = by_start.len().next_power_of_two();
        Self { intervals, by_start, placed: vec![false; intervals.len()], lists: vec![Vec::new(); 2 * leaves], leaves }
    }

    /// Places, in order of first steps, whose first step is at most `step`.
    fn until(&self, step: u32) -> usize {
        self.by_start.partition_point(|&at| self.intervals[at as usize].start <= step)
    }

    fn add(&mut self, at: u32) {
        self.placed[at as usize] = true;
        let Interval { start, end, .. } = self.intervals[at as usize];
        // Everything that starts during its life, itself included.
        let first = self.by_start.partition_point(|&other| self.intervals[other as usize].start < start);
        let (mut low, mut high) = (first + self.leaves, self.until(end) + self.leaves);
        while low < high {
            if low % 2 == 1 {
                self.lists[low].push(at);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.lists[high].push(at);
            }
            low /= 2;
            high /= 2;
        }
    }

    /// Placed intervals that are in use while `at` is.
    fn beside(&self, at: u32, found: &mut Vec<u32>) {
        found.clear();
        let Interval { start, end, .. } = self.intervals[at as usize];
        let first = self.by_start.partition_point(|&other| self.intervals[other as usize].start < start);
        // In use when it starts: their lives hold its own place.
        let mut node = first + self.leaves;
        while node > 0 {
            found
                .extend(self.lists[node].iter().copied().filter(|&other| self.intervals[other as usize].start < start));
            node /= 2;
        }
        // Or starting later.
        found
            .extend(self.by_start[first..self.until(end)].iter().copied().filter(|&other| self.placed[other as usize]));
    }
}

fn by_size(intervals: &[Interval], by_start: &[u32], order: &[u32]) -> Result<Offsets, TooLarge> {
    let mut placed = Placed::new(intervals, by_start);
    let mut offsets = vec![0u64; intervals.len()];
    let (mut beside, mut taken, mut end) = (Vec::new(), Vec::new(), 0u64);
    for &at in order {
        let Interval { bytes, align, .. } = intervals[at as usize];
        placed.beside(at, &mut beside);
        taken.clear();
        taken.extend(beside.iter().map(|&other| {
            let offset = offsets[other as usize];
            (offset, offset + intervals[other as usize].bytes)
        }));
        taken.sort_unstable();
        let mut free = 0u64;
        for &(from, to) in &taken {
            if free.checked_add(bytes).ok_or(TooLarge)? <= from {
                break;
            }
            if to > free {
                free = to.checked_next_multiple_of(align).ok_or(TooLarge)?;
            }
        }
        offsets[at as usize] = free;
        let last = free.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok()).ok_or(TooLarge)?;
        end = end.max(last);
        placed.add(at);
    }
    Ok((offsets, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start: u32, end: u32, bytes: u64) -> Interval {
        Interval { start, end, bytes, align: 1 }
    }

    fn check(intervals: &[Interval], offsets: &Offsets) {
        for (a, x) in intervals.iter().enumerate() {
            assert!(offsets.0[a] + x.bytes <= offsets.1);
            for (b, y) in intervals.iter().enumerate().skip(a + 1) {
                let at_once = x.start <= y.end && y.start <= x.end;
                let (p, q) = (offsets.0[a], offsets.0[b]);
                let apart = p + x.bytes <= q || q + y.bytes <= p || x.bytes == 0 || y.bytes == 0;
                assert!(!at_once || apart, "{x:?} at {p}, {y:?} at {q}");
            }
        }
    }

    #[test]
    fn buffers_that_follow_each_other_share_a_place_and_those_that_touch_do_not() {
        let packing = pack(&[interval(0, 1, 8), interval(2, 3, 8), interval(3, 4, 8)]).unwrap();
        assert_eq!(packing, Packing { offsets: vec![0, 0, 8], bytes: 16, live_bytes: 16 });
        assert_eq!(pack(&[]).unwrap().bytes, 0);
    }

    #[test]
    fn random_intervals_never_overlap_and_stay_near_the_bound() {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..60 {
            let intervals: Vec<Interval> = (0..round * 4)
                .map(|_| {
                    let start = next(100) as u32;
                    let (length, bits) = (next(12) as u32, next(10));
                    interval(start, start + length, next(1 << bits))
                })
                .collect();
            let starts = by_start(&intervals);
            check(&intervals, &by_time(&intervals, &starts).unwrap());
            for order in orders::ALL {
                check(&intervals, &by_size(&intervals, &starts, &order(&intervals)).unwrap());
            }
            let packing = pack(&intervals).unwrap();
            assert!(
                packing.bytes >= packing.live_bytes && packing.bytes <= packing.live_bytes * 5 / 4 + 16,
                "{packing:?}"
            );
        }
    }

    #[test]
    fn sizes_past_2_to_the_63_are_refused() {
        let half = 1u64 << 62;
        assert_eq!(pack(&[interval(0, 1, half), interval(1, 2, half)]), Err(TooLarge));
        assert!(pack(&[interval(0, 1, half), interval(2, 2, half)]).is_ok());
    }
}
