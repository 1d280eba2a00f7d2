//! Products of matrices, and reductions over dimensions. Sums run in index order, in `f64` for floats, rounded once.

use super::call::{Call, Done, Layout, wrap_dim};
use super::memory::NodeError;
use super::tensor::{Tensor, broadcast, count, dense_strides};
use bucketeer::ir::operators::{Operator, ReduceKind};
use bucketeer::ir::{Args, DType};
use bucketeer_types::class::{Class, class};
use bucketeer_types::num::{load_float, load_int, store_float, store_int};

/// Evaluates a product of matrices.
pub fn matmul(call: &mut Call<'_>) -> Done {
    let (Some(a), Some(b)) = (call.first()?, call.tensor_arg(call.arg(1, &["mat2", "other"]))?) else {
        return Ok(None);
    };
    product(call, &a, &b)
}

/// Elements as `f64`; for integers, whose products wrap, as `i128`.
enum Data {
    Float(Vec<f64>),
    Int(Vec<i128>),
}

fn load(call: &Call<'_>, tensor: &Tensor) -> Result<Data, NodeError> {
    let bytes = call.read(tensor)?;
    let elements = bytes.chunks_exact(tensor.width());
    Ok(match class(tensor.dtype) {
        Class::Float => Data::Float(elements.map(|element| load_float(tensor.dtype, element)).collect()),
        Class::Int | Class::Bool => Data::Int(elements.map(|element| load_int(tensor.dtype, element)).collect()),
        Class::Opaque => {
            let name = tensor.dtype.torch_name();
            return Err(NodeError::Undefined(format!("arithmetic on {name} is not defined here")));
        }
    })
}

/// `rows x inner` times `inner x columns`, added to `out`.
fn multiply<T: Copy>(a: &[T], b: &[T], (inner, columns): (usize, usize), out: &mut [T], fused: impl Fn(T, T, T) -> T) {
    for (row, out) in out.chunks_exact_mut(columns).enumerate() {
        for (at, &left) in a[row * inner..(row + 1) * inner].iter().enumerate() {
            let right = &b[at * columns..(at + 1) * columns];
            // NOTE: a counted loop; most of a test's time is spent here, and iterators cost ten times as much there.
            let mut column = 0;
            while column < columns {
                out[column] = fused(out[column], left, right[column]);
                column += 1;
            }
        }
    }
}

fn product(call: &mut Call<'_>, a: &Tensor, b: &Tensor) -> Done {
    let fault = || NodeError::misfit(format!("{:?} and {:?} do not multiply", a.sizes, b.sizes));
    if a.dtype != b.dtype || a.sizes.is_empty() || b.sizes.is_empty() {
        return Err(fault());
    }
    // A vector is a matrix of one row, or of one column.
    let (row, column) = (a.sizes.len() == 1, b.sizes.len() == 1);
    let left = if row { a.narrow(0, 0, a.sizes[0]).view(&[1, a.sizes[0]]).ok_or_else(fault)? } else { a.clone() };
    let right = if column { b.view(&[b.sizes[0], 1]).ok_or_else(fault)? } else { b.clone() };
    let (x, y) = (left.sizes.len() - 2, right.sizes.len() - 2);
    let (rows, inner, columns) = (left.sizes[x], left.sizes[x + 1], right.sizes[y + 1]);
    let batch = broadcast([&left.sizes[..x], &right.sizes[..y]].into_iter()).ok_or_else(fault)?;
    if inner != right.sizes[y] {
        return Err(fault());
    }
    let left = left.expand(&[&batch[..], &[rows, inner]].concat()).map_err(NodeError::Misfit)?;
    let right = right.expand(&[&batch[..], &[inner, columns]].concat()).map_err(NodeError::Misfit)?;
    let mut sizes = batch.clone();
    sizes.extend((!row).then_some(rows));
    sizes.extend((!column).then_some(columns));
    call.rank.memory.room(DType::F64, count(&sizes))?;
    let mut bytes = Vec::new();
    let shape = (rows, inner, columns);
    match (load(call, &left)?, load(call, &right)?) {
        (Data::Float(x), Data::Float(y)) => {
            let values = batched(&x, &y, count(&batch), shape, 0.0, |sum, x, y| sum + x * y);
            values.into_iter().for_each(|value| store_float(a.dtype, value, &mut bytes));
        }
        (Data::Int(x), Data::Int(y)) => {
            let fused = |sum: i128, x: i128, y: i128| sum.wrapping_add(x.wrapping_mul(y));
            let values = batched(&x, &y, count(&batch), shape, 0, fused);
            values.into_iter().for_each(|value| store_int(a.dtype, value, &mut bytes));
        }
        _ => return Err(fault()),
    }
    call.make(a.dtype, &sizes, Layout::Stated(&dense_strides(&sizes)), bytes)
}

fn batched<T: Copy>(
    x: &[T],
    y: &[T],
    batch: usize,
    (rows, inner, columns): (usize, usize, usize),
    zero: T,
    fused: impl Fn(T, T, T) -> T + Copy,
) -> Vec<T> {
    let mut out = vec![zero; batch * rows * columns];
    if columns == 0 || rows == 0 {
        return out;
    }
    for (nth, out) in out.chunks_exact_mut(rows * columns).enumerate() {
        let a = &x[nth * rows * inner..(nth + 1) * rows * inner];
        let b = &y[nth * inner * columns..(nth + 1) * inner * columns];
        multiply(a, b, (inner, columns), out, fused);
    }
    out
}

