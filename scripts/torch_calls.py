#!/usr/bin/env python3
"""Collect small calls of PyTorch's operators that run on the CPU.

    torch_calls.py [--out FILE]

Other scripts here import it; alone it writes the calls to FILE and says how many
overloads of the table they reach. Calls come from four places:

  samples    the inputs that PyTorch's own tests use (op_db, foreach ones and modules),
             run plainly, backwards, and in inference mode, where composite operators
             are seen before they are taken apart
  by hand    optimizers, gradient scaling, norms with running statistics, quantization
  siblings   an overload that no sample reaches is called with the arguments of
             another overload of its name (`add.out` from `add.Tensor`, `addcmul_`
             from `addcmul`)
  guesses    the rest, with arguments made up from the types in the schema

Calls that may end the process are made in a process of their own. Nothing here
needs a device or a process group. Needs `expecttest`, as PyTorch's tests do.
"""
import argparse
import copyreg
import importlib
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import warnings

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_operators import MODULES, name_of

warnings.filterwarnings("ignore")

NAMESPACES = ("aten", "prims", "inductor", "inductor_prims", "fsdp", "quantized_decomposed", "rngprims")
# Bound to a device, a library or a layout that is not here, or to files.
SKIPPED = ("cudnn", "miopen", "mps", "cuda", "nested", "sparse", "mkldnn", "mkl_", "nnpack", "vulkan", "xnnpack",
           "hip", "xpu", "from_file", "csr", "coo", "fbgemm", "cslt", "rpc", "_test_", "_nnapi", "hpu",
           "_assert", "quantized_lstm", "quantized_gru", "pin_memory", "_foobar", "record_stream")
KEPT = (torch.Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# As FX text calls them.
NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
    torch.complex32: "c32", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e5m2: "f8e5m2",
}
LARGEST = 4096  # elements of one argument
CALLS = 6  # kept of one overload


def memory_format(name):
    return getattr(torch, name)


# Memory formats do not pickle by themselves.
copyreg.pickle(torch.memory_format, lambda value: (memory_format, (str(value).removeprefix("torch."),)))


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def tensors(value):
    return [leaf for leaf in _pytree.tree_leaves(value) if is_tensor(leaf)]


def plain(tensor):
    """Whether a tensor is what this script can copy: strided, on the CPU, of no subclass."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
            and tensor.device.type == "cpu" and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg())


def storage_bytes(tensor):
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def copy_arguments(tree):
    """Copies arguments whole storages at a time: what shared memory still does."""
    with torch.no_grad():
        copies, storages = {}, {}

        def one(value):
            if not is_tensor(value):
                return value
            if id(value) not in copies:
                key = value.untyped_storage()._cdata
                if key not in storages:
                    storages[key] = storage_bytes(value).clone().untyped_storage()
                copy = torch.empty(0, dtype=value.dtype)
                copies[id(value)] = copy.set_(storages[key], value.storage_offset(), value.size(), value.stride())
            return copies[id(value)]

        return _pytree.tree_map(one, tree)


def signature(args, kwargs):
    def one(value):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}" if is_tensor(value) else repr(value)
    return repr([one(leaf) for leaf in _pytree.tree_leaves((args, kwargs))])


class Calls:
    """Calls by overload, few of each and no two of one signature."""

    def __init__(self):
        self.by_name, self.seen = {}, {}

    def wants(self, name, args, kwargs):
        if name.split(".")[0] not in NAMESPACES or any(part in name for part in SKIPPED):
            return False
        seen = self.seen.setdefault(name, set())
        if len(self.by_name.get(name, ())) >= CALLS:
            return False
        leaves = _pytree.tree_leaves((args, kwargs))
        if not all(isinstance(leaf, KEPT) for leaf in leaves):
            return False
        found = tensors(leaves)
        if not all(map(plain, found)) or any(t.numel() > LARGEST or t.untyped_storage().nbytes() > 8 * LARGEST for t in found):
            return False
        key = signature(args, kwargs)
        if key in seen or len(seen) > 200:
            return False
        seen.add(key)
        return True

    def add(self, name, args, kwargs, source):
        self.by_name.setdefault(name, []).append((*copy_arguments((args, kwargs)), source))


class Recorder(TorchDispatchMode):
    """Keeps the arguments of each call that succeeds."""

    def __init__(self, calls, source):
        super().__init__()
        self.calls, self.source = calls, source

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        if not self.calls.wants(name, args, kwargs):
            return func(*args, **kwargs)
        kept = copy_arguments((args, kwargs))
        out = func(*args, **kwargs)
        self.calls.by_name.setdefault(name, []).append((*kept, self.source))
        return out


# ---------------------------------------------------------------- samples


def attempt(recorder, function, inference):
    """One call under the recorder; failures are the samples' own business."""
    try:
        with torch.inference_mode() if inference else torch.enable_grad(), recorder:
            out = function()
            if not inference:
                for leaf in tensors(out):
                    if leaf.requires_grad and leaf.is_floating_point():
                        leaf.sum().backward(retain_graph=True)
                        break
    except Exception:
        pass


