//! What a call makes, where it is an operator whose meaning is followed; see [`super`] for the list.

use super::int::{Int, ONE, ZERO, product};
use super::layout::{self, tensor_of};
use super::pattern;
use super::terms::{Context, Shape, Tensor, Term, Val, Value, constant, element, fill_text};
use crate::ir::optable::split_target;
use crate::ir::{Arg, Args, DType, SymExpr, Type};

/// One call: its arguments with the values of its operands.
pub(super) struct Call<'a> {
    pub target: &'a str,
    pub args: &'a Args,
    pub operands: &'a [Val],
    pub ty: &'a Type,
    /// For memory that is never written: who got it.
    pub name: u32,
    /// The dtype that a pure cast converts to.
    pub cast: Option<DType>,
}

impl Call<'_> {
    fn val(&self, arg: Option<&Arg>) -> Option<Val> {
        match arg? {
            Arg::Operand(index) => self.operands.get(*index as usize).copied(),
            _ => None,
        }
    }

    fn tensor(&self, context: &Context<'_>, place: usize, name: &str) -> Option<Tensor> {
        tensor_of(context, self.val(self.args.at(place, name))?)
    }

    fn int(&self, context: &Context<'_>, arg: Option<&Arg>) -> Option<Int> {
        match arg? {
            Arg::Int(value) => Some(Int::Known(*value)),
            operand => match context.value(self.val(Some(operand))?) {
                Value::Int(expr) => Some(Int::from_expr(expr.clone())),
                _ => None,
            },
        }
    }

    fn ints(&self, context: &Context<'_>, arg: Option<&Arg>) -> Option<Vec<Int>> {
        match arg? {
            Arg::List(items) | Arg::Tuple(items) => items.iter().map(|item| self.int(context, Some(item))).collect(),
            _ => None,
        }
    }

    fn tensors(&self, context: &Context<'_>, arg: Option<&Arg>) -> Option<Vec<Tensor>> {
        match arg? {
            Arg::List(items) | Arg::Tuple(items) => {
                items.iter().map(|item| tensor_of(context, self.val(Some(item))?)).collect()
            }
            _ => None,
        }
    }

    /// A dimension argument, from the end if negative.
    fn dim(&self, place: usize, name: &str, default: i64, rank: usize) -> Option<usize> {
        layout::dimension(self.args.at(place, name).map_or(Some(default), Arg::as_int)?, rank)
    }
}

/// Operators that [`of`] looks at.
const FOLLOWED: &[&str] = &[
    "getitem",
    "item",
    "get_tuple_element",
    "sym_size",
    "size",
    "sym_numel",
    "numel",
    "mul",
    "add",
    "sub",
    "floordiv",
    "neg",
    "split",
    "split_with_sizes",
    "split_with_sizes_copy",
    "chunk",
    "unbind",
    "cat",
    "concat",
    "concatenate",
    "_chunk_cat",
    "_pre_bucket_reduce_scatter",
    "stack",
    "_pre_bucket_all_gather",
    "empty",
    "empty_strided",
    "empty_permuted",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
    "clone",
    "contiguous",
    "alias",
    "alias_copy",
    "detach",
    "detach_copy",
    "lift_fresh",
    "lift_fresh_copy",
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "view_copy",
    "bitcast",
    "unsqueeze",
    "squeeze",
    "permute",
    "permute_copy",
    "t",
    "transpose",
    "expand",
    "slice",
    "narrow",
    "select",
    "constant_pad_nd",
    "convert_element_type",
    "cast",
    "to",
    "_to_copy",
];

/// What is known of a target before its arguments are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// Whether [`of`] may find its value.
    pub followed: bool,
    /// Whether the value depends on who asks: memory that is never written.
    pub names_memory: bool,
    /// Whether it refuses to copy: `view` of sizes.
    pub only_views: bool,
}

impl Class {
    pub fn of(target: &str) -> Self {
        let (namespace, base, overload) = split_target(target);
        // Arithmetic of sizes; that of tensors is not followed.
        let arithmetic = matches!(base, "mul" | "add" | "sub" | "floordiv" | "neg");
        let tensors = arithmetic && !matches!(namespace, "operator" | "builtins" | "");
        Self {
            followed: FOLLOWED.contains(&base) && !tensors,
            names_memory: base.contains("empty") || base == "_pre_bucket_all_gather",
            only_views: base == "view" && overload != "dtype",
        }
    }
}

