//! Calls that are not of PyTorch's operators but of Python: methods and attributes of tensors, functions of `torch`, the
//! `operator` module, as Dynamo prints them. Most are PyTorch's operators under another name.

use super::reading::{Form, Operands};
use super::{Entry, Lookup, unknown};
use crate::ir::args::{Arg, Args};
use crate::ir::operators::{Alias, Effects, Fence, Placement};

/// Methods that are no operator, or do more than the operator of their name, and whose result is or may be the tensor
/// itself.
const METHODS_THAT_ALIAS: &[&str] = &[
    "type",
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "short",
    "char",
    "byte",
    "bool",
    "cdouble",
    "cfloat",
    "chalf",
    "cpu",
    "cuda",
    "xpu",
    "mps",
    "numpy",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "requires_grad_",
    "retain_grad",
    "view_as",
    "reshape_as",
    "expand_as",
    "to_dense",
    "data",
    "as_subclass",
    "align_to",
    "rename",
    "refine_names",
    "clone_",
    "pin_memory",
    "share_memory_",
    "__iter__",
    "__getitem__",
    "getitem",
    "coalesce",
    "values",
    "indices",
    "dequantize",
    "get_device",
    "unflatten",
    "split",
    "to_padded_tensor",
];

/// Methods that write the tensor.
const METHODS_THAT_WRITE: &[&str] = &[
    "__setitem__",
    "setitem",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "__ifloordiv__",
    "__ipow__",
    "__imod__",
    "__imatmul__",
];

/// Methods that only say what the tensor is.
const METHODS_THAT_LOOK: &[&str] = &[
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "element_size",
    "stride",
    "storage_offset",
    "is_contiguous",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "get_device",
    "data_ptr",
    "dim_order",
    "has_names",
    "is_shared",
    "is_pinned",
    "type_",
    "__len__",
];

/// Attributes of tensors that share its memory. What an attribute that is not listed here holds, is not known.
const VIEW_ATTRIBUTES: &[&str] = &["data", "T", "mT", "H", "mH", "real", "imag"];

/// Attributes of tensors and sizes that hold no tensor.
const PLAIN_ATTRIBUTES: &[&str] = &[
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "requires_grad",
    "is_leaf",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_sparse",
    "is_quantized",
    "is_nested",
    "is_mkldnn",
    "is_mps",
    "is_xla",
    "is_xpu",
    "itemsize",
    "nbytes",
    "names",
    "output_nr",
    "_version",
    "type",
    "index",
];

/// Functions of the `operator` module that write their first argument, if that is a tensor, and return it.
const IN_PLACE: &[&str] = &[
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
    "iconcat",
];

/// Functions of the `operator` module that make a new value.
const OPERATORS: &[&str] = &[
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "neg",
    "abs",
    "invert",
    "inv",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "not_",
    "truth",
    "is_",
    "is_not",
    "concat",
    "contains",
    "countOf",
    "indexOf",
    "index",
    "length_hint",
];

/// Python's own functions that make numbers and lists, or only check.
const BUILTINS: &[&str] = &[
    "abs",
    "all",
    "any",
    "bool",
    "complex",
    "divmod",
    "float",
    "getattr",
    "hasattr",
    "hash",
    "int",
    "isinstance",
    "len",
    "max",
    "min",
    "pow",
    "range",
    "round",
    "slice",
    "str",
    "sum",
    "type",
];

/// Functions of `torch` that take no part in values: checks, and arithmetic on symbolic sizes.
const TORCH_PLAIN: &[&str] = &[
    "_check",
    "_check_is_size",
    "_check_value",
    "_check_index",
    "_check_type",
    "_check_not_implemented",
    "_check_with",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_ite",
    "sym_int",
    "sym_float",
    "sym_sqrt",
    "sym_sum",
    "sym_fresh_size",
    "_sym_sqrt",
    "_sym_cos",
    "_sym_cosh",
    "_sym_sin",
    "_sym_sinh",
    "_sym_tan",
    "_sym_tanh",
    "_sym_asin",
    "_sym_acos",
    "_sym_atan",
    "_sym_log2",
    "is_tensor",
    "is_floating_point",
    "is_complex",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "_assert",
    "numel",
    "Size",
    "device",
    "dtype",
    "finfo",
    "iinfo",
    "promote_types",
    "result_type",
    "can_cast",
    "get_default_dtype",
    "broadcast_shapes",
    "tensor",
    "scalar_tensor",
    "_constrain_as_size",
    "_constrain_as_value",
    "_assert_async",
];

