#!/usr/bin/env python3
"""Run an FX text graph before and after a rewrite under real PyTorch and compare.

    check_with_pytorch.py BEFORE.txt AFTER.txt [--case case.json] [options]
    check_with_pytorch.py --pairs LIST [options]

The text is executed as it is (Python compiles it; nothing here knows FX). Every
rank is a process of a gloo group; process groups are registered under the names
the graph uses. Each pair is run twice over:

  real     the torch.ops._c10d_functional kernels, untouched. Gloo's all_reduce
           picks its summation order by message size, so sums may differ in the
           last bits; they are compared with a tolerance.
  ordered  the same text under a dispatch mode that replaces only the collectives
           by an exchange that reduces in rank order, so that merged and unmerged
           results must agree bit for bit. Results are poison until waited for,
           inputs must stay unchanged until then, and each annotation of a
           statement is compared with the tensor it describes.

Compared on every rank: structure of the outputs, values, dtype, shape, strides,
the inputs left behind, and which outputs share storage. LIST has one pair a line:
BEFORE AFTER [CASE]. `{rank}` in AFTER, or in both, stands for the rank, for
rank-specific text; .gz files are read directly. Without a case, world size and
groups are inferred. Graphs that a graph calls (`cond`, `invoke_subgraph`) are the
classes inside its class. A group that a mesh gives is the case's first one. Custom
operators are defined by --operators FILE, Python that each rank runs first.

Exit code: 0 all ok, 1 a difference was found, 2 bad usage or a graph that does
not run before the rewrite (SKIP).
"""
import argparse
import ast
import datetime
import gzip
import hashlib
import json
import marshal
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "b8": "bool",
    "c64": "complex64", "c128": "complex128", "c32": "complex32",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
}
# Largest |difference| allowed, as a share of the largest |value| of the output.
TOLERANCE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-4,
             torch.complex64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
