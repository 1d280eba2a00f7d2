//! Types of results that a text does not state.

use super::strides::view_strides;
use crate::ir::args::{Arg, Args, starts_with_list};
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::ops::{Collective, CollectiveKind, Op, Variant};
use crate::ir::types::{Dim, Dims, TensorType, Type};

/// What type a plain operator of the native text makes, a column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TypeRule {
    /// A value like its tensor operands, element by element: `relu(x)`.
    Alike,
    /// Its operand with another dtype: `cast(x, dtype)`.
    Cast,
    /// Its operand in another shape: `reshape(x, sizes)`.
    Reshape,
    /// Two dimensions exchanged: `transpose(x)`.
    Transpose,
    /// Some rows: `slice(x, start, end, dim=0)`.
    Slice,
    /// The product of two matrices: `matmul(a, b)`.
    MatMul,
    /// So many parts: `chunk(x, n)`.
    Chunk,
    /// An element of a tuple: `getitem(t, i)`.
    Element,
}

/// The type of a node's value as far as its op and operands say; [`Type::Unknown`] where they do not.
///
/// Collectives and waits are known exactly. Calls are known for the plain operators of the native text, never for
/// operators with a namespace, whose texts state their types.
#[must_use]
pub fn infer_type(graph: &Graph, op: Op, args: &Args, operands: &[NodeId]) -> Type {
    let first = || operands.first().map_or(Type::Unknown, |&id| graph.type_of(id).clone());
    match op {
        Op::Input | Op::Output => Type::Unknown,
        Op::Wait if starts_with_list(args) => {
            Type::Tuple(operands.iter().map(|&id| graph.type_of(id).clone()).collect())
        }
        Op::Wait => first(),
        Op::Collective(collective) => collective_type(graph, collective, args, operands),
        Op::Call(target) => {
            let operator = graph.operator(target);
            match operator.type_rule() {
                _ if !operator.namespace().is_empty() => Type::Unknown,
                _ if operator.is_in_place() => first(),
                Some(rule) => call_type(graph, rule, args, operands).unwrap_or(Type::Unknown),
                None => Type::Unknown,
            }
        }
    }
}

/// What a collective makes of one input, where the group's size is known as far as it matters.
#[must_use]
pub fn collective_result(kind: CollectiveKind, size: Option<u32>, input: &TensorType) -> Option<TensorType> {
    let resized = |dim: u32, change: &dyn Fn(&Dim, u64) -> Option<Dim>| {
        let mut shape = input.shape.clone();
        let old = shape.get_mut(dim as usize)?;
        *old = change(old, u64::from(size?))?;
        let device = input.device.clone();
        let mut result = TensorType { dtype: input.dtype, shape, strides: None, device };
        if input.strides.is_some() {
            result.strides = result.dense_strides();
        }
        result.bytes().is_some().then_some(result)
    };
    match kind {
        CollectiveKind::AllGather { dim } => resized(dim, &|old, size| old.checked_mul(&Dim::Const(size))),
        CollectiveKind::ReduceScatter { dim, .. } => resized(dim, &|old, size| old.divide_exactly(size)),
        // PyTorch clones the input contiguously, whatever its strides.
        CollectiveKind::AllReduce { .. }
        | CollectiveKind::Broadcast { .. }
        | CollectiveKind::Reduce { .. }
        | CollectiveKind::Permute => Some(input.with_shape(input.shape.clone())),
        CollectiveKind::AllToAll => None,
    }
}

fn collective_type(graph: &Graph, collective: Collective, args: &Args, operands: &[NodeId]) -> Type {
    let operand = |arg: &Arg| match arg {
        Arg::Operand(index) => operands.get(*index as usize).map_or(Type::Unknown, |&id| graph.type_of(id).clone()),
        _ => Type::Unknown,
    };
    let size = graph.group(collective.group).size;
    let all_to_all_whole = collective.kind == CollectiveKind::AllToAll && args.positional.len() == 1;
    let one = |arg: &Arg| match (collective.variant, operand(arg)) {
        (Variant::InPlace, ty) => ty,
        (_, ty) if all_to_all_whole => ty,
        (_, Type::Tensor(input)) => {
            collective_result(collective.kind, size, &input).map_or(Type::Unknown, Type::Tensor)
        }
        _ => Type::Unknown,
    };
    let from = match collective.variant {
        Variant::Out => args.get("out"),
        Variant::Functional | Variant::InPlace => args.positional.first(),
    };
    match (from, collective.variant) {
        (Some(Arg::List(items)), Variant::Out) => Type::Tuple(items.iter().map(operand).collect()),
        (Some(arg), Variant::Out) => operand(arg),
        (Some(Arg::List(items)), _) => Type::Tuple(items.iter().map(one).collect()),
        (Some(arg), _) => one(arg),
        (None, _) => Type::Unknown,
    }
}