/// The value of a call, or `None` where it is taken as a value of its own.
pub(super) fn of(context: &mut Context<'_>, call: &Call<'_>) -> Option<Val> {
    let (namespace, base, overload) = split_target(call.target);
    if !is_where_stated(call) {
        return None;
    }
    if let Some(dtype) = call.cast {
        let tensor = tensor_of(context, *call.operands.first()?)?;
        return tensor_val(context, |context| layout::cast(context, &tensor, dtype));
    }
    match base {
        "getitem" | "item" | "get_tuple_element" => return item(context, call),
        "sym_size" | "size" | "sym_numel" | "numel" | "mul" | "add" | "sub" | "floordiv" | "neg" => {
            return size(context, call, base);
        }
        "split" | "split_with_sizes" | "split_with_sizes_copy" | "chunk" | "unbind" if overload != "out" => {
            return parts(context, call, base);
        }
        "cat" | "concat" | "concatenate" | "_chunk_cat" | "_pre_bucket_reduce_scatter" | "stack" => {
            return tensor_val(context, |context| joined(context, call, base));
        }
        "_pre_bucket_all_gather" => return tensor_val(context, |context| packed_gather(context, call)),
        _ => {}
    }
    if let Some(val) = filled(context, call, base) {
        return Some(val);
    }
    tensor_val(context, |context| moved(context, call, namespace, base, overload))
}

/// Whether the device that a call asks for is the stated one; `cuda` is any of them.
fn is_where_stated(call: &Call<'_>) -> bool {
    let stated = call.ty.as_tensor().and_then(|tensor| tensor.device.as_deref());
    let (Some(stated), Some(asked)) = (stated, call.args.get("device")) else { return true };
    let (kind, index) = match asked {
        Arg::Str(name) | Arg::Word(name) => (&**name, None),
        Arg::Apply(_, args) => {
            (args.at(0, "type").and_then(Arg::as_str).unwrap_or(""), args.at(1, "index").and_then(Arg::as_int))
        }
        _ => return true,
    };
    let rest = stated.strip_prefix(kind);
    rest.is_some_and(|rest| index.map_or(rest.is_empty() || rest.starts_with(':'), |index| rest == format!(":{index}")))
}

fn tensor_val<'g>(context: &mut Context<'g>, make: impl FnOnce(&mut Context<'g>) -> Option<Tensor>) -> Option<Val> {
    let tensor = make(context)?;
    Some(context.intern(Value::Tensor(tensor)))
}

fn item(context: &Context<'_>, call: &Call<'_>) -> Option<Val> {
    let Value::Tuple(parts) = context.value(*call.operands.first()?) else { return None };
    let index = call.args.at(1, "index")?.as_int()?;
    let index = if index < 0 { index + i64::try_from(parts.len()).ok()? } else { index };
    parts.get(usize::try_from(index).ok()?).copied()
}

/// Sizes, and what is computed from them.
fn size(context: &mut Context<'_>, call: &Call<'_>, base: &str) -> Option<Val> {
    let int = match base {
        "sym_size" | "size" => {
            let tensor = call.tensor(context, 0, "self")?;
            tensor
                .shape
                .get(call.dim(1, "dim", 0, tensor.shape.len()).filter(|_| call.args.at(1, "dim").is_some())?)?
                .clone()
        }
        "sym_numel" | "numel" => product(&call.tensor(context, 0, "self")?.shape)?,
        _ if !call.args.keyword.is_empty() => return None,
        _ => {
            let a = call.int(context, call.args.positional.first())?;
            if base == "neg" {
                ZERO.sub(&a)?
            } else {
                let b = call.int(context, call.args.positional.get(1))?;
                match base {
                    "mul" => a.mul(&b)?,
                    "add" => a.add(&b)?,
                    "sub" => a.sub(&b)?,
                    _ => a.div(&b).or_else(|| rounded(&a, &b))?,
                }
            }
        }
    };
    Some(context.intern(Value::Int(int.expr())))
}

/// A division that is not exact, as annotations spell it.
fn rounded(a: &Int, b: &Int) -> Option<Int> {
    if let (Some(a), Some(b)) = (a.known(), b.known()) {
        return (b > 0).then(|| Int::Known(a.div_euclid(b)));
    }
    let part = |int: &Int| {
        let text = int.to_string();
        if text.contains([' ', '*', '/']) { format!("({text})") } else { text }
    };
    SymExpr::parse(&format!("{}//{}", part(a), part(b))).ok().map(Int::from_expr)
}

