//! Ranges of a storage that a place is in: which bytes a pattern visits, and what a write to them leaves.

use crate::check::flat::{Flat, Piece};
use crate::check::int::{Int, ONE, ZERO};
use crate::check::layout;
use crate::check::pattern::{self, Loop, Pattern};
use crate::check::terms::{Context, Tensor};
use crate::ir::DType;

/// Most ranges that one write may fall into.
const MAX_RANGES: i64 = 1 << 16;

/// All rows of a storage, and of each as many bytes.
pub(super) struct Columns {
    pub rows: Int,
    row_bytes: Int,
    bytes: Int,
}

/// A pattern that visits the same columns of each row of a storage of `total` bytes.
pub(super) fn columns_of(run: &[Loop], total: &Int) -> Option<Columns> {
    let (rows, bytes) = match run {
        [rows, columns] if columns.stride.is(1) => (rows, columns.count.clone()),
        [rows] if !rows.stride.is(1) => (rows, ONE),
        _ => return None,
    };
    let all = rows.count.mul(&rows.stride)? == *total;
    all.then(|| Columns { rows: rows.count.clone(), row_bytes: rows.stride.clone(), bytes })
}

impl Columns {
    /// These columns of a storage's content, from `offset` on.
    fn of(&self, context: &mut Context<'_>, content: &Flat, offset: &Int) -> Option<Flat> {
        context.with_rows(content, &self.rows)?.columns(offset, &offset.add(&self.bytes)?)?.normalize()
    }

    /// A storage's content with other bytes in these columns.
    pub fn overlay(&self, context: &mut Context<'_>, content: &Flat, offset: &Int, value: &Flat) -> Option<Flat> {
        let end = offset.add(&self.bytes)?;
        if !end.at_most(&self.row_bytes)? {
            return None;
        }
        let table = context.with_rows(content, &self.rows)?;
        let mut parts = Vec::new();
        if !offset.is(0) {
            parts.push(table.columns(&ZERO, offset)?);
        }
        parts.push(context.with_rows(value, &self.rows)?);
        if end != self.row_bytes {
            parts.push(table.columns(&end, &self.row_bytes)?);
        }
        Flat::beside(parts)?.normalize()
    }
}

/// Visits the dense runs of a pattern in order.
pub(super) fn runs(run: &[Loop], offset: &Int, visit: &mut dyn FnMut(Int, Int) -> Option<()>) -> Option<()> {
    match run {
        [] => visit(offset.clone(), ONE),
        [last] if last.stride.is(1) => visit(offset.clone(), last.count.clone()),
        [first, rest @ ..] => {
            let count = first.count.known().filter(|count| *count <= MAX_RANGES)?;
            (0..count).try_for_each(|turn| {
                let offset = offset.add(&first.stride.mul(&Int::Known(turn))?)?;
                runs(rest, &offset, visit)
            })
        }
    }
}

/// Tables side by side as one row, where they have different numbers of rows.
pub(super) fn beside(context: &mut Context<'_>, tables: Vec<Flat>) -> Option<Flat> {
    if let [_] = tables.as_slice() {
        return tables.into_iter().next();
    }
    let rows: Option<Vec<Flat>> = tables.iter().map(|table| context.with_rows(table, &ONE)).collect();
    Flat::beside(rows?)
}

/// One row with ranges written over, which do not overlap and stand in order.
pub(super) fn overlay(context: &mut Context<'_>, base: Flat, writes: Vec<(Int, Flat)>) -> Option<Flat> {
    let mut parts = Vec::with_capacity(2 * writes.len() + 1);
    let mut at = ZERO;
    for (start, flat) in writes {
        if at != start {
            parts.push(base.columns(&at, &start)?);
        }
        at = start.add(&flat.total()?)?;
        parts.push(context.with_rows(&flat, &ONE)?);
    }
    if at != base.width {
        parts.push(base.columns(&at, &base.width)?);
    }
    Flat::beside(parts)?.normalize()
}

