//! What moves from where to where once all ranks have arrived, cut into tiles.
//!
//! A call becomes **segments**: a range of inputs, reduced or not, that goes to a range of outputs. Segments are laid
//! end to end and cut into tiles, each of which one thread moves alone, reading the ranks in order. A tile is worked
//! through in blocks that stay in the cache: each block is read from memory once and written once.

#![expect(unsafe_code, reason = "reads and writes the ranges that the round's leases cover")]

use crate::buffer::Buffer;
use crate::call::{Call, Op};
use crate::kernels;
use crate::signature::Described;
use std::ops::Range;

/// Bytes of a tile, counted once however many ranks read or write it.
const TILE_BYTES: usize = 256 << 10;
/// Bytes that the blocks of all ranks and the sum shall have together, to stay in a core's own cache.
const CACHE_BYTES: usize = 512 << 10;
/// Segments begin at multiples of this many bytes, so that no cut between tiles falls into an element.
const GRAIN_BYTES: usize = 64;

/// Which ranges a segment reads and writes. Offsets are bytes; ranks are places in the round.
#[derive(Clone, Copy, Debug)]
enum Motion {
    /// All inputs, reduced, to all outputs.
    ReduceToAll,
    /// All inputs from an offset on, reduced, to the start of one output.
    ReduceTo { to: usize, input_offset: usize },
    /// One input to all outputs, from an offset on.
    Spread { from: usize, output_offset: usize },
    /// One input to one output.
    Move { from: usize, input_offset: usize, to: usize, output_offset: usize },
}

struct Segment {
    call: usize,
    motion: Motion,
    bytes: usize,
    /// Where it begins among all segments, a multiple of [`GRAIN_BYTES`].
    start: usize,
}

/// The tiles of a round. Whoever moves one needs a claim on it from the round.
pub struct Plan {
    /// By call, then by place.
    calls: Vec<Vec<Call>>,
    segments: Vec<Segment>,
    /// End of the last segment.
    end: usize,
    /// Bytes read and written, all ranks together.
    traffic: usize,
}

impl Plan {
    /// The plan of calls that agree, by place and then by call. All places have equally many.
    pub fn new(posts: Vec<Vec<Call>>) -> Self {
        let count = posts.first().map_or(0, Vec::len);
        let mut calls: Vec<Vec<Call>> = (0..count).map(|_| Vec::with_capacity(posts.len())).collect();
        for post in posts {
            for (list, call) in calls.iter_mut().zip(post) {
                list.push(call);
            }
        }
        let mut plan = Self { calls: Vec::new(), segments: Vec::new(), end: 0, traffic: 0 };
        for (index, call) in calls.iter().enumerate() {
            plan.add(index, call);
        }
        plan.calls = calls;
        plan
    }

    /// Number of tiles.
    pub const fn tiles(&self) -> usize {
        self.end.div_ceil(TILE_BYTES)
    }

    /// Bytes read and written, all ranks together.
    pub const fn traffic(&self) -> usize {
        self.traffic
    }

    fn add(&mut self, index: usize, ranks: &[Call]) {
        let call = &ranks[0];
        let (input, output) = (call.input_bytes() as usize, call.output_bytes() as usize);
        match call.op() {
            Op::AllReduce(_) => self.push(index, Motion::ReduceToAll, input, 2 * ranks.len()),
            Op::AllGather => {
                for from in 0..ranks.len() {
                    let motion = Motion::Spread { from, output_offset: from * input };
                    self.push(index, motion, input, 1 + ranks.len());
                }
            }
            Op::ReduceScatter(_) => {
                for to in 0..ranks.len() {
                    let motion = Motion::ReduceTo { to, input_offset: to * output };
                    self.push(index, motion, output, 1 + ranks.len());
                }
            }
            Op::Broadcast { root } => {
                let motion = Motion::Spread { from: root.0 as usize, output_offset: 0 };
                self.push(index, motion, input, 1 + ranks.len());
            }
            Op::Reduce { root, .. } => {
                let root = root.0 as usize;
                self.push(index, Motion::ReduceTo { to: root, input_offset: 0 }, input, 1 + ranks.len());
                for other in (0..ranks.len()).filter(|place| *place != root) {
                    let motion = Motion::Move { from: other, input_offset: 0, to: other, output_offset: 0 };
                    self.push(index, motion, input, 2);
                }
            }
            Op::AllToAll { .. } => self.add_all_to_all(index, ranks),
            Op::Send { .. } | Op::Recv { .. } => {
                let motion = Motion::Move { from: 0, input_offset: 0, to: 1, output_offset: 0 };
                self.push(index, motion, input, 2);
            }
            Op::Barrier => {}
        }
    }

    fn add_all_to_all(&mut self, index: usize, ranks: &[Call]) {
        // Where the next part begins in each output: parts come from the ranks in order.
        let mut filled = vec![0; ranks.len()];
        for (from, call) in ranks.iter().enumerate() {
            let mut input_offset = 0;
            for (to, bytes) in call.split_bytes(ranks.len()).0.into_iter().enumerate() {
                let bytes = bytes as usize;
                let motion = Motion::Move { from, input_offset, to, output_offset: filled[to] };
                self.push(index, motion, bytes, 2);
                input_offset += bytes;
                filled[to] += bytes;
            }
        }
    }

    fn push(&mut self, call: usize, motion: Motion, bytes: usize, touched: usize) {
        if bytes > 0 {
            self.segments.push(Segment { call, motion, bytes, start: self.end });
            self.end = (self.end + bytes).next_multiple_of(GRAIN_BYTES);
            self.traffic = self.traffic.saturating_add(bytes.saturating_mul(touched));
        }
    }