/// Operators that make a tuple of parts of a tensor.
fn parts(context: &mut Context<'_>, call: &Call<'_>, base: &str) -> Option<Val> {
    let tensor = call.tensor(context, 0, "self")?;
    let dim = call.dim(if base == "unbind" { 1 } else { 2 }, "dim", 0, tensor.shape.len())?;
    let along = tensor.shape[dim].clone();
    let sizes = match (base, call.args.at(1, "split_size").or_else(|| call.args.get("split_sizes"))) {
        ("unbind", _) => vec![ONE; usize::try_from(along.known()?).ok()?],
        (_, sizes @ Some(Arg::List(_) | Arg::Tuple(_))) => call.ints(context, sizes)?,
        (_, size) => {
            let (size, along) =
                (call.int(context, size.or_else(|| call.args.at(1, "chunks")))?.known()?, along.known()?);
            if size < 1 {
                return None;
            }
            let part = if base == "chunk" { ((along + size - 1) / size).max(1) } else { size };
            equal_parts(along, part)
        }
    };
    let total = sizes.iter().try_fold(ZERO, |sum, size| sum.add(size))?;
    if total != along {
        return None;
    }
    let mut parts = layout::split(context, &tensor, dim, &sizes)?;
    if base == "unbind" {
        parts.iter_mut().for_each(|part| {
            part.shape.remove(dim);
        });
    }
    let vals = parts.into_iter().map(|part| context.intern(Value::Tensor(part))).collect();
    Some(context.intern(Value::Tuple(vals)))
}

fn equal_parts(along: i64, part: i64) -> Vec<Int> {
    let mut sizes: Vec<Int> = (0..along / part).map(|_| Int::Known(part)).collect();
    if along % part != 0 || along == 0 {
        sizes.push(Int::Known(along % part));
    }
    sizes
}

/// Operators that make one tensor of several.
fn joined(context: &mut Context<'_>, call: &Call<'_>, base: &str) -> Option<Tensor> {
    let mut tensors = call.tensors(context, call.args.positional.first().or_else(|| call.args.get("tensors")))?;
    if base == "_pre_bucket_reduce_scatter" {
        let chunks = call.args.at(1, "group_size")?.as_int()?;
        tensors.retain(|tensor| !tensor.flat.pieces.is_empty());
        let packed = layout::chunk_cat(context, &tensors, chunks)?;
        return layout::reshape(&packed, &[Int::Known(-1)]);
    }
    if base == "_chunk_cat" {
        let first = call.args.at(1, "dim")?.as_int()? == 0;
        let chunks = call.args.at(2, "num_chunks")?.as_int()?;
        return first.then(|| layout::chunk_cat(context, &tensors, chunks)).flatten();
    }
    let dim = call.args.at(1, "dim").map_or(Some(0), Arg::as_int)?;
    if base == "stack" {
        let at = layout::dimension(dim, tensors.first()?.shape.len() + 1)?;
        tensors.iter_mut().for_each(|tensor| tensor.shape.insert(at, ONE));
        return layout::cat(context, &tensors, i64::try_from(at).ok()?);
    }
    // Mixed dtypes are converted to the stated one first.
    let Type::Tensor(result) = call.ty else { return layout::cat(context, &tensors, dim) };
    let tensors: Option<Vec<Tensor>> =
        tensors.iter().map(|tensor| layout::cast(context, tensor, result.dtype)).collect();
    layout::cat(context, &tensors?, dim)
}

