#!/usr/bin/env python3
"""Change graphs in one place, and see that `bucketeer verify` calls equal only what PyTorch does.

    adversary_with_pytorch.py [--bucketeer PATH] [--pairs N] [--keep DIR] [--calls FILE]
                              [--seed S] [--jobs N] [--seconds S] [--only WORD] [--part PART]

Three parts make pairs of graphs that differ in one place:

  operators    for each operator that writes, is a view or draws random numbers (with
               a call that torch_calls.py found), a graph of that call between two
               collectives, and changes of it
  collectives  each collective of `_c10d_functional`, and changes of each attribute
  merges       graphs that `bucketeer rewrite` merged, and changes of what it wrote

A change is one of: a number, a truth value, a text or a dtype of an argument (reduce
operation, group, root and splits among them); two arguments swapped, or one replaced
by another of its type; a keyword left out; a statement left out, doubled, or moved over
the next; a copy put in place of a value, which parts memory that was shared; an in-place
operator made functional or the reverse; the operator of another library with the same
name. Types of the changed graph are those that PyTorch gives it, so that it is refused
for what it does and not for how it is written.

Both graphs of a pair run on two ranks (torch_ranks.py) from the same inputs, on several
sets of them. What verify calls equal (exit code 0) must give equal outputs and leave
equal inputs, bit for bit. Exit code: 0 so it is, 1 a pair is called equal that is not.
"""
import argparse
import ast
import collections
import concurrent.futures
import copy
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import differential_with_pytorch as differential
import torch_calls
import torch_ranks
from differential_with_pytorch import Builder, Skip, Trial, annotation, drawn_options, on_rank, text_of
from torch_calls import NAMES, is_tensor
from torch_ranks import DIFFERENT, EQUAL, NotRun, Text

warnings.filterwarnings("ignore")

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = {"0": [[0, 1]], "solo": [[0], [1]]}
REDUCTIONS = ["sum", "avg", "max", "min", "product"]
DTYPES = ["float32", "bfloat16", "float64", "int64"]


# ---------------------------------------------------------------- a graph that can be changed


class Source:
    """A graph as statements of Python: inputs, lines without annotations, outputs."""

    def __init__(self, inputs, lines, outputs):
        self.inputs, self.outputs = inputs, list(outputs)
        self.lines = [ast.parse(re.sub(r'^(\w+): "[^"]*" = ', r"\1 = ", line)).body[0] for line in lines]

    def copy(self):
        other = copy.copy(self)
        other.lines, other.outputs = copy.deepcopy(self.lines), list(self.outputs)
        return other

    def text(self):
        return text_of(self.inputs, [ast.unparse(ast.fix_missing_locations(line)) for line in self.lines], self.outputs)

    def annotated(self):
        """The text with the types that PyTorch gives."""
        notes = {}

        def watch(names):
            for name, value in names.items():
                if is_tensor(value) and name not in notes and value.dtype in NAMES:
                    notes[name] = annotation(value)
        torch_ranks.run(Text(self.text(), apart=True), self.given(0), watch=watch)
        lines = []
        for line in self.lines:
            text = ast.unparse(ast.fix_missing_locations(line))
            name = re.match(r"(\w+) = ", text)
            lines.append(re.sub(r"^(\w+) = ", lambda m: f'{m[1]}: "{notes[m[1]]}" = ', text) if name and name[1] in notes else text)
        return text_of(self.inputs, lines, self.outputs)

    def given(self, variant):
        def one(tensor, rank):
            tensor = on_rank(tensor, rank)
            if variant and tensor.is_floating_point() and tensor.element_size() > 1 and 0 not in tensor.stride():
                tensor.add_(torch.rand(tensor.shape).to(tensor.dtype))
            return tensor
        torch.manual_seed(variant)
        return [[one(tensor, rank) for _, tensor in self.inputs] for rank in range(2)]

    def run(self, variant=0):
        return list(torch_ranks.run(Text(self.text()), self.given(variant)))


def target(line):
    if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
        return line.targets[0].id
    return None


def names_in(node):
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in ("torch", "device", "operator", "inf", "nan")]


def operands(line):
    value = getattr(line, "value", None)
    return names_in(value) if value is not None else []


def called(line):
    value = getattr(line, "value", None)
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


