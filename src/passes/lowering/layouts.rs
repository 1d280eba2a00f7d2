//! Layouts of views: each function gives the layout and how many elements further its first one lies.

use crate::ir::DType;
use crate::ir::Short;
use crate::program::Layout;

type Sizes = Short<u64, 4>;

/// The strides under which a layout has another shape, by PyTorch's rule; `None` where only a copy would do.
pub(super) fn reshape(layout: &Layout, shape: &[u64]) -> Option<Layout> {
    let new = Layout { dtype: layout.dtype, shape: shape.into(), strides: Short::new() };
    if layout.elements()? != new.elements()? {
        return None;
    }
    if layout.is_dense() || layout.elements() == Some(0) {
        return Layout::dense(layout.dtype, shape);
    }
    let mut strides: Sizes = Short::filled(1, shape.len());
    let mut left = shape.len();
    let mut base = *layout.strides.last()?;
    let (mut run, mut made) = (1u64, 1u64);
    for dim in (0..layout.shape.len()).rev() {
        run = run.checked_mul(layout.shape[dim])?;
        let ends = dim == 0 || (layout.shape[dim - 1] != 1 && layout.strides[dim - 1] != run.checked_mul(base)?);
        if !ends {
            continue;
        }
        while left > 0 && (made < run || shape[left - 1] == 1) {
            left -= 1;
            strides[left] = made.checked_mul(base)?;
            made = made.checked_mul(shape[left])?;
        }
        if made != run {
            return None;
        }
        if dim > 0 {
            base = layout.strides[dim - 1];
            (run, made) = (1, 1);
        }
    }
    (left == 0).then_some(Layout { strides, ..new })
}

/// Dimensions in another order.
pub(super) fn permute(layout: &Layout, order: &[usize]) -> Option<Layout> {
    let mut seen = vec![false; layout.shape.len()];
    for &dim in order {
        if std::mem::replace(seen.get_mut(dim)?, true) {
            return None;
        }
    }
    let pick = |list: &Sizes| order.iter().map(|&dim| list[dim]).collect();
    (order.len() == seen.len()).then(|| Layout {
        dtype: layout.dtype,
        shape: pick(&layout.shape),
        strides: pick(&layout.strides),
    })
}

/// `length` steps of `step` along a dimension, from `start` on.
pub(super) fn slice(layout: &Layout, dim: usize, start: u64, length: u64, step: u64) -> Option<(Layout, u64)> {
    let size = *layout.shape.get(dim)?;
    let last = start.checked_add(length.saturating_sub(1).checked_mul(step)?)?;
    if start > size || (length > 0 && last >= size) {
        return None;
    }
    let mut part = layout.clone();
    part.shape[dim] = length;
    part.strides[dim] = layout.strides[dim].checked_mul(step)?;
    let skip = if part.elements()? == 0 { 0 } else { start.checked_mul(layout.strides[dim])? };
    Some((part, skip))
}

/// One index of a dimension, which goes.
pub(super) fn select(layout: &Layout, dim: usize, index: u64) -> Option<(Layout, u64)> {
    let (mut part, skip) = slice(layout, dim, index, 1, 1)?;
    part.shape.remove(dim);
    part.strides.remove(dim);
    Some((part, skip))
}

/// Dimensions of one repeated, and new ones in front.
pub(super) fn expand(layout: &Layout, shape: &[u64]) -> Option<Layout> {
    let new = shape.len().checked_sub(layout.shape.len())?;
    let mut strides = Sizes::filled(0, new);
    for (at, (&size, &stride)) in layout.shape.iter().zip(&layout.strides).enumerate() {
        strides.push(match shape[new + at] {
            wanted if wanted == size => stride,
            _ if size == 1 => 0,
            _ => return None,
        });
    }
    Some(Layout { dtype: layout.dtype, shape: shape.into(), strides })
}

/// Without some dimensions of one.
pub(super) fn squeeze(layout: &Layout, goes: &dyn Fn(usize) -> bool) -> Layout {
    let kept = |dim: &usize| layout.shape[*dim] != 1 || !goes(*dim);
    let dims: Vec<usize> = (0..layout.shape.len()).filter(kept).collect();
    let pick = |list: &Sizes| dims.iter().map(|&dim| list[dim]).collect();
    Layout { dtype: layout.dtype, shape: pick(&layout.shape), strides: pick(&layout.strides) }
}

