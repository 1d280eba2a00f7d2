//! Gradients into and out of buckets: copied, converted, scaled, added, or put into another order of elements.

use bucketeer_comm::Reduction;
use bucketeer_comm::kernels::{self, Loop, Plane};
use bucketeer_types::{DType, ReduceOp};

/// Elements that are scaled and converted at a time: what fits into the first cache.
const BLOCK: usize = 2048;

/// Bytes of the widest element.
const WIDEST: usize = 8;

/// From one dtype of reals to another, both end to end.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Of the source.
    pub from: DType,
    /// Of the target.
    pub to: DType,
    /// What each element is multiplied by, in the source's dtype; none for 1.
    pub factor: Option<f64>,
}

impl Change {
    /// Writes the source over the target. Both have equally many elements.
    pub fn put(self, source: &[u8], target: &mut [u8]) {
        let Self { from, to, factor } = self;
        if from == to {
            target.copy_from_slice(source);
            scale(from, factor, target);
            return;
        }
        let (a, b) = (from.bytes() as usize, to.bytes() as usize);
        let Some(_) = factor else { return convert(from, to, source, target) };
        let mut block = [0; BLOCK * WIDEST];
        for (source, target) in source.chunks(BLOCK * a).zip(target.chunks_mut(BLOCK * b)) {
            let block = &mut block[..source.len()];
            block.copy_from_slice(source);
            scale(from, factor, block);
            convert(from, to, block, target);
        }
    }
}

/// Adds the source to the target, element by element.
pub fn add(dtype: DType, source: &[u8], target: &mut [u8]) {
    kernels::combine(Reduction::Op(ReduceOp::Sum), dtype, target, source);
}

/// Multiplies each element.
pub fn scale(dtype: DType, factor: Option<f64>, target: &mut [u8]) {
    if let Some(factor) = factor {
        kernels::begin(Reduction::PreMulSum { factor }, dtype, target);
    }
}

fn convert(from: DType, to: DType, source: &[u8], target: &mut [u8]) {
    let elements =
        Loop { size: target.len() / to.bytes() as usize, from: from.bytes() as usize, to: to.bytes() as usize };
    if elements.size > 0 {
        let done = kernels::convert(from, to, source, target, Plane { lines: Loop::ONCE, elements, in_turns: false });
        debug_assert!(done, "floats of two bytes or more convert to one another");
    }
}

