//! Operators that read sizes or compute with them.

use crate::shrink::extents::Extent;
use crate::shrink::node::{ArgPosition, Node};
use crate::shrink::trace::Shape;
use bucketeer::ir::operators::{BinaryKind, NumberKind, OperatorId, ReduceKind, SizeKind};
use bucketeer::ir::{Arg, Type};

/// What an operator reads of how large a tensor is, or how it lies.
pub fn size(node: &mut Node<'_>, kind: SizeKind) -> Option<Shape> {
    match kind {
        SizeKind::Sizes => {
            let dims = node.first()?;
            if node.arg(1, &["dim"]).is_none() {
                return Some(Shape::Tuple(dims.into_iter().map(Shape::Number).collect()));
            }
            let dim = node.dim_at(1, "dim", 0, dims.len())?;
            Some(Shape::Number(dims[dim]))
        }
        SizeKind::Elements => {
            let dims = node.first()?;
            Some(Shape::Number(node.extents().product(&dims)))
        }
        SizeKind::Strides | SizeKind::Offset => {
            let dims = node.first()?;
            node.fix(&dims);
            None
        }
        SizeKind::Rank => None,
    }
}

/// The size that an operator computes from others, whatever it is.
pub fn arithmetic(node: &mut Node<'_>, operator: OperatorId) -> Option<Shape> {
    let plain = matches!(node.operator.namespace(), "" | "operator" | "_operator" | "torch");
    if !plain || !matches!(node.graph.type_of(node.id), Type::SymInt(_)) {
        return None;
    }
    let mut numbers = Vec::new();
    for (position, arg) in node.args.positional.iter().enumerate() {
        let extent = match arg {
            Arg::Operand(index) => match node.operand(*index)? {
                Shape::Number(extent) => *extent,
                _ => return None,
            },
            arg => {
                let value = u64::try_from(arg.as_int()?).ok()?;
                node.extents().leaf(value)
            }
        };
        numbers.push((position, extent));
    }
    let result = match *numbers.as_slice() {
        [left, right] => computed(node, operator, left, right),
        _ => None,
    };
    if let Some(result) = result {
        return Some(Shape::Number(result));
    }
    // Whatever it makes, it makes the same of the same.
    let operands: Vec<Extent> = numbers.into_iter().map(|(_, extent)| extent).collect();
    node.fix(&operands);
    let Type::SymInt(expr) = node.graph.type_of(node.id) else { return None };
    let value = u64::try_from(node.symbols.evaluate(expr)?).ok()?;
    Some(Shape::Number(node.extents().fixed(value)))
}

fn computed(
    node: &mut Node<'_>,
    operator: OperatorId,
    left: (usize, Extent),
    right: (usize, Extent),
) -> Option<Extent> {
    let is_text = |node: &Node<'_>, position: usize| matches!(node.args.positional[position], Arg::Int(_));
    let (a, b) = (node.size(left.1), node.size(right.1));
    match operator {
        OperatorId::Binary(BinaryKind::Mul) => {
            // The factors have no order here, so they say nothing of how the product is laid out.
            let size = a.checked_mul(b)?;
            for (position, extent) in [left, right] {
                let place = ArgPosition::Positional(position);
                let arg = &node.args.positional[position];
                node.is_size_of(&place, None, arg, extent);
            }
            let product = node.extents().product(&[left.1, right.1]);
            let result = node.extents().leaf(size);
            node.extents().equate(product, result);
            Some(result)
        }
        OperatorId::Binary(BinaryKind::Add) => {
            for (position, extent) in [left, right] {
                if is_text(node, position) {
                    node.extents().fix(extent);
                }
            }
            Some(node.extents().sum(&[left.1, right.1]))
        }
        OperatorId::Binary(BinaryKind::Sub) if b <= a && is_text(node, right.0) => {
            Some(node.extents().cut(left.1, a - b).0)
        }
        OperatorId::Number(NumberKind::FloorDiv) if b > 0 && is_text(node, right.0) => {
            let (whole, rest) = node.extents().cut(left.1, a - a % b);
            node.extents().fix(rest);
            Some(node.extents().quotient(whole, b))
        }
        OperatorId::Number(NumberKind::Max) | OperatorId::Reduce(ReduceKind::Max) if b <= 1 && a >= b => Some(left.1),
        _ => None,
    }
}
