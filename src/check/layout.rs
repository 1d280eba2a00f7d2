//! Operators that move bytes and change none: what each does to a tensor's value.
//!
//! Each function gives `None` where the operator cannot be followed (a size is not known well enough, a permuted
//! tensor has pieces that no dimension keeps apart); the caller then takes the result as a value of its own.

use super::flat::{Flat, Piece};
use super::int::{Int, ONE, ZERO, product};
use super::pattern::{self, Pattern};
use super::terms::{Context, Shape, Tensor, Val, Value, constant, element};
use crate::ir::DType;
use std::cmp::Ordering;

/// Most parts that a tensor is cut into to have its dimensions put in another order.
const MOST_PARTS: usize = 256;

/// Counts a dimension from the end if it is negative.
pub(super) fn dimension(index: i64, rank: usize) -> Option<usize> {
    let rank_int = i64::try_from(rank).ok()?;
    usize::try_from(if index < 0 { index + rank_int } else { index }).ok().filter(|dim| *dim < rank)
}

/// The same bytes in another shape; one size may be -1.
pub(super) fn reshape(tensor: &Tensor, sizes: &[Int]) -> Option<Tensor> {
    let elements = product(&tensor.shape)?;
    let shape = sizes_with_open(&elements, sizes)?;
    (product(&shape)? == elements).then(|| Tensor { dtype: tensor.dtype, shape, flat: tensor.flat.clone() })
}

/// Sizes with what is left of `elements` for the one that is -1. Of sizes whose product is right, one may be of unknown
/// sign: the others say what it is.
pub(super) fn sizes_with_open(elements: &Int, sizes: &[Int]) -> Option<Shape> {
    let mut shape: Shape = sizes.iter().cloned().collect();
    if let Some(open) = sizes.iter().position(|size| size.is(-1)) {
        shape[open] = ONE;
        shape[open] = elements.div(&product(&shape)?)?;
    }
    let unsure = shape.iter().filter(|size| ZERO.at_most(size) != Some(true));
    let negative = shape.iter().any(|size| size.known().is_some_and(|size| size < 0));
    (!negative && unsure.count() <= 1).then_some(shape)
}

/// The same bytes as elements of another dtype.
pub(super) fn bit_cast(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    let mut shape = tensor.shape.clone();
    if dtype.bytes() != tensor.dtype.bytes() {
        let last = shape.last_mut()?;
        *last = last.mul(&element(tensor.dtype))?.div(&element(dtype))?;
    }
    Some(Tensor { dtype, shape, flat: tensor.flat.clone() })
}

/// The bytes of a tensor of one piece, dimension by dimension, then those of an element.
fn by_dimension(tensor: &Tensor) -> Option<(&Piece, Vec<Pattern>, Pattern)> {
    let piece = tensor.flat.single()?;
    let mut rest = piece.inner.clone();
    let mut dims = Vec::with_capacity(tensor.shape.len());
    for size in &tensor.shape {
        let (head, tail) = pattern::split(&rest, size)?;
        dims.push(head);
        rest = tail;
    }
    (rest == pattern::dense(element(tensor.dtype))).then_some((piece, dims, rest))
}

fn from_dimensions(dtype: DType, shape: Shape, piece: &Piece, dims: &[Pattern], last: &Pattern) -> Option<Tensor> {
    let mut run = Pattern::new();
    for dim in dims {
        pattern::extend(&mut run, dim)?;
    }
    pattern::extend(&mut run, last)?;
    Some(Tensor { dtype, shape, flat: Flat::run(piece.leaf, piece.offset.clone(), run)? })
}

/// Dimensions in another order.
pub(super) fn permute(context: &mut Context<'_>, tensor: &Tensor, order: &[usize]) -> Option<Tensor> {
    let mut seen = vec![false; tensor.shape.len()];
    for &dim in order {
        *seen.get_mut(dim)? = true;
    }
    if order.len() != seen.len() || seen.contains(&false) {
        return None;
    }
    permute_in_parts(context, tensor, order, order.len())
}