/// A gather's buffer with this rank's slot filled, as PyTorch's custom operator makes it.
fn packed_gather(context: &mut Context<'_>, call: &Call<'_>) -> Option<Tensor> {
    let tensors = call.tensors(context, call.args.positional.first())?;
    let size = call.args.at(1, "group_size")?.as_int()?;
    let Some(Arg::DType(dtype)) = call.args.at(2, "dtype") else { return None };
    let (Some(Arg::List(dtypes)), Some(rank)) = (call.args.at(3, "out_dtype_ints"), call.args.at(4, "rank")?.as_int())
    else {
        return None;
    };
    if dtypes.len() != tensors.len() || !(0..size).contains(&rank) {
        return None;
    }
    let mut slot = Vec::new();
    for (tensor, dtype_number) in tensors.iter().zip(dtypes) {
        let converted = layout::cast(context, tensor, numbered_dtype(dtype_number.as_int()?)?)?;
        let row = layout::reshape(&converted, &[Int::Known(-1)])?;
        slot.push(layout::bit_cast(&row, *dtype)?);
    }
    let slot = layout::cat(context, &slot, 0)?;
    let length = product(&slot.shape)?;
    let unset = |context: &mut Context<'_>, slots: i64, first: i64| {
        let shape: Shape = [length.mul(&Int::Known(slots))?].into_iter().collect();
        unset_range(context, call.name, *dtype, shape, &length.mul(&Int::Known(first))?)
    };
    let before = unset(context, rank, 0)?;
    let after = unset(context, size - 1 - rank, rank + 1)?;
    layout::cat(context, &[before, slot, after], 0)
}

fn unset_range(context: &mut Context<'_>, name: u32, dtype: DType, shape: Shape, from: &Int) -> Option<Tensor> {
    let leaf = context.intern_leaf(Term::Unset(name), Some(dtype), None);
    let bytes = super::terms::bytes_of(&shape, dtype)?;
    let flat = if bytes.is(0) {
        super::flat::Flat::empty()
    } else {
        super::flat::Flat::run(leaf, from.mul(&element(dtype))?, pattern::dense(bytes))?
    };
    Some(Tensor { dtype, shape, flat })
}

/// The dtype that PyTorch 2.15 numbers so: its dtypes in the order of their names.
fn numbered_dtype(number: i64) -> Option<DType> {
    const NAMES: [&str; 56] = [
        "",
        "bfloat16",
        "",
        "",
        "",
        "",
        "",
        "",
        "bool",
        "complex128",
        "complex64",
        "complex32",
        "complex128",
        "complex32",
        "complex64",
        "float64",
        "float32",
        "float16",
        "float32",
        "float4_e2m1fn_x2",
        "float64",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float16",
        "int32",
        "",
        "int16",
        "",
        "",
        "int32",
        "",
        "",
        "",
        "int64",
        "",
        "int8",
        "int64",
        "",
        "",
        "",
        "",
        "",
        "int16",
        "",
        "uint16",
        "",
        "",
        "uint32",
        "",
        "",
        "uint64",
        "",
        "uint8",
    ];
    DType::from_name(NAMES.get(usize::try_from(number).ok()?)?)
}

/// Operators that make a tensor of one value, or of none.
fn filled(context: &mut Context<'_>, call: &Call<'_>, base: &str) -> Option<Val> {
    let like = base.ends_with("_like") || base.starts_with("new_");
    let plain = base.strip_prefix("new_").or_else(|| base.strip_suffix("_like")).unwrap_or(base);
    if !matches!(plain, "empty" | "empty_strided" | "empty_permuted" | "zeros" | "ones" | "full") {
        return None;
    }
    let Type::Tensor(ty) = call.ty else { return None };
    let source = if like { Some(call.tensor(context, 0, "self")?) } else { None };
    let shape = match &source {
        Some(source) if base.ends_with("_like") => source.shape.clone(),
        _ => call.ints(context, call.args.at(usize::from(like), "size"))?.into_iter().collect(),
    };
    let dtype = match call.args.get("dtype") {
        Some(Arg::DType(dtype)) => *dtype,
        // The default is not in the graph.
        _ => source.map_or(ty.dtype, |source| source.dtype),
    };
    let text = match plain {
        "empty" | "empty_strided" | "empty_permuted" => {
            let tensor = unset_range(context, call.name, dtype, shape, &ZERO)?;
            return Some(context.intern(Value::Tensor(tensor)));
        }
        "zeros" => "0".to_owned(),
        "ones" => "1".to_owned(),
        "full" if like && !base.starts_with("new_") => fill_text(call.args.at(1, "fill_value")?)?,
        "full" if base == "new_full" => fill_text(call.args.at(2, "fill_value")?)?,
        "full" => fill_text(call.args.at(1, "fill_value")?)?,
        _ => return None,
    };
    let tensor = constant(context, &text, dtype, shape)?;
    Some(context.intern(Value::Tensor(tensor)))
}

