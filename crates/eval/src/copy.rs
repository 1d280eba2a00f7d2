//! Operators that move elements, or convert them, without computing.

use super::call::{Call, Done, Layout};
use super::create::one;
use super::layout::{slice_range, split_sizes};
use super::memory::NodeError;
use super::tensor::{Tensor, count, dense_strides, pointwise_strides};
use super::value::{Scalar, Value};
use bucketeer::ir::operators::{CastKind, OperatorId, ViewKind};
use bucketeer::ir::{Arg, DType};
use bucketeer_types::class::promote;
use bucketeer_types::num::convert;

/// Elements converted to a dtype.
pub fn converted_bytes(bytes: &[u8], from: DType, to: DType) -> Result<Vec<u8>, NodeError> {
    let (old, new) = (from.torch_name(), to.torch_name());
    convert(from, to, bytes)
        .ok_or_else(|| NodeError::Undefined(format!("there is no conversion of {old} to {new} here")))
}

/// Evaluates `cat`.
pub fn cat(call: &mut Call<'_>) -> Done {
    let mut parts = call.tensors(call.arg(0, &["tensors"]))?;
    // PyTorch lets empty vectors take part in any shape.
    let dtype = parts.iter().try_fold(None, |dtype: Option<DType>, part| match dtype {
        Some(dtype) => promote(dtype, part.dtype).map(Some),
        None => Some(Some(part.dtype)),
    });
    let (Some(Some(dtype)), Some(first)) = (dtype, parts.first().cloned()) else {
        return Err(NodeError::misfit("nothing to concatenate, or dtypes that do not mix"));
    };
    if parts.iter().any(|part| part.sizes != [0]) {
        parts.retain(|part| part.sizes != [0]);
    }
    let mut sizes = parts.first().unwrap_or(&first).sizes.clone();
    let dim = call.dim(1, "dim", 0, sizes.len())?;
    let fits = |part: &Tensor| {
        part.sizes.len() == sizes.len() && (0..sizes.len()).all(|at| at == dim || part.sizes[at] == sizes[at])
    };
    if sizes.is_empty() || !parts.iter().all(fits) {
        let shapes: Vec<&[usize]> = parts.iter().map(|part| &*part.sizes).collect();
        return Err(NodeError::misfit(format!("{shapes:?} do not concatenate along {dim}")));
    }
    sizes[dim] = parts.iter().map(|part| part.sizes[dim]).sum();
    let bytes = joined(call, &parts, dim, dtype)?;
    call.make(dtype, &sizes, Layout::Stated(&dense_strides(&sizes)), bytes)
}

/// Elements of tensors laid side by side along a dimension.
fn joined(call: &Call<'_>, parts: &[Tensor], dim: usize, dtype: DType) -> Result<Vec<u8>, NodeError> {
    let read = |part: &Tensor| converted_bytes(&call.read(part)?, part.dtype, dtype);
    let contents: Vec<Vec<u8>> = parts.iter().map(read).collect::<Result<_, _>>()?;
    let rows = parts.first().map_or(0, |part| count(&part.sizes[..dim]));
    let mut bytes = Vec::with_capacity(contents.iter().map(Vec::len).sum());
    for row in 0..rows {
        for content in &contents {
            let run = content.len() / rows;
            bytes.extend_from_slice(&content[row * run..(row + 1) * run]);
        }
    }
    Ok(bytes)
}

/// Evaluates `stack`.
pub fn stack(call: &mut Call<'_>) -> Done {
    let parts = call.tensors(call.arg(0, &["tensors"]))?;
    let Some(first) = parts.first().cloned() else { return Err(NodeError::misfit("nothing to stack")) };
    if parts.iter().any(|part| part.sizes != first.sizes || part.dtype != first.dtype) {
        return Err(NodeError::misfit("only tensors alike can be stacked"));
    }
    let dim = call.dim(1, "dim", 0, first.sizes.len() + 1)?;
    let bytes = joined(call, &parts, dim, first.dtype)?;
    let mut sizes = first.sizes;
    sizes.insert(dim, parts.len());
    call.make(first.dtype, &sizes, Layout::Dense, bytes)
}