/// Cuts the tensor along at most `cuts` dimensions, so that the parts are of one piece. `order` names each dimension
/// once.
fn permute_in_parts(context: &mut Context<'_>, tensor: &Tensor, order: &[usize], cuts: usize) -> Option<Tensor> {
    let shape: Shape = order.iter().map(|&dim| tensor.shape[dim].clone()).collect();
    let longer_than_one = |dim: &&usize| !tensor.shape[**dim].is(1);
    if tensor.flat.pieces.is_empty() || order.iter().filter(longer_than_one).is_sorted() {
        return Some(Tensor { shape, ..tensor.clone() });
    }
    if tensor.flat.single().is_some() {
        let (piece, dims, last) = by_dimension(tensor)?;
        let dims: Vec<_> = order.iter().map(|&dim| dims[dim].clone()).collect();
        return from_dimensions(tensor.dtype, shape, piece, &dims, &last);
    }
    let cuts = cuts.checked_sub(1)?;
    let by_dim = (0..order.len()).filter_map(|dim| Some((dim, sizes_between_pieces(tensor, dim)?)));
    let (dim, sizes) = by_dim.min_by_key(|(_, sizes)| sizes.len())?;
    let parts = split(context, tensor, dim, &sizes)?;
    let turned: Option<Vec<Tensor>> = parts.iter().map(|part| permute_in_parts(context, part, order, cuts)).collect();
    let place = order.iter().position(|&from| from == dim)?;
    cat(context, &turned?, i64::try_from(place).ok()?)
}

/// The sizes of the parts of a dimension between which other pieces begin; at least two.
fn sizes_between_pieces(tensor: &Tensor, dim: usize) -> Option<Vec<Int>> {
    let (rows, step) = around(tensor, dim)?;
    let table = tensor.flat.with_rows(&rows, &mut |_| None)?;
    let (mut at, mut sizes) = (ZERO, Vec::new());
    for piece in table.pieces.iter().skip(1) {
        let Some(start) = piece.start.div(&step).filter(|start| *start != at) else { continue };
        sizes.push(start.sub(&at)?);
        at = start;
    }
    sizes.push(tensor.shape[dim].sub(&at)?);
    (2..=MOST_PARTS).contains(&sizes.len()).then_some(sizes)
}

/// Sizes of one repeated; -1 keeps a size, and new dimensions come first.
pub(super) fn expand(tensor: &Tensor, sizes: &[Int]) -> Option<Tensor> {
    let new = sizes.len().checked_sub(tensor.shape.len())?;
    let mut shape = Shape::new();
    for (index, size) in sizes.iter().enumerate() {
        let old = index.checked_sub(new).map(|index| &tensor.shape[index]);
        match old {
            Some(old) if size.is(-1) || size == old => shape.push(old.clone()),
            Some(old) if !old.is(1) => return None,
            _ if ZERO.at_most(size) != Some(true) => return None,
            _ => shape.push(size.clone()),
        }
    }
    let elements = product(&shape)?;
    if elements.is(0) {
        return Some(Tensor { dtype: tensor.dtype, shape, flat: Flat::empty() });
    }
    if elements == product(&tensor.shape)? {
        return Some(Tensor { shape, ..tensor.clone() });
    }
    let (piece, dims, last) = by_dimension(tensor)?;
    let mut repeated = Vec::new();
    for (index, size) in shape.iter().enumerate() {
        let mut dim = Pattern::new();
        match index.checked_sub(new) {
            Some(index) if tensor.shape[index] == *size => dim = dims[index].clone(),
            _ => pattern::push(&mut dim, size.clone(), ZERO)?,
        }
        repeated.push(dim);
    }
    from_dimensions(tensor.dtype, shape, piece, &repeated, &last)
}

/// How many rows a dimension stands in, and the bytes of one step along it.
fn around(tensor: &Tensor, dim: usize) -> Option<(Int, Int)> {
    let rows = product(&tensor.shape[..dim])?;
    let step = product(&tensor.shape[dim + 1..])?.mul(&element(tensor.dtype))?;
    Some((rows, step))
}