# ---------------------------------------------------------------- changes

# Each yields functions that change a copy of the source at line `at`.


def literals(source, at):
    value = getattr(source.lines[at], "value", None)
    return [n for n in ast.walk(value) if isinstance(n, ast.Constant)] if value is not None else []


def change_literal(fits, values):
    def changes(source, at):
        for number, node in enumerate(literals(source, at)):
            if not fits(node.value):
                continue
            for value in values(node.value):
                def change(copied, number=number, value=value):
                    literals(copied, at)[number].value = value
                yield change
    return changes


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def other_text(value):
    if value in REDUCTIONS:
        return [op for op in REDUCTIONS if op != value]
    if value == "0":
        return ["solo"]
    return {"mean": ["sum"], "sum": ["mean"], "reflect": ["constant"], "floor": ["trunc"], "trunc": ["floor"], "add": ["multiply"], "none": ["tanh"]}.get(value, [])


def change_dtype(source, at):
    value = getattr(source.lines[at], "value", None)
    found = [n for n in ast.walk(value) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "torch" and n.attr in DTYPES] if value else []
    for number, node in enumerate(found):
        for dtype in DTYPES:
            if dtype != node.attr:
                def change(copied, number=number, dtype=dtype):
                    nodes = [n for n in ast.walk(copied.lines[at].value) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "torch" and n.attr in DTYPES]
                    nodes[number].attr = dtype
                yield change


def change_operand(source, at):
    """Another value in place of an operand: one known before, so two arguments swapped, too, come out of it."""
    known = [name for name, _ in source.inputs] + [target(line) for line in source.lines[:at] if target(line)]
    for number, node in enumerate(operands(source.lines[at])):
        for other in known[-6:]:
            if other != node.id:
                def change(copied, number=number, other=other):
                    operands(copied.lines[at])[number].id = other
                yield change


def change_swap(source, at):
    found = operands(source.lines[at])
    for i in range(len(found)):
        for j in range(i + 1, len(found)):
            if found[i].id != found[j].id:
                def change(copied, i=i, j=j):
                    nodes = operands(copied.lines[at])
                    nodes[i].id, nodes[j].id = nodes[j].id, nodes[i].id
                yield change


def change_keyword(source, at):
    value = getattr(source.lines[at], "value", None)
    for number in range(len(value.keywords) if isinstance(value, ast.Call) else 0):
        yield lambda copied, number=number: copied.lines[at].value.keywords.pop(number)
    for number in range(1, len(value.args) if isinstance(value, ast.Call) else 0):
        if isinstance(value.args[number], ast.Constant) and number == len(value.args) - 1:
            yield lambda copied, number=number: copied.lines[at].value.args.pop(number)


def change_drop(source, at):
    """The statement left out; its first operand stands for its value."""
    name, found = target(source.lines[at]), operands(source.lines[at])

    def change(copied):
        del copied.lines[at]
        if name and found:
            rename(copied, at, name, found[0].id)
    yield change


def rename(source, start, old, new):
    for line in source.lines[start:]:
        for node in ast.walk(line):
            if isinstance(node, ast.Name) and node.id == old:
                node.id = new
    source.outputs = [new if name == old else name for name in source.outputs]


def change_double(source, at):
    name = target(source.lines[at])

    def change(copied):
        again = copy.deepcopy(copied.lines[at])
        if name:
            again.targets[0].id = "again"
        copied.lines.insert(at + 1, again)
    yield change
    if name:
        def use(copied):
            change(copied)
            rename(copied, at + 2, name, "again")
        yield use


def change_order(source, at):
    for distance in (1, 2, 3):
        later = at + distance
        if later >= len(source.lines):
            break
        made = {target(line) for line in source.lines[at:later]}
        if made & {n.id for n in names_in(source.lines[later])}:
            continue
        yield lambda copied, later=later: copied.lines.insert(at, copied.lines.pop(later))