/// Whether a call reduces: `max(x, dim)` and `max(x, y)` are other operators.
#[must_use]
pub fn reduces(operator: &Operator<'_>, args: &Args, kind: ReduceKind) -> bool {
    match kind {
        ReduceKind::Max | ReduceKind::Min => {
            args.positional.len() == 1 && matches!(operator.overload(), "" | "default")
        }
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax | ReduceKind::Amin => true,
    }
}

/// Evaluates a reduction.
pub fn reduce(call: &mut Call<'_>, kind: ReduceKind) -> Done {
    if !reduces(&call.operator, call.args, kind) {
        return Ok(None);
    }
    let Some(input) = call.first()? else { return Ok(None) };
    let rank = input.sizes.len();
    // `sum(x, dims, keepdim, *, dtype)`; `sum(x, *, dtype)` has no dims.
    let dims: Vec<usize> = match call.arg(1, &["dim"]) {
        None => Vec::new(),
        arg => call.ints_arg(arg)?.into_iter().map(|dim| wrap_dim(dim, rank)).collect::<Result<_, _>>()?,
    };
    let all = dims.is_empty();
    let keep = call.int(2, "keepdim", 0)? != 0;
    let reduced = |dim: usize| all || dims.contains(&dim);
    let asked = match call.args.get("dtype") {
        Some(bucketeer::ir::Arg::DType(dtype)) => Some(*dtype),
        _ => None,
    };
    let natural = match (kind, class(input.dtype)) {
        (ReduceKind::Sum, Class::Bool | Class::Int) => DType::I64,
        _ => input.dtype,
    };
    // Reduced dimensions last, so that what is summed lies together.
    let mut order: Vec<usize> = (0..rank).filter(|&dim| !reduced(dim)).collect();
    order.extend((0..rank).filter(|&dim| reduced(dim)));
    let pick = |list: &[usize]| order.iter().map(|&dim| list[dim]).collect::<Vec<_>>();
    let turned = Tensor { sizes: pick(&input.sizes), strides: pick(&input.strides), ..input.clone() };
    let run = count(&(0..rank).filter(|&dim| reduced(dim)).map(|dim| input.sizes[dim]).collect::<Vec<_>>());
    let sizes: Vec<usize> = (0..rank)
        .filter(|&dim| keep || !reduced(dim))
        .map(|dim| if reduced(dim) { 1 } else { input.sizes[dim] })
        .collect();
    let dtype = asked.unwrap_or(natural);
    let bytes = match load(call, &turned)? {
        Data::Float(values) => reduced_floats(kind, dtype, &values, run, count(&sizes))?,
        Data::Int(values) => reduced_ints(kind, dtype, &values, run, count(&sizes))?,
    };
    call.make(dtype, &sizes, Layout::Stated(&dense_strides(&sizes)), bytes)
}

fn runs<T>(values: &[T], run: usize, results: usize) -> impl Iterator<Item = &[T]> {
    (0..results).map(move |at| &values[at * run..(at + 1) * run])
}

fn empty() -> NodeError {
    NodeError::misfit("nothing has no extreme")
}

fn reduced_floats(
    kind: ReduceKind,
    dtype: DType,
    values: &[f64],
    run: usize,
    results: usize,
) -> Result<Vec<u8>, NodeError> {
    let mut bytes = Vec::new();
    for values in runs(values, run, results) {
        let extreme = |larger: bool| {
            let pick = |x: f64, y: f64| {
                if x.is_nan() || y.is_nan() {
                    f64::NAN
                } else if larger {
                    x.max(y)
                } else {
                    x.min(y)
                }
            };
            values.iter().copied().reduce(pick).ok_or_else(empty)
        };
        let value = match kind {
            ReduceKind::Sum => values.iter().sum(),
            ReduceKind::Mean => values.iter().sum::<f64>() / run as f64,
            ReduceKind::Amax | ReduceKind::Max => extreme(true)?,
            ReduceKind::Amin | ReduceKind::Min => extreme(false)?,
        };
        store_float(dtype, value, &mut bytes);
    }
    Ok(bytes)
}

fn reduced_ints(
    kind: ReduceKind,
    dtype: DType,
    values: &[i128],
    run: usize,
    results: usize,
) -> Result<Vec<u8>, NodeError> {
    let mut bytes = Vec::new();
    for values in runs(values, run, results) {
        let sum = || values.iter().fold(0i128, |sum, value| sum.wrapping_add(*value));
        let value = match kind {
            ReduceKind::Sum => sum(),
            ReduceKind::Mean if class(dtype) == Class::Float => {
                store_float(dtype, sum() as f64 / run as f64, &mut bytes);
                continue;
            }
            ReduceKind::Mean => return Err(NodeError::misfit("integers have no mean")),
            ReduceKind::Amax | ReduceKind::Max => values.iter().copied().max().ok_or_else(empty)?,
            ReduceKind::Amin | ReduceKind::Min => values.iter().copied().min().ok_or_else(empty)?,
        };
        store_int(dtype, value, &mut bytes);
    }
    Ok(bytes)
}