/// Cuts a dimension into parts that follow each other.
pub(super) fn split(context: &mut Context<'_>, tensor: &Tensor, dim: usize, sizes: &[Int]) -> Option<Vec<Tensor>> {
    let (rows, step) = around(tensor, dim)?;
    let table = if tensor.flat.pieces.is_empty() { Flat::empty() } else { context.with_rows(&tensor.flat, &rows)? };
    let mut parts = Vec::with_capacity(sizes.len());
    let mut at = ZERO;
    for size in sizes {
        let next = at.add(size)?;
        let mut shape = tensor.shape.clone();
        shape[dim] = size.clone();
        let flat = if table.pieces.is_empty() || size.is(0) {
            Flat::empty()
        } else {
            table.columns(&at.mul(&step)?, &next.mul(&step)?)?.normalize()?
        };
        parts.push(Tensor { dtype: tensor.dtype, shape, flat });
        at = next;
    }
    Some(parts)
}

/// A range of a dimension, bounds as Python takes them: from the end if negative, so of unknown sign not at all.
pub(super) fn slice(
    context: &mut Context<'_>,
    tensor: &Tensor,
    dim: usize,
    start: &Int,
    end: &Int,
    step: i64,
) -> Option<Tensor> {
    let size = tensor.shape.get(dim)?.clone();
    let bound = |at: &Int| -> Option<Int> {
        if at.is(i64::MAX) {
            return Some(size.clone());
        }
        let at = match at.known() {
            Some(known) if known < 0 => {
                let from_end = size.add(at)?;
                if from_end.known().is_some_and(|at| at < 0) { ZERO } else { from_end }
            }
            _ => at.clone(),
        };
        // Of a size with symbols, what is counted from its end may lie before its start.
        if ZERO.at_most(&at) != Some(true) {
            return None;
        }
        Some(if at.compare(&size)? == Ordering::Greater { size.clone() } else { at })
    };
    let (start, end) = (bound(start)?, bound(end)?);
    let length = if end.at_most(&start)? { ZERO } else { end.sub(&start)? };
    if step == 1 {
        range(context, tensor, dim, &start, &length)
    } else {
        strided(context, tensor, dim, &start, &length, step)
    }
}

/// A range that is in the dimension.
fn range(context: &mut Context<'_>, tensor: &Tensor, dim: usize, start: &Int, length: &Int) -> Option<Tensor> {
    if *length == tensor.shape[dim] {
        return Some(tensor.clone());
    }
    let mut shape = tensor.shape.clone();
    shape[dim] = length.clone();
    if length.is(0) || tensor.flat.pieces.is_empty() {
        return Some(Tensor { dtype: tensor.dtype, shape, flat: Flat::empty() });
    }
    let (rows, bytes) = around(tensor, dim)?;
    let table = context.with_rows(&tensor.flat, &rows)?;
    let from = start.mul(&bytes)?;
    let flat = table.columns(&from, &from.add(&length.mul(&bytes)?)?)?.normalize()?;
    Some(Tensor { dtype: tensor.dtype, shape, flat })
}

fn strided(
    context: &mut Context<'_>,
    tensor: &Tensor,
    dim: usize,
    start: &Int,
    length: &Int,
    step: i64,
) -> Option<Tensor> {
    if step < 1 {
        return None;
    }
    let length = length.known()?;
    let count = Int::Known(length / step + i64::from(length % step != 0));
    if count.at_most(&ONE)? {
        return range(context, tensor, dim, start, &count);
    }
    let (piece, mut dims, last) = by_dimension(tensor)?;
    let [along] = dims[dim].as_slice() else { return None };
    let offset = piece.offset.add(&start.mul(&along.stride)?)?;
    let mut part = Pattern::new();
    pattern::push(&mut part, count.clone(), along.stride.mul(&Int::Known(step))?)?;
    dims[dim] = part;
    let mut shape = tensor.shape.clone();
    shape[dim] = count;
    from_dimensions(tensor.dtype, shape, &Piece { offset, ..piece.clone() }, &dims, &last)
}

/// A range by its start, from the end if negative, and its length; it must be in the dimension.
pub(super) fn narrow(
    context: &mut Context<'_>,
    tensor: &Tensor,
    dim: usize,
    start: &Int,
    length: &Int,
) -> Option<Tensor> {
    let size = tensor.shape.get(dim)?;
    let start = if start.known().is_some_and(|start| start < 0) { size.add(start)? } else { start.clone() };
    let inside = ZERO.at_most(&start)? && ZERO.at_most(length)? && start.add(length)?.at_most(size)?;
    inside.then(|| range(context, tensor, dim, &start, length)).flatten()
}

