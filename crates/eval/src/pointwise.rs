//! Element-by-element arithmetic, with broadcasting and PyTorch's promotion of dtypes. Floats are computed in `f64` and
//! rounded once; integers wrap.

use super::call::{Call, Done, Layout};
use super::memory::NodeError;
use super::tensor::{Tensor, broadcast, count, pointwise_strides};
use super::value::{Scalar, Value};
use bucketeer::ir::operators::{BinaryKind, ClampKind, TernaryKind, UnaryKind};
use bucketeer::ir::{Arg, DType};
use bucketeer_types::class::{Class, class, promote};
use bucketeer_types::num::{load_float, load_int, store_float, store_int};

/// One operand: a tensor, or a number that takes any shape.
#[derive(Clone, Debug)]
enum Operand {
    Tensor(Tensor),
    Number(Scalar),
}

/// Elements on their way through an operator.
enum Data {
    Float(Vec<f64>),
    Int(Vec<i128>),
}

/// What an operator makes of its operands' dtypes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Same,
    /// Integers become `f32`.
    Float,
    /// The result is a truth value.
    Truth,
}

type Unary = (Rule, fn(f64) -> f64, Option<fn(i128) -> i128>);

fn unary(kind: UnaryKind) -> Unary {
    let float = |function: fn(f64) -> f64| (Rule::Float, function, None);
    let same = |float: fn(f64) -> f64, int: fn(i128) -> i128| (Rule::Same, float, Some(int));
    match kind {
        UnaryKind::Neg => same(|x| -x, i128::wrapping_neg),
        UnaryKind::Abs => same(f64::abs, i128::wrapping_abs),
        UnaryKind::Relu => same(|x| if x < 0.0 { 0.0 } else { x }, |x| x.max(0)),
        UnaryKind::Sign => same(|x| if x == 0.0 { x } else { x.signum() }, i128::signum),
        UnaryKind::Floor => same(f64::floor, |x| x),
        UnaryKind::Ceil => same(f64::ceil, |x| x),
        UnaryKind::Round => same(f64::round_ties_even, |x| x),
        UnaryKind::Trunc => same(f64::trunc, |x| x),
        UnaryKind::Square => same(|x| x * x, |x| x.wrapping_mul(x)),
        UnaryKind::LogicalNot => (Rule::Truth, |x| f64::from(x == 0.0), Some(|x| i128::from(x == 0))),
        UnaryKind::Exp => float(f64::exp),
        UnaryKind::Expm1 => float(f64::exp_m1),
        UnaryKind::Log => float(f64::ln),
        UnaryKind::Log2 => float(f64::log2),
        UnaryKind::Log1p => float(f64::ln_1p),
        UnaryKind::Sqrt => float(f64::sqrt),
        UnaryKind::Rsqrt => float(|x| 1.0 / x.sqrt()),
        UnaryKind::Reciprocal => float(|x| 1.0 / x),
        UnaryKind::Sigmoid => float(|x| 1.0 / (1.0 + (-x).exp())),
        UnaryKind::Silu => float(|x| x / (1.0 + (-x).exp())),
        UnaryKind::Tanh => float(f64::tanh),
        UnaryKind::Sin => float(f64::sin),
        UnaryKind::Cos => float(f64::cos),
        UnaryKind::Tan => float(f64::tan),
    }
}

fn binary(kind: BinaryKind) -> Rule {
    match kind {
        BinaryKind::Add
        | BinaryKind::Sub
        | BinaryKind::Rsub
        | BinaryKind::Mul
        | BinaryKind::Pow
        | BinaryKind::Maximum
        | BinaryKind::Minimum
        | BinaryKind::BitAnd
        | BinaryKind::BitOr
        | BinaryKind::BitXor
        | BinaryKind::FloorDivide
        | BinaryKind::Remainder
        | BinaryKind::Fmod => Rule::Same,
        BinaryKind::Div => Rule::Float,
        BinaryKind::Eq
        | BinaryKind::Ne
        | BinaryKind::Lt
        | BinaryKind::Le
        | BinaryKind::Gt
        | BinaryKind::Ge
        | BinaryKind::LogicalAnd
        | BinaryKind::LogicalOr
        | BinaryKind::LogicalXor => Rule::Truth,
    }
}

fn operand(call: &Call<'_>, position: usize, names: &[&str]) -> Result<Option<Operand>, NodeError> {
    let Some(arg) = call.arg(position, names) else { return Ok(None) };
    if let Arg::Operand(_) = arg
        && let Some(tensor) = call.tensor_arg(Some(arg))?
    {
        return Ok(Some(Operand::Tensor(tensor)));
    }
    match call.value(arg) {
        Ok(Value::Scalar(number)) => Ok(Some(Operand::Number(number))),
        _ => Ok(None),
    }
}

