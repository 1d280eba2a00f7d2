//! Operators that make a tensor from nothing but numbers.

use crate::shrink::extents::Extent;
use crate::shrink::node::Node;
use crate::shrink::trace::Shape;

/// The sizes of a new tensor.
pub fn shape(node: &mut Node<'_>) -> Option<Shape> {
    let (base, like) = match node.base.strip_suffix("_like") {
        Some(base) => (base, true),
        None => (node.base, false),
    };
    let (base, new) = base.strip_prefix("new_").map_or((base, false), |base| (base, true));
    let dims = match base {
        "full" | "zeros" | "ones" | "empty" | "empty_strided" | "empty_permuted" | "alloc" if like => node.first()?,
        "empty_strided" => {
            let dims = sized(node, usize::from(new))?;
            node.fix(&dims);
            dims
        }
        "full" | "zeros" | "ones" | "empty" | "empty_permuted" | "alloc" => sized(node, usize::from(new))?,
        "scalar_tensor" => Vec::new(),
        "arange" => vec![arange(node)?],
        _ => return None,
    };
    Some(Shape::Tensor(dims))
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
fn arange(node: &mut Node<'_>) -> Option<Extent> {
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