/// Evaluates `_chunk_cat` along the first dimension.
pub fn chunk_cat(call: &mut Call<'_>) -> Done {
    let parts = call.tensors(call.arg(0, &["tensors"]))?;
    let dim = call.int(1, "dim", 0)?;
    let chunks = call.sizes_arg(call.arg(2, &["num_chunks"]))?;
    match (dim, chunks.as_slice()) {
        (0, &[chunks]) => chunk_rows(call, parts, chunks, false),
        _ => Ok(None),
    }
}

/// Each tensor cut in `chunks` rows, padded with zeros, and the rows of all tensors side by side.
fn chunk_rows(call: &mut Call<'_>, parts: Vec<Tensor>, chunks: usize, flat: bool) -> Done {
    let Some(dtype) = parts.first().map(|part| part.dtype) else {
        return Err(NodeError::misfit("nothing to concatenate"));
    };
    if chunks == 0 || parts.iter().any(|part| part.dtype != dtype || part.sizes.is_empty()) {
        return Err(NodeError::misfit("only tensors of one dtype, with a first dimension, can be cut in chunks"));
    }
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for part in &parts {
        let padded = part.sizes[0].div_ceil(chunks) * chunks * count(&part.sizes[1..]) * part.width();
        let mut bytes = call.read(part)?;
        bytes.resize(padded, 0);
        rows.push(bytes);
    }
    let mut bytes = Vec::new();
    for chunk in 0..chunks {
        for row in &rows {
            let run = row.len() / chunks;
            bytes.extend_from_slice(&row[chunk * run..(chunk + 1) * run]);
        }
    }
    let elements = bytes.len() / dtype.bytes() as usize;
    let sizes = if flat { vec![elements] } else { vec![chunks, elements / chunks] };
    call.make(dtype, &sizes, Layout::Dense, bytes)
}

/// Evaluates `_pre_bucket_reduce_scatter`.
pub fn pre_bucket_reduce_scatter(call: &mut Call<'_>) -> Done {
    let parts = call.tensors(call.arg(0, &["rs_ins"]))?;
    let group = call.sizes_arg(call.arg(1, &["group_size"]))?.first().copied().unwrap_or(0);
    let dtype = parts.first().map(|part| part.dtype);
    let full: Vec<Tensor> = parts.into_iter().filter(|part| part.elements() > 0).collect();
    match dtype {
        Some(dtype) if full.is_empty() => call.make(dtype, &[0], Layout::Dense, Vec::new()),
        _ => chunk_rows(call, full, group, true),
    }
}

/// `_ALL_DTYPES` of PyTorch 2.15's bucketing: all dtypes by the names in `torch`, in order.
#[must_use]
pub fn numbered_dtype(number: i64) -> Option<DType> {
    Some(match number {
        1 => DType::Bf16,
        8 => DType::Bool,
        9 | 12 => DType::C128,
        10 | 14 => DType::C64,
        11 | 13 => DType::C32,
        15 | 20 => DType::F64,
        16 | 18 => DType::F32,
        17 | 26 => DType::F16,
        19 => DType::F4E2m1fnX2,
        21 => DType::F8E4m3fn,
        22 => DType::F8E4m3fnuz,
        23 => DType::F8E5m2,
        24 => DType::F8E5m2fnuz,
        25 => DType::F8E8m0fnu,
        27 | 32 => DType::I32,
        29 | 45 => DType::I16,
        36 | 39 => DType::I64,
        38 => DType::I8,
        47 => DType::U16,
        50 => DType::U32,
        54 => DType::U64,
        56 => DType::U8,
        _ => return None,
    })
}