/// The elements of a strided source, in the order that `place` has them: strides that leave no holes. `width` is an element's
/// bytes; strides count elements.
///
/// # Errors
/// A text: strides that are not one for each dimension, or reach beyond the source.
pub fn in_order(source: &[u8], width: usize, shape: &[u64], strides: &[u64], place: &[u64]) -> Result<Vec<u8>, String> {
    if strides.len() != shape.len() {
        return Err(format!("it has {} strides, the parameter {} dimensions", strides.len(), shape.len()));
    }
    let reach = |(size, stride): (&u64, &u64)| (size.saturating_sub(1)).saturating_mul(*stride);
    let last = shape.iter().zip(strides).map(reach).fold(0, u64::saturating_add);
    let elements = shape.iter().product::<u64>() as usize;
    if elements == 0 {
        return Ok(Vec::new());
    }
    if last.saturating_add(1).saturating_mul(width as u64) > source.len() as u64 {
        let (found, needed) = (source.len(), last.saturating_add(1).saturating_mul(width as u64));
        return Err(format!("it has {found} bytes; strides {strides:?} reach over {needed}"));
    }
    // All strides are now below the source's length.
    let mut loops: Vec<(u64, Loop)> = (0..shape.len())
        .filter(|at| shape[*at] > 1)
        .map(|at| {
            let [from, to] = [strides[at], place[at]].map(|stride| stride as usize * width);
            (place[at], Loop { size: shape[at] as usize, from, to })
        })
        .collect();
    loops.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
    let mut loops: Vec<Loop> = loops.into_iter().map(|(_, one)| one).collect();
    let elements_loop = loops.pop().unwrap_or(Loop { size: 1, from: width, to: width });
    let lines = loops.pop().unwrap_or(Loop::ONCE);
    let plane = Plane { lines, elements: elements_loop, in_turns: lines.from < elements_loop.from && lines.size > 1 };
    let mut target = vec![0; elements * width];
    let mut counts = vec![0; loops.len()];
    let (mut from, mut to) = (0, 0);
    loop {
        if !kernels::move_elements(width, &source[from..], &mut target[to..], plane) {
            return Err(format!("elements of {width} bytes are not moved"));
        }
        // The next plane, the last loop first.
        let mut at = loops.len();
        loop {
            let Some(next) = at.checked_sub(1) else { return Ok(target) };
            at = next;
            counts[at] += 1;
            (from, to) = (from + loops[at].from, to + loops[at].to);
            if counts[at] < loops[at].size {
                break;
            }
            (from, to) = (from - counts[at] * loops[at].from, to - counts[at] * loops[at].to);
            counts[at] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::row_major;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn elements_come_in_the_order_of_the_place_whatever_the_strides() {
        // Every order of the dimensions of a [2, 3, 4] tensor, into every other.
        let shape = [2u64, 3, 4];
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let strides = |order: [usize; 3]| {
            let mut strides = [0; 3];
            let mut next = 1;
            for &dim in order.iter().rev() {
                strides[dim] = next;
                next *= shape[dim];
            }
            strides
        };
        let offset = |strides: &[u64], at: [u64; 3]| at.iter().zip(strides).map(|(a, b)| a * b).sum::<u64>() as usize;
        for from in orders.map(strides) {
            for to in orders.map(strides) {
                let (mut source, mut wanted) = (vec![0.0; 24], vec![0.0; 24]);
                for (a, b, c) in (0..2).flat_map(|a| (0..3).flat_map(move |b| (0..4).map(move |c| (a, b, c)))) {
                    let value = (a * 100 + b * 10 + c) as f32;
                    source[offset(&from, [a, b, c])] = value;
                    wanted[offset(&to, [a, b, c])] = value;
                }
                assert_eq!(
                    in_order(&bytes(&source), 4, &shape, &from, &to).unwrap(),
                    bytes(&wanted),
                    "{from:?} {to:?}"
                );
            }
        }
    }

    #[test]
    fn strides_beyond_the_source_are_refused_and_empty_tensors_are_not() {
        let source = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(in_order(&source, 4, &[2, 2], &[4, 2], &[2, 1]).unwrap(), bytes(&[1.0, 3.0, 5.0, 7.0]));
        assert!(in_order(&source, 4, &[2, 2], &[5, 2], &[2, 1]).unwrap_err().contains("reach over 32"));
        assert!(in_order(&source, 4, &[2, 2], &[u64::MAX, 2], &[2, 1]).is_err());
        assert!(in_order(&source, 4, &[2, 2], &[1], &[2, 1]).is_err());
        assert_eq!(in_order(&[], 4, &[0, 2], &[2, 1], &row_major(&[0, 2])).unwrap(), Vec::<u8>::new());
        assert_eq!(in_order(&source[..4], 4, &[], &[], &[]).unwrap(), bytes(&[1.0]));
    }

    #[test]
    fn a_factor_is_applied_before_the_conversion_in_blocks_of_any_length() {
        for count in [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3] {
            let source: Vec<f32> = (0..count).map(|at| at as f32 * 100.0).collect();
            let mut target = vec![0; count * 2];
            Change { from: DType::F32, to: DType::F16, factor: Some(0.25) }.put(&bytes(&source), &mut target);
            for (at, half) in target.as_chunks::<2>().0.iter().enumerate() {
                let mut wanted = Vec::new();
                bucketeer_types::num::store_float(DType::F16, f64::from(source[at] * 0.25), &mut wanted);
                assert_eq!(half[..], wanted[..], "{at} of {count}");
            }
        }
    }
}