fn call_type(graph: &Graph, rule: TypeRule, args: &Args, operands: &[NodeId]) -> Option<Type> {
    if rule == TypeRule::Element {
        let index = usize::try_from(args.positional.get(1)?.as_int()?).ok()?;
        let Type::Tuple(parts) = graph.type_of(*operands.first()?) else { return None };
        return parts.get(index).cloned();
    }
    let input = graph.tensor(*operands.first()?)?;
    let tensor = match rule {
        TypeRule::Alike => elementwise(graph, operands)?,
        TypeRule::Cast => match args.at(1, "dtype")? {
            Arg::DType(dtype) => TensorType { dtype: *dtype, ..input.clone() },
            _ => return None,
        },
        TypeRule::Reshape => {
            let shape = reshaped(input, args.positional.get(1)?)?;
            let strides = input.strides.as_ref().and_then(|_| view_strides(input, &shape));
            // Else it is a copy.
            let copy = input.with_shape(shape);
            TensorType { strides: strides.or_else(|| copy.strides.clone()), ..copy }
        }
        TypeRule::Transpose => transposed(input, args)?,
        TypeRule::Slice => sliced(input, args)?,
        TypeRule::MatMul => product(input, graph.tensor(*operands.get(1)?)?)?,
        TypeRule::Chunk => return chunks(input, args),
        TypeRule::Element => return None,
    };
    tensor.bytes().is_some().then_some(Type::Tensor(tensor))
}

/// The one type of all tensors; scalars of no dimension take part in any shape.
fn elementwise(graph: &Graph, operands: &[NodeId]) -> Option<TensorType> {
    let mut tensors = operands.iter().filter_map(|&id| graph.tensor(id));
    let first = tensors.next()?;
    tensors
        .all(|other| other.shape.is_empty() || (other.dtype, &other.shape) == (first.dtype, &first.shape))
        .then(|| first.clone())
}

fn reshaped(input: &TensorType, shape: &Arg) -> Option<Dims> {
    let (Arg::List(items) | Arg::Tuple(items)) = shape else { return None };
    let mut rest = None;
    let mut dims = Dims::new();
    let mut product = 1u64;
    for (place, item) in items.iter().enumerate() {
        match item.as_int()? {
            -1 if rest.is_none() => rest = Some(place),
            size => product = product.checked_mul(u64::try_from(size).ok()?)?,
        }
        dims.push(Dim::Const(u64::try_from(item.as_int()?).unwrap_or(0)));
    }
    let elements = input.elements()?;
    match rest {
        Some(place) => dims[place] = elements.divide_exactly(product)?,
        None if elements != Dim::Const(product) => return None,
        None => {}
    }
    Some(dims)
}

fn dimension(arg: Option<&Arg>, default: i64, rank: usize) -> Option<usize> {
    let dim = arg.map_or(Some(default), Arg::as_int)?;
    let dim = if dim < 0 { dim.checked_add(i64::try_from(rank).ok()?)? } else { dim };
    usize::try_from(dim).ok().filter(|dim| *dim < rank)
}

fn transposed(input: &TensorType, args: &Args) -> Option<TensorType> {
    let rank = input.shape.len();
    if rank != 2 && args.positional.len() < 3 {
        return None;
    }
    let (a, b) = (dimension(args.at(1, "dim0"), 0, rank)?, dimension(args.at(2, "dim1"), 1, rank)?);
    let mut result = input.clone();
    let mut strides = input.strides.clone().or_else(|| input.dense_strides())?;
    result.shape.swap(a, b);
    strides.swap(a, b);
    result.strides = Some(strides);
    Some(result)
}

fn sliced(input: &TensorType, args: &Args) -> Option<TensorType> {
    let dim = dimension(args.get("dim"), 0, input.shape.len())?;
    let size = input.shape[dim].as_const()?;
    let bound = |arg: &Arg| {
        let at = arg.as_int()?;
        let from_end = at.checked_add(i64::try_from(size).ok()?).and_then(|at| u64::try_from(at).ok());
        Some(u64::try_from(at).ok().or(from_end)?.min(size))
    };
    let [_, start, end] = args.positional.as_slice() else { return None };
    let mut result = input.clone();
    result.shape[dim] = Dim::Const(bound(end)?.saturating_sub(bound(start)?));
    if dim != 0 && result.strides.is_none() {
        result.strides = Some(input.dense_strides()?);
    }
    Some(result)
}

fn product(a: &TensorType, b: &TensorType) -> Option<TensorType> {
    let ([m, inner], [other, n]) = (a.shape.as_slice(), b.shape.as_slice()) else { return None };
    (inner == other && a.dtype == b.dtype).then(|| a.with_shape([m.clone(), n.clone()].into_iter().collect()))
}

/// PyTorch's rule: parts of `ceil(size / count)`, the last one shorter, and fewer where they suffice.
fn chunks(input: &TensorType, args: &Args) -> Option<Type> {
    let count = u64::try_from(args.positional.get(1)?.as_int()?).ok().filter(|count| (1..=4096).contains(count))?;
    let dim = dimension(args.at(2, "dim"), 0, input.shape.len())?;
    let size = input.shape[dim].as_const()?;
    let part = size.div_ceil(count).max(1);
    let mut parts = Vec::new();
    let mut start = 0;
    while start < size || parts.is_empty() {
        let mut tensor = input.clone();
        tensor.shape[dim] = Dim::Const(part.min(size - start));
        if dim != 0 && tensor.strides.is_none() {
            tensor.strides = Some(input.dense_strides()?);
        }
        parts.push(Type::Tensor(tensor));
        start = start.saturating_add(part);
    }
    Some(Type::Tuple(parts))
}
