//! Views of parts: slices, splits, elements.

use crate::call::wrap_dim;
use crate::layout::slice_range;
use crate::shrink::extents::Extent;
use crate::shrink::node::{Found, Node};
use crate::shrink::trace::{Shape, is_list};
use bucketeer::ir::Arg;
use bucketeer::ir::operators::ViewKind;

/// An element of a tuple, or a row of a tensor.
pub fn element(node: &mut Node<'_>) -> Option<Shape> {
    let (_, from) = node.arg(0, &["self", "a"])?;
    let found = node.arg(1, &["index"])?;
    let Arg::Operand(operand) = from else { return None };
    match node.operand(*operand)?.clone() {
        Shape::Tuple(shapes) => {
            let at = wrap_dim(node.int(found.1)?, shapes.len()).ok()?;
            shapes.into_iter().nth(at)
        }
        Shape::Tensor(dims) => select(node, dims, 0, &found).map(Shape::Tensor),
        Shape::Unknown(_) | Shape::Number(_) => None,
    }
}

/// A slice of a tensor, or a place in it.
pub fn cut(node: &mut Node<'_>, mut dims: Vec<Extent>, kind: ViewKind) -> Option<Vec<Extent>> {
    let native = node.operator.namespace().is_empty() && kind == ViewKind::Slice;
    let at = usize::from(!native);
    let dim = match node.arg(1, &["dim"]).filter(|_| !native) {
        Some((_, arg)) => wrap_dim(node.int(arg)?, dims.len()).ok()?,
        None => wrap_dim(node.args.get("dim").map_or(Some(0), |arg| node.int(arg))?, dims.len()).ok()?,
    };
    let size = node.size(*dims.get(dim)?);
    match kind {
        ViewKind::Select => {
            let found = node.arg(2, &["index"])?;
            select(node, dims, dim, &found)
        }
        ViewKind::Narrow => {
            let (start, length) = (node.arg(2, &["start"])?, node.arg(3, &["length"])?);
            let (from, count) = (u64::try_from(node.int(start.1)?).ok()?, u64::try_from(node.int(length.1)?).ok()?);
            let rest = size.checked_sub(from.checked_add(count)?)?;
            let parts = node.extents().cut_all(dims[dim], &[from, count, rest]);
            node.are_sizes_of(&start, &parts[..1]);
            node.are_sizes_of(&length, &parts[1..2]);
            dims[dim] = parts[1];
            Some(dims)
        }
        _ => {
            let (start, end) = (node.arg(1 + at, &["start"]), node.arg(2 + at, &["end"]));
            let bound = |found: &Option<Found<'_>>| found.as_ref().map(|(_, arg)| node.int(arg));
            let step = node.int_at(3 + at, "step", 1)?;
            let bounds = match (bound(&start), bound(&end)) {
                (Some(None), _) | (_, Some(None)) => return None,
                (start, end) => (start.flatten(), end.flatten()),
            };
            let (from, count) = slice_range(bounds.0, bounds.1, step, usize::try_from(size).ok()?).ok()?;
            dims[dim] = sliced(node, dims[dim], [start, end], (from as u64, count as u64), step);
            Some(dims)
        }
    }
}

/// The part of a size that a slice takes.
pub fn sliced(
    node: &mut Node<'_>,
    dim: Extent,
    bounds: [Option<Found<'_>>; 2],
    (from, count): (u64, u64),
    step: i64,
) -> Extent {
    let size = node.size(dim);
    let negative =
        |found: &Option<Found<'_>>| found.as_ref().and_then(|(_, arg)| node.int(arg)).is_some_and(|at| at < 0);
    if step != 1 || bounds.iter().any(negative) {
        if count != size {
            node.fix(&[dim]);
            return node.extents().fixed(count);
        }
        return dim;
    }
    let parts = node.extents().cut_all(dim, &[from, count, size - from - count]);
    let ends = [parts[0], node.extents().sum(&parts[..2])];
    for (bound, end) in bounds.into_iter().zip(ends) {
        if let Some(bound) = bound {
            node.are_sizes_of(&bound, &[end]);
        }
    }
    parts[1]
}

fn select(node: &mut Node<'_>, mut dims: Vec<Extent>, dim: usize, index: &Found<'_>) -> Option<Vec<Extent>> {
    let at = node.int(index.1)?;
    let whole = *dims.get(dim)?;
    let size = node.size(whole);
    match u64::try_from(at) {
        Ok(at) if at < size => {
            let parts = node.extents().cut_all(whole, &[at, 1, size - at - 1]);
            node.are_sizes_of(index, &parts[..1]);
        }
        // The last one is the last of any size.
        _ if at == -1 => {}
        _ => node.fix(&[whole]),
    }
    dims.remove(dim);
    Some(dims)
}

/// Parts along a dimension.
pub fn split(node: &mut Node<'_>, dims: Vec<Extent>, kind: ViewKind) -> Option<Shape> {
    let dim = node.dim_at(if kind == ViewKind::Unbind { 1 } else { 2 }, "dim", 0, dims.len())?;
    let whole = dims[dim];
    if kind == ViewKind::Unbind {
        node.fix(&[whole]);
        let mut rest = dims;
        rest.remove(dim);
        let count = usize::try_from(node.size(whole)).ok().filter(|&count| count <= 1 << 16)?;
        return Some(Shape::Tuple(vec![Shape::Tensor(rest); count]));
    }
    let found @ (_, arg) = node.arg(1, &["split_size", "split_sizes", "chunks", "sections"])?;
    let parts = if is_list(arg) {
        let sizes = node.ints(arg)?.into_iter().map(|size| u64::try_from(size).ok()).collect::<Option<Vec<u64>>>()?;
        if sizes.iter().fold(0u64, |sum, &size| sum.saturating_add(size)) != node.size(whole) {
            return None;
        }
        let parts = node.extents().cut_all(whole, &sizes);
        node.are_sizes_of(&found, &parts);
        parts
    } else {
        even(node, whole, &found, kind)?
    };
    let part = |part: Extent| {
        let mut dims = dims.clone();
        dims[dim] = part;
        Shape::Tensor(dims)
    };
    Some(Shape::Tuple(parts.into_iter().map(part).collect()))
}

/// Parts of one size, the last one shorter where it does not divide.
fn even(node: &mut Node<'_>, whole: Extent, found: &Found<'_>, kind: ViewKind) -> Option<Vec<Extent>> {
    let number = u64::try_from(node.int(found.1)?).ok().filter(|&number| number > 0)?;
    let size = node.size(whole);
    let chunks = kind == ViewKind::Chunk;
    let part = if chunks { size.div_ceil(number).max(1) } else { number };
    let (full, rest) = (size / part, size % part);
    if full + u64::from(rest > 0) > 1 << 16 {
        return None;
    }
    if chunks && (rest > 0 || full != number) {
        node.fix(&[whole]);
    }
    let (rows, last) = node.extents().cut(whole, size - rest);
    if full == 0 {
        // One part, and its size is less than was asked for.
        node.fix(&[whole]);
        return Some(vec![whole]);
    }
    let one = node.extents().quotient(rows, full);
    if !chunks {
        node.are_sizes_of(found, &[one]);
    }
    let mut parts = vec![one; usize::try_from(full).ok()?];
    if rest > 0 {
        // A part is no smaller than what is left.
        let (start, _) = node.extents().cut(one, rest);
        node.extents().unify(start, last);
        parts.push(last);
    }
    Some(parts)
}