def dtypes_of(info):
    supported = info.supported_dtypes("cpu")
    order = [torch.float32, torch.int64, torch.complex64, torch.bool, torch.float64, torch.bfloat16]
    return [d for d in order if d in supported][:3]


def detached(sample):
    return _pytree.tree_map(lambda v: v.detach().clone() if is_tensor(v) else v, sample)


def sample_calls(calls, limit=8):
    import torch.testing._internal.common_methods_invocations as known
    every = list(known.op_db)
    for part in ("unary", "binary", "pointwise", "reduce", "other"):
        every += getattr(known, f"foreach_{part}_op_db")
    for info in every:
        for dtype in dtypes_of(info):
            try:
                grad = info.supports_autograd and dtype == torch.float32
                samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), limit))
            except Exception:
                continue
            for sample in samples:
                keywords = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
                variants = (info.op, info.method_variant, info.inplace_variant, info.operator_variant, info.inplace_operator_variant)
                for number, variant in enumerate(variants):
                    for inference in (False, True):
                        if variant is None or (number == 1 and not inference):
                            continue
                        given = (sample.input, sample.args, keywords)
                        if inference or number in (2, 4):
                            given = detached(given)
                        attempt(Recorder(calls, "sample"), lambda: variant(given[0], *given[1], **given[2]), inference)


def module_calls(calls):
    from torch.testing._internal.common_modules import module_db
    for info in module_db:
        for training in (True, False):
            try:
                inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
                for given in itertools.islice(inputs, 4):
                    made = given.constructor_input
                    module = info.module_cls(*made.args, **made.kwargs)
                    module.train(training)
                    forward = given.forward_input
                    for inference in (False, True):
                        attempt(Recorder(calls, "sample"), lambda: module(*forward.args, **forward.kwargs), inference)
            except Exception:
                continue


# ---------------------------------------------------------------- by hand


def optimizer_steps():
    made = []
    for cls, options in [
        (torch.optim.SGD, dict(momentum=0.9)), (torch.optim.Adam, {}), (torch.optim.Adam, dict(amsgrad=True)), (torch.optim.AdamW, {}),
        (torch.optim.Adagrad, {}), (torch.optim.RMSprop, dict(momentum=0.9)), (torch.optim.Adadelta, {}), (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}), (torch.optim.Adamax, {}), (torch.optim.ASGD, {}), (torch.optim.Rprop, {}),
    ]:
        for how in (dict(fused=True), dict(foreach=True), dict(foreach=False)):
            try:
                params = [torch.nn.Parameter(torch.randn(4, 6)), torch.nn.Parameter(torch.randn(6))]
                optimizer = cls(params, lr=0.1, **options, **how)
            except Exception:
                continue

            def step(params=params, optimizer=optimizer):
                for p in params:
                    p.grad = torch.randn_like(p)
                optimizer.step()
            made += [step, step]
    return made


