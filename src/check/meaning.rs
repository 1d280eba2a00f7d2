//! What a call makes, where it is an operator whose meaning is followed; see [`super`] for the list.

use super::int::{Int, ONE, ZERO, product};
use super::layout::{self, tensor_of};
use super::pattern;
use super::signature::{self, Arithmetic, Bound, Fill, Meaning, Operator, Other, Shaped, promoted};
use super::terms::{Context, Shape, Tensor, Term, Val, Value, constant, element, fill_text};
use crate::ir::{Arg, Args, DType, SymExpr, Type};

/// Most parts that a tensor is split into.
const MOST_PARTS: i64 = 1 << 16;

/// One call: its arguments with the values of its operands.
pub(super) struct Call<'a> {
    pub args: &'a Args,
    pub operands: &'a [Val],
    pub ty: &'a Type,
    /// For memory that is never written: who got it.
    pub name: u32,
    /// Whether the result is on another device than the first operand.
    pub changes_device: bool,
}

/// A call with its arguments by parameter.
struct Bind<'a> {
    call: &'a Call<'a>,
    args: Bound<'a>,
}

impl Bind<'_> {
    fn val(&self, arg: &Arg) -> Option<Val> {
        match arg {
            Arg::Operand(index) => self.call.operands.get(*index as usize).copied(),
            _ => None,
        }
    }

    fn tensor(&self, context: &Context<'_>, name: &str) -> Option<Tensor> {
        tensor_of(context, self.val(self.args.get(name)?)?)
    }

    fn int_of(&self, context: &Context<'_>, arg: &Arg) -> Option<Int> {
        match arg {
            Arg::Int(value) => Some(Int::Known(*value)),
            operand => match context.value(self.val(operand)?) {
                Value::Int(expr) => Some(Int::from_expr(expr.clone())),
                _ => None,
            },
        }
    }

    fn int(&self, context: &Context<'_>, name: &str) -> Option<Int> {
        self.int_of(context, self.args.get(name)?)
    }

    /// An integer that may be left out, also by `None`.
    fn int_or(&self, context: &Context<'_>, name: &str, default: i64) -> Option<Int> {
        self.args.some(name).map_or(Some(Int::Known(default)), |arg| self.int_of(context, arg))
    }

    fn ints(&self, context: &Context<'_>, name: &str) -> Option<Vec<Int>> {
        self.args.list(name)?.iter().map(|item| self.int_of(context, item)).collect()
    }

    fn tensors(&self, context: &Context<'_>, name: &str) -> Option<Vec<Tensor>> {
        self.args.list(name)?.iter().map(|item| tensor_of(context, self.val(item)?)).collect()
    }

    /// A dimension argument, from the end if negative.
    fn dim(&self, name: &str, default: Option<i64>, rank: usize) -> Option<usize> {
        layout::dimension(self.args.get(name).map_or(default, Arg::as_int)?, rank)
    }

    /// Dimensions, each once: a list, or one alone.
    fn dims(&self, name: &str, rank: usize) -> Option<Vec<usize>> {
        let given = match self.args.get(name)? {
            Arg::Int(dim) => vec![layout::dimension(*dim, rank)?],
            _ => self.list_of_dims(name, rank)?,
        };
        let mut sorted = given.clone();
        sorted.sort_unstable();
        sorted.dedup();
        (sorted.len() == given.len()).then_some(given)
    }

    fn list_of_dims(&self, name: &str, rank: usize) -> Option<Vec<usize>> {
        self.args.list(name)?.iter().map(|item| layout::dimension(item.as_int()?, rank)).collect()
    }
}

/// What is known of a target before its arguments are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The operator, if [`of`] may find its value.
    operator: Option<&'static Operator>,
    /// Whether the value depends on who asks: memory that is never written.
    pub names_memory: bool,
    /// Whether it refuses to copy: `view` of sizes.
    pub only_views: bool,
}

impl Class {
    pub fn of(target: &str) -> Self {
        let operator = signature::of(target);
        let meaning = operator.map(|operator| operator.meaning);
        Self {
            operator,
            names_memory: matches!(meaning, Some(Meaning::Filled(Fill::Nothing, _) | Meaning::PackedGather)),
            only_views: meaning == Some(Meaning::View) && !target.ends_with(".dtype"),
        }
    }

