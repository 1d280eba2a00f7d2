//! Operators that see memory anew: views. Where PyTorch would copy instead (`reshape`), so do these.

use super::call::{Call, Done, Layout, wrap_dim};
use super::memory::NodeError;
use super::tensor::{MAX_ELEMENTS, MAX_STRIDE, Tensor, count, span};
use super::value::{Scalar, Value};
use bucketeer::ir::Arg;
use bucketeer::ir::operators::ViewKind;

fn tensor(tensor: Tensor) -> Done {
    Ok(Some(Value::Tensor(tensor)))
}

/// Evaluates a view.
pub fn layout(call: &mut Call<'_>, kind: ViewKind) -> Done {
    if matches!(kind, ViewKind::Element | ViewKind::TupleElement) {
        return element(call);
    }
    let Some(input) = call.first()? else { return Ok(None) };
    match kind {
        ViewKind::View
            if call.operator.overload() == "dtype" || matches!(call.arg(1, &["dtype"]), Some(Arg::DType(_))) =>
        {
            let dtype = call.dtype(1).ok_or_else(|| NodeError::misfit("no dtype is given"))?;
            tensor(input.bit_cast(dtype).map_err(NodeError::Misfit)?)
        }
        ViewKind::Bits => match call.dtype(1) {
            Some(dtype) => tensor(input.bit_cast(dtype).map_err(NodeError::Misfit)?),
            None => Ok(None),
        },
        ViewKind::View | ViewKind::Reshape => {
            let sizes = target_sizes(call, input.elements())?;
            reshape_to(call, &input, &sizes, kind)
        }
        ViewKind::Flatten => flatten(call, input),
        ViewKind::Permute => permute(call, &input),
        ViewKind::Transpose => transpose(call, input),
        ViewKind::Expand => expand(call, &input),
        ViewKind::BroadcastInDim => broadcast_in_dim(call, &input),
        ViewKind::Slice | ViewKind::Narrow | ViewKind::Select => cut(call, &input, kind),
        ViewKind::Squeeze => squeeze(call, input),
        ViewKind::Unsqueeze => unsqueeze(call, input),
        ViewKind::Split | ViewKind::SplitWithSizes | ViewKind::Chunk | ViewKind::Unbind => split(call, &input, kind),
        ViewKind::Strided => as_strided(call, input),
        ViewKind::Same => tensor(input),
        ViewKind::Contiguous if input.is_dense() => tensor(input),
        ViewKind::Contiguous | ViewKind::Convert | ViewKind::Unflatten | ViewKind::Element | ViewKind::TupleElement => {
            Ok(None)
        }
    }
}

fn element(call: &Call<'_>) -> Done {
    let Some(from) = call.arg(0, &["self", "a"]) else { return Ok(None) };
    let Some(index) = call.arg(1, &["index"]).filter(|arg| matches!(arg, Arg::Int(_) | Arg::Operand(_))) else {
        return Ok(None);
    };
    let index = call.int_arg(Some(index))?.unwrap_or(0);
    match call.value(from)? {
        Value::Tuple(values) => {
            let found = wrap_dim(index, values.len()).ok().and_then(|at| values.into_iter().nth(at));
            found
                .map_or_else(|| Err(NodeError::misfit(format!("there is no element {index}"))), |value| Ok(Some(value)))
        }
        Value::Tensor(input) if !input.sizes.is_empty() => select(&input, 0, index),
        _ => Ok(None),
    }
}