/// One index of a dimension, which goes.
pub(super) fn select(context: &mut Context<'_>, tensor: &Tensor, dim: usize, index: &Int) -> Option<Tensor> {
    let mut part = narrow(context, tensor, dim, index, &ONE)?;
    part.shape.remove(dim);
    Some(part)
}

/// Tensors end to end along a dimension; all of one dtype.
pub(super) fn cat(context: &mut Context<'_>, tensors: &[Tensor], dim: i64) -> Option<Tensor> {
    // PyTorch lets empty tensors of one dimension stand in any list.
    let full: Vec<&Tensor> =
        tensors.iter().filter(|tensor| !(tensor.shape.len() == 1 && tensor.shape[0].is(0))).collect();
    let first = match full.first() {
        Some(first) => *first,
        None => return tensors.first().cloned(),
    };
    let dim = dimension(dim, first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[dim] = ZERO;
    let rows = product(&first.shape[..dim])?;
    let mut tables = Vec::with_capacity(full.len());
    for tensor in &full {
        let others_agree = tensor.shape.len() == shape.len()
            && (0..shape.len()).all(|index| index == dim || tensor.shape[index] == shape[index]);
        if tensor.dtype != first.dtype || !others_agree {
            return None;
        }
        shape[dim] = shape[dim].add(&tensor.shape[dim])?;
        if !tensor.flat.pieces.is_empty() {
            tables.push(context.with_rows(&tensor.flat, &rows)?);
        }
    }
    let flat = if tables.is_empty() { Flat::empty() } else { Flat::beside(tables)?.normalize()? };
    Some(Tensor { dtype: first.dtype, shape, flat })
}

/// Filled up on both sides of the last dimensions: pairs (before, after), from the last dimension out.
pub(super) fn pad(context: &mut Context<'_>, tensor: &Tensor, pads: &[Int], fill: &str) -> Option<Tensor> {
    if !pads.len().is_multiple_of(2) {
        return None;
    }
    let mut result = tensor.clone();
    for (index, pair) in pads.chunks_exact(2).enumerate() {
        let dim = tensor.shape.len().checked_sub(index + 1)?;
        for (side, amount) in pair.iter().enumerate() {
            if amount.is(0) {
                continue;
            }
            // A negative amount cuts off.
            if amount.known()? < 0 {
                return None;
            }
            let mut shape = result.shape.clone();
            shape[dim] = amount.clone();
            let part = constant(context, fill, tensor.dtype, shape)?;
            let parts = if side == 0 { [part, result] } else { [result, part] };
            result = cat(context, &parts, i64::try_from(dim).ok()?)?;
        }
    }
    Some(result)
}

/// Each tensor's first dimension filled up with zeros to a multiple of `chunks`, cut into `chunks` rows, and all rows
/// side by side.
pub(super) fn chunk_cat(context: &mut Context<'_>, tensors: &[Tensor], chunks: i64) -> Option<Tensor> {
    if chunks < 1 {
        return None;
    }
    let mut tables = Vec::new();
    for tensor in tensors {
        let rows = tensor.shape.first()?;
        let padded = match rows.div(&Int::Known(chunks)) {
            Some(_) => tensor.clone(),
            None => {
                let missing = (chunks - rows.known()? % chunks) % chunks;
                let mut pads = vec![ZERO; 2 * tensor.shape.len()];
                *pads.last_mut()? = Int::Known(missing);
                pad(context, tensor, &pads, "0")?
            }
        };
        tables.push(reshape(&padded, &[Int::Known(chunks), Int::Known(-1)])?);
    }
    cat(context, &tables, 1)
}

/// Each element converted. Where a piece is not made of whole elements of that dtype, the tensor is taken as it is.
pub(super) fn cast(context: &mut Context<'_>, tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    if tensor.dtype == dtype {
        return Some(tensor.clone());
    }
    let whole = elements_of_leaves(context, tensor)?;
    let (old, new) = (tensor.dtype.bytes() as i64, dtype.bytes() as i64);
    let mut pieces = Vec::with_capacity(whole.flat.pieces.len());
    let scaled = |size: &Int| size.div(&Int::Known(old))?.mul(&Int::Known(new));
    for piece in whole.flat.pieces.iter() {
        let data = context.leaf(piece.leaf);
        let bytes = match &data.bytes {
            Some(bytes) => Some(scaled(bytes)?),
            None => None,
        };
        let leaf = context.intern_leaf(super::terms::Term::Cast(dtype, piece.leaf), Some(dtype), bytes);
        let outer: Option<Pattern> = piece
            .outer
            .iter()
            .map(|step| Some(pattern::Loop { count: step.count.clone(), stride: scaled(&step.stride)? }))
            .collect();
        pieces.push(Piece {
            start: scaled(&piece.start)?,
            bytes: scaled(&piece.bytes)?,
            leaf,
            offset: scaled(&piece.offset)?,
            outer: outer?,
            inner: pattern::rescale(&piece.inner, old, new)?,
        });
    }
    let flat = Flat { rows: whole.flat.rows.clone(), width: scaled(&whole.flat.width)?, pieces: pieces.into() };
    Some(Tensor { dtype, shape: tensor.shape.clone(), flat })
}

