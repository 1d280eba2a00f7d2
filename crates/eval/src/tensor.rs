//! Tensors: a window, by sizes and strides, on a storage of bytes.

use bucketeer::ir::DType;
use std::sync::Arc;

/// Most elements of a window, however little memory is behind it.
pub const MAX_ELEMENTS: usize = 1 << 40;
/// Largest stride or size: products with a size and a width fit in 128 bits, and saturate in 64.
pub const MAX_STRIDE: usize = 1 << 48;

/// A window on a storage of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Which storage.
    pub storage: usize,
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub sizes: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<usize>,
    /// First element, in elements.
    pub offset: usize,
    /// Where it is, as in `cuda:0`; `None` when nothing was said.
    pub device: Option<Arc<str>>,
}

/// Strides of elements that lie end to end. PyTorch counts a size of zero as one here.
#[must_use]
pub fn dense_strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(sizes[at].max(1));
    }
    strides
}

/// How many elements the sizes count; saturates.
#[must_use]
pub fn count(sizes: &[usize]) -> usize {
    if sizes.contains(&0) { 0 } else { sizes.iter().fold(1, |product, &size| product.saturating_mul(size)) }
}

/// One more than the place of the last element, counted from the first; `None` when it does not fit.
#[must_use]
pub fn span(sizes: &[usize], strides: &[usize]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let far = |sum: usize, (size, stride): (&usize, &usize)| sum.checked_add((size - 1).checked_mul(*stride)?);
    sizes.iter().zip(strides).try_fold(1, far)
}

/// Whether no two elements share a place.
#[must_use]
pub fn is_injective(sizes: &[usize], strides: &[usize]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    let mut dims: Vec<(usize, usize)> =
        strides.iter().copied().zip(sizes.iter().copied()).filter(|(_, size)| *size > 1).collect();
    dims.sort_unstable();
    let mut reach = 0usize;
    dims.iter().all(|&(stride, size)| {
        let apart = stride > reach;
        reach = reach.saturating_add(stride.saturating_mul(size - 1));
        apart
    })
}

/// Calls `visit` with the place of every element, in logical order.
pub fn for_each_place(sizes: &[usize], strides: &[usize], offset: usize, visit: &mut impl FnMut(usize)) {
    match (sizes, strides) {
        ([size], [stride]) => (0..*size).for_each(|index| visit(offset + index * stride)),
        ([size, sizes @ ..], [stride, strides @ ..]) => {
            (0..*size).for_each(|index| for_each_place(sizes, strides, offset + index * stride, visit));
        }
        _ => visit(offset),
    }
}

impl Tensor {
    /// Bytes of an element.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        count(&self.sizes)
    }

    /// Whether the elements lie end to end in logical order.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        same_layout(&self.sizes, &self.strides, &dense_strides(&self.sizes))
    }

    /// Byte ranges as `[start, end)` around all elements.
    #[must_use]
    pub fn bounds(&self) -> (usize, usize) {
        let span = span(&self.sizes, &self.strides).unwrap_or(usize::MAX / 32);
        (self.offset * self.width(), (self.offset + span) * self.width())
    }

    /// Whether some byte belongs to both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.storage != other.storage || self.elements() == 0 || other.elements() == 0 {
            return false;
        }
        let ((a, b), (c, d)) = (self.bounds(), other.bounds());
        if b <= c || d <= a {
            return false;
        }
        if self.is_dense() && other.is_dense() {
            return true;
        }
        let mut mine = vec![false; b - a];
        for_each_place(&self.sizes, &self.strides, self.offset, &mut |place| {
            let at = place * self.width() - a;
            mine[at..at + self.width()].fill(true);
        });
        let mut shared = false;
        for_each_place(&other.sizes, &other.strides, other.offset, &mut |place| {
            let at = place * other.width();
            shared |= (at..at + other.width()).any(|byte| byte >= a && byte < b && mine[byte - a]);
        });
        shared
    }

    /// The same memory under other sizes, if the strides allow it: PyTorch's `computeStride`.
    #[must_use]
    pub fn view(&self, sizes: &[usize]) -> Option<Self> {
        if count(sizes) != self.elements() {
            return None;
        }
        let strides = if self.elements() == 0 {
            if sizes == self.sizes { self.strides.clone() } else { dense_strides(sizes) }
        } else {
            view_strides(&self.sizes, &self.strides, sizes)?
        };
        Some(Self { sizes: sizes.to_vec(), strides, ..self.clone() })
    }

    /// The same bytes as elements of another width, under PyTorch's conditions.
    ///
    /// # Errors
    /// The condition that fails.
    pub fn bit_cast(&self, dtype: DType) -> Result<Self, String> {
        let (from, to) = (self.width(), dtype.bytes() as usize);
        let mut new = Self { dtype, ..self.clone() };
        if from == to {
            return Ok(new);
        }
        let last = new.sizes.len().checked_sub(1).ok_or("a single element cannot change its width")?;
        if self.strides[last] != 1 {
            return Err("the last dimension must have stride 1 to change the width".to_owned());
        }
        let divides = |bytes: usize| bytes.is_multiple_of(to);
        let bytes = |elements: usize| elements.saturating_mul(from);
        let aligned = divides(bytes(self.offset)) && divides(bytes(self.sizes[last]));
        if !aligned || !self.strides[..last].iter().all(|stride| divides(bytes(*stride))) {
            let name = dtype.torch_name();
            return Err(format!("offset, last size and strides must be divisible to be viewed as {name}"));
        }
        new.sizes[last] = bytes(self.sizes[last]) / to;
        new.offset = bytes(self.offset) / to;
        new.strides[..last].iter_mut().for_each(|stride| *stride = bytes(*stride) / to);
        Ok(new)
    }

    /// Elements `start..start + length` along a dimension.
    #[must_use]
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Self {
        let mut part = self.clone();
        // Windows without elements may have any strides.
        part.offset = part.offset.saturating_add(start.saturating_mul(part.strides[dim]));
        part.sizes[dim] = length;
        part
    }

    /// Repeated, without copying, to a larger shape.
    ///
    /// # Errors
    /// When a size that is not one does not fit.
    pub fn expand(&self, sizes: &[usize]) -> Result<Self, String> {
        let fault = || format!("cannot expand {:?} to {sizes:?}", self.sizes);
        let new = sizes.len().checked_sub(self.sizes.len()).ok_or_else(fault)?;
        if count(sizes) > MAX_ELEMENTS {
            return Err(format!("{sizes:?} are too many elements"));
        }
        let mut strides = vec![0; sizes.len()];
        for at in new..sizes.len() {
            let old = self.sizes[at - new];
            if old == sizes[at] {
                strides[at] = self.strides[at - new];
            } else if old != 1 {
                return Err(fault());
            }
        }
        Ok(Self { sizes: sizes.to_vec(), strides, ..self.clone() })
    }
}