def by_hand():
    """Calls that no sample makes."""
    a, f = torch.ops.aten, torch.nn.functional
    x, c = torch.randn(4, 6), torch.randn(2, 6, 5)
    mean, var = torch.zeros(6), torch.ones(6)
    made = optimizer_steps()
    for train in (True, False):
        made += [
            lambda t=train: a.native_batch_norm(x, mean, var, mean.clone(), var.clone(), t, 0.1, 1e-5),
            lambda t=train: a._native_batch_norm_legit(x, None, None, mean.clone(), var.clone(), t, 0.1, 1e-5),
            lambda t=train: a._native_batch_norm_legit_functional(x, None, None, mean.clone(), var.clone(), t, 0.1, 1e-5),
            lambda t=train: a.batch_norm(c, None, None, mean.clone(), var.clone(), t, 0.1, 1e-5, False),
            lambda t=train: a.instance_norm(c, None, None, mean.clone(), var.clone(), t, 0.1, 1e-5, False),
            lambda t=train: a._batch_norm_impl_index(c, None, None, mean.clone(), var.clone(), t, 0.1, 1e-5, False),
            lambda t=train: a.rrelu(x, 0.1, 0.3, t),
            lambda t=train: a.rrelu_with_noise(x, torch.zeros(4, 6), 0.1, 0.3, t),
            lambda t=train: a.rrelu_with_noise_(x.clone(), torch.zeros(4, 6), 0.1, 0.3, t),
            lambda t=train: a.dropout(x, 0.5, t), lambda t=train: a.dropout_(x.clone(), 0.5, t),
            lambda t=train: a.native_dropout(x, 0.5, t), lambda t=train: a.feature_dropout(c, 0.5, t),
            lambda t=train: a.alpha_dropout_(x.clone(), 0.5, t), lambda t=train: a.feature_alpha_dropout(c, 0.5, t),
        ]
    made += [
        lambda: a.batch_norm_update_stats(x, mean.clone(), var.clone(), 0.1),
        lambda: a._batch_norm_with_update(x, mean, var, mean.clone(), var.clone(), 0.1, 1e-5),
        lambda: a._batch_norm_no_update(x, mean, var, mean.clone(), var.clone(), 0.1, 1e-5),
        lambda: a._amp_foreach_non_finite_check_and_unscale_([x.clone()], torch.zeros(1), torch.ones(1)),
        lambda: a._amp_foreach_non_finite_check_and_unscale_([x / 0], torch.zeros(1), torch.ones(1)),
        lambda: a._amp_update_scale_(torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1), 2.0, 0.5, 10),
        lambda: f.embedding(torch.tensor([0, 2]), x.clone() * 9, max_norm=1.0),
        lambda: a.embedding_renorm_(x.clone() * 9, torch.tensor([0, 2]), 1.0, 2.0),
        lambda: a.fused_moving_avg_obs_fake_quant(x, torch.ones(1), torch.ones(1), torch.zeros(1), torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.01, 0, 255, -1),
        lambda: a._fused_moving_avg_obs_fq_helper(x, torch.ones(1), torch.ones(1), torch.zeros(1), torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.01, 0, 255, -1),
        lambda: a._thnn_fused_lstm_cell(torch.randn(2, 12), torch.randn(2, 12), torch.randn(2, 3)),
        lambda: a.as_strided_(x.clone(), [2, 3], [1, 2], 1), lambda: a.as_strided(x.clone(), [2, 3], [1, 2], 1),
        lambda: a.as_strided_scatter(x, torch.zeros(2, 3), [2, 3], [1, 2], 1),
        lambda: a.storage_offset(x[1:]), lambda: a.stride(x.t()), lambda: a.sym_storage_offset(x[1:]), lambda: a.sym_stride(x.t()),
        lambda: a.is_contiguous(x.t()), lambda: a.is_non_overlapping_and_dense(x.t()),
        lambda: a.set_.source_Tensor(x.clone(), torch.randn(3)), lambda: a.set_.source_Tensor_storage_offset(x.clone(), torch.randn(9), 1, [2, 2], [2, 1]),
        lambda: a.set_(x.clone()), lambda: a.resize_(x.clone(), [3, 3]), lambda: a.resize_(x.clone(), [5, 9]), lambda: a.resize_as_(x.clone(), torch.randn(2, 2)),
        lambda: a.unsafe_split(x, 2), lambda: a.unsafe_split_with_sizes(x, [1, 3]), lambda: a.unsafe_chunk(x, 2), lambda: a._unsafe_view(x, [24]),
        lambda: a.data(x), lambda: a.detach_(x.clone()), lambda: a.set_data(x.clone(), x), lambda: a.unsqueeze_(x.clone(), 0), lambda: a.squeeze_(x[:1].clone()),
        lambda: a.t_(x.clone()), lambda: a.transpose_(x.clone(), 0, 1), lambda: a.swapdims_(x.clone(), 0, 1), lambda: a.swapaxes_(x.clone(), 0, 1),
        lambda: a.lift(x), lambda: a.lift_fresh(x), lambda: a.lift_fresh_copy(x), lambda: a.alias(x), lambda: a._reshape_alias(x, [24], [1]),
        lambda: a._conj(torch.randn(3, dtype=torch.complex64)), lambda: a._neg_view(x), lambda: a.view_as_real(torch.randn(3, dtype=torch.complex64)),
        lambda: a.seed(x) if hasattr(a, "seed") else None, lambda: a.randn([3]), lambda: a.rand([3]), lambda: a.randint(9, [3]), lambda: a.randperm(5),
        lambda: a.normal_functional(x), lambda: a.uniform(x), lambda: a.exponential(x.abs()), lambda: a.geometric(x, 0.5), lambda: a.log_normal(x),
        lambda: a.cauchy(x), lambda: a.random(x), lambda: a.bernoulli(x.abs() / 9), lambda: a.multinomial(x.abs(), 2), lambda: a.poisson(x.abs()),
        lambda: a._standard_gamma(x.abs()), lambda: a._sample_dirichlet(x.abs()), lambda: a.binomial(torch.full((3,), 5.0), torch.full((3,), 0.5)),
        lambda: a._fused_dropout(x, 0.5), lambda: a.scaled_dot_product_attention(c, c, c, None, 0.5),
        lambda: torch.ops.prims.copy_to(x.clone(), torch.zeros(4, 6)), lambda: torch.ops.prims.resize(x.clone(), [3, 3]),
        lambda: torch.ops.prims.as_strided(x, [2, 2], [1, 2], 1), lambda: torch.ops.prims.normal([3], mean=0.0, std=1.0, dtype=torch.float32, device=torch.device("cpu"), requires_grad=False),
        lambda: torch.ops.prims._uniform_helper([3], low=0.0, high=1.0, dtype=torch.float32, device=torch.device("cpu")),
        lambda: torch.ops.inductor.resize_storage_bytes_(x.clone(), 0), lambda: torch.ops.fsdp.copy_(x.clone(), torch.zeros(4, 6)),
        lambda: torch.ops.fsdp.split_with_sizes_copy(torch.randn(4, 6), [2, 4], 1, out=[torch.zeros(4, 2), torch.zeros(4, 4)]),
        lambda: torch.ops.fsdp.chunk_cat([x, x], 0, 2, out=torch.zeros(2, 24)),
    ]
    p, cpu = torch.ops.prims, torch.device("cpu")
    seeds = torch.tensor([1, 2, 3])
    made += [
        lambda: p.inductor_seed(cpu), lambda: p.inductor_seeds(3, cpu), lambda: p.inductor_lookup_seed(seeds, 1),
        lambda: p.inductor_random([4], torch.tensor(3), "rand"), lambda: p.inductor_random([4], torch.tensor(3), "randn"),
        lambda: p.inductor_randint(0, 9, [4], torch.tensor(3)), lambda: p.inductor_force_stride_order(x.t(), [1, 4]),
        lambda: p.uniform([3], low=0.0, high=1.0, dtype=torch.float32, device=cpu, requires_grad=False, stride=[1]),
        lambda: torch.ops.inductor_prims.inductor_reserve_rng_state(None, 4), lambda: torch.ops.rngprims.philox_rand([4], torch.tensor(1), torch.tensor(0), None, cpu, torch.float32),
        lambda: p.broadcast_in_dim(x, [2, 4, 6], [1, 2]), lambda: p.iota(4, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False),
        lambda: p.empty_permuted([2, 3], [1, 0], dtype=torch.float32, device=cpu, requires_grad=False),
        lambda: p.var(x, [0], 1), lambda: p.xor_sum(torch.tensor([1, 2]), [0]), lambda: a.clip(x, -1, 1), lambda: a.clip_(x.clone(), -1, 1),
        lambda: a.clip.Tensor(x, x - 1, x), lambda: a.clip_.Tensor(x.clone(), x - 1, x), lambda: a.float_power_.Scalar(x.double(), 2), lambda: a.float_power_.Tensor(x.double(), x.double()),
        lambda: a.scatter.value_reduce(x, 0, torch.zeros(4, 6, dtype=torch.int64), 2, reduce="add"), lambda: a.scatter_.value_reduce(x.clone(), 0, torch.zeros(4, 6, dtype=torch.int64), 2, reduce="add"),
        lambda: a._index_put_impl_(x.clone(), [torch.tensor([0, 1])], torch.zeros(6)), lambda: a._unsafe_index.Tensor(x, [torch.tensor([0, 1])]),
        lambda: a._unsafe_index_put(x, [torch.tensor([0, 1])], torch.zeros(6)), lambda: a._no_grad_embedding_renorm_(x.clone() * 9, torch.tensor([0, 2]), 1.0, 2.0),
        lambda: a._foreach_addcdiv_.Tensor([x.clone(), x.clone()], [x, x], [x, x], torch.ones(2)), lambda: a._foreach_addcmul_.Tensor([x.clone(), x.clone()], [x, x], [x, x], torch.ones(2)),
        lambda: a._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5), lambda: a._pack_padded_sequence(torch.randn(3, 2, 4), torch.tensor([3, 2]), False),
        lambda: a.sym_constrain_range_for_size(3, min=0, max=9), lambda: a._assert_async(torch.ones(1)), lambda: a.randint_like.Tensor(x, torch.tensor(9)),
        lambda: a._resize_output_(x.clone(), [3, 3], cpu), lambda: a._sobol_engine_initialize_state_(torch.zeros(3, 30, dtype=torch.int64), 3),
        lambda: a._philox_uniform_(x.clone(), torch.tensor([1, 2], dtype=torch.uint64)), lambda: a._philox_normal_(x.clone(), torch.tensor([1, 2], dtype=torch.uint64)),
        lambda: a.convolution(c, torch.randn(3, 6, 2), None, [1], [0], [1], False, [0], 1),
        lambda: a._convolution(c, torch.randn(3, 6, 2), None, [1], [0], [1], False, [0], 1, False, False, False, False),
    ]
    return made


