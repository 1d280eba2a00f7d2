#!/usr/bin/env python3
"""Run PyTorch's operators on the CPU and compare what they do with what their schemas say.

    probe_operators.py [--calls FILE] [--tsv FILE] [--exceptions FILE] [--only PART]

Each call is made on copies of its arguments, and what it left behind is looked at:

  writes     arguments whose bytes (or shape, strides, place) changed
  aliases    results that share storage with an argument, or with each other
  random     the state of the default generator moved
  placement  the call was made again with equal elements put elsewhere, of all arguments and of each alone, and the values of
             the results differ or the call fails: `offset` (a slice of a larger buffer, as
             of a bucket), `strided` (a step of two), `permuted` (dimensions turned)

Two parts: operators of the table (calls from torch_calls.py), and functions and
methods of Python that no schema describes, which are prefixed `python:`. Observations
go to tests/data/torch-observed.tsv, one line an overload: name, calls, writes,
aliases, random, placement. `0` is an argument by place, `0?` was written without that
the schema says so; `0->1` is result 0 in the storage of argument 1, `0=2` two results
in one storage. Each call of an operator is made again with other values in its arguments
(`VALUES`: large, negative, not finite, zero; flags the other way), for some write only then. Beside it, tests/data/torch-effects.tsv has a call of each operator for each set
of effects that was seen: inputs, call, inputs written, inputs that a result aliases, `random`;
tests hold both readings of the schemas to it. What is seen and not declared is listed, and written to --exceptions.
"""
import argparse
import math
import operator
import os
import pathlib
import resource
import sys
import tempfile

import torch
from torch.utils import _pytree

import torch_calls
from torch_calls import NAMES, copy_arguments, in_children, is_tensor, plain, storage_bytes, tensors

ROOT = pathlib.Path(__file__).resolve().parent.parent
TSV = ROOT / "tests/data/torch-observed.tsv"
PLACES = ("offset", "strided", "permuted")


# ---------------------------------------------------------------- one call