def change_copy(source, at):
    """A copy instead of the value itself: what shared memory does no more, and lies elsewhere."""
    name = target(source.lines[at])
    if name and not called(source.lines[at]).startswith("torch.ops._c10d_functional") or "wait_tensor" in called(source.lines[at]):
        def change(copied):
            rename(copied, at + 1, name, "copied")
            copied.lines.insert(at + 1, ast.parse(f"copied = torch.ops.aten.clone.default({name})").body[0])
        yield change
    for number, node in enumerate(operands(source.lines[at])):
        def before(copied, number=number, node=node):
            operands(copied.lines[at])[number].id = "copied"
            copied.lines.insert(at, ast.parse(f"copied = torch.ops.aten.clone.default({node.id})").body[0])
        yield before


def change_cast(source, at):
    for number, node in enumerate(operands(source.lines[at])):
        def change(copied, number=number, node=node):
            operands(copied.lines[at])[number].id = "narrow"
            copied.lines[at:at] = ast.parse(f"short = torch.ops.aten._to_copy.default({node.id}, dtype=torch.bfloat16)\nnarrow = torch.ops.aten._to_copy.default(short, dtype=torch.float32)").body
        yield change


def change_inplace(source, at):
    match = re.fullmatch(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)", called(source.lines[at]))
    if not match:
        return
    namespace, base, overload = match.groups()
    other = base[:-1] if base.endswith("_") else base + "_"
    if hasattr(getattr(torch.ops, namespace), other):
        def change(copied):
            copied.lines[at].value.func = ast.parse(f"torch.ops.{namespace}.{other}.{overload}", mode="eval").body
        yield change


def change_library(source, at):
    match = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", called(source.lines[at]))
    if match and of_mylib(*match.groups()):
        def change(copied):
            copied.lines[at].value.func = ast.parse(f"torch.ops.mylib.{match[1]}.{match[2]}", mode="eval").body
        yield change


MYLIB = torch.library.Library("mylib", "FRAGMENT")
DEFINED = {}


def of_mylib(base, overload):
    """Defines `mylib.base.overload`, which adds one to what aten's gives. Only for what has no alias marks."""
    if (base, overload) not in DEFINED:
        op = torch_calls.resolve(f"aten.{base}.{overload}")
        schema = str(op._schema).removeprefix("aten::")
        plain = "(" in schema and not re.search(r"\([a-z*|]+!?( -> \*)?\)", schema)
        if plain:
            try:
                MYLIB.define(schema)
                name = base if overload == "default" else f"{base}.{overload}"

                def shifted(*args, op=op, **kwargs):
                    def more(value):
                        if is_tensor(value):
                            return value + 1 if value.dtype != torch.bool else ~value
                        return value
                    return torch.utils._pytree.tree_map(more, op(*args, **kwargs))
                MYLIB.impl(name, shifted, "CPU")
            except Exception:
                plain = False
        DEFINED[base, overload] = plain
    return DEFINED[base, overload]


CHANGES = {
    "number": change_literal(whole, lambda v: [v + 1, v - 1]),
    "fraction": change_literal(lambda v: isinstance(v, float), lambda v: [v + 0.25, v * 1.5] if v else [0.25]),
    "truth": change_literal(lambda v: isinstance(v, bool), lambda v: [not v]),
    "text": change_literal(lambda v: isinstance(v, str), other_text),
    "dtype": change_dtype,
    "operand": change_operand,
    "swap": change_swap,
    "keyword": change_keyword,
    "drop": change_drop,
    "double": change_double,
    "order": change_order,
    "copy": change_copy,
    "cast": change_cast,
    "in place": change_inplace,
    "library": change_library,
}


def pairs_of(source, rng, most, near=None):
    """Up to `most` changed graphs, of each kind of change in turn. `near` is a line that is changed first."""
    queues = []
    for kind, changes in CHANGES.items():
        found = [(at, change) for at in range(len(source.lines)) for change in changes(source, at)]
        rng.shuffle(found)
        if near is not None:
            found.sort(key=lambda pair: abs(pair[0] - near))
        queues.append((kind, found))
    rng.shuffle(queues)
    while most > 0 and any(found for _, found in queues):
        for kind, found in queues:
            if found and most > 0:
                _, change = found.pop(0)
                other = source.copy()
                try:
                    change(other)
                except Exception:
                    continue
                most -= 1
                yield kind, other


# ---------------------------------------------------------------- sources