def hand_calls(calls):
    for function in by_hand():
        attempt(Recorder(calls, "by hand"), function, False)
        attempt(Recorder(calls, "by hand"), function, True)


# ---------------------------------------------------------------- siblings and guesses


def resolve(name):
    namespace, base, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)


def by_argument(schema, args, kwargs):
    named = {arg.name: value for arg, value in zip(schema.arguments, args)}
    named.update(kwargs)
    return named


def missing(arg):
    return not arg.has_default_value()


def from_sibling(schema, sibling, call):
    """Arguments for `schema` from a call of a sibling; outputs are what the sibling returns."""
    args, kwargs = copy_arguments(call[:2])
    named = by_argument(sibling._schema, args, kwargs)
    outs = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write and a.kwarg_only]
    results = []
    if outs:
        again = copy_arguments(call[:2])
        value = sibling(*again[0], **again[1])
        results = list(value) if isinstance(value, (tuple, list)) and len(outs) > 1 else [value]
        if len(results) == 1 and isinstance(results[0], tuple) and str(outs[0].type) == "Tensor":
            results = list(results[0])
        results = [_pytree.tree_map(lambda t: t.clone() if is_tensor(t) else t, r) for r in results]
    positional, keywords, places = [], {}, iter(results)
    given, gap = iter(args), False
    for arg in schema.arguments:
        if arg.name in named:
            value = named[arg.name]
        elif arg in outs or arg.name.startswith("out"):
            value = next(places)
        elif missing(arg):
            value = next(given)
        else:
            gap = True
            continue
        if arg.kwarg_only or gap:
            keywords[arg.name] = value
        else:
            positional.append(value)
    return positional, keywords