    pub const fn is_followed(&self) -> bool {
        self.operator.is_some()
    }

    /// Whether it is an operator that only moves elements: what it makes could be followed, but for its arguments.
    /// Arithmetic of tensors is another operator, of the same name as that of sizes.
    pub fn only_moves(&self) -> bool {
        self.operator.is_some_and(|operator| !matches!(operator.meaning, Meaning::Arithmetic(_)))
    }
}

/// The value of a call, or `None` where it is taken as a value of its own.
pub(super) fn of(context: &mut Context<'_>, class: Class, call: &Call<'_>) -> Option<Val> {
    let operator = class.operator?;
    let call = &Bind { call, args: operator.bind(call.args)? };
    if !is_where_stated(call) {
        return None;
    }
    match operator.meaning {
        Meaning::Item => item(context, call),
        Meaning::SymSize | Meaning::SymNumel | Meaning::Arithmetic(_) => {
            let int = size(context, call, operator.meaning)?;
            Some(context.intern(Value::Int(int.expr())))
        }
        Meaning::Split | Meaning::Chunk | Meaning::Unbind => parts(context, call, operator.meaning),
        meaning => {
            let tensor = tensor(context, call, meaning)?;
            Some(context.intern(Value::Tensor(tensor)))
        }
    }
}

/// Operators that make one tensor.
fn tensor(context: &mut Context<'_>, call: &Bind<'_>, meaning: Meaning) -> Option<Tensor> {
    match meaning {
        Meaning::Cat | Meaning::Stack => joined(context, call, meaning),
        Meaning::ChunkCat => {
            let tensors = call.tensors(context, "tensors")?;
            let chunks = call.args.get("num_chunks")?.as_int()?;
            let first = call.args.get("dim")?.as_int()? == 0;
            first.then(|| layout::chunk_cat(context, &tensors, chunks)).flatten()
        }
        Meaning::PackedScatter => {
            let mut tensors = call.tensors(context, "rs_ins")?;
            tensors.retain(|tensor| !tensor.flat.pieces.is_empty());
            let packed = layout::chunk_cat(context, &tensors, call.args.get("group_size")?.as_int()?)?;
            layout::reshape(&packed, &[Int::Known(-1)])
        }
        Meaning::PackedGather => packed_gather(context, call),
        Meaning::Filled(fill, shaped) => filled(context, call, fill, shaped),
        Meaning::Cast => cast(context, call),
        Meaning::LikeOther(how) => {
            let (tensor, other) = (call.tensor(context, "self")?, call.tensor(context, "other")?);
            match how {
                Other::Reshape => layout::reshape(&tensor, &other.shape),
                Other::Expand => layout::expand(&tensor, &other.shape),
            }
        }
        _ => moved(context, call, meaning),
    }
}

/// Whether the device that a call asks for is the stated one; `cuda` is any of them.
fn is_where_stated(call: &Bind<'_>) -> bool {
    let Some(asked) = call.args.some("device") else { return true };
    let stated = call.call.ty.as_tensor().and_then(|tensor| tensor.device.as_deref());
    let (kind, index) = match asked {
        Arg::Str(name) | Arg::Word(name) => (&**name, None),
        Arg::Apply(_, args) => {
            (args.at(0, "type").and_then(Arg::as_str).unwrap_or(""), args.at(1, "index").and_then(Arg::as_int))
        }
        _ => return false,
    };
    let rest = stated.and_then(|stated| stated.strip_prefix(kind));
    rest.is_some_and(|rest| index.map_or(rest.is_empty() || rest.starts_with(':'), |index| rest == format!(":{index}")))
}

fn item(context: &Context<'_>, call: &Bind<'_>) -> Option<Val> {
    let Value::Tuple(parts) = context.value(call.val(call.args.get("a")?)?) else { return None };
    let index = call.args.get("b")?.as_int()?;
    let index = if index < 0 { index + i64::try_from(parts.len()).ok()? } else { index };
    parts.get(usize::try_from(index).ok()?).copied()
}

