//! Operators that make a tensor from nothing but numbers.

use super::call::{Call, Done, Layout};
use super::memory::{NodeError, POISON};
use super::tensor::{Tensor, count, is_injective};
use super::value::{Scalar, Value};
use bucketeer::ir::DType;
use bucketeer::ir::operators::{CreateKind, Model};
use bucketeer_types::num::{store_float, store_int};

/// What fills a new tensor.
#[derive(Clone, Copy)]
enum Fill {
    Nothing,
    Number(Scalar),
}

/// Evaluates a factory.
pub fn create(call: &mut Call<'_>, kind: CreateKind, model: Model) -> Done {
    let fill_at = if model == Model::New { 2 } else { 1 };
    let fill = match kind {
        CreateKind::Full => match call.arg(fill_at, &["fill_value"]).map(|arg| call.value(arg)).transpose()? {
            Some(Value::Scalar(number)) => Fill::Number(number),
            Some(_) => return Ok(None),
            None => return Err(NodeError::misfit("there is no value to fill with")),
        },
        CreateKind::Zeros => Fill::Number(Scalar::Int(0)),
        CreateKind::Ones => Fill::Number(Scalar::Int(1)),
        CreateKind::Empty | CreateKind::EmptyStrided | CreateKind::EmptyPermuted => Fill::Nothing,
    };
    let from = if model == Model::Asked { None } else { call.first()? };
    let natural = match (kind, model, fill) {
        (CreateKind::Full, Model::Asked, Fill::Number(Scalar::Int(_))) => DType::I64,
        (CreateKind::Full, Model::Asked, Fill::Number(Scalar::Bool(_))) => DType::Bool,
        _ => DType::F32,
    };
    let dtype = dtype(call, from.as_ref(), natural);
    match from {
        Some(from) if model == Model::Like => {
            let strides = super::tensor::pointwise_strides(&from.sizes, &[&from.strides]);
            finish(call, dtype, &from.sizes, Layout::Stated(&strides), fill)
        }
        _ => sized(call, kind, dtype, usize::from(model == Model::New), fill),
    }
}

fn sized(call: &mut Call<'_>, kind: CreateKind, dtype: DType, at: usize, fill: Fill) -> Done {
    let sizes = match call.arg(at, &["size", "shape"]) {
        Some(arg) => call.sizes_arg(Some(arg))?,
        // `x = zeros f32[8]`.
        None => {
            let stated = call.stated().and_then(|ty| call.symbols.sizes(&ty.shape));
            stated.ok_or_else(|| NodeError::misfit("no sizes are given"))?
        }
    };
    if kind == CreateKind::EmptyStrided {
        let strides = call.sizes_arg(call.arg(at + 1, &["stride"]))?;
        if strides.len() != sizes.len() || !is_injective(&sizes, &strides) {
            return Err(NodeError::misfit(format!("{strides:?} are not strides of {sizes:?}")));
        }
        call.rank.memory.room(dtype, count(&sizes))?;
        let bytes = elements(dtype, count(&sizes), fill);
        let tensor = call.rank.memory.strided(dtype, &sizes, &strides, &bytes)?;
        return Ok(Some(Value::Tensor(tensor)));
    }
    let permuted = kind == CreateKind::EmptyPermuted;
    let dense = super::tensor::dense_strides(&sizes);
    finish(call, dtype, &sizes, if permuted { Layout::Stated(&dense) } else { Layout::Dense }, fill)
}

fn finish(call: &mut Call<'_>, dtype: DType, sizes: &[usize], layout: Layout<'_>, fill: Fill) -> Done {
    call.rank.memory.room(dtype, count(sizes))?;
    let bytes = elements(dtype, count(sizes), fill);
    call.make(dtype, sizes, layout, bytes)
}

fn elements(dtype: DType, count: usize, fill: Fill) -> Vec<u8> {
    match fill {
        Fill::Nothing => vec![POISON; count * dtype.bytes() as usize],
        Fill::Number(number) => one(dtype, number).repeat(count),
    }
}

/// One number as an element.
#[must_use]
pub fn one(dtype: DType, number: Scalar) -> Vec<u8> {
    let mut bytes = Vec::new();
    match number {
        Scalar::Float(value) => store_float(dtype, value, &mut bytes),
        Scalar::Int(_) | Scalar::Bool(_) => store_int(dtype, i128::from(number.int()), &mut bytes),
    }
    bytes
}

/// The dtype asked for, else the model's, else the stated one, else PyTorch's own.
fn dtype(call: &Call<'_>, model: Option<&Tensor>, natural: DType) -> DType {
    let keyword = match call.args.get("dtype") {
        Some(bucketeer::ir::Arg::DType(dtype)) => Some(*dtype),
        _ => None,
    };
    keyword.or(model.map(|model| model.dtype)).or(call.stated().map(|ty| ty.dtype)).unwrap_or(natural)
}

/// Evaluates `scalar_tensor`.
pub fn scalar_tensor(call: &mut Call<'_>) -> Done {
    let value = call.arg(0, &["s"]).map(|arg| call.value(arg)).transpose()?;
    let Some(Value::Scalar(number)) = value else { return Ok(None) };
    let dtype = dtype(call, None, DType::F32);
    call.make(dtype, &[], Layout::Dense, one(dtype, number))
}

/// `arange(end)`, `arange(start, end)`, `arange(start, end, step)`.
pub fn arange(call: &mut Call<'_>) -> Done {
    let mut numbers = Vec::new();
    for arg in &call.args.positional {
        match call.value(arg)? {
            Value::Scalar(number) => numbers.push(number),
            _ => return Ok(None),
        }
    }
    let (start, end, step) = match *numbers.as_slice() {
        [end] => (Scalar::Int(0), end, Scalar::Int(1)),
        [start, end] => (start, end, Scalar::Int(1)),
        [start, end, step] => (start, end, step),
        _ => return Ok(None),
    };
    let whole = [start, end, step].iter().all(|number| matches!(number, Scalar::Int(_)));
    let dtype = dtype(call, None, DType::F32);
    let natural = if whole { DType::I64 } else { DType::F32 };
    let asked = call.args.get("dtype").is_some() || call.stated().is_some();
    let dtype = if asked { dtype } else { natural };
    let length = ((end.float() - start.float()) / step.float()).ceil();
    if !length.is_finite() || length < 0.0 {
        return Err(NodeError::misfit("such a range does not end"));
    }
    call.rank.memory.room(dtype, length as usize)?;
    let mut bytes = Vec::new();
    for at in 0..length as i64 {
        match whole {
            true => store_int(dtype, i128::from(start.int()) + i128::from(at) * i128::from(step.int()), &mut bytes),
            false => store_float(dtype, start.float() + at as f64 * step.float(), &mut bytes),
        }
    }
    call.make(dtype, &[length as usize], Layout::Dense, bytes)
}
