//! Views.

use super::{parts, reshape};
use crate::call::wrap_dim;
use crate::shrink::extents::Extent;
use crate::shrink::node::Node;
use crate::shrink::trace::Shape;
use bucketeer::ir::Arg;
use bucketeer::ir::operators::ViewKind;

/// The sizes of a view.
pub fn shape(node: &mut Node<'_>, kind: ViewKind) -> Option<Shape> {
    if matches!(kind, ViewKind::Element | ViewKind::TupleElement) {
        return parts::element(node);
    }
    let dims = node.first()?;
    let cast = |node: &Node<'_>| matches!(node.arg(1, &["dtype"]), Some((_, Arg::DType(_))));
    let dims = match kind {
        ViewKind::View | ViewKind::Bits if cast(node) => reshape::bits(node, dims)?,
        ViewKind::View | ViewKind::Reshape => reshape::view(node, &dims)?,
        ViewKind::Flatten => reshape::flatten(node, dims)?,
        ViewKind::Permute => permute(node, &dims)?,
        ViewKind::Transpose => transpose(node, dims)?,
        ViewKind::Expand => expand(node, &dims)?,
        ViewKind::Slice | ViewKind::Narrow | ViewKind::Select => parts::cut(node, dims, kind)?,
        ViewKind::Squeeze => squeeze(node, dims)?,
        ViewKind::Unsqueeze => {
            let mut dims = dims;
            let dim = node.dim_at(1, "dim", 0, dims.len() + 1)?;
            dims.insert(dim, node.extents().fixed(1));
            dims
        }
        ViewKind::Split | ViewKind::SplitWithSizes | ViewKind::Chunk | ViewKind::Unbind => {
            return parts::split(node, dims, kind);
        }
        ViewKind::Strided | ViewKind::BroadcastInDim => {
            node.fix(&dims);
            let (_, arg) = node.arg(1, &["size", "shape"])?;
            let sizes = node.ints(arg)?;
            sizes
                .into_iter()
                .map(|size| Some(node.extents().fixed(u64::try_from(size).ok()?)))
                .collect::<Option<_>>()?
        }
        ViewKind::Same => dims,
        ViewKind::Bits
        | ViewKind::Unflatten
        | ViewKind::Contiguous
        | ViewKind::Convert
        | ViewKind::Element
        | ViewKind::TupleElement => return None,
    };
    Some(Shape::Tensor(dims))
}

fn permute(node: &mut Node<'_>, dims: &[Extent]) -> Option<Vec<Extent>> {
    let order = node.ints(node.arg(1, &["dims"])?.1)?;
    let pick = |dim: i64| dims.get(wrap_dim(dim, dims.len()).ok()?).copied();
    (order.len() == dims.len()).then(|| order.into_iter().map(pick).collect())?
}

fn transpose(node: &mut Node<'_>, mut dims: Vec<Extent>) -> Option<Vec<Extent>> {
    let rank = dims.len();
    if rank < 2 {
        return Some(dims);
    }
    let (a, b) = (node.dim_at(1, "dim0", 0, rank)?, node.dim_at(2, "dim1", 1, rank)?);
    dims.swap(a, b);
    Some(dims)
}

fn expand(node: &mut Node<'_>, dims: &[Extent]) -> Option<Vec<Extent>> {
    let found @ (_, arg) = node.arg(1, &["size", "other", "shape"])?;
    if let Some(like) = node.tensor_of(arg) {
        node.broadcast(&[like.clone(), dims.to_vec()])?;
        return Some(like);
    }
    let asked = node.ints(arg)?;
    let new = asked.len().checked_sub(dims.len())?;
    let mut made = Vec::new();
    for (at, &size) in asked.iter().enumerate() {
        let old = at.checked_sub(new).map(|at| dims[at]);
        let same = |old: &Extent| size == -1 || u64::try_from(size) == Ok(node.size(*old));
        made.push(match old.filter(same) {
            Some(old) => old,
            None => {
                let size = u64::try_from(size).ok()?;
                node.extents().leaf(size)
            }
        });
    }
    node.are_sizes_of(&found, &made);
    Some(made)
}

fn squeeze(node: &mut Node<'_>, dims: Vec<Extent>) -> Option<Vec<Extent>> {
    let asked: Option<Vec<usize>> = match node.arg(1, &["dim", "dimensions"]) {
        None => Some((0..dims.len()).collect()),
        Some((_, arg)) => node.ints(arg)?.into_iter().map(|dim| wrap_dim(dim, dims.len()).ok()).collect(),
    };
    let asked = asked?;
    let kept = |(at, dim): (usize, Extent)| (!asked.contains(&at) || node.size(dim) != 1).then_some(dim);
    Some(dims.into_iter().enumerate().filter_map(kept).collect())
}