/// A buffer for the results of all ranks, with this rank's members in its own slot. The graph names the rank it was
/// made on; other ranks' graphs differ in that number alone, so the slot is that of the rank named.
pub fn pre_bucket_all_gather(call: &mut Call<'_>) -> Done {
    let parts = call.tensors(call.arg(0, &["ag_ins"]))?;
    let group = call.sizes_arg(call.arg(1, &["group_size"]))?.first().copied().unwrap_or(0);
    let bucket = call.dtype(2).ok_or_else(|| NodeError::misfit("no dtype is given"))?;
    let numbers = call.ints_arg(call.arg(3, &["out_dtype_ints"]))?;
    let slot = call.sizes_arg(call.arg(4, &["rank"]))?.first().copied().unwrap_or(0);
    if numbers.len() != parts.len() || slot >= group {
        return Err(NodeError::misfit("lists or ranks do not fit"));
    }
    let mut packed = Vec::new();
    for (part, number) in parts.iter().zip(numbers) {
        let dtype = numbered_dtype(number).ok_or_else(|| NodeError::Undefined(format!("dtype number {number}")))?;
        packed.extend(converted_bytes(&call.read(part)?, part.dtype, dtype)?);
        if packed.len() % bucket.bytes() as usize != 0 {
            return Err(NodeError::misfit("a member does not fill whole elements of the bucket"));
        }
    }
    call.rank.memory.room(bucket, (packed.len() / bucket.bytes() as usize).saturating_mul(group))?;
    let mut bytes = vec![super::memory::POISON; packed.len() * group];
    bytes[slot * packed.len()..(slot + 1) * packed.len()].copy_from_slice(&packed);
    let elements = bytes.len() / bucket.bytes() as usize;
    call.make(bucket, &[elements], Layout::Dense, bytes)
}

/// Evaluates `_foreach_copy_`.
pub fn foreach_copy(call: &mut Call<'_>) -> Done {
    let (to, from) = (call.tensors(call.arg(0, &["self"]))?, call.tensors(call.arg(1, &["src"]))?);
    if to.len() != from.len() {
        return Err(NodeError::misfit("lists of different lengths"));
    }
    for (to, from) in to.iter().zip(&from) {
        let from = from.expand(&to.sizes).map_err(NodeError::Misfit)?;
        let bytes = converted_bytes(&call.read(&from)?, from.dtype, to.dtype)?;
        call.rank.memory.write(to, &bytes)?;
    }
    Ok(Some(Value::Tuple(to.into_iter().map(Value::Tensor).collect())))
}

/// Evaluates a split into copies.
pub fn split_copy(call: &mut Call<'_>, kind: ViewKind) -> Done {
    let Some(input) = call.first()? else { return Ok(None) };
    if input.sizes.is_empty() {
        return Err(NodeError::misfit("a single element has no dimensions"));
    }
    let dim = call.dim(2, "dim", 0, input.sizes.len())?;
    let out = call.args.get("out").map(|arg| call.tensors(Some(arg))).transpose()?;
    let mut parts = Vec::new();
    let mut start = 0;
    for (nth, size) in split_sizes(call, input.sizes[dim], kind)?.into_iter().enumerate() {
        let part = input.narrow(dim, start, size);
        start += size;
        let bytes = call.read(&part)?;
        let made = match out.as_ref().map(|out| out.get(nth)) {
            None => call.make(part.dtype, &part.sizes, Layout::Dense, bytes)?,
            Some(Some(out)) if (out.dtype, &out.sizes) == (part.dtype, &part.sizes) => {
                call.rank.memory.write(out, &bytes)?;
                Some(Value::Tensor(out.clone()))
            }
            Some(_) => {
                return Err(NodeError::misfit(format!("`out` number {nth} is missing or differs from its part")));
            }
        };
        parts.extend(made);
    }
    Ok(Some(Value::Tuple(parts)))
}

/// Whether a conversion is evaluated, not made up.
#[must_use]
pub fn is_known_cast(kind: CastKind) -> bool {
    match kind {
        CastKind::Dtype(dtype) => matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16),
        CastKind::Type => false,
        CastKind::Elements | CastKind::ToCopy | CastKind::To | CastKind::Copy | CastKind::TypeAs | CastKind::Device => {
            true
        }
    }
}