/// With a dimension of one.
pub(super) fn unsqueeze(layout: &Layout, dim: usize) -> Option<Layout> {
    if dim > layout.shape.len() {
        return None;
    }
    let mut new = layout.clone();
    let stride = match (layout.shape.get(dim), layout.strides.get(dim)) {
        (Some(size), Some(stride)) => size.checked_mul(*stride)?,
        _ => 1,
    };
    new.shape.insert(dim, 1);
    new.strides.insert(dim, stride);
    Some(new)
}

/// The same bytes as elements of another dtype.
pub(super) fn bit_cast(layout: &Layout, dtype: DType) -> Option<Layout> {
    let (old, new) = (layout.dtype.bytes(), dtype.bytes());
    let mut cast = Layout { dtype, ..layout.clone() };
    if old == new {
        return Some(cast);
    }
    let (last, outer) = cast.strides.split_last_mut()?;
    let size = cast.shape.last_mut()?;
    let scale = |count: u64| count.checked_mul(old).filter(|bytes| bytes.is_multiple_of(new)).map(|bytes| bytes / new);
    if *last != 1 && *size != 1 {
        return None;
    }
    *last = 1;
    *size = scale(*size)?;
    for stride in outer {
        *stride = scale(*stride)?;
    }
    Some(cast)
}

/// A layout as `parts` equal chunks of a dimension: with a new first dimension over them.
pub(super) fn chunks(layout: &Layout, dim: usize, parts: u64) -> Option<Layout> {
    let size = *layout.shape.get(dim)?;
    if parts == 0 || !size.is_multiple_of(parts) {
        return None;
    }
    let mut new = layout.clone();
    new.shape[dim] = size / parts;
    new.shape.insert(0, parts);
    new.strides.insert(0, (size / parts).checked_mul(layout.strides[dim])?);
    Some(new)
}

/// Whether strides reach each byte of the storage from first to last element exactly once.
pub(super) fn fills_its_storage(layout: &Layout) -> bool {
    let mut dims: Vec<(u64, u64)> =
        layout.shape.iter().copied().zip(layout.strides.iter().copied()).filter(|(size, _)| *size != 1).collect();
    dims.sort_by_key(|&(_, stride)| stride);
    let mut step = 1u64;
    dims.iter().all(|&(size, stride)| {
        let fits = stride == step;
        step = step.saturating_mul(size.max(1));
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { dtype: DType::F32, shape: shape.into(), strides: strides.into() }
    }

    #[test]
    fn reshapes_are_views_only_where_strides_allow() {
        let dense = layout(&[4, 6], &[6, 1]);
        assert_eq!(reshape(&dense, &[2, 2, 6]), Some(layout(&[2, 2, 6], &[12, 6, 1])));
        let columns = layout(&[4, 3], &[6, 1]);
        assert_eq!(reshape(&columns, &[2, 2, 3]), Some(layout(&[2, 2, 3], &[12, 6, 1])));
        assert_eq!(reshape(&columns, &[12]), None);
        assert_eq!(reshape(&layout(&[6, 4], &[1, 6]), &[24]), None);
        assert_eq!(reshape(&layout(&[4, 1, 3], &[6, 99, 1]), &[4, 3]), Some(layout(&[4, 3], &[6, 1])));
        assert_eq!(reshape(&dense, &[5]), None);
    }

    #[test]
    fn bytes_are_cast_along_the_last_dimension_only() {
        let rows = layout(&[2, 4], &[6, 1]);
        let half = bit_cast(&rows, DType::Bf16).unwrap();
        assert_eq!((half.shape.as_slice(), half.strides.as_slice()), (&[2, 8][..], &[12, 1][..]));
        assert_eq!(bit_cast(&layout(&[4, 2], &[1, 4]), DType::Bf16), None);
        assert_eq!(bit_cast(&layout(&[2, 3], &[3, 1]), DType::F64), None);
    }

    #[test]
    fn slices_stay_within_their_dimension() {
        let dense = layout(&[4, 6], &[6, 1]);
        assert_eq!(slice(&dense, 1, 2, 4, 1), Some((layout(&[4, 4], &[6, 1]), 2)));
        assert_eq!(slice(&dense, 1, 2, 5, 1), None);
        assert_eq!(slice(&dense, 0, 4, 0, 1), Some((layout(&[0, 6], &[6, 1]), 0)));
    }
}