    /// Moves one tile; none past the last.
    ///
    /// # Safety
    /// The leases that the calls took are held until this returns, and nobody else moves the same tile, before, now or
    /// later.
    pub unsafe fn run(&self, tile: usize, scratch: &mut Vec<u8>) {
        let (start, end) = (tile * TILE_BYTES, ((tile + 1) * TILE_BYTES).min(self.end));
        let first = self.segments.partition_point(|segment| segment.start + segment.bytes <= start);
        for segment in self.segments[first..].iter().take_while(|segment| segment.start < end) {
            let from = start.max(segment.start) - segment.start;
            let to = (end - segment.start).min(segment.bytes);
            // SAFETY: promised by the caller. No two tiles hold the same part of a segment.
            unsafe { self.run_part(segment, from..to, scratch) };
        }
    }

    /// Moves part of a segment.
    ///
    /// # Safety
    /// The leases that the calls took are held until this returns, and nobody else moves the same part of the segment.
    ///
    /// This is enough, as no byte that a part writes is touched by another part:
    /// - An output overlaps no other range of any rank: it has a lease to write. So only the segments of its own call
    ///   touch it, and `Plan::add` gives each byte of it to one segment.
    /// - In place, the input lies in the output or the output in the input, under one lease. Then the part that writes
    ///   a byte is the only one that reads it: an all-reduce or a reduce reads and writes at the same offset; a scatter
    ///   reads slot `to` of the inputs in segment `to` alone; a gather reads slot `from` in segment `from` alone, and
    ///   does not write it there.
    /// - Broadcasts do not read the inputs of other ranks than the root, for which there is no lease.
    unsafe fn run_part(&self, segment: &Segment, part: Range<usize>, scratch: &mut Vec<u8>) {
        let ranks = &self.calls[segment.call];
        match segment.motion {
            Motion::ReduceToAll => {
                for block in blocks(part, ranks.len()) {
                    // SAFETY: inputs are only read here; the slices end with the call.
                    unsafe { reduce(ranks, block.clone(), scratch) };
                    for call in ranks {
                        // SAFETY: this part's own range of the output; no slice of an input lives any more.
                        unsafe { output(call).leased_mut(block.clone()) }.copy_from_slice(scratch);
                    }
                }
            }
            Motion::ReduceTo { to, input_offset } => {
                for block in blocks(part, ranks.len()) {
                    // SAFETY: inputs are only read here; the slices end with the call.
                    unsafe { reduce(ranks, shifted(&block, input_offset), scratch) };
                    // SAFETY: this part's own range of the output; no slice of an input lives any more.
                    unsafe { output(&ranks[to]).leased_mut(block) }.copy_from_slice(scratch);
                }
            }
            Motion::Spread { from, output_offset } => {
                for block in blocks(part, 1) {
                    for call in ranks {
                        // SAFETY: this part's own ranges.
                        unsafe {
                            copy(input(&ranks[from]), block.clone(), output(call), shifted(&block, output_offset))
                        };
                    }
                }
            }
            Motion::Move { from, input_offset, to, output_offset } => {
                let (source, target) = (input(&ranks[from]), output(&ranks[to]));
                // SAFETY: this part's own ranges.
                unsafe { copy(source, shifted(&part, input_offset), target, shifted(&part, output_offset)) };
            }
        }
    }
}

/// Cuts a part so that a block of each rank and one of the sum fit into the cache.
fn blocks(part: Range<usize>, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (CACHE_BYTES / (ranks + 1)).clamp(4 << 10, 64 << 10) / GRAIN_BYTES * GRAIN_BYTES;
    let end = part.end;
    part.step_by(step).map(move |start| start..(start + step).min(end))
}

fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// # Panics
/// For a call without an input, for which `Plan::add` makes no segment that reads one.
fn input(call: &Call) -> &Buffer {
    call.input().expect("a call that is read from has an input")
}

/// # Panics
/// For a call without an output, for which `Plan::add` makes no segment that writes one.
fn output(call: &Call) -> &Buffer {
    call.output().expect("a call that is written to has an output")
}

/// Reduces a range of all inputs into `sum`, in the order of the ranks.
///
/// # Safety
/// Nobody writes to the range in any input.
unsafe fn reduce(ranks: &[Call], range: Range<usize>, sum: &mut Vec<u8>) {
    let (dtype, Some(reduction)) = (ranks[0].dtype(), ranks[0].op().reduction()) else { return };
    sum.clear();
    for (place, call) in ranks.iter().enumerate() {
        // SAFETY: promised by the caller.
        let bytes = unsafe { input(call).leased(range.clone()) };
        if place == 0 {
            sum.extend_from_slice(bytes);
            kernels::begin(reduction, dtype, sum);
        } else {
            kernels::combine(reduction, dtype, sum, bytes);
        }
    }
    // Ranks are numbered in 32 bits.
    kernels::finish(reduction, dtype, ranks.len() as u32, sum);
}

/// Copies unless both are the same range.
///
/// # Safety
/// Nobody writes to the source range, and nobody else touches the target range.
unsafe fn copy(source: &Buffer, from: Range<usize>, target: &Buffer, to: Range<usize>) {
    if source.is_at(from.start, target, to.start) {
        return;
    }
    // SAFETY: promised by the caller. The ranges do not overlap: leases keep different ranges apart, and the one case
    // in place, where they are the same, has returned.
    unsafe { target.leased_mut(to).copy_from_slice(source.leased(from)) };
}