PROFILES = [
    lambda: torch.randn(4, 6), lambda: torch.rand(4, 4), lambda: torch.randint(0, 4, (4, 6)), lambda: torch.rand(6) + 0.1,
    lambda: torch.randn(2, 3, 8), lambda: torch.randn(1, 2, 8, 8), lambda: torch.rand(4, 6) > 0.5, lambda: torch.randn(3, 4, dtype=torch.complex64),
    lambda: torch.randint(0, 4, (4,)), lambda: torch.tensor(2.0),
]
NUMBERS = {"dim": [0, 1], "dim0": [0], "dim1": [1], "low": [0], "high": [9], "n": [3], "size": [[4, 6], [24]], "shape": [[24]], "stride": [[6, 1]],
           "dims": [[0], [1, 0], [0, 1]], "kernel_size": [[2, 2], [2]], "output_size": [[4, 4], [4]], "padding": [[0, 0], [1, 1, 1, 1]], "p": [0.5],
           "repeats": [[1, 2]], "diagonal": [0], "split_size": [2], "split_sizes": [[2, 2]], "chunks": [2], "num_classes": [5]}


def guess(arg, make, turn):
    text = str(arg.type)
    if arg.name in NUMBERS:
        choices = NUMBERS[arg.name]
        return choices[turn % len(choices)]
    if text in ("Tensor", "Optional[Tensor]"):
        return make()
    if "List" in text and "Tensor" in text:
        return [make() for _ in range(3)]
    if text == "int":
        return [1, 0, 2][turn % 3]
    if text in ("float", "number"):
        return [0.5, 2][turn % 2]
    if text == "bool":
        return turn % 2 == 1
    if text == "List[int]":
        return [[1, 1], [0, 1], [1]][turn % 3]
    if text in ("List[number]", "List[float]"):
        return [0.5, 2.0, 1.0]
    if text == "List[bool]":
        return [True] * 3
    if text == "Device":
        return torch.device("cpu")
    if text.startswith("Optional"):
        return None
    raise ValueError(text)