/// Evaluates a clone or a conversion.
pub fn converted(call: &mut Call<'_>, operator: OperatorId) -> Done {
    let cast = match operator {
        OperatorId::Cast(kind) if !is_known_cast(kind) => return Ok(None),
        OperatorId::Cast(kind) => Some(kind),
        _ => None,
    };
    let Some(mut input) = call.first()? else { return Ok(None) };
    let like = match cast {
        Some(CastKind::TypeAs | CastKind::Copy) => call.tensor_arg(call.arg(1, &["other", "src"]))?,
        _ => None,
    };
    let dtype = match (&like, cast) {
        (Some(like), Some(CastKind::TypeAs)) => like.dtype,
        // `copy_(x, y)`: y, in x's shape and dtype.
        (Some(from), Some(CastKind::Copy)) => {
            let (sizes, dtype) = (input.sizes.clone(), input.dtype);
            input = from.expand(&sizes).map_err(NodeError::Misfit)?;
            dtype
        }
        (_, Some(CastKind::Dtype(dtype))) => dtype,
        _ => asked_dtype(call).unwrap_or(input.dtype),
    };
    let dense = operator == OperatorId::View(ViewKind::Contiguous) || asks_dense(call);
    let moves = call.args.get("device").is_some() || cast == Some(CastKind::Device);
    let may_alias = match cast {
        Some(CastKind::Elements | CastKind::ToCopy | CastKind::Copy) => false,
        Some(CastKind::To | CastKind::TypeAs | CastKind::Type | CastKind::Dtype(_) | CastKind::Device) => true,
        None => operator == OperatorId::View(ViewKind::Convert),
    };
    let forced = call.args.get("copy") == Some(&Arg::Bool(true));
    if may_alias && dtype == input.dtype && !moves && !forced && !dense {
        return Ok(Some(Value::Tensor(input)));
    }
    let bytes = converted_bytes(&call.read(&input)?, input.dtype, dtype)?;
    let strides = pointwise_strides(&input.sizes, &[&input.strides]);
    call.make(dtype, &input.sizes, if dense { Layout::Dense } else { Layout::Stated(&strides) }, bytes)
}

/// The dtype among the arguments, wherever it stands.
fn asked_dtype(call: &Call<'_>) -> Option<DType> {
    let keyword = call.args.get("dtype").or(call.args.get("a"));
    call.args.positional.iter().skip(1).chain(keyword).find_map(|arg| match arg {
        Arg::DType(dtype) => Some(*dtype),
        _ => None,
    })
}

fn asks_dense(call: &Call<'_>) -> bool {
    matches!(call.args.get("memory_format"), Some(Arg::Word(word)) if word.ends_with("contiguous_format"))
}

/// Evaluates `fill` and `zero`.
pub fn fill(call: &mut Call<'_>) -> Done {
    let Some(input) = call.first()? else { return Ok(None) };
    let element = match call.arg(1, &["value"]).map(|arg| call.value(arg)).transpose()? {
        None => one(input.dtype, Scalar::Int(0)),
        Some(Value::Scalar(number)) => one(input.dtype, number),
        Some(Value::Tensor(from)) if from.elements() == 1 => {
            converted_bytes(&call.read(&from)?, from.dtype, input.dtype)?
        }
        Some(_) => return Err(NodeError::misfit("a tensor is filled with one number")),
    };
    call.rank.memory.room(input.dtype, input.elements())?;
    call.make(input.dtype, &input.sizes, Layout::Stated(&input.strides), element.repeat(input.elements()))
}