/// PyTorch's `result_type`: tensors with dimensions first, single elements and numbers only where they are of a higher
/// class.
fn result_dtype(operands: &[Operand]) -> Result<DType, NodeError> {
    let mut levels: [Option<DType>; 3] = [None; 3];
    for operand in operands {
        let (level, dtype) = match operand {
            Operand::Tensor(tensor) => (usize::from(tensor.sizes.is_empty()), tensor.dtype),
            Operand::Number(Scalar::Bool(_)) => (2, DType::Bool),
            Operand::Number(Scalar::Int(_)) => (2, DType::I64),
            Operand::Number(Scalar::Float(_)) => (2, DType::F32),
        };
        let joined = levels[level].map_or(Some(dtype), |known| promote(known, dtype));
        levels[level] = Some(joined.ok_or_else(|| NodeError::misfit("dtypes that do not mix"))?);
    }
    let combine = |high: Option<DType>, low: Option<DType>| match (high, low) {
        (Some(high), Some(low)) if class(high) >= class(low) => Some(high),
        (Some(high), Some(low)) => promote(high, low).or(Some(high)),
        (high, low) => high.or(low),
    };
    combine(levels[0], combine(levels[1], levels[2])).ok_or_else(|| NodeError::misfit("no operand"))
}

/// The native text's operators make what their first tensor is.
fn first_dtype(operands: &[Operand]) -> Option<DType> {
    operands.iter().find_map(|operand| match operand {
        Operand::Tensor(tensor) => Some(tensor.dtype),
        Operand::Number(_) => None,
    })
}

fn shape(operands: &[Operand]) -> Result<Vec<usize>, NodeError> {
    let shapes = operands.iter().filter_map(|operand| match operand {
        Operand::Tensor(tensor) => Some(&*tensor.sizes),
        Operand::Number(_) => None,
    });
    broadcast(shapes).ok_or_else(|| NodeError::misfit("shapes that do not broadcast"))
}

fn load(call: &Call<'_>, operand: &Operand, sizes: &[usize], float: bool) -> Result<Data, NodeError> {
    let elements = count(sizes);
    let tensor = match operand {
        Operand::Tensor(tensor) => tensor.expand(sizes).map_err(NodeError::Misfit)?,
        Operand::Number(number) => {
            call.rank.memory.room(DType::F64, elements)?;
            return Ok(match float {
                true => Data::Float(vec![number.float(); elements]),
                false => Data::Int(vec![i128::from(number.int()); elements]),
            });
        }
    };
    if class(tensor.dtype) == Class::Opaque {
        return Err(NodeError::Undefined(format!("arithmetic on {} is not defined here", tensor.dtype.torch_name())));
    }
    let bytes = call.read(&tensor)?;
    let elements = bytes.chunks_exact(tensor.width());
    Ok(match float {
        true => Data::Float(elements.map(|element| load_float(tensor.dtype, element)).collect()),
        false => Data::Int(elements.map(|element| load_int(tensor.dtype, element)).collect()),
    })
}

fn finish(call: &mut Call<'_>, operands: &[Operand], sizes: &[usize], dtype: DType, data: Data) -> Done {
    let mut bytes = Vec::with_capacity(count(sizes) * dtype.bytes() as usize);
    match data {
        Data::Float(values) => values.into_iter().for_each(|value| store_float(dtype, value, &mut bytes)),
        Data::Int(values) => values.into_iter().for_each(|value| store_int(dtype, value, &mut bytes)),
    }
    let expand = |operand: &Operand| match operand {
        Operand::Tensor(tensor) if !tensor.sizes.is_empty() => tensor.expand(sizes).ok().map(|tensor| tensor.strides),
        _ => None,
    };
    let strides: Vec<Vec<usize>> = operands.iter().filter_map(expand).collect();
    let strides: Vec<&[usize]> = strides.iter().map(|strides| &**strides).collect();
    call.make(dtype, sizes, Layout::Stated(&pointwise_strides(sizes, &strides)), bytes)
}

