//! Copies between strided tensors, with conversion.
//!
//! The loops over a tensor's dimensions are made once for each copy: those that stand still in the target go, those
//! that the target does not need in row-major order are turned so that it is written front to back, and loops that
//! follow on each other on both sides become one. What is left are runs of bytes, or planes of elements for the
//! kernels.

use bucketeer::ir::DType;
use bucketeer::program::Layout;
use bucketeer_comm::kernels::{self, Loop, Plane};
use bucketeer_types::{class, num};
use smallvec::SmallVec;
use std::cmp::Reverse;

/// How many elements without a kernel are converted at once.
const BLOCK_ELEMENTS: usize = 1024;

type Loops = SmallVec<[Loop; 4]>;

/// Why elements cannot be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The layouts have different shapes, or not as many strides as sizes.
    #[error(
        "elements of shape {from:?} cannot go to elements of shape {to:?}; expected equal shapes, and a stride for each size"
    )]
    Shape {
        /// The source's.
        from: Vec<u64>,
        /// The target's.
        to: Vec<u64>,
    },
    /// A slice is too short for its layout.
    #[error("the {side} has {found} bytes; expected {} for its layout", expected.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string()))]
    Short {
        /// `source` or `target`.
        side: &'static str,
        /// The slice's length.
        found: usize,
        /// The layout's; `None` when that passes 64 bits.
        expected: Option<u64>,
    },
    /// One dtype is not made of the other.
    #[error("there is no conversion of {} to {}", from.torch_name(), to.torch_name())]
    Conversion {
        /// The source's dtype.
        from: DType,
        /// The target's dtype.
        to: DType,
    },
}

/// Copies all elements of `from` to those of `to`, in row-major order, converted where the dtypes differ: to the nearest
/// value, ties to even, and each NaN to the canonical one. Each slice begins at its first element. Bytes of the target
/// that belong to no element are not touched.
///
/// Copies of one dtype run at the speed of `memcpy` where there are long runs; conversions between floats of two, four
/// and eight bytes are vectorised where elements lie end to end.
///
/// # Errors
/// [`CopyError`]; then nothing was copied.
pub fn copy_elements(source: &[u8], from: &Layout, target: &mut [u8], to: &Layout) -> Result<(), CopyError> {
    let stated = |layout: &Layout| layout.shape.len() == layout.strides.len();
    if from.shape != to.shape || !stated(from) || !stated(to) {
        return Err(CopyError::Shape { from: from.shape.to_vec(), to: to.shape.to_vec() });
    }
    check_length("source", source, from)?;
    check_length("target", target, to)?;
    if from.dtype != to.dtype && [from.dtype, to.dtype].map(class::class).contains(&class::Class::Opaque) {
        return Err(CopyError::Conversion { from: from.dtype, to: to.dtype });
    }
    if from.shape.contains(&0) {
        return Ok(());
    }
    let nest = Nest::new(from, to);
    if from.dtype == to.dtype {
        move_all(from.dtype.bytes() as usize, nest, source, target);
    } else {
        convert_all(from.dtype, to.dtype, nest, source, target);
    }
    Ok(())
}

fn check_length(side: &'static str, slice: &[u8], layout: &Layout) -> Result<(), CopyError> {
    let expected = layout.span_bytes();
    let fits = expected.is_some_and(|bytes| bytes <= slice.len() as u64);
    if fits { Ok(()) } else { Err(CopyError::Short { side, found: slice.len(), expected }) }
}

/// Elements in row-major order.
pub(super) fn gathered(source: &[u8], from: &Layout) -> Result<Vec<u8>, CopyError> {
    let Some(dense) = dense(from) else { return Ok(Vec::new()) };
    let mut out = vec![0; dense.span_bytes().unwrap_or_default() as usize];
    copy_elements(source, from, &mut out, &dense)?;
    Ok(out)
}

/// Puts elements in row-major order where they lie.
pub(super) fn scattered(source: &[u8], target: &mut [u8], to: &Layout) -> Result<(), CopyError> {
    dense(to).map_or(Ok(()), |dense| copy_elements(source, &dense, target, to))
}

/// The same elements end to end; none if there are none. What is in memory does not pass 64 bits.
fn dense(layout: &Layout) -> Option<Layout> {
    if layout.shape.contains(&0) { None } else { Layout::dense(layout.dtype, &layout.shape) }
}

/// The loops of a copy.
struct Nest {
    /// Where in the source they begin, in bytes.
    start: usize,
    /// Outermost first.
    loops: Loops,
    /// Whether no byte of the target is written twice, so that they may run in any order.
    free: bool,
}