/// How names of functions of `torch` begin that change how what comes after them computes: autocast, default dtypes,
/// function transforms.
const MODES: &[&str] = &[
    "amp.",
    "autocast",
    "cpu.amp.",
    "cuda.amp.",
    "set_",
    "use_deterministic_algorithms",
    "_C._set_",
    "_C._functorch.",
    "_functorch.",
    "_C._autograd.",
    "autograd.",
];

/// What a call of Python does, by namespace (`method`, `torch`, ..) and the rest of its target.
pub(super) fn effects(lookup: &Lookup<'_>, namespace: &str, rest: &str, args: &Args) -> Option<Effects> {
    match namespace {
        "method" => Some(method(lookup, rest, args)),
        "getattr" => Some(attribute(rest, args)),
        "operator" | "_operator" => Some(operator(rest, args)),
        "math" => Some(Effects::pure()),
        "builtins" if BUILTINS.contains(&rest) => Some(Effects::pure()),
        "torch" => torch(lookup, rest, args),
        _ => None,
    }
}

fn first(args: &Args) -> Operands {
    let mut found = Operands::new();
    let first = args.positional.first().or_else(|| args.get("self")).or_else(|| args.get("input"));
    if let Some(first) = first {
        first.for_each_operand(&mut |index| found.push(index));
    }
    found
}

fn of_first(args: &Args) -> Alias {
    first(args).first().map_or(Alias::Fresh, |&index| Alias::Of(index))
}

fn writes_first(args: &Args) -> Effects {
    Effects { alias: of_first(args), writes: first(args), ..Effects::pure() }
}

fn method(lookup: &Lookup<'_>, name: &str, args: &Args) -> Effects {
    let placed = |effects| Effects { sees: super::exceptions::sees(name), ..effects };
    if METHODS_THAT_LOOK.contains(&name) {
        return placed(Effects { shape_only: true, ..Effects::pure() });
    }
    if METHODS_THAT_WRITE.contains(&name) {
        return writes_first(args);
    }
    if METHODS_THAT_ALIAS.contains(&name) {
        return placed(Effects::aliasing(of_first(args)));
    }
    lookup.operator("aten", name, args, Form::Python).unwrap_or_else(|| unknown(args))
}

fn attribute(name: &str, args: &Args) -> Effects {
    if PLAIN_ATTRIBUTES.contains(&name) {
        return Effects { shape_only: true, ..Effects::pure() };
    }
    // What runs backward leaves them, and nothing leads from it to here.
    if matches!(name, "grad" | "_grad") {
        return Effects::fence();
    }
    // Reading an attribute writes nothing, whatever it holds.
    if VIEW_ATTRIBUTES.contains(&name) { Effects::aliasing(of_first(args)) } else { Effects::aliasing(Alias::Any) }
}

fn operator(name: &str, args: &Args) -> Effects {
    match name {
        "getitem" | "pos" => Effects::aliasing(of_first(args)),
        "setitem" | "delitem" => Effects { alias: Alias::Fresh, ..writes_first(args) },
        name if IN_PLACE.contains(&name) => writes_first(args),
        name if OPERATORS.contains(&name) => Effects::pure(),
        _ => unknown(args),
    }
}

