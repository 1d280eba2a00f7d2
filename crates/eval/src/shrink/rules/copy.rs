//! Operators that move elements: packs, pads, casts.

use super::parts::sliced;
use super::reshape::rescaled;
use crate::copy::{is_known_cast, numbered_dtype};
use crate::layout::slice_range;
use crate::shrink::extents::Extent;
use crate::shrink::node::{Found, Node};
use crate::shrink::trace::Shape;
use bucketeer::ir::Arg;
use bucketeer::ir::operators::{CastKind, ViewKind};

/// The sizes of a conversion.
pub fn cast(node: &mut Node<'_>, kind: CastKind) -> Option<Vec<Extent>> {
    if kind != CastKind::Copy {
        return is_known_cast(kind).then(|| node.first())?;
    }
    let (to, from) = (node.first()?, node.tensor(1, &["src"])?);
    node.broadcast(&[to.clone(), from])?;
    Some(to)
}

/// The sizes of `_chunk_cat`.
pub fn chunk_cat(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let parts = node.tensors(node.arg(0, &["tensors"])?.1)?;
    let chunks = u64::try_from(node.int_at(2, "num_chunks", 0)?).ok()?;
    let row = chunk_rows(node, &parts, chunks)?;
    (node.int_at(1, "dim", 0)? == 0).then(|| vec![node.extents().fixed(chunks), row])
}

/// The sizes of `_pre_bucket_reduce_scatter`.
pub fn pre_bucket_reduce_scatter(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let parts = node.tensors(node.arg(0, &["rs_ins"])?.1)?;
    let group = u64::try_from(node.int_at(1, "group_size", 0)?).ok()?;
    let row = chunk_rows(node, &parts, group)?;
    let ranks = node.extents().fixed(group);
    Some(vec![node.extents().product(&[ranks, row])])
}

/// The sizes of `index_select`.
pub fn index_select(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let (mut dims, index) = (node.first()?, node.tensor(2, &["index"])?);
    let dim = node.dim_at(1, "dim", 0, dims.len())?;
    node.tracer.extents.indexed.push(dims[dim]);
    dims[dim] = node.extents().product(&index);
    Some(dims)
}

/// The sizes of `cat`.
pub fn cat(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let mut parts = node.tensors(node.arg(0, &["tensors"])?.1)?;
    // PyTorch lets empty vectors take part in any shape.
    if parts.iter().any(|part| node.sizes(part) != [0]) {
        parts.retain(|part| node.sizes(part) != [0]);
    }
    let mut dims = parts.first()?.clone();
    let dim = node.dim_at(1, "dim", 0, dims.len())?;
    for part in &parts[1..] {
        for at in (0..dims.len()).filter(|&at| at != dim) {
            let other = *part.get(at)?;
            node.extents().unify(dims[at], other);
        }
    }
    let along: Vec<Extent> = parts.iter().map(|part| part.get(dim).copied()).collect::<Option<_>>()?;
    dims[dim] = node.extents().sum(&along);
    Some(dims)
}

/// The sizes of `stack`.
pub fn stack(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let parts = node.tensors(node.arg(0, &["tensors"])?.1)?;
    let mut dims = parts.first()?.clone();
    let dim = node.dim_at(1, "dim", 0, dims.len() + 1)?;
    parts[1..].iter().for_each(|part| node.same(&dims, part));
    dims.insert(dim, node.extents().fixed(parts.len() as u64));
    Some(dims)
}

/// The rows of all tensors side by side, where each is cut in so many rows, the last ones padded.
fn chunk_rows(node: &mut Node<'_>, parts: &[Vec<Extent>], chunks: u64) -> Option<Extent> {
    let mut rows = Vec::new();
    for part in parts {
        let (&first, rest) = part.split_first()?;
        let size = node.size(first);
        if chunks == 0 {
            return None;
        }
        let run = if size.is_multiple_of(chunks) {
            node.extents().quotient(first, chunks)
        } else {
            let (count, run) = (node.extents().fixed(chunks), node.extents().leaf(size.div_ceil(chunks)));
            let padded = node.extents().product(&[count, run]);
            let (full, _) = node.extents().cut(padded, size);
            node.extents().unify(full, first);
            run
        };
        rows.push(node.extents().product(&[&[run], rest].concat()));
    }
    Some(node.extents().sum(&rows))
}