/// Evaluates a function of one element.
pub fn one(call: &mut Call<'_>, kind: UnaryKind) -> Done {
    let (rule, float, int) = unary(kind);
    let Some(input) = call.first()? else { return Ok(None) };
    let (dtype, operands) = (input.dtype, [Operand::Tensor(input.clone())]);
    let (as_float, result) = match (class(dtype), rule) {
        (Class::Opaque, _) => return Ok(None),
        (_, Rule::Truth) => (class(dtype) == Class::Float, DType::Bool),
        (Class::Float, _) => (true, dtype),
        // The native text's operators make operands alike.
        (_, Rule::Float) if call.is_native() => (true, dtype),
        (_, Rule::Float) => (true, DType::F32),
        (_, Rule::Same) => (false, dtype),
    };
    let data = match (load(call, &operands[0], &input.sizes, as_float)?, int) {
        (Data::Float(values), _) => Data::Float(values.into_iter().map(float).collect()),
        (Data::Int(values), Some(int)) => Data::Int(values.into_iter().map(int).collect()),
        (Data::Int(_), None) => return Ok(None),
    };
    finish(call, &operands, &input.sizes, result, data)
}

/// Evaluates a function of two elements.
pub fn two(call: &mut Call<'_>, kind: BinaryKind) -> Done {
    let rule = binary(kind);
    let (left, right) = (operand(call, 0, &["self", "input", "a"])?, operand(call, 1, &["other", "exponent", "b"])?);
    let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
    let operands = [left, right];
    if operands.iter().all(|operand| matches!(operand, Operand::Number(_))) {
        return Ok(None);
    }
    let common = result_dtype(&operands)?;
    let rounding = call.args.get("rounding_mode").and_then(Arg::as_str);
    let result = match rule {
        Rule::Truth => DType::Bool,
        _ if call.is_native() => first_dtype(&operands).unwrap_or(common),
        Rule::Float if class(common) != Class::Float && rounding.is_none() => DType::F32,
        Rule::Same | Rule::Float => common,
    };
    let divides = rule == Rule::Float && rounding.is_none();
    let float = class(common) == Class::Float || divides;
    let sizes = shape(&operands)?;
    let alpha = match call.arg(2, &["alpha"]).map(|arg| call.value(arg)).transpose()? {
        Some(Value::Scalar(alpha)) => alpha,
        _ => Scalar::Int(1),
    };
    let (left, right) = (load(call, &operands[0], &sizes, float)?, load(call, &operands[1], &sizes, float)?);
    let data = match (left, right) {
        (Data::Float(left), Data::Float(right)) => {
            let apply = float_function(kind, rounding, alpha.float());
            Data::Float(left.into_iter().zip(right).map(|(x, y)| apply(x, y)).collect())
        }
        (Data::Int(left), Data::Int(right)) => {
            let apply = int_function(kind, rounding, i128::from(alpha.int()));
            let values: Option<Vec<i128>> = left.into_iter().zip(right).map(|(x, y)| apply(x, y)).collect();
            Data::Int(values.ok_or_else(|| NodeError::Undefined("integers divided by zero".to_owned()))?)
        }
        _ => return Ok(None),
    };
    finish(call, &operands, &sizes, result, data)
}

fn extreme(x: f64, y: f64, larger: bool) -> f64 {
    if x.is_nan() || y.is_nan() {
        return f64::NAN;
    }
    if larger { x.max(y) } else { x.min(y) }
}

fn float_function(kind: BinaryKind, rounding: Option<&str>, alpha: f64) -> Box<dyn Fn(f64, f64) -> f64> {
    let truth =
        |test: fn(f64, f64) -> bool| -> Box<dyn Fn(f64, f64) -> f64> { Box::new(move |x, y| f64::from(test(x, y))) };
    let remainder = |x: f64, y: f64| {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    };
    match (kind, rounding) {
        (BinaryKind::Add, _) => Box::new(move |x, y| x + alpha * y),
        (BinaryKind::Sub, _) => Box::new(move |x, y| x - alpha * y),
        (BinaryKind::Rsub, _) => Box::new(move |x, y| y - alpha * x),
        (BinaryKind::Mul, _) => Box::new(|x, y| x * y),
        (BinaryKind::Pow, _) => Box::new(f64::powf),
        (BinaryKind::Maximum, _) => Box::new(|x, y| extreme(x, y, true)),
        (BinaryKind::Minimum, _) => Box::new(|x, y| extreme(x, y, false)),
        (BinaryKind::FloorDivide, _) | (_, Some("floor")) => Box::new(|x, y| (x / y).floor()),
        (_, Some("trunc")) => Box::new(|x, y| (x / y).trunc()),
        (BinaryKind::Div, _) => Box::new(|x, y| x / y),
        (BinaryKind::Remainder, _) => Box::new(remainder),
        (BinaryKind::Fmod, _) => Box::new(|x, y| x % y),
        (BinaryKind::Eq, _) => truth(|x, y| x == y),
        (BinaryKind::Ne, _) => truth(|x, y| x != y),
        (BinaryKind::Lt, _) => truth(|x, y| x < y),
        (BinaryKind::Le, _) => truth(|x, y| x <= y),
        (BinaryKind::Gt, _) => truth(|x, y| x > y),
        (BinaryKind::Ge, _) => truth(|x, y| x >= y),
        (BinaryKind::LogicalAnd, _) => truth(|x, y| x != 0.0 && y != 0.0),
        (BinaryKind::LogicalOr, _) => truth(|x, y| x != 0.0 || y != 0.0),
        (BinaryKind::LogicalXor, _) => truth(|x, y| (x != 0.0) != (y != 0.0)),
        // Bits of floats: refused by PyTorch.
        (BinaryKind::BitAnd | BinaryKind::BitOr | BinaryKind::BitXor, _) => Box::new(|_, _| f64::NAN),
    }
}

