//! What a collective makes of a value.
//!
//! - **gather**: rank r's row of the result is rank r's tensor. A range of a leaf becomes the same range of the leaf's
//!   copies on all ranks, [`Term::Ranks`], so a packed buffer falls into what its members would have made alone.
//! - **reduce, broadcast**: element by element, [`Term::Merged`], so each element of a buffer is what it would be alone.
//!   The dtype of the elements is part of the term: a cast is never moved across a sum.
//! - **scatter**: the table's row of this rank, reduced: a range of columns becomes the same range of [`Term::Shard`].
//! - over a group of one rank, the tensor itself;
//! - **all-to-all of equal parts**: row r of the result is this rank's row of rank r's table, [`Term::Turned`];
//! - **other all-to-alls, permute**: not followed, [`Term::Exchange`].

use super::flat::{Flat, Piece};
use super::int::{Int, ONE, product};
use super::layout;
use super::pattern::{self, Pattern};
use super::terms::{Context, GroupKey, Merge, Tensor, Term};
use crate::ir::{CollectiveKind, ReduceOp};

/// The result for one input; `None` where the collective cannot be followed. `even` says of an all-to-all that all parts
/// are equal.
pub(super) fn result(
    context: &mut Context<'_>,
    kind: CollectiveKind,
    group: GroupKey,
    input: &Tensor,
    even: bool,
) -> Option<Tensor> {
    let size = context.groups.size(group);
    match kind {
        CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. } if size.is_none() => None,
        CollectiveKind::AllToAll if even => turned(context, group, i64::from(size?), input),
        CollectiveKind::AllToAll | CollectiveKind::Permute => None,
        CollectiveKind::AllGather { dim } => gather(context, group, i64::from(size?), dim as usize, input),
        _ if size == Some(1) => Some(input.clone()),
        CollectiveKind::ReduceScatter { op, dim } => scatter(context, group, op, i64::from(size?), dim as usize, input),
        CollectiveKind::AllReduce { op } => merged(context, Merge::All(op), group, input),
        CollectiveKind::Reduce { op, root } => merged(context, Merge::Root(op, root), group, input),
        CollectiveKind::Broadcast { root } => merged(context, Merge::Broadcast(root), group, input),
    }
}

fn gather(context: &mut Context<'_>, group: GroupKey, size: i64, dim: usize, input: &Tensor) -> Option<Tensor> {
    let mut shape = input.shape.clone();
    if shape.is_empty() {
        shape.push(ONE);
    }
    let inner = shape.clone();
    *shape.get_mut(dim)? = shape.get(dim)?.mul(&Int::Known(size))?;
    if size == 1 || input.flat.pieces.is_empty() {
        return Some(Tensor { dtype: input.dtype, shape, flat: input.flat.clone() });
    }
    let row = context.with_rows(&input.flat, &ONE)?;
    let mut pieces = Vec::with_capacity(row.pieces.len());
    for piece in row.pieces.iter() {
        let data = context.leaf(piece.leaf);
        let (dtype, bytes) = (data.dtype, data.bytes.clone()?);
        let all = bytes.mul(&Int::Known(size))?;
        let leaf = context.intern_leaf(Term::Ranks(group, piece.leaf), dtype, Some(all));
        let mut outer = Pattern::new();
        pattern::push(&mut outer, Int::Known(size), bytes)?;
        pieces.push(Piece { leaf, outer, ..piece.clone() });
    }
    let flat = Flat { rows: Int::Known(size), width: row.width, pieces: pieces.into() };
    let gathered = Tensor { dtype: input.dtype, shape, flat: flat.normalize()? };
    if dim == 0 {
        return Some(gathered);
    }
    // Rank by rank along the first dimension; here along another.
    let mut by_rank = inner;
    by_rank.insert(0, Int::Known(size));
    let by_rank = layout::reshape(&gathered, &by_rank)?;
    let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..by_rank.shape.len()).collect();
    if let Some(turned) = layout::permute(context, &by_rank, &order) {
        return layout::reshape(&turned, &gathered.shape);
    }
    let parts: Option<Vec<Tensor>> =
        (0..size).map(|rank| layout::select(context, &by_rank, 0, &Int::Known(rank))).collect();
    layout::cat(context, &parts?, i64::try_from(dim).ok()?)
}

fn merged(context: &mut Context<'_>, merge: Merge, group: GroupKey, input: &Tensor) -> Option<Tensor> {
    let whole = layout::elements_of_leaves(context, input)?;
    layout::map_leaves(context, &whole, |leaf| Term::Merged(merge, group, leaf))
}

/// A tensor with the rows that go to each rank first, one row a rank.
pub(super) fn scatter_table(context: &mut Context<'_>, size: i64, dim: usize, input: &Tensor) -> Option<Flat> {
    let size = Int::Known(size);
    let length = input.shape.get(dim)?.div(&size)?;
    let mut moved = layout::elements_of_leaves(context, input)?;
    if dim > 0 && !product(&input.shape[..dim])?.is(1) {
        let mut split = input.shape.clone();
        split[dim] = length;
        split.insert(dim, size.clone());
        let order: Vec<usize> = std::iter::once(dim).chain((0..split.len()).filter(|&index| index != dim)).collect();
        moved = layout::permute(context, &layout::reshape(&moved, &split)?, &order)?;
    }
    context.with_rows(&moved.flat, &size)
}

fn scatter(
    context: &mut Context<'_>,
    group: GroupKey,
    op: ReduceOp,
    size: i64,
    dim: usize,
    input: &Tensor,
) -> Option<Tensor> {
    let mut shape = input.shape.clone();
    *shape.get_mut(dim)? = shape.get(dim)?.div(&Int::Known(size))?;
    if input.flat.pieces.is_empty() {
        return Some(Tensor { dtype: input.dtype, shape, flat: Flat::empty() });
    }
    let table = scatter_table(context, size, dim, input)?;
    let mut pieces = Vec::with_capacity(table.pieces.len());
    for piece in table.pieces.iter() {
        let bytes = context.leaf(piece.leaf).bytes.clone();
        let term = Term::Shard(op, group, piece.leaf, Box::new(piece.outer.clone()));
        let leaf = context.intern_leaf(term, Some(input.dtype), bytes);
        pieces.push(Piece { leaf, outer: Pattern::new(), ..piece.clone() });
    }
    let flat = Flat { rows: ONE, width: table.width, pieces: pieces.into() };
    Some(Tensor { dtype: input.dtype, shape, flat: flat.normalize()? })
}

fn turned(context: &mut Context<'_>, group: GroupKey, size: i64, input: &Tensor) -> Option<Tensor> {
    if size == 1 || input.flat.pieces.is_empty() {
        return Some(input.clone());
    }
    let table = context.with_rows(&input.flat, &Int::Known(size))?;
    let mut pieces = Vec::with_capacity(table.pieces.len());
    for piece in table.pieces.iter() {
        let data = context.leaf(piece.leaf);
        let (dtype, bytes) = (data.dtype, data.bytes.clone()?);
        let term = Term::Turned(group, piece.leaf, Box::new(piece.outer.clone()));
        let leaf = context.intern_leaf(term, dtype, Some(bytes.mul(&Int::Known(size))?));
        let mut outer = Pattern::new();
        pattern::push(&mut outer, Int::Known(size), bytes)?;
        pieces.push(Piece { leaf, outer, ..piece.clone() });
    }
    let flat = Flat { rows: table.rows, width: table.width, pieces: pieces.into() };
    Some(Tensor { dtype: input.dtype, shape: input.shape.clone(), flat: flat.normalize()? })
}