/// All members end to end, for all ranks, in elements of the bucket's dtype.
pub fn pre_bucket_all_gather(node: &mut Node<'_>) -> Option<Extent> {
    let parts = node.tensors(node.arg(0, &["ag_ins"])?.1)?;
    let group = u64::try_from(node.int_at(1, "group_size", 0)?).ok()?;
    let bucket = node.dtype(2)?;
    let numbers = node.ints(node.arg(3, &["out_dtype_ints"])?.1)?;
    if numbers.len() != parts.len() {
        return None;
    }
    let mut members = Vec::new();
    for (part, number) in parts.iter().zip(numbers) {
        let elements = node.extents().product(part);
        members.push(rescaled(node, elements, numbered_dtype(number)?, bucket)?);
    }
    let (ranks, slot) = (node.extents().fixed(group), node.extents().sum(&members));
    Some(node.extents().product(&[ranks, slot]))
}

/// The sizes of `_foreach_copy_`.
pub fn foreach_copy(node: &mut Node<'_>) -> Option<Shape> {
    let (to, from) = (node.tensors(node.arg(0, &["self"])?.1)?, node.tensors(node.arg(1, &["src"])?.1)?);
    for (to, from) in to.iter().zip(from) {
        node.broadcast(&[to.clone(), from])?;
    }
    Some(Shape::Tuple(to.into_iter().map(Shape::Tensor).collect()))
}

/// The sizes of a pad.
pub fn pad(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let mut dims = node.first()?;
    let (place, arg) = node.arg(1, &["pad"])?;
    let pads = node.ints(arg)?;
    let (Arg::List(items) | Arg::Tuple(items)) = arg else { return None };
    if pads.len() > 2 * dims.len() {
        return None;
    }
    // The first pair is for the last dimension; what is negative cuts.
    for (nth, &pad) in pads.iter().enumerate() {
        let dim = dims.len() - 1 - nth / 2;
        let whole = dims[dim];
        if let Ok(pad) = u64::try_from(pad) {
            let pad = node.extents().leaf(pad);
            node.is_size_of(&place, Some(nth), &items[nth], pad);
            let parts = if nth % 2 == 0 { [pad, whole] } else { [whole, pad] };
            dims[dim] = node.extents().sum(&parts);
        } else {
            node.fix(&[whole]);
            let size = node.size(whole).checked_sub(pad.unsigned_abs())?;
            dims[dim] = node.extents().fixed(size);
        }
    }
    Some(dims)
}

/// The sizes of `slice_scatter` and `select_scatter`.
pub fn scatter(node: &mut Node<'_>, kind: ViewKind) -> Option<Vec<Extent>> {
    let (dims, mut source) = (node.first()?, node.tensor(1, &["src"])?);
    let dim = node.dim_at(2, "dim", 0, dims.len())?;
    if kind == ViewKind::Select {
        node.fix(dims.get(dim..=dim)?);
        if dim > source.len() {
            return None;
        }
        source.insert(dim, node.extents().fixed(1));
    } else {
        let (start, end) = (node.arg(3, &["start"]), node.arg(4, &["end"]));
        let step = node.int_at(5, "step", 1)?;
        let bound = |found: &Option<Found<'_>>| found.as_ref().and_then(|(_, arg)| node.int(arg));
        let size = usize::try_from(node.size(dims[dim])).ok()?;
        let range = slice_range(bound(&start), bound(&end), step, size).ok()?;
        let part = sliced(node, dims[dim], [start, end], (range.0 as u64, range.1 as u64), step);
        let other = *source.get(dim)?;
        node.extents().unify(part, other);
    }
    for at in (0..dims.len()).filter(|&at| at != dim) {
        let other = *source.get(at)?;
        node.extents().unify(dims[at], other);
    }
    Some(dims)
}
