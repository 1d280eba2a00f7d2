//! Calls that no schema describes as they are spelled: HLO, Python's operators, functions and attributes, modules, graphs
//! in graphs.

use super::reading::{placement, reads_shapes};
use super::{Alias, Effects, Fence, Library, Placement};
use crate::ir::{Arg, Args};

/// The effects of such a call; `None` if it is another.
pub(super) fn spelled(library: &Library, target: &str, args: &Args) -> Option<Effects> {
    if let Some(opcode) = target.strip_prefix("hlo-") {
        return Some(hlo(opcode, args));
    }
    let (namespace, name) = target.split_once('.').unwrap_or(("", target));
    Some(match namespace {
        "" => return native(name, args),
        // An attribute of the module is a value of its own; its call may do anything.
        "self" if *args == Args::default() && !target.ends_with(".__call__") => Effects::pure(),
        "self" => Effects::fence(args),
        "higher_order" => higher_order(name, args),
        "operator" | "_operator" => operator(name, args),
        "builtins" | "math" => function_of_numbers(name, args),
        "getattr" => attribute(name, args),
        "method" => method(library, name, args),
        "torch" => torch(library, name, args),
        "pytree" | "fx_pytree" => Effects::alias(if takes_any(args) { Alias::Any } else { Alias::Fresh }),
        _ => return None,
    })
}

fn takes_any(args: &Args) -> bool {
    first(args).is_some()
}

fn first(args: &Args) -> Option<u32> {
    let mut first = None;
    args.for_each_operand(&mut |index| first = first.or(Some(index)));
    first
}

/// A view of the first operand.
fn view(args: &Args) -> Effects {
    Effects::alias(first(args).map_or(Alias::Fresh, Alias::Of))
}

/// Writes the first operand, and is it.
fn writes_first(args: &Args) -> Effects {
    let Some(index) = first(args) else { return Effects::pure() };
    Effects { writes: [index].into_iter().collect(), ..Effects::alias(Alias::Of(index)) }
}

/// HLO's values never change: nothing is written, and what is shared cannot be seen.
fn hlo(opcode: &str, args: &Args) -> Effects {
    let says = |key: &str| args.keyword.iter().any(|(name, arg)| &**name == key && is_true(arg));
    match opcode {
        "rng" | "rng-get-and-update-state" => Effects { fence: Fence::Random, ..Effects::pure() },
        "infeed" | "outfeed" | "send" | "recv" | "send-done" | "recv-done" => {
            Effects { fence: Fence::Full, ..Effects::pure() }
        }
        "custom-call" if says("custom_call_has_side_effect") => Effects { fence: Fence::Full, ..Effects::pure() },
        // Of what it calls, something acts on what is outside.
        _ if args.get("effects").is_some() => Effects { fence: Fence::Full, ..Effects::pure() },
        _ => Effects::pure(),
    }
}

fn is_true(arg: &Arg) -> bool {
    match arg {
        Arg::Bool(value) => *value,
        Arg::Str(text) | Arg::Word(text) => &**text == "true",
        _ => false,
    }
}

/// Native text's own words; all others are names of `aten` and `prims`.
fn native(name: &str, args: &Args) -> Option<Effects> {
    Some(match name {
        "getitem" | "item" | "get_tuple_element" | "bitcast" | "alias" => view(args),
        "cast" | "concatenate" | "floordiv" | "backward" => Effects::pure(),
        _ => return None,
    })
}

/// Higher-order operators that are functions of their operands.
fn higher_order(name: &str, args: &Args) -> Effects {
    match name {
        "auto_functionalized"
        | "auto_functionalized_v2"
        | "triton_kernel_wrapper_functional"
        | "flex_attention"
        | "flex_attention_backward"
        | "associative_scan" => Effects::pure(),
        // A kernel of the user's, which writes what it is given, and talks to nobody.
        "triton_kernel_wrapper_mutation" => Effects { may: false, ..Effects::may(args) },
        _ => Effects::fence(args),
    }
}

fn operator(name: &str, args: &Args) -> Effects {
    match name {
        "getitem" | "pos" => view(args),
        "setitem" | "delitem" | "iadd" | "isub" | "imul" | "imatmul" | "itruediv" | "ifloordiv" | "imod" | "ipow"
        | "iand" | "ior" | "ixor" | "ilshift" | "irshift" | "iconcat" => writes_first(args),
        "add" | "sub" | "mul" | "matmul" | "truediv" | "floordiv" | "mod" | "pow" | "and_" | "or_" | "xor"
        | "lshift" | "rshift" | "neg" | "invert" | "inv" | "not_" | "abs" | "eq" | "ne" | "lt" | "le" | "gt" | "ge"
        | "is_" | "is_not" | "truth" | "index" | "contains" | "concat" | "countOf" => Effects::pure(),
        _ => Effects::may(args),
    }
}

