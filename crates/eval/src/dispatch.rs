//! From an operator to what it makes: the families, and what in-place and `out` forms add to them.

use super::call::{Call, Done, Layout};
use super::memory::NodeError;
use super::mix::Mixer;
use super::tensor::{Tensor, count, dense_strides};
use super::value::Value;
use super::{copy, create, layout, linear, pointwise, scalars};
use bucketeer::ir::Arg;
use bucketeer::ir::operators::{NUMBER_NAMESPACES, OperatorId, ViewKind};

/// Evaluates a call whose meaning is known.
pub fn known(call: &mut Call<'_>) -> Done {
    let operator = call.operator.id();
    if let Some(value) = family(call, operator)? {
        return match call.args.get("out") {
            // Splits into copies write their outputs themselves.
            Some(out) if !matches!(operator, OperatorId::ViewCopy(_)) => into_out(call, out, value).map(Some),
            _ => Ok(Some(value)),
        };
    }
    if !call.operator.is_in_place() {
        return element_of_unknown(call);
    }
    let Some(target) = call.first()? else { return Ok(None) };
    let function = call.operator.function();
    match family(call, function)? {
        Some(Value::Tensor(value))
            if value.storage == target.storage && function != OperatorId::View(ViewKind::Same) =>
        {
            Err(NodeError::Undefined("changing a tensor's sizes in place is not defined here".to_owned()))
        }
        Some(Value::Tensor(value)) => {
            let written = write_into(call, &target, &value).map(Some);
            // Nobody else knows the value: free it.
            call.rank.memory.hold(&value);
            call.rank.memory.drop(&value);
            written
        }
        _ => Ok(None),
    }
}

fn family(call: &mut Call<'_>, operator: OperatorId) -> Done {
    if operator.takes_numbers()
        && let Some(number) = scalars::arithmetic(call, operator)?
    {
        return Ok(Some(number));
    }
    // Of numbers there is nothing else, and of tensors `builtins.float` is something else than PyTorch's.
    if NUMBER_NAMESPACES.contains(&call.operator.namespace()) {
        return Ok(None);
    }
    match operator {
        OperatorId::SymSize(kind) | OperatorId::Size(kind) => scalars::size(call, kind),
        OperatorId::View(kind @ (ViewKind::Contiguous | ViewKind::Convert)) => match layout::layout(call, kind)? {
            None => copy::converted(call, operator),
            view => Ok(view),
        },
        OperatorId::View(kind) => layout::layout(call, kind),
        OperatorId::ViewCopy(kind @ ViewKind::Split) => copy::split_copy(call, kind),
        OperatorId::Clone | OperatorId::Cast(_) => copy::converted(call, operator),
        OperatorId::ForeachCopy => copy::foreach_copy(call),
        OperatorId::Fill => copy::fill(call),
        OperatorId::Cat => copy::cat(call),
        OperatorId::Stack => copy::stack(call),
        OperatorId::ChunkCat => copy::chunk_cat(call),
        OperatorId::PackForGather => copy::pre_bucket_all_gather(call),
        OperatorId::PackForScatter => copy::pre_bucket_reduce_scatter(call),
        OperatorId::Pad => copy::pad(call, true),
        OperatorId::ConstantPad => copy::pad(call, false),
        OperatorId::SliceScatter => copy::scatter(call, ViewKind::Slice),
        OperatorId::SelectScatter => copy::scatter(call, ViewKind::Select),
        OperatorId::IndexSelect => copy::index_select(call),
        OperatorId::Create(kind, model) => create::create(call, kind, model),
        OperatorId::ScalarTensor => create::scalar_tensor(call),
        OperatorId::Arange => create::arange(call),
        OperatorId::Unary(kind) => pointwise::one(call, kind),
        OperatorId::Binary(kind) => pointwise::two(call, kind),
        OperatorId::Ternary(kind) => pointwise::ternary(call, kind),
        OperatorId::Clamp(kind) => pointwise::clamp(call, kind),
        OperatorId::Where => pointwise::select(call),
        OperatorId::ThresholdBackward => pointwise::threshold_backward(call),
        OperatorId::MatMul => linear::matmul(call),
        OperatorId::Reduce(kind) => linear::reduce(call, kind),
        OperatorId::HloTuple => tuple(call),
        // `copy_` is what its function says, written into the first operand.
        OperatorId::CopyInto
        | OperatorId::ViewCopy(_)
        | OperatorId::Number(_)
        | OperatorId::Communicate(_)
        | OperatorId::HloRandom
        | OperatorId::Other => Ok(None),
    }
}

fn write_into(call: &mut Call<'_>, to: &Tensor, from: &Tensor) -> Result<Value, NodeError> {
    if from.storage == to.storage {
        return Ok(Value::Tensor(to.clone()));
    }
    if from.sizes != to.sizes {
        return Err(NodeError::misfit(format!("{:?} does not fit in place of {:?}", from.sizes, to.sizes)));
    }
    let bytes = copy::converted_bytes(&call.read(from)?, from.dtype, to.dtype)?;
    call.rank.memory.write(to, &bytes)?;
    Ok(Value::Tensor(to.clone()))
}

fn into_out(call: &mut Call<'_>, out: &Arg, value: Value) -> Result<Value, NodeError> {
    let targets = call.tensors(Some(out))?;
    match (value, targets.as_slice()) {
        (Value::Tensor(value), [to]) => write_into(call, to, &value),
        _ => Err(NodeError::misfit("`out` does not fit the results")),
    }
}

/// `tuple` of HLO: its operands, as they are.
fn tuple(call: &Call<'_>) -> Done {
    let values = call.args.positional.iter().map(|arg| call.value(arg)).collect::<Result<_, _>>()?;
    Ok(Some(Value::Tuple(values)))
}

/// `getitem` of a result of unknown type: what the graph says the element is, of elements that depend on the whole.
fn element_of_unknown(call: &mut Call<'_>) -> Done {
    if !matches!(call.operator.view(), Some(ViewKind::Element | ViewKind::TupleElement)) {
        return Ok(None);
    }
    let Some(Ok(Value::Opaque(state))) = call.arg(0, &["self", "a"]).map(|arg| call.value(arg)) else {
        return Ok(None);
    };
    let (Some(index), Some(ty)) = (call.int_arg(call.arg(1, &["index"]))?, call.stated()) else { return Ok(None) };
    let undefined = || NodeError::Undefined(format!("the sizes of {ty} have no value"));
    let sizes = call.symbols.sizes(&ty.shape).ok_or_else(undefined)?;
    call.rank.memory.room(ty.dtype, count(&sizes))?;
    call.rank.unknown += 1;
    let bytes =
        Mixer::resume(Mixer::resume(state).at(index as u64)).elements(ty.dtype, count(&sizes), call.options.integers);
    call.make(ty.dtype, &sizes, Layout::Stated(&dense_strides(&sizes)), bytes)
}