/// The tensor with each of its pieces made of whole elements of a leaf of its dtype; else as one leaf of its own.
pub(super) fn elements_of_leaves(context: &mut Context<'_>, tensor: &Tensor) -> Option<Tensor> {
    let size = element(tensor.dtype);
    let aligned =
        |steps: &[pattern::Loop]| steps.iter().all(|step| step.stride.is(1) || step.stride.div(&size).is_some());
    let fits = |piece: &Piece| {
        piece.offset.div(&size).is_some()
            && aligned(&piece.outer)
            && aligned(&piece.inner)
            && (size.is(1)
                || piece.inner.last().is_some_and(|step| step.stride.is(1) && step.count.div(&size).is_some()))
    };
    if !tensor.flat.pieces.iter().all(fits) {
        return context.opaque_tensor(tensor);
    }
    if tensor.flat.pieces.iter().all(|piece| context.leaf(piece.leaf).dtype == Some(tensor.dtype)) {
        return Some(tensor.clone());
    }
    let mut pieces = Vec::with_capacity(tensor.flat.pieces.len());
    for piece in tensor.flat.pieces.iter() {
        let Some(leaf) = context.bits(piece.leaf, tensor.dtype) else { return context.opaque_tensor(tensor) };
        pieces.push(Piece { leaf, ..piece.clone() });
    }
    Some(Tensor { flat: Flat { pieces: pieces.into(), ..tensor.flat.clone() }, ..tensor.clone() })
}

/// What `value` holds, if it is a tensor.
pub(super) fn tensor_of(context: &Context<'_>, val: Val) -> Option<Tensor> {
    match context.value(val) {
        Value::Tensor(tensor) => Some(tensor.clone()),
        _ => None,
    }
}

/// Whether the tensor is one piece with one stride for each dimension; `None` where sizes are not known well enough.
pub(super) fn has_strides(tensor: &Tensor) -> Option<bool> {
    if tensor.flat.pieces.is_empty() || tensor.flat.single().is_some_and(|piece| piece.is_dense()) {
        return Some(true);
    }
    match by_dimension(tensor) {
        Some((_, dims, _)) => Some(dims.iter().all(|dim| dim.len() <= 1)),
        None => tensor.shape.iter().all(|size| size.known().is_some()).then_some(false),
    }
}

/// The tensor with another term around each of its leaves.
pub(super) fn map_leaves(
    context: &mut Context<'_>,
    tensor: &Tensor,
    wrap: impl Fn(super::flat::Leaf) -> super::terms::Term,
) -> Option<Tensor> {
    let mut pieces = Vec::with_capacity(tensor.flat.pieces.len());
    for piece in tensor.flat.pieces.iter() {
        let data = context.leaf(piece.leaf);
        let (dtype, bytes) = (data.dtype, data.bytes.clone());
        let leaf = context.intern_leaf(wrap(piece.leaf), dtype, bytes);
        pieces.push(Piece { leaf, ..piece.clone() });
    }
    let flat = Flat { pieces: pieces.into(), ..tensor.flat.clone() };
    Some(Tensor { flat, ..tensor.clone() })
}
