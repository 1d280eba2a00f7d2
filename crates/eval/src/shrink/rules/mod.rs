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
use bucketeer::ir::Op;
use bucketeer::ir::operators::{NUMBER_NAMESPACES, OperatorId, ViewKind};

/// The sizes of what a node makes, if a rule says so.
pub fn shape(node: &mut Node<'_>) -> Option<Shape> {
    if let Op::Collective(collective) = node.graph.node(node.id).op {
        return collective::shape(node, collective);
    }
    let out = node.args.get("out").cloned();
    let in_place = node.operator.is_in_place();
    let target = if in_place { node.first() } else { None };
    let made = match node.operator.id() {
        own @ OperatorId::ForeachCopy => family(node, own),
        _ if in_place => family(node, node.operator.function()),
        own => family(node, own),
    };
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

fn family(node: &mut Node<'_>, operator: OperatorId) -> Option<Shape> {
    if NUMBER_NAMESPACES.contains(&node.operator.namespace()) {
        return None;
    }
    if operator.is_pointwise() {
        // The tuples and numbers among the operands have no sizes.
        if let Some(shape) = elementwise(node) {
            return Some(shape);
        }
    }
    if let OperatorId::SymSize(kind) | OperatorId::Size(kind) = operator {
        return scalars::size(node, kind);
    }
    scalars::arithmetic(node, operator).or_else(|| tensors(node, operator))
}

/// The sizes of what an operator on tensors makes.
fn tensors(node: &mut Node<'_>, operator: OperatorId) -> Option<Shape> {
    let dims = match operator {
        OperatorId::View(ViewKind::Contiguous | ViewKind::Convert) | OperatorId::Clone | OperatorId::Fill => {
            node.first()?
        }
        // What splits into copies has the sizes of what splits into views.
        OperatorId::View(kind) | OperatorId::ViewCopy(kind) => return layout::shape(node, kind),
        OperatorId::Cast(kind) => copy::cast(node, kind)?,
        OperatorId::ForeachCopy => return copy::foreach_copy(node),
        OperatorId::Cat => copy::cat(node)?,
        OperatorId::Stack => copy::stack(node)?,
        OperatorId::ChunkCat => copy::chunk_cat(node)?,
        OperatorId::PackForGather => vec![copy::pre_bucket_all_gather(node)?],
        OperatorId::PackForScatter => copy::pre_bucket_reduce_scatter(node)?,
        OperatorId::Pad | OperatorId::ConstantPad => copy::pad(node)?,
        OperatorId::SliceScatter => copy::scatter(node, ViewKind::Slice)?,
        OperatorId::SelectScatter => copy::scatter(node, ViewKind::Select)?,
        OperatorId::IndexSelect => copy::index_select(node)?,
        OperatorId::Create(kind, model) => create::shape(node, kind, model)?,
        OperatorId::ScalarTensor => Vec::new(),
        OperatorId::Arange => vec![create::arange(node)?],
        OperatorId::MatMul => linear::matmul(node)?,
        OperatorId::Reduce(kind) => linear::reduce(node, kind)?,
        OperatorId::CopyInto
        | OperatorId::Unary(_)
        | OperatorId::Binary(_)
        | OperatorId::Ternary(_)
        | OperatorId::Clamp(_)
        | OperatorId::Where
        | OperatorId::ThresholdBackward
        | OperatorId::SymSize(_)
        | OperatorId::Size(_)
        | OperatorId::Number(_)
        | OperatorId::Communicate(_)
        | OperatorId::HloTuple
        | OperatorId::HloRandom
        | OperatorId::Other => return None,
    };
    Some(Shape::Tensor(dims))
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