REDUCE_OPS = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"}
SYMBOL = re.compile(r"\b[suz]f?\d+\b")
SYMPY = {
    "Max": max, "Min": min, "Abs": abs, "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b, "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b, "ceiling": math.ceil, "floor": math.floor,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "IntTrueDiv": lambda a, b: a / b, "CeilToInt": math.ceil, "FloorToInt": math.floor,
    "CeilDiv": lambda a, b: -(-a // b), "__builtins__": {},
}


# ---------------------------------------------------------------- reading text


# Operators that call graphs or look up groups, and what stands in for them in the scope of the text.
CALLS = {
    "torch.ops.higher_order.cond": "__cond__",
    "torch.ops.higher_order.invoke_subgraph": "__invoke__",
    "torch.ops.higher_order.auto_functionalized_v2": "__functionalized__",
    "torch.ops._dtensor.mesh_get_process_group.default": "__group__",
}


def functionalized(operator, _all_bases=(), **given):
    """Calls an operator that writes on copies of what it writes, as Inductor's operator of this name does."""
    copies = [base.clone() for base in _all_bases]
    args = {}
    for argument in operator._schema.arguments:
        index = given.get(f"_{argument.name}_base_index")
        args[argument.name] = given.get(argument.name) if index is None else copies[index]
    out = operator(**args)
    return (*out, *copies) if isinstance(out, tuple) else (out, *copies)


def read_text(path, as_cpu):
    """FX text as Python: without colours and log prefixes, and with stand-ins for operators that call graphs."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as f:
        text = f.read()
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"(?m)^[VIWE]\d{4} \S+ \d+ \S+\] (\[[^\]]*\] ?)*", "", text)
    text = re.sub(r"(?m)^class .*?(?=\(torch\.nn\.Module\):)", "class GraphModule", text)
    for operator, stand_in in CALLS.items():
        text = text.replace(operator + "(", stand_in + "(")
    if as_cpu:
        text = re.sub(r"device\(type='cuda'(, index=\d+)?\)", "device(type='cpu')", text)
        text = re.sub(r"\]cuda(:\d+)?\"", ']cpu"', text)
    return text


def forward_of(tree):
    """The statements of the last class, or of the text, and its function that is the graph."""
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    body = classes[-1].body if classes else tree.body
    funcs = [n for n in body if isinstance(n, ast.FunctionDef)]
    return body, next((f for f in reversed(funcs) if f.name == "forward"), funcs[-1])


class Graph:
    """What the parent sends to a rank: compiled code and the declared inputs."""

    def __init__(self, path, as_cpu):
        text = read_text(path, as_cpu)
        self.cuda = "cuda" in text
        self.inductor = bool(re.search(r"torch\.ops\.(bucketing|inductor|prims\.(?!convert_element_type\b))", text))
        tree = ast.parse(text)
        self.plain = marshal.dumps(compile(tree, path, "exec"))
        body, func = forward_of(tree)
        self.bodies = [n.name for n in body if isinstance(n, ast.ClassDef)]
        self.func = func.name
        self.is_method = bool(func.args.args) and func.args.args[0].arg == "self"
        declared = {n.target.id: n.annotation.value for n in func.body
                    if isinstance(n, ast.AnnAssign) and n.value is None}
        self.joint = None
        args = [a for a in func.args.posonlyargs + func.args.args if a.arg != "self"]
        self.inputs = [(a.arg, a.annotation.value if a.annotation else None) for a in args]
        self.annotations = dict(self.inputs)
        self.attributes, body = {}, []
        for node in func.body:
            body.append(node)
            if isinstance(node, ast.Assign) and "tree_flatten_spec" in ast.dump(node.value):
                names = [e.id for e in node.targets[0].elts]
                self.joint = len(self.inputs)
                self.inputs = [(n, declared.get(n)) for n in names]
                self.annotations.update(self.inputs)
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                name, note = node.target.id, node.annotation.value
                self.annotations[name] = note
                if isinstance(node.value, ast.Attribute) and getattr(node.value.value, "id", "") == "self":
                    self.attributes[node.value.attr] = note
                check = ast.parse(f"__check__({name!r}, {name}, {note!r})").body[0]
                body.append(ast.fix_missing_locations(ast.copy_location(check, node)))
        self.groups, self.sizes, self.ops, self.reduces = [], set(), {}, False
        for node in ast.walk(func):
            if isinstance(node, ast.Call):
                self._call(node)
        self.returned = [n.id if isinstance(n, ast.Name) else None for n in self._leaves(func)]
        self.symbols = sorted({s for a in self.annotations.values() if a for s in SYMBOL.findall(a)})
        func.body = body
        self.checked = marshal.dumps(compile(tree, path, "exec"))

    def _call(self, node):
        parts = re.fullmatch(r"torch\.ops\.(_c10d_functional|bucketing)\.(\w+)\.\w+", ast.unparse(node.func))
        if not parts or parts[2] == "wait_tensor":
            return
        self.ops[parts[2]] = self.ops.get(parts[2], 0) + 1
        keywords = {k.arg: k.value for k in node.keywords}
        values = node.args + list(keywords.values())
        texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
        names = [t for t in texts if t not in REDUCE_OPS]
        self.reduces |= "reduce" in parts[2]
        self.groups += [n for n in names[-1:] if n not in self.groups]
        at = {"all_gather": 1, "reduce_sca": 2}.get(parts[2][:10])
        size = keywords.get("group_size") or (node.args[at] if at and at < len(node.args) else None)
        if isinstance(size, ast.Constant) and isinstance(size.value, int):
            self.sizes.add(size.value)

    @staticmethod
    def _leaves(func):
        value = next(n.value for n in reversed(func.body) if isinstance(n, ast.Return))
        if isinstance(value, ast.Call):  # pytree.tree_unflatten([...], spec)
            value = value.args[0]
        out = []

        def walk(v):
            if isinstance(v, (ast.Tuple, ast.List)):
                for e in v.elts:
                    walk(e)
            elif isinstance(v, ast.Dict):
                for e in v.values:
                    walk(e)
            else:
                out.append(v)
        walk(value)
        return out


def split_top(text):
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "([" and 1 or (c in ")]" and -1 or 0)
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p for p in parts + [text[start:]] if p.strip()]


class Annotations:
    """Reads `dtype[sizes][strides]device` and `Sym(expr)` under symbol values."""

    def __init__(self, symbols):
        self.symbols, self.cache = symbols, {}

    def value(self, expr):
        return int(eval(expr, dict(SYMPY), self.symbols))

    def __call__(self, note):
        if note not in self.cache:
            self.cache[note] = self._parse(note)
        return self.cache[note]

    def _parse(self, note):
        if note.startswith("Sym("):
            return self.value(note[4:-1])
        m = re.fullmatch(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?([\w:]*)", note)
        if not m or m[1] not in DTYPES:
            raise ValueError(f"annotation not understood: {note}")
        sizes = [self.value(e) for e in split_top(m[2])]
        strides = None if m[3] is None else [self.value(e) for e in split_top(m[3])]
        return getattr(torch, DTYPES[m[1]]), sizes, strides

    def mismatch(self, note, value):
        if note is None:
            return None
        want = self(note)
        if isinstance(want, int):
            return None if value == want else f"is {value}, annotated {note}"
        if not isinstance(value, torch.Tensor):
            return f"is {type(value).__name__}, annotated {note}"
        dtype, sizes, strides = want
        if value.dtype != dtype or list(value.shape) != sizes:
            return f"is {describe(value)}, annotated {note}"
        if strides is not None and not same_strides(sizes, list(value.stride()), strides):
            return f"has strides {list(value.stride())}, annotated {note}"
        return None


def same_strides(sizes, a, b):
    return 0 in sizes or all(n <= 1 or x == y for n, x, y in zip(sizes, a, b))


def describe(v):
    return f"{v.dtype}{list(v.shape)}{list(v.stride())}" if isinstance(v, torch.Tensor) else repr(v)


# ------------------------------------------------------------- one rank's work


class Opaque:
    """Stands for an input without annotation; it can only be handed through."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<opaque {self.name}>"


def make_input(name, note, notes, seed, rank, int_limit, group=None):
    if note is None:
        return group if group and name.startswith("mesh_get_process_group") else Opaque(name)
    want = notes(note)
    if isinstance(want, int):
        return want
    dtype, sizes, strides = want
    if strides is None:
        strides = list(torch.empty(sizes, device="meta").stride())
    extent = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
    digest = hashlib.sha256(f"{seed}/{name}/{rank}".encode()).digest()
    gen = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    if dtype == torch.bool:
        flat = torch.randint(0, 2, (extent,), generator=gen).bool()
    elif dtype.is_floating_point or dtype.is_complex:
        # Away from zero and not large: quotients and exponentials stay finite.
        flat = torch.rand(extent, generator=gen) + 0.1
        flat = flat * (torch.randint(0, 2, (extent,), generator=gen) * 2 - 1)
        flat = flat.to(dtype)
    else:
        # Small, as they may be indices. The first is the largest on each rank, so
        # that an index out of range stops all ranks alike.
        flat = torch.randint(0, int_limit, (extent,), generator=gen)
        flat[:1] = int_limit - 1
        flat = flat.to(dtype)
    return flat.as_strided(sizes, strides)


def bits(t):
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


class OrderedCollectives(TorchDispatchMode):
    """Replaces the functional collectives; sums run in rank order, element by element."""

    def __init__(self, groups):
        super().__init__()
        self.groups, self.pending, self.notes = groups, {}, set()

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        if func.namespace != "_c10d_functional":
            return func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        method = getattr(self, name, None)
        if method is None:
            raise NotImplementedError(f"_c10d_functional.{name} in the ordered path")
        return method(*args, **(kwargs or {}))

    # exchange: what every member of the group passed, in rank order
    def gather(self, x, name, size=None):
        pg = self.group(name, size)
        mine = bits(x)
        parts = [torch.empty_like(mine) for _ in range(pg.size())]
        if mine.numel():
            dist.all_gather(parts, mine.clone(), group=pg)
        return [p.view(x.dtype).reshape(x.shape) for p in parts]

    def group(self, name, size=None):
        if name not in self.groups:
            raise RuntimeError(f"no process group is registered under {name!r}")
        pg = self.groups[name]
        if size is not None and size != pg.size():
            raise RuntimeError(f"group_size {size}, but group {name!r} has {pg.size()} ranks")
        return pg

    @staticmethod
    def reduce(parts, op):
        dtype = parts[0].dtype
        if dtype.itemsize == 1 and dtype.is_floating_point:
            parts = [p.float() for p in parts]
        step = {"sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum,
                "max": torch.maximum, "band": torch.bitwise_and, "bor": torch.bitwise_or,
                "bxor": torch.bitwise_xor}[op.lower()]
        total = parts[0].clone()
        for p in parts[1:]:
            total = step(total, p)
        if op.lower() == "avg":
            whole = not (dtype.is_floating_point or dtype.is_complex)
            total = torch.div(total, len(parts), rounding_mode="trunc" if whole else None)
        return total.to(dtype)

    def start(self, result, source, out=None):
        source_then = source.clone()
        if out is None:
            out = torch.empty_like(result, memory_format=torch.contiguous_format)
        elif list(out.shape) != list(result.shape) or out.dtype != result.dtype:
            raise RuntimeError(f"out is {describe(out)}, the result {describe(result)}")
        shares = out.untyped_storage()._cdata == source.untyped_storage()._cdata
        if out.dtype == torch.bool:
            out.fill_(True)
        elif out.numel():
            out.copy_(torch.full((out.numel() * out.itemsize,), 255, dtype=torch.uint8)
                      .view(out.dtype).reshape(out.shape))
        key = out.untyped_storage()._cdata
        self.pending.setdefault(key, []).append((out, result, None if shares else (source, source_then)))
        return out

    def wait_tensor(self, input):
        self.finish(input.untyped_storage()._cdata)
        return input

    def finish(self, key):
        for out, result, source in self.pending.pop(key, ()):
            out.copy_(result)
            if source and not torch.equal(bits(source[0]), bits(source[1])):
                self.notes.add("input of a collective changed before its wait")

    def finish_all(self):
        for key in list(self.pending):
            self.finish(key)

    def all_gather_into_tensor(self, input, group_size, group_name, out=None):
        parts = self.gather(input.reshape(1) if input.dim() == 0 else input, group_name, group_size)
        if out is not None and out.untyped_storage()._cdata == input.untyped_storage()._cdata:
            slot = out.storage_offset() + self.group(group_name).rank() * input.numel()
            lo, hi = input.storage_offset(), input.storage_offset() + input.numel()
            overlaps = lo < out.storage_offset() + out.numel() and out.storage_offset() < hi
            if overlaps and lo != slot:
                self.notes.add("in-place gather from a slot that is not this rank's")
        return self.start(torch.cat(parts), input, out)

    all_gather_into_tensor_out = all_gather_into_tensor

    def all_gather_into_tensor_coalesced(self, inputs, group_size, group_name):
        return [self.all_gather_into_tensor(x, group_size, group_name) for x in inputs]

    def reduce_scatter_tensor(self, input, reduce_op, group_size, group_name, out=None):
        pg = self.group(group_name, group_size)
        if input.shape[0] % group_size:
            raise RuntimeError(f"reduce_scatter of {describe(input)} over {group_size} ranks")
        rows = input.shape[0] // group_size
        at = pg.rank() * rows
        parts = [p[at:at + rows] for p in self.gather(input, group_name)]
        return self.start(self.reduce(parts, reduce_op), input, out)

    reduce_scatter_tensor_out = reduce_scatter_tensor

    def reduce_scatter_tensor_coalesced(self, inputs, reduce_op, group_size, group_name):
        return [self.reduce_scatter_tensor(x, reduce_op, group_size, group_name) for x in inputs]

    def all_reduce(self, input, reduce_op, group_name):
        return self.start(self.reduce(self.gather(input, group_name), reduce_op), input)

    def all_reduce_(self, input, reduce_op, group_name):
        return self.start(self.reduce(self.gather(input, group_name), reduce_op), input, input)

    def all_reduce_coalesced(self, inputs, reduce_op, group_name):
        return [self.all_reduce(x, reduce_op, group_name) for x in inputs]

    def all_reduce_coalesced_(self, inputs, reduce_op, group_name):
        return [self.all_reduce_(x, reduce_op, group_name) for x in inputs]

    def broadcast(self, input, src, group_name):
        return self.start(self.gather(input, group_name)[src], input)

    def broadcast_(self, input, src, group_name):
        return self.start(self.gather(input, group_name)[src], input, input)

    def all_to_all_single(self, input, output_split_sizes, input_split_sizes, group_name):
        pg = self.group(group_name)
        row = input[:1].numel() * input.itemsize if input.shape[0] else 0
        result = input.new_empty([sum(output_split_sizes), *input.shape[1:]])
        got = torch.empty(result.numel() * result.itemsize, dtype=torch.uint8)
        dist.all_to_all_single(got, bits(input).clone(), [row * n for n in output_split_sizes],
                               [row * n for n in input_split_sizes], group=pg)
        return self.start(got.view(input.dtype).reshape(result.shape), input)


class Rank:
    """Answers the parent's requests, one phase of one pair at a time."""

    def __init__(self, rank, world, store, timeout, operators):
        torch.set_num_threads(1)
        if operators:
            with open(operators) as f:
                exec(compile(f.read(), operators, "exec"), {"torch": torch})
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=timeout))
        self.rank, self.made, self.names = rank, {}, {}
        self.registry = torch._C._distributed_c10d
        self.registry._unregister_process_group(dist.group.WORLD.group_name)
        self.made[tuple(range(world))] = dist.group.WORLD

    def load(self, graphs, groups, symbols, seed):
        for name in self.names:
            self.registry._unregister_process_group(name)
        self.names = {}
        for name, subgroups in groups.items():
            for ranks in subgroups:
                key = tuple(ranks)
                if key not in self.made:
                    pg = self.made[key] = dist.new_group(ranks)
                    if self.rank in key:
                        self.registry._unregister_process_group(pg.group_name)
                if self.rank in key:
                    self.names[name] = self.made[key]
        for name, pg in self.names.items():
            self.registry._register_process_group(name, pg)
        if any(g["inductor"] for g in graphs.values()):
            import torch._inductor.fx_passes.bucketing  # noqa: F401  registers torch.ops.bucketing
            import torch._inductor.inductor_prims  # noqa: F401  registers prims.fma
        self.graphs, self.notes, self.seed = graphs, Annotations(symbols), seed
        self.opaque, self.results = {}, {}

    def run(self, which, path, int_limit):
        g = self.graphs[which]
        group = next(iter(self.names), None)

        def make(name, note):
            # What may decide a branch is the same on all ranks, as collectives in branches need.
            single = g["bodies"] and note is not None and re.match(r"\w+\[1?\]", note)
            return make_input(name, note, self.notes, self.seed, 0 if single else self.rank, int_limit, group)

        inputs = []
        for name, note in g["inputs"]:
            x = make(name, note)
            inputs.append(self.opaque.setdefault(name, x) if isinstance(x, Opaque) else x)
        wrong = {}

        def check(name, value, note):
            problem = self.notes.mismatch(note, value)
            if problem:
                wrong[name] = f"{name} {problem}"

        scope = {
            "torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "math": math,
            "NoneType": type(None), "__check__": check,
            "__cond__": lambda taken, yes, no, args: (yes if bool(taken) else no)(*args),
            "__invoke__": lambda body, name, *args: body(*args),
            "__functionalized__": functionalized, "__group__": lambda mesh, dim: group,
            "fx_pytree": types.SimpleNamespace(tree_flatten_spec=lambda tree, spec: tree),
            "pytree": types.SimpleNamespace(tree_unflatten=lambda leaves, spec: leaves),
        }
        exec(marshal.loads(g["checked" if path == "ordered" else "plain"]), scope)
        this = types.SimpleNamespace(_in_spec=None, _out_spec=None)
        for name, note in g["attributes"].items():
            setattr(this, name, make("self." + name, note))
        for name in g["bodies"]:
            setattr(this, name, getattr(scope["GraphModule"], name)())
        func = getattr(scope["GraphModule"], g["func"]) if g["is_method"] else scope[g["func"]]
        call = list(inputs)
        if g["joint"] is not None:
            # The graph unpacks its inputs from the tree itself; hand it the flat list.
            scope["fx_pytree"].tree_flatten_spec = lambda tree, spec: call
            first = [None] * g["joint"]
        else:
            first = call
        collectives, notes = None, set()
        with torch.no_grad():
            if path == "ordered":
                collectives = OrderedCollectives(self.names)
                with collectives:
                    out = func(*([this] if g["is_method"] else []), *first)
                collectives.finish_all()
                notes = collectives.notes
            else:
                out = func(*([this] if g["is_method"] else []), *first)
                for leaf in _pytree.tree_leaves(out):  # a returned collective is the caller's to wait for
                    if isinstance(leaf, torch.Tensor):
                        torch.ops._c10d_functional.wait_tensor.default(leaf)
        leaves, spec = _pytree.tree_flatten(out)
        for name, value, at in zip(g["returned"], leaves, range(len(leaves))):
            problem = self.notes.mismatch(g["annotations"].get(name), value)
            if problem:
                wrong.setdefault(name, f"output {at} ({name}) {problem}")
        if not isinstance(out, (tuple, list, dict)):
            spec = "single"
        self.results[which] = dict(leaves=leaves, spec=str(spec).replace("list", "tuple"),
                                   inputs=inputs, wrong=wrong, notes=notes)

    def compare(self, tolerant):
        """List of (kind, message), largest relative difference, non-finite share."""
        a, b = self.results["before"], self.results["after"]
        found, worst = [], 0.0
        if a["spec"] != b["spec"]:
            found.append(("structure", f"{len(a['leaves'])} outputs before, {len(b['leaves'])} after"))
            return found, worst, 0.0
        labels = [f"output {i} ({n or type(v).__name__})" for i, (n, v) in
                  enumerate(zip(self.graphs["before"]["returned"], a["leaves"]))]
        names = [n for n, _ in self.graphs["before"]["inputs"]]
        rows = list(zip(labels, a["leaves"], b["leaves"]))
        rows += [(f"input {n} left behind", x, y) for n, x, y in zip(names, a["inputs"], b["inputs"])]
        bad = total = 0
        for label, x, y in rows:
            if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
                if x is not y and (type(x) != type(y) or x != y):
                    found.append(("value", f"{label}: {describe(x)} before, {describe(y)} after"))
                continue
            if x.dtype != y.dtype or x.shape != y.shape or x.device != y.device:
                found.append(("shape", f"{label}: {describe(x)} before, {describe(y)} after"))
                continue
            if not same_strides(list(x.shape), list(x.stride()), list(y.stride())):
                found.append(("strides", f"{label}: {describe(x)} before, {describe(y)} after"))
            total += x.numel()
            if x.dtype.is_floating_point or x.dtype.is_complex:
                bad += int((~torch.isfinite(x.to(torch.complex128 if x.dtype.is_complex else torch.float64))).sum())
            if torch.equal(bits(x), bits(y)):
                continue
            share, diff = difference(x, y)
            if share == 0 and diff == 0:
                continue  # only the payload of a NaN
            limit = TOLERANCE.get(x.dtype, 0) if tolerant else 0
            worst = max(worst, share)
            if not limit or not share <= limit:
                found.append(("value", f"{label}: max difference {diff:.3g} ({share:.1e} of the largest value)"))
        for name, text in b["wrong"].items():
            if name not in a["wrong"]:
                found.append(("annotation", text))
        found += [("race", n) for n in sorted(b["notes"] - a["notes"])]
        for i, j in sorted(self.shared(b) - self.shared(a)):
            everything = labels + [f"input {n}" for n in names]
            found.append(("aliasing", f"{everything[i]} and {everything[j]} share storage after, not before"))
        return found, worst, bad / max(total, 1)

    @staticmethod
    def shared(run):
        at = {}
        for i, v in enumerate(run["leaves"] + run["inputs"]):
            if isinstance(v, torch.Tensor) and v.untyped_storage().nbytes():
                at.setdefault(v.untyped_storage()._cdata, []).append(i)
        return {(p, q) for g in at.values() for n, p in enumerate(g) for q in g[n + 1:]}


