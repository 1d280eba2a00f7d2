//! Operators that make a tensor from nothing but numbers.

use crate::shrink::extents::Extent;
use crate::shrink::node::Node;
use bucketeer::ir::operators::{CreateKind, Model};

/// The sizes of a new tensor.
pub fn shape(node: &mut Node<'_>, kind: CreateKind, model: Model) -> Option<Vec<Extent>> {
    let position = match model {
        Model::Like => return node.first(),
        Model::Asked => 0,
        Model::New => 1,
    };
    let dims = sized(node, position)?;
    if kind == CreateKind::EmptyStrided {
        node.fix(&dims);
    }
    Some(dims)
}

fn sized(node: &mut Node<'_>, position: usize) -> Option<Vec<Extent>> {
    let found = node.arg(position, &["size", "shape"])?;
    let sizes = node.ints(found.1)?;
    let leaf = |size: i64| Some(node.tracer.extents.leaf(u64::try_from(size).ok()?));
    let dims: Vec<Extent> = sizes.into_iter().map(leaf).collect::<Option<_>>()?;
    node.are_sizes_of(&found, &dims);
    Some(dims)
}

/// `arange(end)` counts; other ranges stay as they are.
pub fn arange(node: &mut Node<'_>) -> Option<Extent> {
    let count = node.args.positional.len();
    if count != 1 {
        let stated = node.graph.tensor(node.id)?;
        let size = *node.symbols.sizes(&stated.shape)?.first()?;
        return Some(node.extents().fixed(size as u64));
    }
    let found = node.arg(0, &[])?;
    let size = u64::try_from(node.int(found.1)?).ok()?;
    let dim = node.extents().leaf(size);
    node.are_sizes_of(&found, &[dim]);
    Some(dim)
}