/// Whether two lists of strides place the elements alike.
#[must_use]
pub fn same_layout(sizes: &[usize], a: &[usize], b: &[usize]) -> bool {
    let belong = a.len() == sizes.len() && b.len() == sizes.len();
    belong && (sizes.contains(&0) || (0..sizes.len()).all(|at| sizes[at] == 1 || a[at] == b[at]))
}

fn view_strides(old_sizes: &[usize], old_strides: &[usize], sizes: &[usize]) -> Option<Vec<usize>> {
    let mut strides = vec![1; sizes.len()];
    let Some(&innermost) = old_strides.last() else { return Some(strides) };
    let mut new = sizes.len();
    let (mut chunk, mut chunk_new, mut base) = (1, 1, innermost);
    for old in (0..old_sizes.len()).rev() {
        chunk = usize::saturating_mul(chunk, old_sizes[old]);
        let breaks =
            old == 0 || (old_sizes[old - 1] != 1 && old_strides[old - 1] != usize::saturating_mul(chunk, base));
        if !breaks {
            continue;
        }
        while new > 0 && (chunk_new < chunk || sizes[new - 1] == 1) {
            strides[new - 1] = usize::saturating_mul(chunk_new, base).min(MAX_STRIDE);
            chunk_new = usize::saturating_mul(chunk_new, sizes[new - 1]);
            new -= 1;
        }
        if chunk_new != chunk {
            return None;
        }
        if old > 0 {
            base = old_strides[old - 1];
            (chunk, chunk_new) = (1, 1);
        }
    }
    (new == 0).then_some(strides)
}

/// The shape that several broadcast to.
#[must_use]
pub fn broadcast<'a>(shapes: impl Iterator<Item = &'a [usize]>) -> Option<Vec<usize>> {
    let mut result: Vec<usize> = Vec::new();
    for shape in shapes {
        while result.len() < shape.len() {
            result.insert(0, 1);
        }
        let shift = result.len() - shape.len();
        for (at, &size) in shape.iter().enumerate() {
            let known = &mut result[at + shift];
            match (*known, size) {
                (a, b) if a == b => {}
                (1, b) => *known = b,
                (_, 1) => {}
                _ => return None,
            }
        }
    }
    Some(result)
}

/// Strides of what an element-by-element operator makes of operands that were broadcast to `sizes`: dense in the order
/// of the operands' strides, as PyTorch's `TensorIterator` has it.
#[must_use]
pub fn pointwise_strides(sizes: &[usize], operands: &[&[usize]]) -> Vec<usize> {
    // 1: `a` must be outside of `b`; -1: inside; 0: no operand says.
    let compare = |a: usize, b: usize| -> i32 {
        for strides in operands {
            let (x, y) = (strides[a], strides[b]);
            if x == 0 || y == 0 {
                continue;
            }
            if x != y {
                return if x < y { -1 } else { 1 };
            }
            if sizes[a] > sizes[b] {
                return 1;
            }
        }
        0
    };
    let mut order: Vec<usize> = (0..sizes.len()).rev().collect();
    for start in 1..order.len() {
        let mut moving = start;
        for fixed in (0..start).rev() {
            match compare(order[fixed], order[moving]) {
                1 => {
                    order.swap(fixed, moving);
                    moving = fixed;
                }
                -1 => break,
                _ => {}
            }
        }
    }
    let mut strides = vec![1; sizes.len()];
    let mut step = 1usize;
    for dim in order {
        strides[dim] = step;
        step = step.saturating_mul(sizes[dim].max(1));
    }
    strides
}