def made_up(schema):
    turns = [(make, turn) for make in PROFILES for turn in (0, 1, 2)]
    for make, turn in turns:
        positional, keywords = [], {}
        for arg in schema.arguments:
            written = arg.alias_info is not None and arg.alias_info.is_write
            if not missing(arg) and not written:
                continue
            value = guess(arg, make, turn)
            if arg.name == "dtype" or (arg.name == "a_dtype"):
                value = torch.float32
            if arg.kwarg_only:
                keywords[arg.name] = value
            else:
                positional.append(value)
        yield positional, keywords


def candidates(schema, siblings, calls):
    for sibling in siblings:
        for call in calls.by_name.get(sibling, ())[:4]:
            try:
                yield (*from_sibling(schema, resolve(sibling), call), "sibling")
            except Exception:
                continue
    try:
        for positional, keywords in made_up(schema):
            yield positional, keywords, "guess"
    except ValueError:
        return


def reach(name, schema, siblings, calls):
    """Up to three calls of an overload that run."""
    found = Calls()
    for tries, (args, kwargs, source) in enumerate(candidates(schema, siblings, calls)):
        if tries > 60 or len(found.by_name.get(name, ())) >= 3:
            break
        try:
            if not found.wants(name, args, kwargs):
                continue
            kept = copy_arguments((args, kwargs))
            resolve(name)(*args, **kwargs)
            found.by_name.setdefault(name, []).append((*kept, source))
        except Exception:
            continue
    return found.by_name.get(name, [])