fn int_function(kind: BinaryKind, rounding: Option<&str>, alpha: i128) -> Box<dyn Fn(i128, i128) -> Option<i128>> {
    let truth = |test: fn(i128, i128) -> bool| -> Box<dyn Fn(i128, i128) -> Option<i128>> {
        Box::new(move |x, y| Some(i128::from(test(x, y))))
    };
    let floor = |x: i128, y: i128| {
        let quotient = x.checked_div(y)?;
        Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
    };
    match (kind, rounding) {
        (BinaryKind::Add, _) => Box::new(move |x, y| Some(x.wrapping_add(alpha.wrapping_mul(y)))),
        (BinaryKind::Sub, _) => Box::new(move |x, y| Some(x.wrapping_sub(alpha.wrapping_mul(y)))),
        (BinaryKind::Rsub, _) => Box::new(move |x, y| Some(y.wrapping_sub(alpha.wrapping_mul(x)))),
        (BinaryKind::Mul, _) => Box::new(|x, y| Some(x.wrapping_mul(y))),
        (BinaryKind::Pow, _) => {
            Box::new(|x, y| Some(u32::try_from(y).map_or(i128::from(x == 1), |y| x.wrapping_pow(y))))
        }
        (BinaryKind::Maximum, _) => Box::new(|x, y| Some(x.max(y))),
        (BinaryKind::Minimum, _) => Box::new(|x, y| Some(x.min(y))),
        (BinaryKind::Fmod, _) => Box::new(i128::checked_rem),
        (BinaryKind::Remainder, _) => Box::new(move |x, y| Some(x - floor(x, y)? * y)),
        (_, Some("trunc")) => Box::new(i128::checked_div),
        (BinaryKind::FloorDivide | BinaryKind::Div, _) => Box::new(floor),
        (BinaryKind::BitAnd, _) => Box::new(|x, y| Some(x & y)),
        (BinaryKind::BitOr, _) => Box::new(|x, y| Some(x | y)),
        (BinaryKind::BitXor, _) => Box::new(|x, y| Some(x ^ y)),
        (BinaryKind::Eq, _) => truth(|x, y| x == y),
        (BinaryKind::Ne, _) => truth(|x, y| x != y),
        (BinaryKind::Lt, _) => truth(|x, y| x < y),
        (BinaryKind::Le, _) => truth(|x, y| x <= y),
        (BinaryKind::Gt, _) => truth(|x, y| x > y),
        (BinaryKind::Ge, _) => truth(|x, y| x >= y),
        (BinaryKind::LogicalAnd, _) => truth(|x, y| x != 0 && y != 0),
        (BinaryKind::LogicalOr, _) => truth(|x, y| x != 0 || y != 0),
        (BinaryKind::LogicalXor, _) => truth(|x, y| (x != 0) != (y != 0)),
    }
}

/// Operands in the common dtype and shape, as floats or as integers.
fn loaded(call: &Call<'_>, operands: &[Operand], dtype: DType, sizes: &[usize]) -> Result<Vec<Data>, NodeError> {
    let float = class(dtype) == Class::Float;
    operands.iter().map(|operand| load(call, operand, sizes, float)).collect()
}

