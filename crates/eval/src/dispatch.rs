//! From an operator's name to its meaning: the families, and what in-place and `out` forms add to them.

use super::call::{Call, Done, Layout};
use super::memory::Fault;
use super::mix::Mixer;
use super::tensor::{Tensor, count, dense_strides};
use super::value::Value;
use super::{copy, create, layout, linear, pointwise, scalars};
use bucketeer::ir::Arg;
use bucketeer::ir::operators::TORCH_NAMESPACES;

/// Evaluates a call whose meaning is known.
pub fn known(call: &mut Call<'_>) -> Done {
    if let Some(value) = tuple(call)? {
        return Ok(Some(value));
    }
    if let Some(value) = family(call)? {
        return match call.args.get("out") {
            Some(out) if !call.base.starts_with("split_with_sizes_copy") => into_out(call, out, value).map(Some),
            _ => Ok(Some(value)),
        };
    }
    let base = call.base;
    let Some(function) = base.strip_suffix('_').filter(|base| !base.is_empty() && !base.ends_with('_')) else {
        return element_of_unknown(call);
    };
    let Some(target) = call.first()? else { return Ok(None) };
    call.base = function;
    let value = family(call);
    call.base = base;
    match value? {
        Some(Value::Tensor(value)) if value.storage == target.storage && function != "detach" => {
            Err(Fault::Undefined("changing a tensor's sizes in place is not defined here".to_owned()))
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

/// Namespaces of which only numbers are computed here: of tensors, `builtins.float` is something else than PyTorch's.
const NUMBERS: &[&str] = &["math", "builtins"];

/// Operators of other namespaces that are known: what PyTorch's bucketing and FSDP2 add.
const ALSO_KNOWN: &[(&str, &str)] = &[
    ("bucketing", "_pre_bucket_all_gather"),
    ("bucketing", "_pre_bucket_reduce_scatter"),
    ("fsdp", "split_with_sizes_copy"),
];

/// Whether a name means here what PyTorch means by it.
pub fn is_known_name(namespace: &str, base: &str) -> bool {
    TORCH_NAMESPACES.contains(&namespace) || ALSO_KNOWN.contains(&(namespace, base))
}

fn family(call: &mut Call<'_>) -> Done {
    if NUMBERS.contains(&call.namespace) {
        return scalars::scalars(call);
    }
    if !is_known_name(call.namespace, call.base) {
        return Ok(None);
    }
    for family in [scalars::scalars, layout::layout, copy::copy, create::create, pointwise::pointwise, linear::linear] {
        if let Some(value) = family(call)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn write_into(call: &mut Call<'_>, to: &Tensor, from: &Tensor) -> Result<Value, Fault> {
    if from.storage == to.storage {
        return Ok(Value::Tensor(to.clone()));
    }
    if from.sizes != to.sizes {
        return Err(Fault::misfit(format!("{:?} does not fit in place of {:?}", from.sizes, to.sizes)));
    }
    let bytes = copy::converted_bytes(&call.read(from)?, from.dtype, to.dtype)?;
    call.rank.memory.write(to, &bytes)?;
    Ok(Value::Tensor(to.clone()))
}

fn into_out(call: &mut Call<'_>, out: &Arg, value: Value) -> Result<Value, Fault> {
    let targets = call.tensors(Some(out))?;
    match (value, targets.as_slice()) {
        (Value::Tensor(value), [to]) => write_into(call, to, &value),
        _ => Err(Fault::misfit("`out` does not fit the results")),
    }
}

/// `tuple` of HLO: its operands, as they are.
fn tuple(call: &Call<'_>) -> Done {
    if !call.namespace.is_empty() || call.base != "hlo-tuple" {
        return Ok(None);
    }
    let values = call.args.positional.iter().map(|arg| call.value(arg)).collect::<Result<_, _>>()?;
    Ok(Some(Value::Tuple(values)))
}

/// `getitem` of a result of unknown type: what the graph says the element is, of elements that depend on the whole.
fn element_of_unknown(call: &mut Call<'_>) -> Done {
    if !matches!(call.base, "getitem" | "item" | "get_tuple_element") {
        return Ok(None);
    }
    let Some(Ok(Value::Opaque(state))) = call.arg(0, &["self", "a"]).map(|arg| call.value(arg)) else {
        return Ok(None);
    };
    let (Some(index), Some(ty)) = (call.int_arg(call.arg(1, &["index"]))?, call.stated()) else { return Ok(None) };
    let undefined = || Fault::Undefined(format!("the sizes of {ty} have no value"));
    let sizes = call.symbols.sizes(&ty.shape).ok_or_else(undefined)?;
    call.rank.memory.room(ty.dtype, count(&sizes))?;
    call.rank.unknown += 1;
    let bytes =
        Mixer::resume(Mixer::resume(state).at(index as u64)).elements(ty.dtype, count(&sizes), call.rank.integers);
    call.make(ty.dtype, &sizes, Layout::Stated(&dense_strides(&sizes)), bytes)
}
