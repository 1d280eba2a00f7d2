//! What the operators that the evaluator knows do to sizes. Anything else may have any sizes.

mod collective;
mod copy;
mod create;
mod layout;
mod linear;
mod parts;
mod reshape;
mod scalars;

use super::extents::Extent;
use super::node::Node;
use super::trace::Shape;
use crate::dispatch::is_known_name;
use crate::pointwise;
use bucketeer::ir::Op;

/// The sizes of what a node makes, if a rule says so.
pub fn shape(node: &mut Node<'_>) -> Option<Shape> {
    if let Op::Collective(collective) = node.graph.node(node.id).op {
        return collective::shape(node, collective);
    }
    let out = node.args.get("out").cloned();
    let in_place = node.base.strip_suffix('_').filter(|base| !base.is_empty() && !base.ends_with('_'));
    let target = in_place.and_then(|_| node.first());
    if node.base != "_foreach_copy_" {
        node.base = in_place.unwrap_or(node.base);
    }
    let made = family(node);
    let written = match (target, out) {
        (Some(target), _) => vec![target],
        (None, Some(out)) => node.tensors(&out)?,
        (None, None) => return made,
    };
    let made = match made? {
        Shape::Tensor(made) => vec![made],
        Shape::Tuple(made) => made.into_iter().filter_map(Shape::into_tensor).collect(),
        other => return Some(other),
    };
    for (made, written) in made.iter().zip(&written) {
        node.same(made, written);
    }
    let mut shapes: Vec<Shape> = written.into_iter().map(Shape::Tensor).collect();
    Some(if shapes.len() == 1 { shapes.remove(0) } else { Shape::Tuple(shapes) })
}

fn family(node: &mut Node<'_>) -> Option<Shape> {
    if !is_known_name(node.namespace, node.base) {
        return None;
    }
    if pointwise::is_known(node.base) {
        // The tuples and numbers among the operands have no sizes.
        if let Some(shape) = elementwise(node) {
            return Some(shape);
        }
    }
    scalars::shape(node)
        .or_else(|| layout::shape(node))
        .or_else(|| copy::shape(node))
        .or_else(|| create::shape(node))
        .or_else(|| linear::shape(node))
}

impl Shape {
    fn into_tensor(self) -> Option<Vec<Extent>> {
        if let Self::Tensor(dims) = self { Some(dims) } else { None }
    }
}

fn elementwise(node: &mut Node<'_>) -> Option<Shape> {
    let operands = node.args.positional.iter().chain(node.args.keyword.iter().map(|(_, arg)| arg));
    let shapes: Vec<_> = operands.filter_map(|arg| node.tensor_of(arg)).collect();
    node.broadcast(&shapes).map(Shape::Tensor)
}
