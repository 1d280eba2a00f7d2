//! Products of matrices, and reductions.

use crate::call::wrap_dim;
use crate::linear::reduces;
use crate::shrink::extents::Extent;
use crate::shrink::node::Node;
use bucketeer::ir::operators::ReduceKind;

/// The sizes of a product.
pub fn matmul(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let (a, b) = (node.first()?, node.tensor(1, &["mat2", "other"])?);
    product(node, a, b)
}

/// The sizes of a reduction.
pub fn reduce(node: &mut Node<'_>, kind: ReduceKind) -> Option<Vec<Extent>> {
    if !reduces(&node.operator, node.args, kind) {
        return None;
    }
    match kind {
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax | ReduceKind::Amin => reduced(node),
        ReduceKind::Max | ReduceKind::Min => Some(Vec::new()),
    }
}

fn product(node: &mut Node<'_>, mut a: Vec<Extent>, mut b: Vec<Extent>) -> Option<Vec<Extent>> {
    // A vector is a matrix of one row, or of one column.
    let (row, column) = (a.len() == 1, b.len() == 1);
    if row {
        a.insert(0, node.extents().fixed(1));
    }
    if column {
        b.push(node.extents().fixed(1));
    }
    let (x, y) = (a.len().checked_sub(2)?, b.len().checked_sub(2)?);
    node.extents().unify(a[x + 1], b[y]);
    let batch = [a[..x].to_vec(), b[..y].to_vec()];
    let mut dims = if x + y == 0 { Vec::new() } else { node.broadcast(&batch)? };
    dims.extend((!row).then_some(a[x]));
    dims.extend((!column).then_some(b[y + 1]));
    Some(dims)
}

fn reduced(node: &mut Node<'_>) -> Option<Vec<Extent>> {
    let dims = node.first()?;
    let rank = dims.len();
    let asked: Vec<usize> = match node.arg(1, &["dim"]) {
        None => Vec::new(),
        Some((_, arg)) => node.ints(arg)?.into_iter().map(|dim| wrap_dim(dim, rank).ok()).collect::<Option<_>>()?,
    };
    let keep = node.int_at(2, "keepdim", 0)? != 0;
    let one = node.extents().fixed(1);
    let all = asked.is_empty();
    let each = dims.into_iter().enumerate().filter_map(|(at, dim)| match all || asked.contains(&at) {
        false => Some(dim),
        true => keep.then_some(one),
    });
    Some(each.collect())
}