def difference(x, y):
    wide = torch.complex128 if x.dtype.is_complex else torch.float64
    x, y = x.to(wide), y.to(wide)
    same = (x == y) | (x.isnan() & y.isnan())
    if bool(same.all()):
        zero_sign = not x.is_complex() and bool((torch.signbit(x) != torch.signbit(y))[~x.isnan()].any())
        return (math.inf, 0.0) if zero_sign else (0.0, 0.0)
    diff = (x - y).abs()[~same]
    if not bool(diff.isfinite().all()):
        return math.inf, math.inf
    scale = torch.cat([x[x.isfinite()].abs(), y[y.isfinite()].abs()]).max().item()
    return diff.max().item() / max(scale, 1e-300), diff.max().item()


def rank_main(rank, world, store, timeout, operators, pipe):
    me = None
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            me = me or Rank(rank, world, store, timeout, operators)
            pipe.send((True, getattr(me, request[0])(*request[1:])))
        except Exception as e:
            text = " ".join(str(e).split())
            pipe.send((False, f"{type(e).__name__}: {text[:300]}"))


# ------------------------------------------------------------------ the parent


class Failed(Exception):
    pass


class Pool:
    """The ranks of one world size, kept for all pairs of that size."""

    def __init__(self, world, timeout, operators):
        self.timeout, self.grace = timeout, min(10, timeout)
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("fork")
        self.pipes, self.ranks, self.dead = [], [], False
        for rank in range(world):
            mine, theirs = context.Pipe()
            p = context.Process(target=rank_main, daemon=True,
                                args=(rank, world, os.path.join(self.folder.name, "store"), timeout, operators, theirs))
            p.start()
            theirs.close()
            self.pipes.append(mine)
            self.ranks.append(p)

    def ask(self, *request, each=None):
        """All ranks do the same; the answers, or Failed with the first complaint."""
        for rank, pipe in enumerate(self.pipes):
            pipe.send(each(rank) if each else request)
        waiting, answers = dict(enumerate(self.pipes)), {}
        deadline = time.monotonic() + self.timeout
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting.values()), max(0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [r for r, p in waiting.items() if p in ready]:
                try:
                    answers[rank] = waiting[rank].recv()
                except EOFError:
                    answers[rank] = (False, "the rank's process died")
                del waiting[rank]
                if not answers[rank][0]:  # the others may now wait for it forever
                    deadline = min(deadline, time.monotonic() + self.grace)
        errors = [f"rank {r}: {a[1]}" for r, a in sorted(answers.items()) if not a[0]]
        if waiting:
            self.close()
            raise Failed(errors[0] if errors else f"ranks {sorted(waiting)} hang")
        if errors:
            raise Failed(errors[0])
        return [answers[r][1] for r in sorted(answers)]

    def close(self):
        self.dead = True
        for p in self.ranks:
            p.kill()
        for p in self.ranks:
            p.join()
        self.folder.cleanup()


class Checker:
    def __init__(self, options):
        self.options, self.pools, self.graphs = options, {}, {}

    def pool(self, world):
        if world not in self.pools or self.pools[world].dead:
            self.pools[world] = Pool(world, self.options.timeout, self.options.operators)
        return self.pools[world]

    def graph(self, path):
        if path not in self.graphs:
            if len(self.graphs) > 8:
                self.graphs.clear()
            self.graphs[path] = Graph(path, self.options.as_cpu)
        return self.graphs[path]

    def check(self, before_path, after_path, case_path):
        """(status, text)"""
        opt = self.options
        case = {}
        if case_path:
            with open(case_path) as f:
                case = json.load(f)
        first = self.graph(before_path.replace("{rank}", "0"))
        before = first
        world = opt.world or case.get("world_size") or (max(before.sizes) if len(before.sizes) == 1 else 1)
        try:
            afters = [self.graph(after_path.replace("{rank}", str(r)))
                      for r in range(world if "{rank}" in after_path else 1)]
            befores = [self.graph(before_path.replace("{rank}", str(r)))
                       for r in range(world if "{rank}" in before_path else 1)]
        except (SyntaxError, StopIteration, AttributeError, IndexError) as e:
            return "FAIL", f"after is not Python that FX prints: {e}"
        if before.cuda or any(a.cuda for a in afters):
            return "SKIP", "for cuda (see --as-cpu)"
        for a in afters:
            if a.inputs != before.inputs:
                return "FAIL", "the inputs differ in name, order or annotation"
        groups = {n: [list(range(world))] for g in [before, *afters] for n in g.groups}
        groups.update(case.get("groups", {}))
        symbols = dict(case.get("symbols", {}))
        symbols.update(opt.symbols)
        free = sorted({s for g in [before, *afters] for s in g.symbols} - set(symbols))
        symbols.update({s: (i + 2) * world for i, s in enumerate(free)})

        send = lambda g: {k: v for k, v in vars(g).items() if k not in ("groups", "sizes", "ops", "symbols")}
        pool = self.pool(world)
        load = lambda rank: ("load", {"before": send(befores[rank % len(befores)]),
                                      "after": send(afters[rank % len(afters)])},
                             groups, symbols, opt.seed)
        info = f"ranks={world} outputs={len(before.returned)} collectives={sum(before.ops.values())}"
        info += f"->{sum(n for k, n in afters[0].ops.items() if not k.startswith('_pre'))}"
        problems, skipped, states = [], [], []
        int_limit = opt.int_limit
        for path in opt.paths:
            pool = self.pool(world)
            try:
                pool.ask(each=load)
                while True:
                    try:
                        pool.ask("run", "before", path, int_limit)
                        break
                    except Failed as e:
                        if pool.dead or int_limit == 1 or not re.search(r"index|bound", str(e)):
                            raise
                        int_limit //= 2  # an integer input indexes something smaller
            except Failed as e:
                skipped.append(f"{path}: before does not run: {e}")
                states.append(f"{path}=n/a")
                continue
            try:
                pool.ask("run", "after", path, int_limit)
                tolerant = opt.tolerance == "sum" or (
                    opt.tolerance == "auto" and path == "real" and (before.reduces or any(a.reduces for a in afters)))
                answers = pool.ask("compare", tolerant)
            except Failed as e:
                problems.append(f"{path}: after does not run: {e}")
                states.append(f"{path}=FAIL")
                continue
            worst = max(a[1] for a in answers)
            state = f"close({worst:.1e})" if worst else "exact"
            finite = max(a[2] for a in answers)
            if finite:
                state += f",nonfinite={finite:.1%}"
            kinds, allowed = {}, 0
            for rank, (found, _, _) in enumerate(answers):
                for kind, text in found:
                    if kind in opt.allow:
                        allowed += 1
                    else:
                        kinds.setdefault(kind, []).append((rank, text))
            for kind, hits in kinds.items():
                rank, text = hits[0]
                more = f" (+{len(hits) - 1} more)" if len(hits) > 1 else ""
                problems.append(f"{path}: {kind}: rank {rank}: {text}{more}")
            if allowed:
                state += f",allowed={allowed}"
            states.append(f"{path}={'FAIL' if kinds else state}")
        info += " " + " ".join(states)
        if problems:
            return "FAIL", info + "".join("\n        " + p for p in problems + skipped)
        if len(skipped) == len(opt.paths) or "ordered=n/a" in states:
            return "SKIP", info + "".join("\n        " + p for p in skipped)
        return "ok", info + "".join("\n        note: " + p for p in skipped)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("--case", help="case.json: world_size, groups (name -> lists of ranks), symbols")
    parser.add_argument("--pairs", metavar="LIST", help="file of lines `BEFORE AFTER [CASE]`; - for stdin")
    parser.add_argument("--world", type=int, help="number of ranks, over that of the case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", choices=["auto", "exact", "sum"], default="auto",
                        help="auto: sums may differ in rounding on the real path only")
    parser.add_argument("--paths", default="real,ordered", type=lambda s: s.split(","), help="default: real,ordered")
    parser.add_argument("--allow", default="", type=lambda s: set(filter(None, s.split(","))),
                        help="kinds that are no failure: strides, aliasing, annotation, race")
    parser.add_argument("--symbols", default="", help="s0=4,s1=8; over those of the case")
    parser.add_argument("--int-limit", type=int, default=4, help="integer inputs are below this, or less if need be")
    parser.add_argument("--operators", metavar="FILE", help="Python that defines custom operators")
    parser.add_argument("--as-cpu", action="store_true", help="run text for cuda on the CPU")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run of one graph")
    options = parser.parse_args()
    if not set(options.paths) <= {"real", "ordered"}:
        parser.error("--paths takes real and ordered")
    options.symbols = {k: int(v) for k, v in (p.split("=") for p in options.symbols.split(",") if p)}
    if options.pairs:
        with (sys.stdin if options.pairs == "-" else open(options.pairs)) as f:
            rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
        if any(len(r) not in (2, 3) for r in rows):
            parser.error("a line of --pairs is BEFORE AFTER [CASE]")
        pairs = [(r[0], r[1], r[2] if len(r) == 3 else options.case) for r in rows]
    elif options.before and options.after:
        pairs = [(options.before, options.after, options.case)]
    else:
        parser.error("give BEFORE and AFTER, or --pairs")

    checker, counts, began = Checker(options), {"ok": 0, "FAIL": 0, "SKIP": 0}, time.monotonic()
    for before, after, case in pairs:
        start = time.monotonic()
        try:
            status, text = checker.check(before, after, case)
        except OSError as e:
            status, text = "SKIP", str(e)
        counts[status] += 1
        label = "/".join(before.split("/")[-2:])
        print(f"{status:<5} {label} {time.monotonic() - start:.1f}s {text}", flush=True)
    for pool in checker.pools.values():
        if not pool.dead:
            pool.close()
    if len(pairs) > 1:
        print(f"{counts['ok']} ok, {counts['FAIL']} failed, {counts['SKIP']} skipped in {time.monotonic() - began:.1f}s")
    return 1 if counts["FAIL"] else 2 if counts["SKIP"] else 0


if __name__ == "__main__":
    sys.exit(main())