class State:
    """A tensor's bytes and its place before a call."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.bytes = storage_bytes(tensor).clone()
        self.storage = tensor.untyped_storage()._cdata
        self.place = self.where()
        self.elements = tensor.detach().clone()

    def where(self):
        t = self.tensor
        return t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype

    def elements_changed(self):
        if self.tensor.shape != self.elements.shape or self.tensor.dtype != self.elements.dtype:
            return True
        return not same_bits(self.tensor, self.elements)

    def moved(self):
        return self.where() != self.place


def same_bits(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bits(a) == bits(b)


def bits(tensor):
    """Its elements as bytes, in their order."""
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(storage_bytes(flat).numpy().tobytes())


def close(a, b):
    """Equal up to the order of sums."""
    if is_tensor(a) != is_tensor(b):
        return False
    if not is_tensor(a):
        return a == b or (isinstance(a, float) and isinstance(b, float) and (math.isclose(a, b, rel_tol=1e-3) or (a != a and b != b)))
    if not plain(a) or not plain(b):
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if same_bits(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()) or a.element_size() == 1:
        return False
    wide = torch.complex128 if a.is_complex() else torch.float64
    return torch.allclose(a.to(wide), b.to(wide), rtol=2e-2, atol=1e-3, equal_nan=True)


def labelled(args, kwargs):
    """(label, tensor) of each tensor argument; the label is its place, or its keyword."""
    for label, value in [*enumerate(args), *kwargs.items()]:
        for leaf in tensors(value):
            yield label, leaf


def run(call, args, kwargs):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    out = call(*args, **kwargs)
    return out, not torch.equal(before, torch.get_rng_state())


def elsewhere(args, kwargs, place, only=None):
    """The same elements at another place, of one argument or of all; None where nothing would differ."""
    changed = False
    chosen = None if only is None else tensors((args, kwargs))[only]

    def one(value):
        nonlocal changed
        if not is_tensor(value) or value.numel() == 0 or (chosen is not None and value is not chosen):
            return value
        if place == "permuted":
            if value.dim() < 2:
                return value
            order = list(range(value.dim()))[::-1]
            changed = True
            return value.detach().permute(order).contiguous().permute(order)
        dense = value.detach().contiguous().stride() if 0 in value.stride() else value.stride()
        if 0 in dense:
            return value
        strides = [stride * (2 if place == "strided" else 1) for stride in dense]
        extent = 1 + sum(stride * (length - 1) for stride, length in zip(strides, value.shape))
        room = torch.empty(extent + 10, dtype=value.dtype)
        storage_bytes(room).fill_(0x3f)
        copy = torch.as_strided(room, value.shape, strides, 5)
        copy.copy_(value)
        changed = True
        return copy

    moved = _pytree.tree_map(one, (args, kwargs))
    return moved if changed else None


def observe(call, args, kwargs, places=True):
    """What one call does. None where it does not run."""
    with torch.no_grad():
        given, named = copy_arguments((args, kwargs))
        states = [(label, State(t)) for label, t in labelled(given, named)]
        if len({state.storage for _, state in states}) != len(states):
            return None  # which of two arguments in one storage was written is not to be told
        try:
            out, drew = run(call, given, named)
        except Exception:
            return None
        results = [r for r in tensors(out) if type(r) in (torch.Tensor, torch.nn.Parameter) and r.layout == torch.strided and r.device.type == "cpu"]
        seen = {"writes": set(), "moves": set(), "aliases": set(), "random": drew, "places": set(), "written": set(), "aliased": set()}
        for number, (label, state) in enumerate(states):
            if not torch.equal(state.bytes, storage_bytes(state.tensor)) if not state.moved() else state.elements_changed():
                seen["writes"].add(label)
                seen["written"].add(number)
            if state.moved():
                seen["moves"].add(label)
                seen["written"].add(number)
        storages = [r.untyped_storage()._cdata for r in results]
        for at, key in enumerate(storages):
            for number, (label, state) in enumerate(states):
                if key in (state.storage, state.tensor.untyped_storage()._cdata):
                    seen["aliases"].add((at, "->", label))
                    seen["aliased"].add(number)
            for other in range(at + 1, len(storages)):
                if storages[other] == key and results[at].untyped_storage().nbytes() > 0:
                    seen["aliases"].add((at, "=", other))
        if places:
            seen["places"] = placement(call, args, kwargs, _pytree.tree_leaves(out), [s.tensor for _, s in states])
        return seen


def placement(call, args, kwargs, out, left):
    """How the values of a call depend on where its arguments lie."""
    found = set()
    base = [v.detach().clone() if is_tensor(v) and plain(v) else v for v in out]
    after = [t.detach().clone() for t in left]

    def again(given, named):
        torch.empty(99).fill_(7.25)  # another filling of memory that is handed out unset
        inputs = tensors((given, named))
        value, _ = run(call, given, named)
        return _pytree.tree_leaves(value), inputs

    def differs(values, inputs):
        return len(values) != len(base) or not all(map(close, values, base)) or not all(map(close, inputs, after))

    try:
        if differs(*again(*copy_arguments((args, kwargs)))):
            return {"unstable"}
        plain_copy = _pytree.tree_map(lambda v: v.contiguous().clone() if is_tensor(v) else v, copy_arguments((args, kwargs)))
        strided = any(not t.is_contiguous() for t in tensors((args, kwargs)))
        if strided and differs(*again(*plain_copy)):
            found.add("strided")
    except Exception:
        return {"unstable"}
    # What takes from one argument how another lies sees nothing where all are moved alike.
    count = len(tensors((args, kwargs)))
    for only in [None, *(range(count) if 1 < count <= 8 else ())]:
        for place in PLACES:
            moved = elsewhere(*copy_arguments((args, kwargs)), place, only)
            if moved is None:
                continue
            try:
                if differs(*again(*moved)):
                    found.add(place)
            except Exception:
                found.add(place + "!")
    return found


# ---------------------------------------------------------------- operators


def places_of(schema):
    """Labels as places in the schema."""
    return {arg.name: at for at, arg in enumerate(schema.arguments)} | {at: at for at in range(len(schema.arguments))}


def merge(observations):
    total = {"calls": 0, "writes": set(), "moves": set(), "aliases": set(), "random": False, "places": set()}
    for seen in observations:
        if seen is not None:
            total["calls"] += 1
            total["random"] |= seen["random"]
            for key in ("writes", "moves", "aliases", "places"):
                total[key] |= seen[key]
    return total


def probe_operator(item):
    name, calls = item
    operator_ = torch_calls.resolve(name)
    seen = [observe(operator_, args, kwargs) for args, kwargs, _ in calls]
    total = merge(seen)
    total["examples"] = examples(name, calls, seen)
    return by_place(operator_, total)


def examples(name, calls, seen):
    """One call for each set of effects that was seen of an operator: its inputs, the call, and the effects by input."""
    found = {}
    for (args, kwargs, _), what in zip(calls, seen):
        if what is None or not (what["writes"] or what["moves"] or what["aliases"] or what["random"]):
            continue
        inputs = []

        def show(value):
            if is_tensor(value):
                inputs.append(f't{len(inputs)}: "{NAMES[value.dtype]}{list(value.shape)}{list(value.stride())}cpu"')
                return f"t{len(inputs) - 1}"
            if isinstance(value, (list, tuple)):
                return "[" + ", ".join(map(show, value)) + "]"
            return f"device(type='{value.type}')" if isinstance(value, torch.device) else repr(value)

        try:
            parts = [show(value) for value in args] + [f"{key} = {show(value)}" for key, value in kwargs.items()]
        except KeyError:
            continue  # a dtype that FX text has no word for
        effects = (numbers(what["written"]), numbers(what["aliased"]), "random" if what["random"] else "")
        found.setdefault(effects, (", ".join(inputs), f"torch.ops.{name}({', '.join(parts)})", *effects))
    return list(found.values())


def flat_storages(tree):
    """Each storage of a tree once, as one row of elements."""
    for key, tensor in {t.untyped_storage()._cdata: t for t in tensors(tree)}.items():
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        yield torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (elements,), (1,))


def not_finite(flat):
    flat[::3], flat[1::3] = math.nan, math.inf


# What is put into the tensors of a call: for fractions, for integers.
FRACTIONS = {
    "large": lambda flat: flat.mul_(1e6),
    "negative": lambda flat: flat.abs_().neg_(),
    "tiny": lambda flat: flat.mul_(1e-39),
    "not finite": not_finite,
    "one": lambda flat: flat.fill_(1),
}
INTEGERS = {
    "zero": lambda flat: flat.zero_(),
    "negative": lambda flat: flat.neg_(),
    "odd": lambda flat: flat.mul_(2).add_(1),
    "large": lambda flat: flat.fill_(torch.iinfo(flat.dtype).max),
}
TRUTHS = {"true": lambda flat: flat.fill_(True), "false": lambda flat: flat.fill_(False)}
SCALARS = {bool: [lambda v: not v], int: [lambda v: 0, lambda v: -v, lambda v: v + 1], float: [lambda v: 0.0, lambda v: -v, lambda v: v * 1e6]}


def other_values(args, kwargs):
    """The arguments of a call with other values: of its tensors all at once, of its numbers and flags one at a time."""
    for table, wanted in ((FRACTIONS, lambda t: t.is_floating_point() or t.is_complex()), (TRUTHS, lambda t: t.dtype == torch.bool),
                          (INTEGERS, lambda t: not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool))):
        for change in table.values():
            tree = copy_arguments((args, kwargs))
            flats = [flat for flat in flat_storages(tree) if wanted(flat)]
            try:
                for flat in flats:
                    change(flat)
            except Exception:
                continue  # a dtype without this arithmetic
            if flats:
                yield tree
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    for at, leaf in enumerate(leaves):
        for change in SCALARS.get(type(leaf), ()):
            changed = [*leaves[:at], change(leaf), *leaves[at + 1:]]
            yield copy_arguments(_pytree.tree_unflatten(changed, spec))


def probe_values(item):
    """What an operator does with other values than its samples have."""
    name, calls = item
    operator_ = torch_calls.resolve(name)
    # A large number may be a size.
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**32, resource.RLIM_INFINITY))
    made, seen = [], []
    for args, kwargs, _ in calls:
        for tree in other_values(args, kwargs):
            seen.append(observe(operator_, *tree, places=False))
            made.append((*tree, None))
    total = merge(seen)
    total["examples"] = examples(name, made, seen)
    return by_place(operator_, total)


def by_place(operator_, total):
    at = places_of(operator_._schema)
    for key in ("writes", "moves"):
        total[key] = {at[label] for label in total[key]}
    total["aliases"] = {(a, how, b if how == "=" else at[b]) for a, how, b in total["aliases"]}
    return total


def numbers(found):
    return " ".join(map(str, sorted(found)))


def names_of(info):
    return set() if info is None else set(info.before_set) | ({""} if not info.before_set else set())


def contradictions(name, seen):
    """What was seen and is not declared, as short texts."""
    schema = torch_calls.resolve(name)._schema
    args, tags = schema.arguments, {str(tag).split(".")[-1] for tag in torch_calls.resolve(name).tags}
    found = []
    for label in sorted(seen["writes"]):
        if args[label].alias_info is None or not args[label].alias_info.is_write:
            found.append(f"writes {args[label].name}")
    for label in sorted(seen["moves"]):
        declared = args[label].alias_info is not None and args[label].alias_info.is_write
        if not declared or "inplace_view" not in tags:
            kind = "resizes" if declared and args[label].kwarg_only else "moves"
            found.append(f"{kind} {args[label].name}")
    flat = flat_returns(schema)
    for result, how, other in sorted(seen["aliases"], key=str):
        if how == "=":
            if flat(result) is not None and flat(other) is not None:
                continue
            found.append(f"results {result} and {other} share storage")
            continue
        info = flat(result)
        marked = args[other].alias_info
        if info is None or marked is None or not ({"", "*"} & (names_of(info) | names_of(marked)) or names_of(info) & names_of(marked)):
            found.append(f"result {result} aliases {args[other].name}")
    if seen["random"] and "nondeterministic_seeded" not in tags:
        found.append("draws random numbers")
    return found


def flat_returns(schema):
    returns = list(schema.returns)

    def of(result):
        if not returns:
            return None
        return returns[result].alias_info if result < len(returns) and "List" not in str(returns[0].type) else returns[-1 if len(returns) == 1 else 0].alias_info
    return of


# ---------------------------------------------------------------- Python


def python_calls():
    """(name, function, arguments) of what Dynamo and torch.export print that is no operator."""
    f, made = torch.nn.functional, []

    def inputs():
        return [torch.randn(4, 6), torch.randn(6), torch.randn(2, 3, 4), torch.randn(4, 6).t(), torch.randn(3, 4, dtype=torch.complex64),
                torch.randint(1, 5, (4, 6)), torch.rand(4, 6) > 0.5, torch.randn(1, 4), torch.tensor(2.5), torch.randn(3, 3)]

    def add(name, function, *args, **kwargs):
        made.append((name, function, args, kwargs))

    for x in inputs():
        for name in sorted(dir(torch.Tensor)):
            if name in SKIP_METHODS or name.startswith("_"):
                continue
            if not callable(getattr(torch.Tensor, name, None)):
                add(f"Tensor.{name}", operator.attrgetter(name), x)
                continue
            add(f"Tensor.{name}()", operator.methodcaller(name), x)
        for name in sorted(dir(f)):
            function = getattr(f, name)
            if callable(function) and name[0].islower() and not name.startswith("_") and name not in SKIP_FUNCTIONS:
                add(f"nn.functional.{name}", function, x)
                add(f"nn.functional.{name}(inplace=True)", function, x, inplace=True)
        for name in ("threshold",):
            add(f"nn.functional.{name}(inplace=True)", getattr(f, name), x, 0.5, 7.0, inplace=True)
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
            add(f"nn.functional.{name}(training=False)", getattr(f, name), x, training=False)
        add("nn.functional.alpha_dropout(training=True)", f.alpha_dropout, x, training=True)
        add("nn.functional.alpha_dropout(training=True, inplace=True)", f.alpha_dropout, x, training=True, inplace=True)
        add("nn.functional.feature_alpha_dropout(training=True)", f.feature_alpha_dropout, x, training=True)
        add("nn.functional.rrelu(training=True)", f.rrelu, x, training=True)
        add("nn.functional.rrelu(training=True, inplace=True)", f.rrelu, x, training=True, inplace=True)
        for name in sorted(dir(torch)):
            function = getattr(torch, name)
            if name[0].islower() and name not in SKIP_FUNCTIONS and callable(function) and not isinstance(function, type) and not name.startswith("_"):
                if type(function).__name__ == "builtin_function_or_method" or name in PYTHON_TORCH:
                    add(f"torch.{name}", function, x)
        y = x.clone()
        for name in ("type_as", "view_as", "reshape_as", "expand_as", "to", "set_", "resize_as_", "copy_", "new_tensor", "is_set_to"):
            add(f"Tensor.{name}(other)", operator.methodcaller(name, y), x)
            made[-1] = (f"Tensor.{name}(other)", lambda a, b, n=name: getattr(a, n)(b), (x, y), {})
        for shape in ((-1,), (1, *x.shape), tuple(x.shape)):
            for name in ("view", "reshape", "expand", "broadcast_to", "resize_"):
                add(f"Tensor.{name}", operator.methodcaller(name, shape), x)
            add("torch.broadcast_to", torch.broadcast_to, x, shape)
        for dtype in (torch.float32, torch.float64, x.dtype):
            add("Tensor.to(dtype)", operator.methodcaller("to", dtype), x)
            add("Tensor.type(dtype)", operator.methodcaller("type", dtype), x)
            add("Tensor.view(dtype)", operator.methodcaller("view", dtype), x)
        add("Tensor.to(device)", operator.methodcaller("to", "cpu"), x)
        add("Tensor.to(copy=True)", operator.methodcaller("to", x.dtype, copy=True), x)
        for index in (0, -1, slice(0, 2), slice(0, 1), None, Ellipsis, (Ellipsis, 0), [0], torch.tensor([0]), torch.tensor(0)):
            shown = "tensor" if is_tensor(index) else "list" if isinstance(index, list) else repr(index)
            add(f"Tensor[{shown}]", lambda a, i=index: a[i], x)
            add(f"operator.getitem({shown})", operator.getitem, x, index)
            add(f"Tensor[{shown}] = value", lambda a, i=index: a.__setitem__(i, 1), x)
            add("operator.setitem", operator.setitem, x, index, 1)
        for name in sorted(dir(operator)):
            function = getattr(operator, name)
            if name in ("setitem", "delitem", "call", "attrgetter", "itemgetter", "methodcaller", "length_hint") or name.startswith("__") or not callable(function):
                continue
            add(f"operator.{name}", function, x)
            add(f"operator.{name}", function, x, y)
            add(f"operator.{name}", function, x, 2)
        for args in ((0, 1), (1, 0), (0,), (1,), (0, 0, 1), (0, 1, 2), (2,), (2, 0), ([1, 0],), ((0,), (1,))):
            for name in ARGUMENT_METHODS:
                add(f"Tensor.{name}", operator.methodcaller(name, *args), x)
                if hasattr(torch, name):
                    add(f"torch.{name}", getattr(torch, name), x, *args)
        for function in (torch.atleast_1d, torch.atleast_2d, torch.atleast_3d, torch.broadcast_tensors, torch.meshgrid, torch.block_diag, torch.cartesian_prod):
            add(f"torch.{function.__name__}(several)", function, x, y)
        for function in (torch.cat, torch.stack, torch.hstack, torch.vstack, torch.dstack, torch.column_stack):
            add(f"torch.{function.__name__}(one)", lambda a, g=function: g([a]), x)
        add("torch.einsum", lambda a: torch.einsum("...->...", a), x)
        add("torch.einsum", lambda a: torch.einsum("ij->ji", a), x)
        add("torch.asarray", torch.asarray, x)
        add("torch.as_tensor", torch.as_tensor, x)
        add("torch.tensor_split", torch.tensor_split, x, 2)
        add("nn.functional.embedding(max_norm)", lambda w: f.embedding(torch.tensor([0, 1]), w * 1, max_norm=0.1), x)
        add("nn.functional.embedding(max_norm)", lambda w: f.embedding(torch.tensor([0, 1]), w, max_norm=0.1), x)
        add("nn.functional.normalize(out)", lambda a, o: f.normalize(a, out=o), x, y)
        for train in (True, False):
            add(f"nn.functional.batch_norm(training={train})", lambda a, m, v, t=train: f.batch_norm(a, m, v, training=t), x, torch.zeros(x.shape[-1] if x.dim() else 1), torch.ones(x.shape[-1] if x.dim() else 1))
            add(f"nn.functional.instance_norm(use_input_stats={train})", lambda a, m, v, t=train: f.instance_norm(a, m, v, use_input_stats=t), torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3))
        add("nn.functional.gumbel_softmax", f.gumbel_softmax, x)
        add("nn.functional.fractional_max_pool2d", lambda a: f.fractional_max_pool2d(a, 2, output_size=2), torch.randn(1, 2, 6, 6))
        add("nn.functional.scaled_dot_product_attention(dropout)", lambda a: f.scaled_dot_product_attention(a, a, a, dropout_p=0.5), torch.randn(1, 2, 4, 4))
        add("nn.functional.multi_head_attention dropout", lambda a: torch.nn.MultiheadAttention(6, 2, dropout=0.5)(a, a, a)[0], torch.randn(4, 2, 6))
        add("torch.utils.checkpoint", torch.utils.checkpoint.checkpoint, torch.sin, x, use_reentrant=False) if hasattr(torch.utils, "checkpoint") else None
    return made


ARGUMENT_METHODS = ["transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "select", "narrow", "unsqueeze", "squeeze", "flatten", "unflatten",
                    "diagonal", "unfold", "chunk", "split", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "tile", "repeat", "roll", "flip", "rot90",
                    "index_fill_", "fill_", "narrow_copy", "repeat_interleave", "sum_to_size", "view", "reshape", "expand", "add_", "mul_", "transpose_", "squeeze_",
                    "unsqueeze_", "resize_", "new_zeros", "new_ones", "stride", "size", "clamp_", "softmax", "select_scatter", "sum", "mean", "contiguous", "as_strided"]
PYTHON_TORCH = {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "split", "norm", "stft", "unique", "unique_consecutive", "meshgrid", "einsum",
                "cartesian_prod", "block_diag", "cdist", "tensordot", "lu", "chain_matmul", "align_tensors"}
SKIP_METHODS = {"backward", "register_hook", "share_memory_", "cuda", "xpu", "hpu", "ipu", "mtia", "pin_memory", "record_stream", "storage", "untyped_storage",
                "storage_type", "grad", "numpy", "tolist", "module_load", "map_", "apply_", "map2_", "to_sparse", "to_mkldnn", "names", "rename", "rename_", "has_names",
                "register_post_accumulate_grad_hook", "reinforce", "volatile", "grad_fn", "imag_", "dlpack", "data_ptr", "untyped_storage", "mro", "retain_grad"}
SKIP_FUNCTIONS = {"hardtanh_", "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic", "handle_torch_function", "assert_int_or_pair",
                  "set_default_dtype", "set_default_tensor_type", "set_num_threads", "set_num_interop_threads", "manual_seed", "seed", "set_rng_state", "compile",
                  "set_default_device", "set_printoptions", "save", "load", "use_deterministic_algorithms", "set_deterministic_debug_mode", "set_flush_denormal",
                  "set_float32_matmul_precision", "init_num_threads", "set_warn_always", "set_anomaly_enabled", "set_grad_enabled", "set_autocast_enabled",
                  "import_ir_module", "parse_ir", "fork", "wait", "boolean_dispatch", "eval", "frombuffer", "from_file", "from_numpy", "from_dlpack",
                  "unify_type_list", "merge_type_from_type_comment", "autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache", "cond",
                  "while_loop", "vmap", "typename", "is_storage", "is_tensor", "utils_unstack", "prepare_multiprocessing_environment", "set_vital", "read_vitals"}


def probe_python(name):
    return merge(observe(function, args, kwargs) for function, args, kwargs in PYTHON[name])


PYTHON = {}


def gather_python():
    torch.manual_seed(0)
    for name, function, args, kwargs in python_calls():
        if all(plain(t) for t in tensors((args, kwargs))):
            PYTHON.setdefault(name, []).append((function, args, kwargs))


# ---------------------------------------------------------------- report


def texts(seen, declared=lambda label: True):
    def labels(found, sign=""):
        return [f"{label}{sign}{'' if declared(label) else '?'}" for label in sorted(found, key=str)]
    writes = " ".join(labels(seen["writes"]) + labels(seen["moves"], "m"))
    aliases = " ".join(f"{a}{how}{b}" for a, how, b in sorted(seen["aliases"], key=str))
    return [str(seen["calls"]), writes, aliases, "random" if seen["random"] else "", " ".join(sorted(seen["places"]))]


def report_operators(calls, only):
    effects, rows, wrong, readers, resized, counts = [], [], [], [], [], dict(overloads=0, calls=0, writers=0, aliases=0, random=0, placement=0, unstable=0, ended=0)
    items = [(name, made) for name, made in calls.items() if not only or only in name]
    values = {name: seen for (name, _), seen in in_children(probe_values, items, 60)}
    counts["other values"] = sum(seen["calls"] for seen in values.values() if seen is not None)
    counts["other values ended"] = sum(seen is None for seen in values.values())
    for (name, made), seen in in_children(probe_operator, items, 60):
        if seen is not None and values[name] is not None:
            for key in ("writes", "moves", "aliases"):
                seen[key] |= values[name][key]
            seen["random"] |= values[name]["random"]
            known = {tuple(example[2:]) for example in seen["examples"]}
            seen["examples"] += [example for example in values[name]["examples"] if tuple(example[2:]) not in known]
        if seen is None:
            counts["ended"] += 1
            wrong.append((name, ["the process ended, or it took too long"]))
            continue
        if not seen["calls"]:
            continue
        args = torch_calls.resolve(name)._schema.arguments
        effects += seen["examples"]
        rows.append([name, *texts(seen, lambda label: args[label].alias_info is not None and args[label].alias_info.is_write)])
        counts["overloads"] += 1
        counts["calls"] += seen["calls"]
        counts["writers"] += bool(seen["writes"] or seen["moves"])
        counts["aliases"] += bool(seen["aliases"])
        counts["random"] += seen["random"]
        counts["unstable"] += "unstable" in seen["places"]
        places = seen["places"] - {"unstable"}
        counts["placement"] += bool(places)
        if places:
            readers.append((name, sorted(places)))
        found = contradictions(name, seen)
        resized += [f"{name} {text}" for text in found if text.startswith("resizes")]
        found = [text for text in found if not text.startswith("resizes")]
        if found:
            wrong.append((name, found))
    counts["resize_out"] = len(resized)
    return rows, wrong, readers, counts, effects


def report_python(only):
    gather_python()
    names = [name for name in sorted(PYTHON) if not only or only in name]
    rows = []
    for name, seen in in_children(probe_python, names, 60):
        if seen is None or not seen["calls"]:
            continue
        rows.append(["python:" + name, *texts(seen)])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", default=os.path.join(tempfile.gettempdir(), "bucketeer-torch-calls.pt"))
    parser.add_argument("--tsv", default=str(TSV))
    parser.add_argument("--exceptions", help="write what contradicts the schemas to this file too")
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls = torch_calls.load(options.calls, print)
    rows, wrong, readers, counts, effects = report_operators(calls, options.only)
    python = report_python(options.only)
    lines = ["# seen, not declared"] + [f"{name}\t{'; '.join(found)}" for name, found in wrong]
    title = {True: "# the value depends on where an argument lies", False: "# the call fails where an argument lies elsewhere, and gives the same values where it runs"}
    for values in (True, False):
        lines += ["", title[values]]
        lines += [f"{name}\t{' '.join(places)}" for name, places in readers if any("!" not in p for p in places) == values]
    lines += ["", "# Python functions, methods and properties that write, alias or draw: name, calls, writes, aliases, random, placement"]
    lines += ["\t".join(row) for row in python if any(row[2:5])]
    lines += ["", "# Python functions that do none of these, and whose values depend on the place"]
    lines += ["\t".join(row) for row in python if not any(row[2:5]) and set(row[5].split()) - {"unstable"}]
    text = "\n".join(lines) + "\n"
    print(text)
    print(" ".join(f"{key}={value}" for key, value in counts.items()), f"contradictions={len(wrong)} python={len(python)}")
    if options.exceptions:
        pathlib.Path(options.exceptions).write_text(text)
    if not options.only:
        header = "name\tcalls\twrites\taliases\trandom\tplacement"
        path = pathlib.Path(options.tsv)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *("\t".join(row) for row in rows + python)]) + "\n")
        path.with_name("torch-effects.tsv").write_text("\n".join("\t".join(row) for row in effects) + "\n")


if __name__ == "__main__":
    sys.exit(main())