def of_operator(name, call, through):
    """A call between two collectives. `through`: its first tensor is a collective's result."""
    args, kwargs, _ = call
    inputs, lines = [], []

    def put(value):
        if is_tensor(value):
            inputs.append((f"arg_{len(inputs)}", value))
            return ast.Name(inputs[-1][0], ast.Load())
        if isinstance(value, (list, tuple)):
            return ast.List([put(part) for part in value], ast.Load())
        return ast.parse(differential.show(value), mode="eval").body

    values = [put(a) for a in args]
    keywords = [ast.keyword(key, put(v)) for key, v in kwargs.items()]
    other = ("other", torch.randn(6))
    first = next((n for n, t in inputs if t.dtype == torch.float32 and t.is_contiguous() and t.numel()), None)
    if through and first is None:
        return None
    start = first if through else "other"
    lines += [f"reduce = torch.ops._c10d_functional.all_reduce.default({start}, 'sum', '0')", "wait = torch.ops._c10d_functional.wait_tensor.default(reduce)"]
    text = ast.unparse(ast.fix_missing_locations(ast.Expression(ast.Call(ast.parse(f"torch.ops.{name}", mode="eval").body, values, keywords))))
    if through:
        text = re.sub(rf"\b{first}\b", "wait", text)
    lines.append(f"result = {text}")
    outputs = ["wait"]
    try:
        copied = torch_calls.copy_arguments((args, kwargs))
        out = torch_calls.resolve(name)(*copied[0], **copied[1])
    except Exception:
        return None
    results = ["result"] if is_tensor(out) else []
    if isinstance(out, (list, tuple)):
        for at, part in enumerate(out):
            if is_tensor(part):
                lines.append(f"part_{at} = result[{at}]")
                results.append(f"part_{at}")
    flat = list(out) if isinstance(out, (list, tuple)) else [out]
    tensors = [part for part in flat if is_tensor(part)]
    if not all(torch_calls.plain(t) and t.dtype in NAMES for t in tensors + [t for _, t in inputs]):
        return None
    shown = "wait" if through else first
    if shown is not None:
        lines.append(f"after = torch.ops.aten.mul.Scalar({shown}, 2)")
        lines.append(f"more = torch.ops.aten.add_.Tensor({shown}, 1)")
        outputs += ["after"]
    send = next((n for n, t in zip(results, tensors) if t.dtype == torch.float32 and t.numel()), "other")
    lines += [f"reduce_1 = torch.ops._c10d_functional.all_reduce.default({send}, 'max', '0')", "wait_1 = torch.ops._c10d_functional.wait_tensor.default(reduce_1)"]
    return Source(inputs + [other], lines, outputs + results + ["wait_1"])


def of_collectives():
    """A small graph of each collective, with all that can be set."""
    c, w = "torch.ops._c10d_functional", "torch.ops._c10d_functional.wait_tensor.default"
    inputs = [("a", torch.randn(4, 6)), ("b", torch.randn(4, 6)), ("o", torch.zeros(8, 6)), ("p", torch.zeros(2, 6))]
    plain = {
        "all_reduce": "all_reduce.default({x}, 'sum', '0')", "all_reduce_": "all_reduce_.default({x}, 'sum', '0')",
        "all_gather": "all_gather_into_tensor.default({x}, 2, '0')", "all_gather_out": "all_gather_into_tensor_out.default({x}, 2, '0', out = o)",
        "reduce_scatter": "reduce_scatter_tensor.default({x}, 'sum', 2, '0')", "reduce_scatter_out": "reduce_scatter_tensor_out.default({x}, 'sum', 2, '0', out = p)",
        "all_to_all": "all_to_all_single.default({x}, [2, 2], [2, 2], '0')", "broadcast": "broadcast.default({x}, 0, '0')", "broadcast_": "broadcast_.default({x}, 0, '0')",
    }
    for name, text in plain.items():
        lines = []
        for at, x in enumerate("ab"):
            lines += [f"g{at} = {c}.{text.format(x=x)}", f"w{at} = {w}(g{at})", f"m{at} = torch.ops.aten.mul.Tensor(w{at}, {at + 2})"]
        yield name, Source(inputs, lines, ["w0", "w1", "m0", "m1"])
        lines = [f"g{at} = {c}.{text.format(x=x)}" for at, x in enumerate("ab")] + [f"w{at} = {w}(g{at})" for at in (0, 1)]
        if "out" not in name:
            yield name + " in flight", Source(inputs, lines, ["w0", "w1"])
    for name, text in {
        "all_reduce_coalesced": "all_reduce_coalesced.default([a, b], 'sum', '0')", "all_gather_coalesced": "all_gather_into_tensor_coalesced.default([a, b], 2, '0')",
        "reduce_scatter_coalesced": "reduce_scatter_tensor_coalesced.default([a, b], 'sum', 2, '0')", "all_reduce_coalesced_": "all_reduce_coalesced_.default([a, b], 'sum', '0')",
    }.items():
        lines = [f"g = {c}.{text}", "g0 = g[0]", "g1 = g[1]", f"w0 = {w}(g0)", f"w1 = {w}(g1)"]
        yield name, Source(inputs, lines, ["w0", "w1"])