/// `builtins` and `math`: of sizes and other numbers.
fn function_of_numbers(name: &str, args: &Args) -> Effects {
    match name {
        "getattr" => match args.positional.get(1).and_then(Arg::as_str) {
            Some(name) => attribute(name, args),
            None => Effects::may(args),
        },
        "setattr" | "print" | "next" | "iter" => Effects::fence(args),
        // These hand on what they are given.
        "list" | "tuple" | "dict" | "slice" | "zip" | "enumerate" | "reversed" | "sorted" => {
            Effects::alias(if takes_any(args) { Alias::Any } else { Alias::Fresh })
        }
        "max" | "min" | "int" | "float" | "bool" | "complex" | "abs" | "round" | "len" | "sum" | "pow" | "divmod"
        | "type" | "isinstance" | "ceil" | "floor" | "sqrt" | "trunc" | "log" | "log2" | "exp" | "gcd" | "prod"
        | "isnan" | "isinf" | "isfinite" | "inf" | "sin" | "cos" | "tanh" => Effects::pure(),
        _ => Effects::may(args),
    }
}

/// An attribute of a tensor.
fn attribute(name: &str, args: &Args) -> Effects {
    match name {
        // Gradients come from elsewhere, at any time.
        "grad" | "_grad" => Effects::fence(args),
        "data" | "T" | "mT" | "H" | "mH" | "real" | "imag" => view(args),
        "shape" | "dtype" | "device" | "ndim" | "layout" | "requires_grad" | "is_cuda" | "is_leaf" | "itemsize"
        | "nbytes" | "is_sparse" | "is_quantized" | "is_meta" | "names" => {
            Effects { shape_only: true, ..Effects::pure() }
        }
        _ => Effects::alias(Alias::Any),
    }
}

/// A method of a tensor: the operator of `aten` with its name.
fn method(library: &Library, name: &str, args: &Args) -> Effects {
    match name {
        // Of the dtype and device that it has, the tensor itself.
        "float" | "double" | "half" | "bfloat16" | "int" | "long" | "short" | "byte" | "char" | "bool" | "cuda"
        | "cpu" | "type" | "to" | "type_as" | "requires_grad_" | "detach" => view(args),
        "item" | "tolist" | "element_size" | "is_floating_point" | "is_complex" | "get_device" => Effects::pure(),
        "dim" | "ndimension" | "nelement" | "size" | "numel" => Effects { shape_only: true, ..Effects::pure() },
        "stride" | "storage_offset" | "is_contiguous" | "data_ptr" | "storage" | "untyped_storage" => Effects {
            shape_only: reads_shapes(name),
            placement: placement("method", name),
            ..Effects::alias(if name.ends_with("storage") { Alias::Any } else { Alias::Fresh })
        },
        "new_tensor" | "new" => Effects::pure(),
        _ => library.effects("aten", name, "", args).unwrap_or_else(|| Effects::may(args)),
    }
}

/// `torch.name` and what is below: functions by the operators of `aten` that they call.
fn torch(library: &Library, path: &str, args: &Args) -> Effects {
    if let Some(name) = path.strip_prefix("nn.functional.") {
        return functional(library, name, args);
    }
    let spaces =
        [("_C._nn.", ""), ("_C._linalg.", ""), ("linalg.", "linalg_"), ("fft.", "fft_"), ("special.", "special_")];
    for (space, prefix) in spaces {
        if let Some(name) = path.strip_prefix(space) {
            let own = library.effects("aten", &format!("{prefix}{name}"), "", args);
            return own.or_else(|| library.effects("aten", name, "", args)).unwrap_or_else(|| Effects::may(args));
        }
    }
    match path {
        "sym_max"
        | "sym_min"
        | "sym_not"
        | "sym_int"
        | "sym_float"
        | "sym_ite"
        | "sym_sum"
        | "_sym_sqrt"
        | "_check"
        | "_check_is_size"
        | "_check_value"
        | "tensor"
        | "is_grad_enabled"
        | "Size"
        | "finfo"
        | "iinfo"
        | "device"
        | "is_tensor"
        | "is_floating_point"
        | "is_complex"
        | "_C._set_grad_enabled"
        | "_C._is_grad_enabled"
        | "set_grad_enabled"
        | "numel" => Effects::pure(),
        "as_tensor" | "asarray" | "from_numpy" | "frombuffer" => {
            Effects::alias(if takes_any(args) { Alias::Any } else { Alias::Fresh })
        }
        "manual_seed" | "seed" | "get_rng_state" | "set_rng_state" | "random.manual_seed" => {
            Effects { fence: Fence::Random, ..Effects::pure() }
        }
        name if changes_mode(name) => Effects { fence: Fence::Full, sets_mode: true, ..Effects::pure() },
        name if !name.contains('.') => with_out(library, name, args),
        _ => Effects::may(args),
    }
}