def base_of(name):
    base = name.split(".")[1]
    stem = base.rstrip("_")
    return stem.removesuffix("_functional").removesuffix("_copy")


def in_children(work, items, seconds=20):
    """Runs `work(item)` for each in child processes, begun anew where one ends; yields (item, value or None)."""
    items, at = list(items), 0
    context = multiprocessing.get_context("fork")
    while at < len(items):
        mine, theirs = context.Pipe()

        def child(start):
            torch.set_num_threads(1)
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            for item in items[start:]:
                with tempfile.TemporaryFile() as file:
                    torch.save(work(item), file)
                    file.seek(0)
                    theirs.send_bytes(file.read())
            os._exit(0)

        process = context.Process(target=child, args=(at,), daemon=True)
        process.start()
        theirs.close()
        try:
            while at < len(items):
                try:
                    if not mine.poll(seconds):
                        raise EOFError
                    data = mine.recv_bytes()
                except (EOFError, ConnectionError):
                    yield items[at], None
                    at += 1
                    break
                with tempfile.TemporaryFile() as file:
                    file.write(data)
                    file.seek(0)
                    value = torch.load(file, weights_only=False)
                yield items[at], value
                at += 1
        finally:
            process.kill()
            process.join()
            mine.close()


def schemas():
    """The schemas that calls are looked for, by name of the overload."""
    for module in MODULES:
        importlib.import_module(module)
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = name_of(schema)
        if name.split(".")[0] in NAMESPACES and not any(part in name for part in SKIPPED):
            found[name] = schema
    return dict(sorted(found.items()))


def collect(progress=lambda text: None):
    """All calls: a dict from overload to a list of (args, kwargs, source)."""
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    every = schemas()
    calls = Calls()
    for source in (hand_calls, sample_calls, module_calls):
        source(calls)
        progress(f"{source.__name__}: {len(calls.by_name)} overloads so far")
    families = {}
    for name in every:
        families.setdefault(base_of(name), []).append(name)

    def work(name):
        torch.manual_seed(0)
        siblings = [s for s in families[base_of(name)] if s in calls.by_name]
        return reach(name, every[name], siblings, calls)

    rest = [name for name in every if name not in calls.by_name and not every[name].name.startswith("prim::")]
    lost = []
    for name, found in in_children(work, rest):
        if found is None:
            lost.append(name)
        elif found:
            calls.by_name[name] = found
    progress(f"siblings and guesses: {len(calls.by_name)} of {len(every)} overloads; {len(lost)} ended their process")
    return dict(sorted(calls.by_name.items()))


def load(path, progress=lambda text: None):
    """The calls kept in a file, which is made where it is missing."""
    schemas()
    if not os.path.exists(path):
        torch.save(collect(progress), path)
    return torch.load(path, weights_only=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "bucketeer-torch-calls.pt"))
    out = parser.parse_args().out
    calls = collect(print)
    torch.save(calls, out)
    print(f"{out}: {sum(map(len, calls.values()))} calls of {len(calls)} overloads")


if __name__ == "__main__":
    # What is pickled names this module, not `__main__`.
    import torch_calls
    sys.exit(torch_calls.main())