/// Evaluates `where`.
pub fn select(call: &mut Call<'_>) -> Done {
    let test = operand(call, 0, &["condition", "pred"])?;
    let (left, right) = (operand(call, 1, &["self", "input", "a"])?, operand(call, 2, &["other", "b"])?);
    let (Some(test), Some(left), Some(right)) = (test, left, right) else { return Ok(None) };
    let operands = [test, left, right];
    let dtype = result_dtype(&operands[1..])?;
    let sizes = shape(&operands)?;
    let Data::Int(test) = load(call, &operands[0], &sizes, false)? else { return Ok(None) };
    let data = match loaded(call, &operands[1..], dtype, &sizes)?.as_slice() {
        [Data::Float(x), Data::Float(y)] => Data::Float(pick(&test, x, y)),
        [Data::Int(x), Data::Int(y)] => Data::Int(pick(&test, x, y)),
        _ => return Ok(None),
    };
    finish(call, &operands, &sizes, dtype, data)
}

fn pick<T: Copy>(test: &[i128], x: &[T], y: &[T]) -> Vec<T> {
    test.iter().zip(x.iter().zip(y)).map(|(&test, (&x, &y))| if test != 0 { x } else { y }).collect()
}

/// Evaluates a clamp.
pub fn clamp(call: &mut Call<'_>, kind: ClampKind) -> Done {
    let Some(input) = operand(call, 0, &["self"])? else { return Ok(None) };
    let (low, high) = match kind {
        ClampKind::Min => (operand(call, 1, &["min"])?, None),
        ClampKind::Max => (None, operand(call, 1, &["max"])?),
        ClampKind::Both => (operand(call, 1, &["min"])?, operand(call, 2, &["max"])?),
    };
    let operands: Vec<Operand> = [Some(input), low.clone(), high.clone()].into_iter().flatten().collect();
    let (dtype, sizes) = (result_dtype(&operands)?, shape(&operands)?);
    let mut values = loaded(call, &operands, dtype, &sizes)?.into_iter();
    let mut data = values.next();
    for larger in [low.map(|_| true), high.map(|_| false)].into_iter().flatten() {
        data = match (data, values.next()) {
            (Some(Data::Float(x)), Some(Data::Float(y))) => {
                Some(Data::Float(x.iter().zip(y).map(|(&x, y)| extreme(x, y, larger)).collect()))
            }
            (Some(Data::Int(x)), Some(Data::Int(y))) => {
                let apply = |(&x, y): (&i128, i128)| if larger { x.max(y) } else { x.min(y) };
                Some(Data::Int(x.iter().zip(y).map(apply).collect()))
            }
            _ => None,
        };
    }
    data.map_or(Ok(None), |data| finish(call, &operands, &sizes, dtype, data))
}

/// Evaluates `fma(a, b, c)`, `addcmul(c, a, b)`, `addcdiv(c, a, b)`.
pub fn ternary(call: &mut Call<'_>, kind: TernaryKind) -> Done {
    let mut operands = Vec::new();
    for position in 0..3 {
        operands.extend(operand(call, position, &[])?);
    }
    let scale = match call.args.get("value").map(|arg| call.value(arg)).transpose()? {
        Some(Value::Scalar(number)) => number.float(),
        _ => 1.0,
    };
    if operands.len() != 3 {
        return Ok(None);
    }
    let (dtype, sizes) = (result_dtype(&operands)?, shape(&operands)?);
    let values = loaded(call, &operands, dtype, &sizes)?;
    let [Data::Float(a), Data::Float(b), Data::Float(c)] = values.as_slice() else { return Ok(None) };
    let apply = |((&a, &b), &c): ((&f64, &f64), &f64)| match kind {
        TernaryKind::Fma => a * b + c,
        TernaryKind::Addcmul => a + scale * b * c,
        TernaryKind::Addcdiv => a + scale * b / c,
    };
    let data = Data::Float(a.iter().zip(b).zip(c).map(apply).collect());
    finish(call, &operands, &sizes, dtype, data)
}

/// Evaluates `threshold_backward`.
pub fn threshold_backward(call: &mut Call<'_>) -> Done {
    let (grad, input) = (operand(call, 0, &["grad_output"])?, operand(call, 1, &["self"])?);
    let (Some(grad), Some(input), Some(Operand::Number(limit))) = (grad, input, operand(call, 2, &["threshold"])?)
    else {
        return Ok(None);
    };
    let operands = [grad, input];
    let (dtype, sizes) = (result_dtype(&operands)?, shape(&operands)?);
    let values = loaded(call, &operands, dtype, &sizes)?;
    let [Data::Float(grad), Data::Float(input)] = values.as_slice() else { return Ok(None) };
    let apply = |(&grad, &x): (&f64, &f64)| if x <= limit.float() { 0.0 } else { grad };
    let data = Data::Float(grad.iter().zip(input).map(apply).collect());
    finish(call, &operands, &sizes, dtype, data)
}
