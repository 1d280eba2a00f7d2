//! Operators on sizes and other numbers.

use super::call::{Call, Done, wrap_dim};
use super::memory::Fault;
use super::symbols::{floor_div, modulo};
use super::value::{Scalar, Value};

/// Evaluates an operator that reads sizes or computes with numbers.
pub fn scalars(call: &mut Call<'_>) -> Done {
    match call.base {
        "sym_size" | "sym_numel" | "sym_stride" | "sym_storage_offset" | "size" | "numel" | "stride"
        | "storage_offset" | "dim" => shape_reader(call),
        _ => arithmetic(call),
    }
}

fn int(value: usize) -> Value {
    Value::Scalar(Scalar::Int(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn shape_reader(call: &Call<'_>) -> Done {
    let Some(input) = call.first()? else { return Ok(None) };
    let list = match call.base {
        "sym_numel" | "numel" => return Ok(Some(int(input.elements()))),
        "sym_storage_offset" | "storage_offset" => return Ok(Some(int(input.offset))),
        "dim" => return Ok(Some(int(input.sizes.len()))),
        "sym_stride" | "stride" => &input.strides,
        _ => &input.sizes,
    };
    Ok(Some(match call.int_arg(call.arg(1, &["dim"]))? {
        None => Value::Tuple(list.iter().copied().map(int).collect()),
        Some(dim) => list
            .get(wrap_dim(dim, list.len())?)
            .copied()
            .map(int)
            .ok_or_else(|| Fault::misfit("a single element has no dimensions"))?,
    }))
}

/// `operator.add(a, b)`, `torch.sym_max(a, b)` and the like, on numbers alone.
fn arithmetic(call: &Call<'_>) -> Done {
    if !call.namespace.is_empty() && !matches!(call.namespace, "operator" | "_operator" | "torch" | "math" | "builtins")
    {
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
        [a] => unary(call.base, a),
        [a, b] => binary(call.base, a, b),
        _ => None,
    };
    Ok(value.map(Value::Scalar))
}

fn unary(base: &str, a: Scalar) -> Option<Scalar> {
    Some(match (base, a) {
        ("neg", Scalar::Float(value)) => Scalar::Float(-value),
        ("neg", _) => Scalar::Int(a.int().checked_neg()?),
        ("pos" | "sym_int" | "int", _) => Scalar::Int(a.int()),
        ("sym_float" | "float", _) => Scalar::Float(a.float()),
        ("sym_not" | "not_", _) => Scalar::Bool(a.float() == 0.0),
        ("floor", _) => Scalar::Int(a.float().floor() as i64),
        ("ceil", _) => Scalar::Int(a.float().ceil() as i64),
        ("sqrt" | "_sym_sqrt", _) => Scalar::Float(a.float().sqrt()),
        _ => return None,
    })
}

fn binary(base: &str, a: Scalar, b: Scalar) -> Option<Scalar> {
    let truth = |value| Some(Scalar::Bool(value));
    match base {
        "eq" => return truth(a.float() == b.float()),
        "ne" => return truth(a.float() != b.float()),
        "lt" => return truth(a.float() < b.float()),
        "le" => return truth(a.float() <= b.float()),
        "gt" => return truth(a.float() > b.float()),
        "ge" => return truth(a.float() >= b.float()),
        "truediv" => return Some(Scalar::Float(a.float() / b.float())),
        _ => {}
    }
    if matches!((a, b), (Scalar::Float(_), _) | (_, Scalar::Float(_))) {
        let (x, y) = (a.float(), b.float());
        return Some(Scalar::Float(match base {
            "add" => x + y,
            "sub" => x - y,
            "mul" => x * y,
            "floordiv" => (x / y).floor(),
            "pow" => x.powf(y),
            "sym_max" | "max" => x.max(y),
            "sym_min" | "min" => x.min(y),
            _ => return None,
        }));
    }
    let (x, y) = (a.int(), b.int());
    Some(Scalar::Int(match base {
        "add" => x.checked_add(y)?,
        "sub" => x.checked_sub(y)?,
        "mul" => x.checked_mul(y)?,
        "floordiv" => floor_div(x, y)?,
        "mod" => modulo(x, y)?,
        "pow" => x.checked_pow(u32::try_from(y).ok()?)?,
        "sym_max" | "max" => x.max(y),
        "sym_min" | "min" => x.min(y),
        "and_" => x & y,
        "or_" => x | y,
        _ => return None,
    }))
}