/// Operators that make one tensor of one, with other places for its elements.
fn moved(context: &mut Context<'_>, call: &Call<'_>, namespace: &str, base: &str, overload: &str) -> Option<Tensor> {
    let tensor = tensor_of(context, *call.operands.first()?)?;
    let rank = tensor.shape.len();
    match base {
        "clone" | "contiguous" | "alias" | "alias_copy" | "detach" | "detach_copy" | "lift_fresh"
        | "lift_fresh_copy" => Some(tensor),
        "view" | "reshape" | "_unsafe_view" | "_reshape_alias" | "view_copy" | "bitcast" => {
            match call.args.at(1, "dtype") {
                Some(Arg::DType(dtype)) => layout::bit_cast(&tensor, *dtype),
                sizes => {
                    let sizes = call
                        .ints(context, sizes.or_else(|| call.args.at(1, "size")).or_else(|| call.args.get("shape")))?;
                    layout::reshape(&tensor, &sizes)
                }
            }
        }
        "unsqueeze" => {
            let dim = call.dim(1, "dim", 0, rank + 1)?;
            let mut shape = tensor.shape.clone();
            shape.insert(dim, ONE);
            Some(Tensor { shape, ..tensor })
        }
        "squeeze" => squeezed(call, tensor),
        "permute" | "permute_copy" => {
            let order = call.ints(context, call.args.at(1, "dims"))?;
            let order: Option<Vec<usize>> = order.iter().map(|dim| layout::dimension(dim.known()?, rank)).collect();
            layout::permute(context, &tensor, &order?)
        }
        "t" | "transpose" => {
            let mut order: Vec<usize> = (0..rank).collect();
            let given = call.args.at(1, "dim0").is_some();
            if given || rank == 2 {
                order.swap(call.dim(1, "dim0", 0, rank)?, call.dim(2, "dim1", 1, rank)?);
            } else if rank > 2 {
                return None;
            }
            layout::permute(context, &tensor, &order)
        }
        "expand" => layout::expand(&tensor, &call.ints(context, call.args.at(1, "size"))?),
        "slice" if namespace.is_empty() => {
            let dim = call.args.get("dim").map_or(Some(0), Arg::as_int)?;
            let bound = |place| call.int(context, call.args.positional.get(place));
            let (start, end) = (bound(1)?, bound(2)?);
            layout::slice(context, &tensor, layout::dimension(dim, rank)?, &start, &end, 1)
        }
        "slice" if overload != "backward" => {
            let bound = |place: usize, name: &str, default: i64| match call.args.at(place, name) {
                None | Some(Arg::None) => Some(Int::Known(default)),
                arg => call.int(context, arg),
            };
            let (start, end, step) = (bound(2, "start", 0)?, bound(3, "end", i64::MAX)?, bound(4, "step", 1)?.known()?);
            layout::slice(context, &tensor, call.dim(1, "dim", 0, rank)?, &start, &end, step)
        }
        "narrow" => {
            let (start, length) =
                (call.int(context, call.args.at(2, "start"))?, call.int(context, call.args.at(3, "length"))?);
            layout::slice(context, &tensor, call.dim(1, "dim", 0, rank)?, &start, &start.add(&length)?, 1)
        }
        "select" => {
            let index = call.int(context, call.args.at(2, "index"))?;
            layout::select(context, &tensor, call.dim(1, "dim", 0, rank)?, &index)
        }
        "constant_pad_nd" => {
            let fill = call.args.at(2, "value").map_or(Some("0".to_owned()), fill_text)?;
            let pads = call.ints(context, call.args.at(1, "pad"))?;
            layout::pad(context, &tensor, &pads, &fill)
        }
        _ => None,
    }
}

fn squeezed(call: &Call<'_>, mut tensor: Tensor) -> Option<Tensor> {
    let rank = tensor.shape.len();
    let dims: Vec<usize> = match call.args.at(1, "dim") {
        None => (0..rank).collect(),
        Some(Arg::Int(dim)) => vec![layout::dimension(*dim, rank)?],
        Some(Arg::List(items)) => {
            items.iter().map(|item| layout::dimension(item.as_int()?, rank)).collect::<Option<_>>()?
        }
        Some(_) => return None,
    };
    if dims.iter().any(|&dim| tensor.shape[dim].known().is_none()) {
        return None;
    }
    let mut index = 0;
    tensor.shape.retain(|size| {
        index += 1;
        !(dims.contains(&(index - 1)) && size.is(1))
    });
    Some(tensor)
}