fn torch(lookup: &Lookup<'_>, rest: &str, args: &Args) -> Option<Effects> {
    if TORCH_PLAIN.contains(&rest) {
        return Some(Effects::pure());
    }
    if rest == "manual_seed" || rest == "random.manual_seed" {
        return Some(Effects { fence: Fence::Random, ..Effects::pure() });
    }
    if MODES.iter().any(|mode| rest.starts_with(mode)) {
        return Some(Effects { fence: Fence::Full, sets_mode: true, ..Effects::pure() });
    }
    if let Some(name) = rest.strip_prefix("Tensor.") {
        return Some(method(lookup, name, args));
    }
    let functional = rest.strip_prefix("nn.functional.").or_else(|| rest.strip_prefix("_C._nn."));
    if let Some(name) = functional {
        return Some(function(lookup, name, args));
    }
    let named = |prefix: &str, operators: &str| rest.strip_prefix(prefix).map(|name| format!("{operators}{name}"));
    let operator = named("special.", "special_")
        .or_else(|| named("linalg.", "linalg_"))
        .or_else(|| named("fft.", "fft_"))
        .or_else(|| named("_C._VariableFunctions.", ""))
        .or_else(|| named("_C._special.", ""))
        .or_else(|| named("_C._linalg.", ""))
        .or_else(|| named("_C._fft.", ""))
        .or_else(|| (!rest.contains('.')).then(|| rest.to_owned()))?;
    lookup.operator("aten", &operator, args, Form::Python)
}

/// A function of `torch.nn.functional`: parameters stand in an order of their own, so an operator that is told apart by
/// its parameters is not known here.
fn function(lookup: &Lookup<'_>, name: &str, args: &Args) -> Effects {
    let sets = |arg: &Arg| matches!(arg, Arg::Bool(true) | Arg::Operand(_));
    let entries = lookup.overloads("aten", name);
    let mut plain = entries.iter().filter(|entry| !entry.is_out);
    let plain = !entries.is_empty()
        && plain.all(|entry| entry.alias_of_first() == Some(Alias::Fresh))
        && super::exceptions::sees(name) == Placement::Nothing;
    if !plain || args.get("out").is_some() || args.get("max_norm").is_some_and(|arg| *arg != Arg::None) {
        return unknown(args);
    }
    // `inplace=True`, by name or by place: no operator that takes a flag is the worse for being taken for one that writes.
    let in_place = args.get("inplace").is_some_and(sets) || args.positional.contains(&Arg::Bool(true));
    if in_place { writes_first(args) } else { Effects::pure() }
}

/// What a call of a name without namespace does, in our own text: PyTorch's operator of that name, or one of ours.
pub(super) fn bare(lookup: &Lookup<'_>, name: &str, args: &Args) -> Option<Effects> {
    match name {
        "getitem" | "item" | "get_tuple_element" | "bitcast" => return Some(Effects::aliasing(of_first(args))),
        "cast" | "convert" => return Some(Effects::pure()),
        "setitem" => return Some(Effects { alias: Alias::Fresh, ..writes_first(args) }),
        _ => {}
    }
    let tables = ["aten", "prims", "bucketing"];
    let known = tables.iter().find_map(|of| lookup.operator(of, name, args, Form::Python));
    known
        .or_else(|| tables.iter().find_map(|of| by_name_alone(lookup, of, name, args)))
        .or_else(|| (IN_PLACE.contains(&name) || OPERATORS.contains(&name)).then(|| operator(name, args)))
}

/// Our own text writes some operators' arguments in other places than PyTorch (`slice(x, start, end, dim=0)`). What an
/// operator does to its first argument is the same; one that writes is not known by its name alone.
fn by_name_alone(lookup: &Lookup<'_>, namespace: &str, name: &str, args: &Args) -> Option<Effects> {
    let entries = lookup.overloads(namespace, name);
    let plain = entries.iter().filter(|entry| !entry.is_out);
    let kinds: Vec<Option<Alias>> = plain.map(Entry::alias_of_first).collect();
    let aliases = kinds.iter().copied().collect::<Option<Vec<Alias>>>().filter(|kinds| !kinds.is_empty())?;
    let alias = if aliases.iter().all(|alias| *alias == Alias::Fresh) { Alias::Fresh } else { of_first(args) };
    Some(Effects {
        alias,
        shape_only: super::exceptions::is_shape_only(name),
        sees: super::exceptions::sees(name),
        ..Effects::pure()
    })
}