/// The bytes of `content` that a pattern visits.
pub(super) fn window(context: &mut Context<'_>, content: &Flat, offset: &Int, run: &Pattern) -> Option<Flat> {
    let total = content.total()?;
    if offset.is(0) && *run == pattern::dense(total.clone()) {
        return Some(content.clone());
    }
    if let Some(piece) = content.single()
        && piece.inner == pattern::dense(total.clone())
    {
        return Flat::run(piece.leaf, piece.offset.add(offset)?, run.clone());
    }
    if let Some(columns) = columns_of(run, &total) {
        return columns.of(context, content, offset);
    }
    if let Some(turned) = turned_window(context, content, offset, run) {
        return Some(turned);
    }
    let row = context.with_rows(content, &ONE)?;
    let mut parts = Vec::new();
    runs(run, offset, &mut |at, bytes| {
        parts.push(row.columns(&at, &at.add(&bytes)?)?);
        Some(())
    })?;
    Flat::beside(parts)?.normalize()
}

/// A window of dimensions in another order: that in the order of their strides, turned.
fn turned_window(context: &mut Context<'_>, content: &Flat, offset: &Int, run: &Pattern) -> Option<Flat> {
    let order = by_stride(run);
    if order.is_sorted() {
        return None;
    }
    let mut sorted = Pattern::new();
    for &index in &order {
        pattern::push(&mut sorted, run[index].count.clone(), run[index].stride.clone())?;
    }
    let flat = window(context, content, offset, &sorted)?;
    let shape = order.iter().map(|&index| run[index].count.clone()).collect();
    let back: Vec<usize> =
        (0..run.len()).map(|dim| order.iter().position(|&index| index == dim)).collect::<Option<_>>()?;
    let tensor = Tensor { dtype: DType::U8, shape, flat };
    layout::permute(context, &tensor, &back).map(|turned| turned.flat)
}

/// A write whose dimensions lie in another order than they are visited: the pattern and the value in the order in which
/// they lie, where that is dense or a range of columns, so that no place is written twice.
pub(super) fn turned_write(context: &mut Context<'_>, place: &Piece, value: &Flat) -> Option<(Pattern, Flat)> {
    let order = by_stride(&place.inner);
    if order.is_sorted() || !place.outer.is_empty() {
        return None;
    }
    let mut sorted = Pattern::new();
    for &index in &order {
        pattern::push(&mut sorted, place.inner[index].count.clone(), place.inner[index].stride.clone())?;
    }
    let dense = sorted == pattern::dense(place.bytes.clone());
    let row_bytes = |run: &[Loop]| run.first().and_then(|rows| rows.count.mul(&rows.stride));
    let columns = row_bytes(&sorted).and_then(|total| columns_of(&sorted, &total));
    let fits = |columns: Columns| columns.bytes.at_most(&columns.row_bytes) == Some(true);
    if !(dense || columns.is_some_and(fits)) {
        return None;
    }
    let shape = place.inner.iter().map(|step| step.count.clone()).collect();
    let tensor = Tensor { dtype: DType::U8, shape, flat: value.clone() };
    let turned = match layout::permute(context, &tensor, &order) {
        Some(turned) => turned,
        None => {
            let whole = context.opaque_tensor(&tensor)?;
            layout::permute(context, &whole, &order)?
        }
    };
    Some((sorted, turned.flat))
}

/// Loops by their strides, the longest first. A stride that is a multiple of another is longer; where neither is, and
/// sizes do not say, they stay in their order, and what is built on it fails.
fn by_stride(run: &[Loop]) -> Vec<usize> {
    let longer = |a: &Int, b: &Int| match a.compare(b) {
        Some(order) => order.is_gt(),
        None => a.div(b).is_some(),
    };
    let mut order: Vec<usize> = Vec::with_capacity(run.len());
    for (index, step) in run.iter().enumerate() {
        let after = order.iter().rposition(|&other| !longer(&step.stride, &run[other].stride));
        order.insert(after.map_or(0, |place| place + 1), index);
    }
    order
}