impl Nest {
    /// Of layouts that hold elements, all in memory, so that no offset overflows.
    fn new(from: &Layout, to: &Layout) -> Self {
        let (width, to_width) = (from.dtype.bytes() as usize, to.dtype.bytes() as usize);
        let mut start = 0;
        let mut loops = Loops::new();
        for ((&size, &from), &to) in from.shape.iter().zip(&from.strides).zip(&to.strides) {
            if size == 1 {
                continue;
            }
            let each = Loop { size: size as usize, from: from as usize * width, to: to as usize * to_width };
            match to {
                // Each element is written over by the next: the last one stays.
                0 => start += (each.size - 1) * each.from,
                _ => loops.push(each),
            }
        }
        let free = are_apart(&loops, to_width);
        if free {
            loops.sort_by_key(|each| Reverse(each.to));
        }
        Self { start, loops: merged(&loops), free }
    }

    /// The two innermost loops, and those around them.
    fn split(mut self) -> (Loops, Plane) {
        let elements = self.loops.pop().unwrap_or(Loop::ONCE);
        // Lines where the source is densest, if that is not along the elements.
        let densest = (0..self.loops.len()).min_by_key(|&at| self.loops[at].from);
        let turned = densest.filter(|&at| self.free && self.loops[at].from < elements.from);
        let lines = match turned {
            Some(at) => self.loops.remove(at),
            None => self.loops.pop().unwrap_or(Loop::ONCE),
        };
        (self.loops, Plane { lines, elements, in_turns: turned.is_some() })
    }
}

/// Whether the elements of a target share no byte, as far as sizes and strides show that.
fn are_apart(loops: &[Loop], width: usize) -> bool {
    let mut inner: SmallVec<[&Loop; 4]> = loops.iter().collect();
    inner.sort_by_key(|each| each.to);
    let mut span = width;
    inner.iter().all(|each| {
        let apart = each.to >= span;
        span += (each.size - 1) * each.to;
        apart
    })
}

/// Joins loops that follow on each other on both sides.
fn merged(loops: &[Loop]) -> Loops {
    let mut merged = Loops::new();
    for each in loops {
        match merged.last_mut() {
            Some(outer) if outer.from == each.size * each.from && outer.to == each.size * each.to => {
                *outer = Loop { size: outer.size * each.size, ..*each };
            }
            _ => merged.push(*each),
        }
    }
    merged
}

/// Calls `visit` with the offsets in source and target at which each turn of the loops begins.
fn turns(loops: &[Loop], from: usize, to: usize, visit: &mut impl FnMut(usize, usize)) {
    match loops {
        [] => visit(from, to),
        [each, inner @ ..] => {
            (0..each.size).for_each(|index| turns(inner, from + index * each.from, to + index * each.to, visit));
        }
    }
}

/// Copies bytes as they are; elements that lie end to end on both sides move as one run.
fn move_all(width: usize, mut nest: Nest, source: &[u8], target: &mut [u8]) {
    let dense = nest.loops.last().copied().filter(|last| (last.from, last.to) == (width, width));
    if dense.is_some() {
        nest.loops.pop();
    }
    let run = width * dense.map_or(1, |dense| dense.size);
    let start = nest.start;
    let (outer, plane) = nest.split();
    turns(&outer, start, 0, &mut |from, to| {
        let (source, target) = (&source[from..], &mut target[to..]);
        if !kernels::move_elements(run, source, target, plane) {
            turns(&[plane.lines, plane.elements], 0, 0, &mut |from, to| {
                target[to..to + run].copy_from_slice(&source[from..from + run]);
            });
        }
    });
}

fn convert_all(from_dtype: DType, to_dtype: DType, nest: Nest, source: &[u8], target: &mut [u8]) {
    let start = nest.start;
    let (outer, plane) = nest.split();
    turns(&outer, start, 0, &mut |from, to| {
        let (source, target) = (&source[from..], &mut target[to..]);
        if !kernels::convert(from_dtype, to_dtype, source, target, plane) {
            turns(&[plane.lines], 0, 0, &mut |from, to| {
                convert_slowly(from_dtype, to_dtype, &source[from..], &mut target[to..], plane.elements);
            });
        }
    });
}

/// Converts a line by way of the evaluator, block by block.
fn convert_slowly(from: DType, to: DType, source: &[u8], target: &mut [u8], elements: Loop) {
    let (width, to_width) = (from.bytes() as usize, to.bytes() as usize);
    let mut block = Vec::with_capacity(elements.size.min(BLOCK_ELEMENTS) * width);
    for first in (0..elements.size).step_by(BLOCK_ELEMENTS) {
        let part = first..elements.size.min(first + BLOCK_ELEMENTS);
        block.clear();
        for index in part.clone() {
            block.extend_from_slice(&source[index * elements.from..][..width]);
        }
        // Asked for before: neither dtype is opaque.
        let converted = num::convert(from, to, &block).unwrap_or_default();
        for (index, element) in part.zip(converted.chunks_exact(to_width)) {
            target[index * elements.to..][..to_width].copy_from_slice(element);
        }
    }
}
