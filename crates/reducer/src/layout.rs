//! Where gradients lie: one allocation, buckets end to end in it, and each parameter's place in a bucket.
//!
//! The allocation has room for any assignment, so a rebuild needs no second one: gradients that are to be kept are moved
//! inside of it.

use crate::assign::{Assignment, Item};
use crate::hook::{BucketLayout, Part};
use crate::param::{Param, real};
use crate::reducer::BucketInfo;
use bucketeer_comm::{ALIGN_BYTES, Arena, Buffer, BufferError};
use bucketeer_types::DType;
use std::ops::Range;

/// A parameter as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Of the reals of the gradient itself.
    pub own: DType,
    /// Of the reals it is sent as.
    pub dtype: DType,
    /// Reals: one or two for each element.
    pub reals: u64,
    /// Whether it is rows and values, which have no place in the allocation.
    pub sparse: bool,
}

impl Sent {
    /// A parameter whose gradient is sent as it is, or in another dtype.
    pub fn of(param: &Param, wire: Option<DType>) -> Self {
        // Both were checked.
        let (own, reals) = real(param.dtype()).unwrap_or((DType::F32, 1));
        let dtype = if param.is_sparse() { own } else { wire.unwrap_or(own) };
        Self { own, dtype, reals: param.elements().saturating_mul(reals), sparse: param.is_sparse() }
    }

    /// Whether a bucket holds the gradient as it is.
    pub fn is_own(&self) -> bool {
        self.own == self.dtype
    }

    /// Bytes in a bucket.
    pub fn bytes(&self) -> u64 {
        self.reals.saturating_mul(self.dtype.bytes())
    }
}

/// What the assignment needs to know of parameters: their own bytes, and for the kind what they are sent as.
pub fn items(params: &[Param], wire: Option<DType>) -> Vec<Item> {
    let item = |param: &Param| {
        // Complex gradients share no bucket with reals, as in c10d.
        let dtype = if wire.is_some() && !param.is_sparse() && real(param.dtype()).is_some_and(|(_, reals)| reals == 1)
        {
            wire.unwrap_or(param.dtype())
        } else {
            param.dtype()
        };
        Item { bytes: param.bytes(), dtype, device: 0, sparse: param.is_sparse() }
    };
    params.iter().map(item).collect()
}

/// A bucket.
pub struct Bucket {
    /// What is in it.
    pub layout: BucketLayout,
    /// The cap that was in force.
    pub limit_bytes: u64,
    /// Bytes of the gradients in it, in their own dtype.
    pub gradient_bytes: u64,
    /// Whether it is one sparse parameter.
    pub sparse: bool,
    /// Its memory.
    pub buffer: Buffer,
}

/// A parameter's place.
pub struct Place {
    /// Its bucket.
    pub bucket: usize,
    /// Its memory; empty for sparse gradients.
    pub slot: Buffer,
}

/// All buckets.
pub struct Layout {
    /// Counted up by each rebuild.
    pub generation: u64,
    /// In the order of launches.
    pub buckets: Vec<Bucket>,
    /// By parameter.
    pub places: Vec<Place>,
    /// The allocation.
    pub arena: Arena,
}

/// Bytes that any assignment of the parameters fits into.
pub fn arena_bytes(sent: &[Sent]) -> u64 {
    let aligned = |one: &Sent| if one.sparse { 0 } else { one.bytes().saturating_add(ALIGN_BYTES as u64) };
    sent.iter().map(aligned).fold(0, u64::saturating_add)
}

impl Layout {
    /// Lays buckets out in an allocation of [`arena_bytes`].
    ///
    /// # Errors
    /// [`BufferError::Outside`] for a smaller one.
    pub fn new(
        assignment: &Assignment,
        params: &[Param],
        sent: &[Sent],
        arena: Arena,
        generation: u64,
    ) -> Result<Self, BufferError> {
        let count = assignment.buckets.len();
        let mut buckets = Vec::with_capacity(count);
        let mut places: Vec<Option<Place>> = params.iter().map(|_| None).collect();
        let mut start = 0u64;
        for (index, (indices, limit)) in assignment.buckets.iter().zip(&assignment.limits_bytes).enumerate() {
            let dtype = indices.first().map_or(DType::F32, |param| sent[*param].dtype);
            let (mut parts, mut at, mut gradient_bytes) = (Vec::with_capacity(indices.len()), 0u64, 0u64);
            let sparse = indices.first().is_some_and(|param| sent[*param].sparse);
            for &param in indices {
                let reals = if sparse { 0 } else { sent[param].reals };
                let slot = arena.buffer(start + at * dtype.bytes(), reals * dtype.bytes())?;
                places[param] = Some(Place { bucket: index, slot });
                // Inside of an allocation, so below 2^63.
                let range = at as usize..(at + reals) as usize;
                parts.push(Part { param, shape: params[param].shape().to_vec(), range });
                at += reals;
                gradient_bytes = gradient_bytes.saturating_add(params[param].bytes());
            }
            let buffer = arena.buffer(start, at * dtype.bytes())?;
            let layout = BucketLayout { index, count, dtype, parts };
            buckets.push(Bucket { layout, limit_bytes: *limit, gradient_bytes, sparse, buffer });
            start += (at * dtype.bytes()).next_multiple_of(ALIGN_BYTES as u64);
        }
        // An assignment names each parameter.
        let places = places.into_iter().flatten().collect();
        Ok(Self { generation, buckets, places, arena })
    }

    /// The assignment it was made of, as parameter indices by bucket.
    pub fn indices(&self) -> Vec<Vec<usize>> {
        let of = |bucket: &Bucket| bucket.layout.parts.iter().map(|part| part.param).collect();
        self.buckets.iter().map(of).collect()
    }