def of_merge(builder, outputs, trial):
    """(the graph, what the tool wrote of it) or None."""
    code, after, _ = trial.rewrite(text_of(builder.inputs, builder.lines, outputs))
    if code or "# bucketeer: merges" not in after:
        return None
    function = [n for n in ast.walk(ast.parse(after)) if isinstance(n, ast.FunctionDef)][-1]
    kept, out = [], []
    for node in function.body:
        if isinstance(node, ast.Return):
            out = [e.id for e in node.value.elts]
        elif not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None):
            kept.append(ast.unparse(node))
    kept = [re.sub(r"^(\w+): '[^']*' = ", r"\1 = ", line) for line in kept]
    return Source(builder.inputs, builder.lines, outputs), Source(builder.inputs, kept, out)


# ---------------------------------------------------------------- verdicts


class Judge:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.last = binary, folder, None
        self.groups = os.path.join(folder, "groups.json")
        pathlib.Path(self.groups).write_text(json.dumps(GROUPS))

    def verify(self, a, b):
        paths = [os.path.join(self.folder, name) for name in ("a.txt", "b.txt")]
        for path, text in zip(paths, (a, b)):
            pathlib.Path(path).write_text(text)
        done = subprocess.run([self.binary, "verify", *paths, "--groups", self.groups], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def known(self, a):
        """A graph's text and what it computes, once for all its changes."""
        if self.last is None or self.last[0] is not a:
            self.last = a, a.annotated(), [a.run(variant) for variant in (0, 1)]
        return self.last[1:]

    def pair(self, a, b):
        """(what came out, texts, words of the tool)."""
        try:
            first, wants = self.known(a)
            second, gots = b.annotated(), [b.run(variant) for variant in (0, 1)]
        except NotRun:
            return "not run", None
        found = max(torch_ranks.compare(want, got) for want, got in zip(wants, gots))
        if first == second:
            return "same text", None
        code, said = self.verify(first, second)
        word = {0: "equal", 1: "different"}.get(code, "not known")
        if code == 0 and found == DIFFERENT:
            again = max(torch_ranks.compare(want, a.run(variant)) for variant, want in enumerate(wants))
            if again != EQUAL:
                return "unstable", None
            return "WRONG", (first, second, said)
        if found == DIFFERENT:
            return f"told apart ({word})", None
        return f"alike under PyTorch ({word})", None


def drawn_operators(calls, only):
    kinds = differential.operators(calls, only)
    names = sorted((kind, name) for kind in ("write", "view", "random", "out", "list") for name in kinds.get(kind, ()))
    random.Random("operators").shuffle(names)  # so that a run cut short has some of all
    return names


def sources(options, calls, job):
    """(part, label, first graph, second or None, line to change first) in turn."""
    if options.part in ("", "collectives") and job == 0:
        for name, source in of_collectives():
            yield "collective", name, source, None, None, 4
    if options.part in ("", "operators"):
        for number, (kind, name) in enumerate(drawn_operators(calls, options.only)):
            if number % options.jobs != job:
                continue
            for at, call in enumerate(calls[name][:2]):
                source = of_operator(name, call, through=at % 2 == 1)
                if source is not None:
                    yield kind, name, source, None, 2, 1
    if options.part in ("", "merges"):
        kinds = differential.operators(calls, options.only)
        folder = tempfile.mkdtemp()
        for number in range(options.merges):
            if number % options.jobs != job:
                continue
            rng = random.Random(f"merge {options.seed} {number}")
            torch.manual_seed(number)
            builder = Builder(rng, calls, kinds)
            try:
                with torch.no_grad():
                    outputs = builder.build()
                made = of_merge(builder, outputs, Trial(options.bucketeer, folder, drawn_options(rng, builder.lines)))
            except (Skip, subprocess.TimeoutExpired, SyntaxError):
                continue
            if made is not None:
                yield "merge", f"merge {options.seed} {number}", made[0], made[1], None, 1


def try_source(options, source):
    """All changes of one source: counts of (part, kind of change, what came out), and the wrong ones."""
    part, label, first, changed, near, times = source
    counts, wrong = collections.Counter(), []
    rng = random.Random(f"{options.seed} {label}")
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(options.bucketeer, folder)
        for kind, other in pairs_of(changed or first, rng, options.pairs * times, near):
            try:
                what, kept = judge.pair(first, other)
            except subprocess.TimeoutExpired:
                what, kept = "too slow", None
            counts[part, kind, what] += 1
            if kept is not None:
                wrong.append((part, label, kind, *kept))
    return counts, wrong


def worker(arguments):
    """One job. Changed calls may end a process that they corrupt, so each source is tried in a child."""
    options, job, deadline = arguments
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    calls = torch_calls.load(options.calls)
    counts, covered, wrong = collections.Counter(), collections.defaultdict(set), []
    made = itertools.takewhile(lambda _: time.time() < deadline, sources(options, calls, job))
    while batch := list(itertools.islice(made, 20)):
        for source, found in torch_calls.in_children(lambda source: try_source(options, source), batch, 60):
            part, label = source[:2]
            if time.time() > deadline:
                break
            if found is None:
                counts[part, "any", "the process ended"] += 1
                continue
            counts += found[0]
            wrong += found[1]
            if any(what.startswith(("told", "alike", "WRONG")) for _, _, what in found[0]):
                covered[part].add(label)
    return counts, dict(covered), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucketeer", default=str(ROOT / "target/debug/bucketeer"))
    parser.add_argument("--pairs", type=int, default=16, help="changes of one graph")
    parser.add_argument("--merges", type=int, default=200, help="merged graphs to change")
    parser.add_argument("--keep", help="where pairs that are wrongly called equal are kept")
    parser.add_argument("--calls", default=os.path.join(tempfile.gettempdir(), "bucketeer-torch-calls.pt"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--only", default="", help="operators whose name has this")
    parser.add_argument("--part", default="", choices=["", "operators", "collectives", "merges"])
    options = parser.parse_args()
    torch_calls.load(options.calls, print)
    began = time.time()
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(worker, [(options, job, began + options.seconds) for job in range(options.jobs)]))
    counts, covered, wrong = collections.Counter(), collections.defaultdict(set), []
    for c, found, w in results:
        counts += c
        wrong += w
        for part, labels in found.items():
            covered[part] |= labels
    return report(options, counts, covered, wrong, time.time() - began)


def report(options, counts, covered, wrong, seconds):
    for title, pick in (("by part", lambda key: key[0]), ("by change", lambda key: key[1])):
        table = collections.defaultdict(collections.Counter)
        for key, number in counts.items():
            table[pick(key)][key[2]] += number
        print(title)
        for name, row in sorted(table.items()):
            print(f"  {name}: " + ", ".join(f"{what} {number}" for what, number in sorted(row.items())))
    print("covered: " + ", ".join(f"{part} {len(labels)}" for part, labels in sorted(covered.items())))
    ran = sum(number for (_, _, what), number in counts.items() if what not in ("not run", "same text"))
    print(f"pairs that ran: {ran}; wrong \"equal\": {len(wrong)}; seconds={seconds:.0f}")
    for number, (part, label, kind, first, second, said) in enumerate(wrong):
        if number < 60:
            print(f"WRONG: {part} {label}: {kind}")
        if options.keep:
            folder = pathlib.Path(options.keep)
            folder.mkdir(parents=True, exist_ok=True)
            stem = re.sub(r"\W+", "_", f"{number}_{label}_{kind}")
            (folder / f"{stem}.a.txt").write_text(first)
            (folder / f"{stem}.b.txt").write_text(second)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