/// Whether a function of `torch` is there for what comes after it: it enters or leaves a mode, or sets a default.
fn changes_mode(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or(path);
    let enters =
        ["autocast", "_enter", "_exit", "inference_mode", "deterministic"].iter().any(|word| last.contains(word));
    enters
        || last.starts_with("set_")
        || last.starts_with("_set_")
        || path.contains("functorch")
        || path.contains("autograd")
}

/// A function of `torch`, which names what it writes `out`, one tensor or a tuple.
fn with_out(library: &Library, name: &str, args: &Args) -> Effects {
    let mut rest = args.clone();
    rest.keyword.retain(|(key, _)| &**key != "out");
    let Some(mut effects) = library.effects("aten", name, "", &rest) else { return Effects::may(args) };
    if let Some(out) = args.get("out") {
        out.for_each_operand(&mut |index| effects.writes.push(index));
        effects.alias = if let [only] = effects.writes[..] { Alias::Of(only) } else { Alias::Written };
    }
    effects
}

/// Where functions of `torch.nn.functional` that may write their input are told so.
const IN_PLACE: &[(&str, usize)] = &[
    ("alpha_dropout", 3),
    ("celu", 2),
    ("dropout", 3),
    ("dropout1d", 3),
    ("dropout2d", 3),
    ("dropout3d", 3),
    ("elu", 2),
    ("feature_alpha_dropout", 3),
    ("hardsigmoid", 1),
    ("hardswish", 1),
    ("hardtanh", 3),
    ("leaky_relu", 2),
    ("mish", 1),
    ("relu", 1),
    ("relu6", 1),
    ("rrelu", 4),
    ("selu", 1),
    ("silu", 1),
    ("threshold", 3),
];

/// Functions of `torch.nn.functional` that compute, and have other names in `aten` or none.
const COMPUTE: &[&str] = &[
    "affine_grid",
    "celu",
    "cross_entropy",
    "ctc_loss",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "embedding",
    "embedding_bag",
    "fold",
    "gaussian_nll_loss",
    "grid_sample",
    "interpolate",
    "l1_loss",
    "layer_norm",
    "local_response_norm",
    "mse_loss",
    "multi_head_attention_forward",
    "nll_loss",
    "normalize",
    "relu6",
    "rms_norm",
    "softmin",
    "softsign",
    "tanhshrink",
    "unfold",
    "upsample",
];

fn functional(library: &Library, name: &str, args: &Args) -> Effects {
    let flag = IN_PLACE.iter().find(|(known, _)| *known == name).and_then(|&(_, place)| args.at(place, "inplace"));
    let in_place = args.get("inplace").or(flag).is_some_and(|arg| *arg != Arg::Bool(false));
    let statistics = |names: [&str; 2], told: (usize, &str), default: bool| {
        let trains = args.at(told.0, told.1).map_or(default, |arg| *arg != Arg::Bool(false));
        let mut writes = super::Indices::new();
        for (place, name) in [1, 2].into_iter().zip(names).filter(|_| trains) {
            if let Some(arg) = args.at(place, name) {
                arg.for_each_operand(&mut |index| writes.push(index));
            }
        }
        Effects { writes, ..Effects::pure() }
    };
    let mut rest = args.clone();
    rest.keyword.retain(|(key, _)| &**key != "inplace");
    if let Some(&(_, place)) = IN_PLACE.iter().find(|(known, _)| *known == name) {
        rest.positional.truncate(place);
    }
    let draws = name.contains("dropout")
        || matches!(name, "rrelu" | "gumbel_softmax" | "multi_head_attention_forward")
        || name.starts_with("fractional_max_pool");
    let mut effects = match name {
        "batch_norm" => statistics(["running_mean", "running_var"], (5, "training"), false),
        "instance_norm" => statistics(["running_mean", "running_var"], (5, "use_input_stats"), true),
        // The weight is scaled down in place.
        "embedding" | "embedding_bag"
            if args.get("max_norm").or(args.positional.get(3)).is_some_and(|arg| *arg != Arg::None) =>
        {
            Effects::may(args)
        }
        _ if draws => Effects::alias(if takes_any(args) { Alias::Any } else { Alias::Fresh }),
        _ if COMPUTE.contains(&name) || IN_PLACE.iter().any(|(known, _)| *known == name) => Effects::pure(),
        _ => library.effects("aten", name, "", &rest).unwrap_or_else(|| Effects::may(args)),
    };
    if in_place {
        effects = Effects { fence: effects.fence, ..writes_first(args) };
    }
    if draws {
        effects.fence = effects.fence.max(Fence::Random);
    }
    debug_assert!(effects.placement == Placement::Unseen || !in_place);
    effects
}