    /// What users are told of buckets.
    pub fn infos(&self) -> Vec<BucketInfo> {
        let info = |bucket: &Bucket| BucketInfo {
            params: bucket.layout.parts.iter().map(|part| part.param).collect(),
            bytes: bucket.gradient_bytes,
            limit_bytes: bucket.limit_bytes,
        };
        self.buckets.iter().map(info).collect()
    }

    /// The assignment it was made of.
    pub fn assignment(&self) -> Assignment {
        let limits_bytes = self.buckets.iter().map(|bucket| bucket.limit_bytes).collect();
        Assignment { buckets: self.indices(), limits_bytes }
    }

    /// Moves all gradients from their places to those of `next`, which lies in the same allocation.
    ///
    /// # Errors
    /// [`BufferError`], while a guard is held on a slot, or for memory of a device.
    pub fn move_to(&self, next: &Self) -> Result<(), BufferError> {
        let range = |slot: &Buffer| slot.offset() as usize..(slot.offset() + slot.bytes()) as usize;
        let mut moves: Vec<(Range<usize>, usize)> = self
            .places
            .iter()
            .zip(&next.places)
            .filter(|(place, _)| place.slot.bytes() > 0)
            .map(|(from, to)| (range(&from.slot), to.slot.offset() as usize))
            .collect();
        moves.sort_unstable_by_key(|(from, _)| from.start);
        let mut bytes = self.arena.buffer(0, self.arena.bytes())?.write()?;
        permute(&mut bytes, &moves);
        Ok(())
    }
}

/// Moves blocks of memory, given in the order of their starts, to where each is to begin. Blocks overlap neither before nor
/// afterwards. In place, by merging runs with rotations: `n log² n` steps in the worst case, for blocks of `n` bytes in
/// all, once or twice in a training.
fn permute(bytes: &mut [u8], moves: &[(Range<usize>, usize)]) {
    // End to end at the front first, then in the order of the targets, then to the targets, the last one first.
    let mut blocks: Vec<(usize, usize)> = Vec::with_capacity(moves.len());
    let mut end = 0;
    for (from, to) in moves {
        bytes.copy_within(from.clone(), end);
        end += from.len();
        blocks.push((*to, from.len()));
    }
    sort(&mut bytes[..end], &mut blocks);
    for &(to, len) in blocks.iter().rev() {
        end -= len;
        bytes.copy_within(end..end + len, to);
    }
}

/// Sorts blocks that lie end to end by their keys.
fn sort(bytes: &mut [u8], blocks: &mut [(usize, usize)]) {
    if blocks.len() < 2 || blocks.is_sorted() {
        return;
    }
    let middle = blocks.len() / 2;
    let cut = blocks[..middle].iter().map(|(_, len)| len).sum();
    sort(&mut bytes[..cut], &mut blocks[..middle]);
    sort(&mut bytes[cut..], &mut blocks[middle..]);
    merge(bytes, blocks, middle);
}

/// Merges two sorted runs.
fn merge(bytes: &mut [u8], blocks: &mut [(usize, usize)], middle: usize) {
    if middle == 0 || middle == blocks.len() || blocks[middle - 1] <= blocks[middle] {
        return;
    }
    // The half of all that comes first is some blocks of the left run and some of the right one.
    let (left, right) = blocks.split_at(middle);
    let half = blocks.len() / 2;
    let (mut low, mut high) = (half.saturating_sub(right.len()), half.min(left.len()));
    while low < high {
        let take = low.midpoint(high);
        if left[take] < right[half - take - 1] { low = take + 1 } else { high = take }
    }
    let (from_left, from_right) = (low, half - low);
    let sum = |blocks: &[(usize, usize)]| blocks.iter().map(|(_, len)| len).sum::<usize>();
    let (kept, rest, moved) = (sum(&left[..from_left]), sum(&left[from_left..]), sum(&right[..from_right]));
    bytes[kept..kept + rest + moved].rotate_left(rest);
    blocks[from_left..middle + from_right].rotate_left(middle - from_left);
    let cut = kept + moved;
    let (first, second) = blocks.split_at_mut(half);
    merge(&mut bytes[..cut], first, from_left);
    merge(&mut bytes[cut..], second, middle - from_left);
}

/// What an assignment says, as a text that is the same where the assignment is.
pub fn describe(indices: &[Vec<usize>]) -> String {
    format!("{indices:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_sizes_move_to_any_order_with_gaps() {
        let mut state = 7u64;
        let mut draw = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % (most + 1)
        };
        for _ in 0..500 {
            let count = draw(40);
            let lens: Vec<usize> = (0..count).map(|_| 1 + draw(9)).collect();
            let mut order: Vec<usize> = (0..count).collect();
            for at in (1..count).rev() {
                order.swap(at, draw(at));
            }
            let mut memory = vec![0u8; lens.iter().sum::<usize>() + 8 * count];
            let mut at = 0;
            let mut moves = Vec::new();
            for (block, len) in lens.iter().enumerate() {
                at += draw(3);
                memory[at..at + len].fill(block as u8 + 1);
                moves.push((at..at + len, 0));
                at += len;
            }
            let mut to = 0;
            for block in order {
                to += draw(4);
                moves[block].1 = to;
                to += lens[block];
            }
            permute(&mut memory, &moves);
            for (block, (from, to)) in moves.iter().enumerate() {
                assert_eq!(memory[*to..to + from.len()], vec![block as u8 + 1; from.len()], "block {block}");
            }
        }
    }
}
