//! Operators on sizes and other numbers.

use super::call::{Call, Done, wrap_dim};
use super::memory::NodeError;
use super::symbols::{floor_div, modulo};
use super::value::{Scalar, Value};
use bucketeer::ir::DType;
use bucketeer::ir::operators::{BinaryKind, CastKind, NumberKind, OperatorId, ReduceKind, SizeKind, UnaryKind};

fn int(value: usize) -> Value {
    Value::Scalar(Scalar::Int(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// Evaluates an operator that reads how large a tensor is, or how it lies.
pub fn size(call: &Call<'_>, kind: SizeKind) -> Done {
    let Some(input) = call.first()? else { return Ok(None) };
    let list = match kind {
        SizeKind::Elements => return Ok(Some(int(input.elements()))),
        SizeKind::Offset => return Ok(Some(int(input.offset))),
        SizeKind::Rank => return Ok(Some(int(input.sizes.len()))),
        SizeKind::Strides => &input.strides,
        SizeKind::Sizes => &input.sizes,
    };
    Ok(Some(match call.int_arg(call.arg(1, &["dim"]))? {
        None => Value::Tuple(list.iter().copied().map(int).collect()),
        Some(dim) => list
            .get(wrap_dim(dim, list.len())?)
            .copied()
            .map(int)
            .ok_or_else(|| NodeError::misfit("a single element has no dimensions"))?,
    }))
}

/// `operator.add(a, b)`, `torch.sym_max(a, b)` and the like, on numbers alone.
pub fn arithmetic(call: &Call<'_>, operator: OperatorId) -> Done {
    if !matches!(call.operator.namespace(), "" | "operator" | "_operator" | "torch" | "math" | "builtins") {
        return Ok(None);
    }
    let mut numbers = Vec::new();
    for arg in &call.args.positional {
        match call.value(arg) {
            Ok(Value::Scalar(number)) => numbers.push(number),
            _ => return Ok(None),
        }
    }
    let value = match *numbers.as_slice() {
        [a] => unary(operator, a),
        [a, b] => binary(operator, a, b),
        _ => None,
    };
    Ok(value.map(Value::Scalar))
}

fn unary(operator: OperatorId, a: Scalar) -> Option<Scalar> {
    Some(match (operator, a) {
        (OperatorId::Unary(UnaryKind::Neg), Scalar::Float(value)) => Scalar::Float(-value),
        (OperatorId::Unary(UnaryKind::Neg), _) => Scalar::Int(a.int().checked_neg()?),
        (OperatorId::Number(NumberKind::Int) | OperatorId::Cast(CastKind::Dtype(DType::I32)), _) => {
            Scalar::Int(a.int())
        }
        (OperatorId::Number(NumberKind::Float) | OperatorId::Cast(CastKind::Dtype(DType::F32)), _) => {
            Scalar::Float(a.float())
        }
        (OperatorId::Number(NumberKind::Not), _) => Scalar::Bool(a.float() == 0.0),
        (OperatorId::Unary(UnaryKind::Floor), _) => Scalar::Int(a.float().floor() as i64),
        (OperatorId::Unary(UnaryKind::Ceil), _) => Scalar::Int(a.float().ceil() as i64),
        (OperatorId::Unary(UnaryKind::Sqrt) | OperatorId::Number(NumberKind::Sqrt), _) => {
            Scalar::Float(a.float().sqrt())
        }
        _ => return None,
    })
}

fn binary(operator: OperatorId, a: Scalar, b: Scalar) -> Option<Scalar> {
    if let OperatorId::Binary(kind) = operator
        && let Some(holds) = compared(kind, a.float(), b.float())
    {
        return Some(Scalar::Bool(holds));
    }
    if operator == OperatorId::Number(NumberKind::TrueDiv) {
        return Some(Scalar::Float(a.float() / b.float()));
    }
    if matches!((a, b), (Scalar::Float(_), _) | (_, Scalar::Float(_))) {
        return floats(operator, a.float(), b.float()).map(Scalar::Float);
    }
    ints(operator, a.int(), b.int()).map(Scalar::Int)
}

fn compared(kind: BinaryKind, x: f64, y: f64) -> Option<bool> {
    Some(match kind {
        BinaryKind::Eq => x == y,
        BinaryKind::Ne => x != y,
        BinaryKind::Lt => x < y,
        BinaryKind::Le => x <= y,
        BinaryKind::Gt => x > y,
        BinaryKind::Ge => x >= y,
        _ => return None,
    })
}

fn floats(operator: OperatorId, x: f64, y: f64) -> Option<f64> {
    Some(match operator {
        OperatorId::Binary(BinaryKind::Add) => x + y,
        OperatorId::Binary(BinaryKind::Sub) => x - y,
        OperatorId::Binary(BinaryKind::Mul) => x * y,
        OperatorId::Binary(BinaryKind::Pow) => x.powf(y),
        OperatorId::Number(NumberKind::FloorDiv) => (x / y).floor(),
        OperatorId::Number(NumberKind::Max) | OperatorId::Reduce(ReduceKind::Max) => x.max(y),
        OperatorId::Number(NumberKind::Min) | OperatorId::Reduce(ReduceKind::Min) => x.min(y),
        _ => return None,
    })
}

fn ints(operator: OperatorId, x: i64, y: i64) -> Option<i64> {
    Some(match operator {
        OperatorId::Binary(BinaryKind::Add) => x.checked_add(y)?,
        OperatorId::Binary(BinaryKind::Sub) => x.checked_sub(y)?,
        OperatorId::Binary(BinaryKind::Mul) => x.checked_mul(y)?,
        OperatorId::Binary(BinaryKind::Pow) => x.checked_pow(u32::try_from(y).ok()?)?,
        OperatorId::Number(NumberKind::FloorDiv) => floor_div(x, y)?,
        OperatorId::Number(NumberKind::Mod) => modulo(x, y)?,
        OperatorId::Number(NumberKind::Max) | OperatorId::Reduce(ReduceKind::Max) => x.max(y),
        OperatorId::Number(NumberKind::Min) | OperatorId::Reduce(ReduceKind::Min) => x.min(y),
        OperatorId::Number(NumberKind::And) => x & y,
        OperatorId::Number(NumberKind::Or) => x | y,
        _ => return None,
    })
}