/// Sizes with at most one -1, which takes what is left.
fn target_sizes(call: &Call<'_>, elements: usize) -> Result<Vec<usize>, NodeError> {
    let asked = match call.arg(1, &["size", "shape", "other"]) {
        Some(arg @ Arg::Operand(_)) if call.tensor_arg(Some(arg))?.is_some() => {
            return Ok(call.tensor_arg(Some(arg))?.map(|like| like.sizes).unwrap_or_default());
        }
        // As methods are called: `x.view(2, 3)`.
        Some(Arg::Int(_) | Arg::Operand(_)) => {
            let rest = call.args.positional.iter().skip(1);
            rest.map(|arg| call.int_arg(Some(arg)).map(|size| size.unwrap_or(0))).collect::<Result<_, _>>()?
        }
        arg => call.ints_arg(arg)?,
    };
    let fault = || NodeError::misfit(format!("{elements} elements do not make {asked:?}"));
    let known = asked.iter().filter(|size| **size != -1).try_fold(1i64, |product, &size| product.checked_mul(size));
    let known = known.and_then(|known| usize::try_from(known).ok()).ok_or_else(fault)?;
    let holes = asked.iter().filter(|size| **size == -1).count();
    let rest = match holes {
        0 => 1,
        1 if known > 0 && elements.is_multiple_of(known) => elements / known,
        _ => return Err(fault()),
    };
    let sizes: Vec<usize> = asked
        .iter()
        .map(|&size| if size == -1 { Ok(rest) } else { usize::try_from(size) })
        .collect::<Result<_, _>>()
        .map_err(|_| fault())?;
    if count(&sizes) == elements { Ok(sizes) } else { Err(fault()) }
}

fn reshape_to(call: &mut Call<'_>, input: &Tensor, sizes: &[usize], kind: ViewKind) -> Done {
    match input.view(sizes) {
        Some(view) => tensor(view),
        None if kind.may_copy() => {
            let bytes = call.read(input)?;
            call.make(input.dtype, sizes, Layout::Dense, bytes)
        }
        None => {
            let (from, strides) = (&input.sizes, &input.strides);
            Err(NodeError::misfit(format!(
                "{from:?} with strides {strides:?} cannot be viewed as {sizes:?} without a copy"
            )))
        }
    }
}

fn flatten(call: &mut Call<'_>, input: Tensor) -> Done {
    let rank = input.sizes.len();
    let (start, end) = (call.dim(1, "start_dim", 0, rank)?, call.dim(2, "end_dim", -1, rank)?);
    let sizes = match rank {
        0 => vec![1],
        _ if start > end => return Err(NodeError::misfit("flatten ends before it starts")),
        _ => [&input.sizes[..start], &[count(&input.sizes[start..=end])], &input.sizes[end + 1..]].concat(),
    };
    reshape_to(call, &input, &sizes, ViewKind::Flatten)
}

fn permute(call: &Call<'_>, input: &Tensor) -> Done {
    let rank = input.sizes.len();
    let dims = call.ints_arg(call.arg(1, &["dims"]))?;
    let dims: Vec<usize> = dims.into_iter().map(|dim| wrap_dim(dim, rank)).collect::<Result<_, _>>()?;
    let mut seen = vec![false; rank];
    dims.iter().for_each(|&dim| seen.get_mut(dim).into_iter().for_each(|seen| *seen = true));
    if dims.len() != rank || seen.contains(&false) {
        return Err(NodeError::misfit(format!("{dims:?} is no order of {rank} dimensions")));
    }
    let pick = |list: &[usize]| dims.iter().map(|&dim| list[dim]).collect();
    tensor(Tensor { sizes: pick(&input.sizes), strides: pick(&input.strides), ..input.clone() })
}

fn transpose(call: &Call<'_>, mut input: Tensor) -> Done {
    let rank = input.sizes.len();
    // `t(x)`, which names no dimensions.
    if rank < 2 && call.args.positional.len() + call.args.keyword.len() == 1 {
        return tensor(input);
    }
    let (a, b) = (call.dim(1, "dim0", 0, rank)?, call.dim(2, "dim1", 1, rank)?);
    if rank > 0 {
        input.sizes.swap(a, b);
        input.strides.swap(a, b);
    }
    tensor(input)
}

fn expand(call: &Call<'_>, input: &Tensor) -> Done {
    let arg = call.arg(1, &["size", "other", "shape"]);
    if let Some(like) = call.tensor_arg(arg)? {
        return tensor(input.expand(&like.sizes).map_err(NodeError::Misfit)?);
    }
    let asked = call.ints_arg(arg)?;
    let new = asked.len().saturating_sub(input.sizes.len());
    let size = |(at, &size): (usize, &i64)| match usize::try_from(size) {
        Ok(size) => Ok(size),
        Err(_) if size == -1 && at >= new => Ok(input.sizes[at - new]),
        Err(_) => Err(NodeError::misfit(format!("{size} is not a size"))),
    };
    let sizes: Vec<usize> = asked.iter().enumerate().map(size).collect::<Result<_, _>>()?;
    tensor(input.expand(&sizes).map_err(NodeError::Misfit)?)
}