/// Evaluates a pad, which may have a mode.
pub fn pad(call: &mut Call<'_>, has_mode: bool) -> Done {
    let Some(input) = call.first()? else { return Ok(None) };
    let pads = call.ints_arg(call.arg(1, &["pad"]))?;
    if has_mode && call.arg(2, &["mode"]).is_some_and(|mode| mode.as_str() != Some("constant")) {
        return Ok(None);
    }
    let value_at = if has_mode { 3 } else { 2 };
    let value = match call.arg(value_at, &["value"]).map(|arg| call.value(arg)).transpose()? {
        Some(Value::Scalar(number)) => number,
        _ => Scalar::Int(0),
    };
    if pads.len() % 2 != 0 || pads.len() / 2 > input.sizes.len() {
        return Err(NodeError::misfit(format!("{pads:?} does not pad {:?}", input.sizes)));
    }
    // Negative pads cut; the first pair is for the last dimension.
    let (mut inner, mut sizes, mut starts) = (input.clone(), input.sizes.clone(), vec![0; input.sizes.len()]);
    for (nth, pair) in pads.chunks(2).enumerate() {
        let dim = input.sizes.len() - 1 - nth;
        let cut = |pad: i64| usize::try_from(pad.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let grow = |pad: i64| usize::try_from(pad.max(0)).unwrap_or(0);
        let kept = input.sizes[dim].checked_sub(cut(pair[0])).and_then(|size| size.checked_sub(cut(pair[1])));
        let kept = kept.ok_or_else(|| NodeError::misfit("more is cut than there is"))?;
        inner = inner.narrow(dim, cut(pair[0]), kept);
        starts[dim] = grow(pair[0]);
        sizes[dim] = kept.saturating_add(grow(pair[0])).saturating_add(grow(pair[1]));
    }
    call.rank.memory.room(input.dtype, count(&sizes))?;
    let bytes = one(input.dtype, value).repeat(count(&sizes));
    let content = call.read(&inner)?;
    let made = call.make(input.dtype, &sizes, Layout::Dense, bytes)?;
    if let Some(Value::Tensor(whole)) = &made {
        let window = (0..sizes.len()).fold(whole.clone(), |w, dim| w.narrow(dim, starts[dim], inner.sizes[dim]));
        call.rank.memory.write(&window, &content)?;
    }
    Ok(made)
}

/// `slice_scatter` and `select_scatter`: a copy with a part replaced, that which such a view shows.
pub fn scatter(call: &mut Call<'_>, kind: ViewKind) -> Done {
    let (Some(input), Some(source)) = (call.first()?, call.tensor_arg(call.arg(1, &["src"]))?) else {
        return Ok(None);
    };
    let dim = call.dim(2, "dim", 0, input.sizes.len())?;
    let bytes = call.read(&input)?;
    let content = converted_bytes(&call.read(&source)?, source.dtype, input.dtype)?;
    let made = call.make(input.dtype, &input.sizes, Layout::Stated(&input.strides), bytes)?;
    let Some(Value::Tensor(whole)) = &made else { return Ok(made) };
    let bound = |at: usize, name: &str| call.int_arg(call.arg(at, &[name]));
    let (start, end, step) = if kind == ViewKind::Select {
        let index = call.int(3, "index", 0)?;
        (Some(index), if index == -1 { None } else { Some(index.saturating_add(1)) }, 1)
    } else {
        (bound(3, "start")?, bound(4, "end")?, bound(5, "step")?.unwrap_or(1))
    };
    let size = whole.sizes.get(dim).copied().ok_or_else(|| NodeError::misfit("a single element has no dimensions"))?;
    let (start, length) = slice_range(start, end, step, size)?;
    let mut window = whole.narrow(dim, start, length);
    window.strides[dim] = window.strides[dim].saturating_mul(step as usize).min(super::tensor::MAX_STRIDE);
    if window.elements() * window.width() != content.len() {
        return Err(NodeError::misfit("the source has another size than the part it replaces"));
    }
    call.rank.memory.write(&window, &content)?;
    Ok(made)
}

/// Evaluates `index_select`.
pub fn index_select(call: &mut Call<'_>) -> Done {
    let (Some(input), Some(index)) = (call.first()?, call.tensor_arg(call.arg(2, &["index"]))?) else {
        return Ok(None);
    };
    let dim = call.dim(1, "dim", 0, input.sizes.len())?;
    let size = *input.sizes.get(dim).ok_or_else(|| NodeError::misfit("a single element has no dimensions"))?;
    let width = index.width();
    let picked: Vec<i128> = call
        .read(&index)?
        .chunks_exact(width)
        .map(|bytes| bucketeer_types::num::load_int(index.dtype, bytes))
        .collect();
    let part = |place: &i128| match usize::try_from(*place) {
        Ok(place) if place < size => Ok(input.narrow(dim, place, 1)),
        _ => Err(NodeError::misfit(format!("there is no index {place} of {size}"))),
    };
    let parts: Vec<Tensor> = picked.iter().map(part).collect::<Result<_, _>>()?;
    let mut sizes = input.sizes.clone();
    sizes[dim] = parts.len();
    let bytes = joined(call, &parts, dim, input.dtype)?;
    call.make(input.dtype, &sizes, Layout::Dense, bytes)
}