/// Sizes, and what is computed from them.
fn size(context: &Context<'_>, call: &Bind<'_>, meaning: Meaning) -> Option<Int> {
    let operation = match meaning {
        Meaning::SymSize => {
            let tensor = call.tensor(context, "self")?;
            return Some(tensor.shape[call.dim("dim", None, tensor.shape.len())?].clone());
        }
        Meaning::SymNumel => return product(&call.tensor(context, "self")?.shape),
        Meaning::Arithmetic(operation) => operation,
        _ => return None,
    };
    let a = call.int(context, "a")?;
    if operation == Arithmetic::Neg {
        return ZERO.sub(&a);
    }
    let b = call.int(context, "b")?;
    match operation {
        Arithmetic::Mul => a.mul(&b),
        Arithmetic::Add => a.add(&b),
        Arithmetic::Sub => a.sub(&b),
        _ => a.div(&b).or_else(|| rounded(&a, &b)),
    }
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
fn parts(context: &mut Context<'_>, call: &Bind<'_>, meaning: Meaning) -> Option<Val> {
    let tensor = call.tensor(context, "self")?;
    let dim = call.dim("dim", Some(0), tensor.shape.len())?;
    let along = tensor.shape[dim].clone();
    let sizes = match meaning {
        Meaning::Unbind => repeated(&ONE, along.known()?)?,
        Meaning::Chunk => chunks(&along, call.int(context, "chunks")?.known()?)?,
        _ if call.args.list("split_size").is_some() => call.ints(context, "split_size")?,
        _ => equal_parts(&along, &call.int(context, "split_size")?)?,
    };
    let total = sizes.iter().try_fold(ZERO, |sum, size| sum.add(size))?;
    if total != along || sizes.iter().any(|size| size.known().is_some_and(|size| size < 0)) {
        return None;
    }
    let mut parts = layout::split(context, &tensor, dim, &sizes)?;
    if meaning == Meaning::Unbind {
        parts.iter_mut().for_each(|part| {
            part.shape.remove(dim);
        });
    }
    let vals = parts.into_iter().map(|part| context.intern(Value::Tensor(part))).collect();
    Some(context.intern(Value::Tuple(vals)))
}

fn repeated(size: &Int, count: i64) -> Option<Vec<Int>> {
    (0..=MOST_PARTS).contains(&count).then(|| (0..count).map(|_| size.clone()).collect())
}

/// The sizes of `chunk`: a tensor of no size falls into as many parts as are asked for.
fn chunks(along: &Int, chunks: i64) -> Option<Vec<Int>> {
    if !(1..=MOST_PARTS).contains(&chunks) {
        return None;
    }
    match along.div(&Int::Known(chunks)) {
        Some(part) => repeated(&part, chunks),
        None => {
            let along = along.known()?;
            equal_parts(&Int::Known(along), &Int::Known(along.checked_add(chunks - 1)? / chunks))
        }
    }
}

/// Parts of one size, and the rest.
fn equal_parts(along: &Int, part: &Int) -> Option<Vec<Int>> {
    let (Some(length), Some(size)) = (along.known(), part.known()) else {
        // Where both are zero there is one part, and the program that takes another does not run.
        return repeated(part, along.div(part)?.known()?);
    };
    if size < 1 {
        return (size == 0 && length == 0).then(|| vec![ZERO]);
    }
    let mut sizes = repeated(part, length / size)?;
    if length % size != 0 || length == 0 {
        sizes.push(Int::Known(length % size));
    }
    Some(sizes)
}

/// Tensors end to end, or along a new dimension, in the dtype that PyTorch promotes them to.
fn joined(context: &mut Context<'_>, call: &Bind<'_>, meaning: Meaning) -> Option<Tensor> {
    let mut tensors = call.tensors(context, "tensors")?;
    let mut dim = call.args.get("dim").map_or(Some(0), Arg::as_int)?;
    let mut dtypes = tensors.iter().map(|tensor| tensor.dtype);
    let first = dtypes.next()?;
    let dtype = dtypes.try_fold(first, promoted)?;
    if meaning == Meaning::Stack {
        let rank = tensors.first()?.shape.len();
        let at = layout::dimension(dim, rank + 1)?;
        if tensors.iter().any(|tensor| tensor.shape.len() != rank) {
            return None;
        }
        tensors.iter_mut().for_each(|tensor| tensor.shape.insert(at, ONE));
        dim = i64::try_from(at).ok()?;
    }
    let tensors: Option<Vec<Tensor>> = tensors.iter().map(|tensor| layout::cast(context, tensor, dtype)).collect();
    layout::cat(context, &tensors?, dim)
}

/// A gather's buffer with this rank's slot filled, as PyTorch's custom operator makes it.
fn packed_gather(context: &mut Context<'_>, call: &Bind<'_>) -> Option<Tensor> {
    let tensors = call.tensors(context, "ag_ins")?;
    let size = call.args.get("group_size")?.as_int()?;
    let Some(Arg::DType(dtype)) = call.args.get("dtype") else { return None };
    let (Some(Arg::List(dtypes)), Some(rank)) = (call.args.get("out_dtype_ints"), call.args.get("rank")?.as_int())
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
        unset_range(context, call.call.name, *dtype, shape, &length.mul(&Int::Known(first))?)
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
fn filled(context: &mut Context<'_>, call: &Bind<'_>, fill: Fill, shaped: Shaped) -> Option<Tensor> {
    let source = if shaped == Shaped::Sizes { None } else { Some(call.tensor(context, "self")?) };
    let shape = match &source {
        Some(source) if shaped == Shaped::Like => source.shape.clone(),
        _ => call.ints(context, "size")?.into_iter().collect(),
    };
    if shape.iter().any(|size: &Int| size.known().is_some_and(|size| size < 0)) {
        return None;
    }
    let value = call.args.get("fill_value");
    let dtype = match (call.args.some("dtype"), source) {
        (Some(Arg::DType(dtype)), _) => *dtype,
        (Some(_), _) => return None,
        (None, Some(source)) => source.dtype,
        (None, None) => default_dtype(value, call.call.ty.as_tensor()?.dtype)?,
    };
    match fill {
        Fill::Nothing => unset_range(context, call.call.name, dtype, shape, &ZERO),
        Fill::Zeros => constant(context, "0", dtype, shape),
        Fill::Ones => constant(context, "1", dtype, shape),
        Fill::Value => constant(context, &fill_text(value?)?, dtype, shape),
    }
}

/// The dtype of a new tensor for which none is asked: that of its value, and of numbers with a point the default one,
/// which is not in the graph: it is taken as stated.
fn default_dtype(value: Option<&Arg>, stated: DType) -> Option<DType> {
    match value {
        Some(Arg::Bool(_)) => Some(DType::Bool),
        Some(Arg::Int(_)) => Some(DType::I64),
        _ => matches!(stated, DType::F64 | DType::F32 | DType::F16 | DType::Bf16).then_some(stated),
    }
}

/// Each element converted, on the device where it is.
fn cast(context: &mut Context<'_>, call: &Bind<'_>) -> Option<Tensor> {
    let tensor = call.tensor(context, "self")?;
    if call.call.changes_device || call.args.some("device").is_some() {
        return None;
    }
    match call.args.some("dtype") {
        Some(Arg::DType(dtype)) => layout::cast(context, &tensor, *dtype),
        Some(_) => None,
        // `_to_copy` without a dtype keeps it.
        None => Some(tensor),
    }
}

/// Operators that make one tensor of one, with other places for its elements.
fn moved(context: &mut Context<'_>, call: &Bind<'_>, meaning: Meaning) -> Option<Tensor> {
    let tensor = call.tensor(context, "self")?;
    let rank = tensor.shape.len();
    match meaning {
        Meaning::Same => Some(tensor),
        Meaning::View | Meaning::Reshape => reshaped(context, call, &tensor),
        Meaning::Unsqueeze => {
            let dim = call.dim("dim", None, rank + 1)?;
            let mut shape = tensor.shape.clone();
            shape.insert(dim, ONE);
            Some(Tensor { shape, ..tensor })
        }
        Meaning::Squeeze => {
            let dims = if call.args.get("dim").is_some() { call.dims("dim", rank)? } else { (0..rank).collect() };
            squeezed(tensor, &dims)
        }
        Meaning::Permute => layout::permute(context, &tensor, &call.dims("dims", rank)?),
        Meaning::Turn | Meaning::Transpose => {
            let mut order: Vec<usize> = (0..rank).collect();
            let plain = meaning == Meaning::Turn || call.args.get("dim0").is_none() && call.args.get("dim1").is_none();
            match rank {
                _ if !plain => order.swap(call.dim("dim0", None, rank)?, call.dim("dim1", None, rank)?),
                0 | 1 if meaning == Meaning::Turn => {}
                2 => order.swap(0, 1),
                _ => return None,
            }
            layout::permute(context, &tensor, &order)
        }
        Meaning::MoveDim => {
            let (from, to) = (call.dims("source", rank)?, call.dims("destination", rank)?);
            layout::permute(context, &tensor, &moved_dims(rank, &from, &to)?)
        }
        Meaning::Expand => layout::expand(&tensor, &call.ints(context, "size")?),
        Meaning::Flatten | Meaning::Ravel => flattened(call, &tensor),
        Meaning::Unflatten => {
            let dim = call.dim("dim", None, rank)?;
            let sizes = layout::sizes_with_open(&tensor.shape[dim], &call.ints(context, "sizes")?)?;
            let shape: Vec<Int> = [&tensor.shape[..dim], &sizes, &tensor.shape[dim + 1..]].concat();
            layout::reshape(&tensor, &shape)
        }
        Meaning::Slice => {
            let dim = call.dim("dim", Some(0), rank)?;
            let step = call.int_or(context, "step", 1)?.known()?;
            let (start, end) = (call.int_or(context, "start", 0)?, call.int_or(context, "end", i64::MAX)?);
            layout::slice(context, &tensor, dim, &start, &end, step)
        }
        Meaning::Narrow => {
            let (start, length) = (call.int(context, "start")?, call.int(context, "length")?);
            layout::narrow(context, &tensor, call.dim("dim", None, rank)?, &start, &length)
        }
        Meaning::Select => {
            let index = call.int(context, "index")?;
            layout::select(context, &tensor, call.dim("dim", None, rank)?, &index)
        }
        Meaning::Pad => {
            let fill = call.args.get("value").map_or(Some("0".to_owned()), fill_text)?;
            layout::pad(context, &tensor, &call.ints(context, "pad")?, &fill)
        }
        _ => None,
    }
}

/// By sizes, or as elements of another dtype.
fn reshaped(context: &Context<'_>, call: &Bind<'_>, tensor: &Tensor) -> Option<Tensor> {
    let name = ["size", "shape", "dtype"]
        .into_iter()
        .find(|name| call.args.list(name).is_some() || call.args.get(name).is_some())?;
    match call.args.get(name) {
        Some(Arg::DType(dtype)) => layout::bit_cast(tensor, *dtype),
        _ => layout::reshape(tensor, &call.ints(context, name)?),
    }
}

/// Dimensions from one to another as one; of a tensor without any, one.
fn flattened(call: &Bind<'_>, tensor: &Tensor) -> Option<Tensor> {
    let rank = tensor.shape.len().max(1);
    let (first, last) = (call.dim("start_dim", Some(0), rank)?, call.dim("end_dim", Some(-1), rank)?);
    let one: Shape = [ONE].into_iter().collect();
    let sizes = if tensor.shape.is_empty() { &one } else { &tensor.shape };
    let whole = product(sizes.get(first..=last).filter(|dims| !dims.is_empty())?)?;
    layout::reshape(tensor, &[&sizes[..first], &[whole], &sizes[last + 1..]].concat())
}

/// For each dimension of the result, the one that it was: those that are not named keep their order.
fn moved_dims(rank: usize, from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut order = vec![None; rank];
    for (&from, &to) in from.iter().zip(to) {
        order[to] = Some(from);
    }
    let mut others = (0..rank).filter(|dim| !from.contains(dim));
    (from.len() == to.len()).then(|| order.into_iter().map(|dim| dim.or_else(|| others.next())).collect())?
}

fn squeezed(mut tensor: Tensor, dims: &[usize]) -> Option<Tensor> {
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