fn broadcast_in_dim(call: &Call<'_>, input: &Tensor) -> Done {
    let sizes = call.sizes_arg(call.arg(1, &["shape"]))?;
    let dims = call.sizes_arg(call.arg(2, &["broadcast_dimensions"]))?;
    let mut strides = vec![0; sizes.len()];
    for (at, &dim) in dims.iter().enumerate() {
        let (Some(&old), Some(&new)) = (input.sizes.get(at), sizes.get(dim)) else {
            return Err(NodeError::misfit("there is no such dimension"));
        };
        match old {
            _ if old == new => strides[dim] = input.strides[at],
            1 => {}
            _ => return Err(NodeError::misfit(format!("size {old} does not become {new}"))),
        }
    }
    if count(&sizes) > MAX_ELEMENTS {
        return Err(NodeError::misfit(format!("{sizes:?} are too many elements")));
    }
    tensor(Tensor { sizes, strides, ..input.clone() })
}

/// Where Python's `start:end` begins and how many steps it has.
pub fn slice_range(start: Option<i64>, end: Option<i64>, step: i64, size: usize) -> Result<(usize, usize), NodeError> {
    if step < 1 {
        return Err(NodeError::misfit("slices step forward"));
    }
    let size = size as i64;
    let bound = |at: i64| (if at < 0 { at.saturating_add(size) } else { at }).clamp(0, size);
    let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(i64::MAX)));
    let length = (end - start).max(0) as usize;
    Ok((start as usize, length.div_ceil(step as usize)))
}

fn select(input: &Tensor, dim: usize, index: i64) -> Done {
    let size = input.sizes.get(dim).copied().unwrap_or(0);
    let index = if index < 0 { index.saturating_add(size as i64) } else { index };
    let Some(index) = usize::try_from(index).ok().filter(|index| *index < size) else {
        return Err(NodeError::misfit(format!("there is no index {index} of {size}")));
    };
    let mut part = input.narrow(dim, index, 1);
    part.sizes.remove(dim);
    part.strides.remove(dim);
    tensor(part)
}

fn cut(call: &Call<'_>, input: &Tensor, kind: ViewKind) -> Done {
    let rank = input.sizes.len();
    if rank == 0 {
        return Err(NodeError::misfit("a single element has no dimensions"));
    }
    // The native text writes `slice(x, start, end, dim=d)`, ATen `slice(x, d, start, end)`.
    let shift = usize::from(!call.is_native() || kind != ViewKind::Slice);
    let dim = match shift {
        0 => wrap_dim(call.int_arg(call.args.get("dim"))?.unwrap_or(0), rank)?,
        _ => call.dim(1, "dim", 0, rank)?,
    };
    match kind {
        ViewKind::Select => select(input, dim, call.int(2, "index", 0)?),
        ViewKind::Narrow => {
            let start = call.int(2, "start", 0)?;
            let length = call.int(3, "length", 0)?;
            let start = if start < 0 { start.saturating_add(input.sizes[dim] as i64) } else { start };
            match (usize::try_from(start), usize::try_from(length)) {
                (Ok(start), Ok(length)) if start.saturating_add(length) <= input.sizes[dim] => {
                    tensor(input.narrow(dim, start, length))
                }
                _ => Err(NodeError::misfit(format!("{length} from {start} is outside of size {}", input.sizes[dim]))),
            }
        }
        _ => {
            let bound = |at: usize, name: &str| call.int_arg(call.arg(at + shift, &[name]));
            let step = bound(3, "step")?.unwrap_or(1);
            let (start, length) = slice_range(bound(1, "start")?, bound(2, "end")?, step, input.sizes[dim])?;
            let mut part = input.narrow(dim, start, length);
            part.strides[dim] = part.strides[dim].saturating_mul(step as usize).min(MAX_STRIDE);
            tensor(part)
        }
    }
}

fn squeeze(call: &Call<'_>, mut input: Tensor) -> Done {
    let rank = input.sizes.len();
    let dims: Vec<usize> = match call.arg(1, &["dim", "dimensions"]) {
        None => (0..rank).collect(),
        arg => call.ints_arg(arg)?.into_iter().map(|dim| wrap_dim(dim, rank)).collect::<Result<_, _>>()?,
    };
    for dim in (0..rank).rev().filter(|dim| dims.contains(dim)) {
        if input.sizes[dim] == 1 {
            input.sizes.remove(dim);
            input.strides.remove(dim);
        }
    }
    tensor(input)
}

fn unsqueeze(call: &Call<'_>, mut input: Tensor) -> Done {
    let rank = input.sizes.len();
    let dim = call.dim(1, "dim", 0, rank + 1)?;
    let stride = if dim < rank { input.sizes[dim].saturating_mul(input.strides[dim]).min(MAX_STRIDE) } else { 1 };
    input.sizes.insert(dim, 1);
    input.strides.insert(dim, stride);
    tensor(input)
}

/// The sizes of the parts that a split makes along a dimension of `total`.
pub fn split_sizes(call: &Call<'_>, total: usize, kind: ViewKind) -> Result<Vec<usize>, NodeError> {
    let arg = call.arg(1, &["split_size", "split_sizes", "chunks", "sections"]);
    let listed = matches!(arg, Some(Arg::List(_) | Arg::Tuple(_)));
    let sizes = call.sizes_arg(arg)?;
    if listed {
        let sum = sizes.iter().fold(0usize, |sum, size| sum.saturating_add(*size));
        return if sum == total {
            Ok(sizes)
        } else {
            Err(NodeError::misfit(format!("{sizes:?} do not add up to {total}")))
        };
    }
    let number = sizes.first().copied().unwrap_or(1);
    let part = if kind == ViewKind::Chunk { total.div_ceil(number.max(1)).max(1) } else { number };
    if part == 0 {
        return if total == 0 { Ok(vec![0]) } else { Err(NodeError::misfit("parts of size zero")) };
    }
    Ok((0..total.max(1)).step_by(part).map(|start| part.min(total - start)).collect())
}

fn split(call: &Call<'_>, input: &Tensor, kind: ViewKind) -> Done {
    let rank = input.sizes.len();
    if rank == 0 {
        return Err(NodeError::misfit("a single element has no dimensions"));
    }
    if kind == ViewKind::Unbind {
        let dim = call.dim(1, "dim", 0, rank)?;
        let one = |index| select(input, dim, index as i64).map(|value| value.unwrap_or(Value::Scalar(Scalar::Int(0))));
        return (0..input.sizes[dim]).map(one).collect::<Result<_, _>>().map(|values| Some(Value::Tuple(values)));
    }
    let dim = call.dim(2, "dim", 0, rank)?;
    let mut start = 0;
    let parts = split_sizes(call, input.sizes[dim], kind)?.into_iter().map(|size| {
        start += size;
        Value::Tensor(input.narrow(dim, start - size, size))
    });
    Ok(Some(Value::Tuple(parts.collect())))
}

fn as_strided(call: &Call<'_>, mut input: Tensor) -> Done {
    input.sizes = call.sizes_arg(call.arg(1, &["size"]))?;
    input.strides = call.sizes_arg(call.arg(2, &["stride"]))?;
    if let Some(offset) = call.int_arg(call.arg(3, &["storage_offset"]))? {
        input.offset = usize::try_from(offset).map_err(|_| NodeError::misfit("the offset is negative"))?;
    }
    let room = call.rank.memory.storage_bytes(&input) / input.width();
    let end = span(&input.sizes, &input.strides).and_then(|span| span.checked_add(input.offset));
    if input.sizes.len() != input.strides.len()
        || end.is_none_or(|end| end > room)
        || count(&input.sizes) > MAX_ELEMENTS
    {
        let (sizes, strides) = (&input.sizes, &input.strides);
        return Err(NodeError::misfit(format!("{sizes:?} with strides {strides:?} reaches beyond {room} elements")));
    }
    tensor(input)
}
