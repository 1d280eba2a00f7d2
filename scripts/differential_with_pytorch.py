#!/usr/bin/env python3
"""Rewrite random graphs and compare them with themselves under PyTorch.

    differential_with_pytorch.py [--graphs N] [--seed S] [--bucketeer PATH] [--keep DIR]
                                 [--calls FILE] [--jobs N] [--seconds S] [--only WORD]

Each graph puts calls of real operators around collectives. Operators are drawn from
all that PyTorch has and that torch_calls.py found a call for: in-place ones, views,
random ones, `out=` forms, lists (`_foreach_*`, `_fused_*`), and Python functions,
methods and statements (`x += y`, `x[0] = y`, `torch.nn.functional.relu(inplace=True)`).
Their arguments are views of what is alive: inputs, results of collectives, results of
other calls, so that memory is shared across the graph. Each graph is written as FX
text, rewritten by `bucketeer rewrite` under options drawn at random, and both texts
run on two ranks (torch_ranks.py) from the same inputs and seeds. Outputs and what is
left in the inputs must be equal bit for bit.

A graph that differs is made smaller while it still does and kept in DIR as
NAME.before.txt and NAME.after.txt, with the command. Graphs that PyTorch itself does
not compute twice alike (memory handed out unset) are counted apart. Exit code: 0 no
graph differs, 1 some do, 2 nothing was rewritten.
"""
import argparse
import collections
import concurrent.futures
import json
import keyword
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

import torch_calls
import torch_ranks
from torch_calls import NAMES, copy_arguments, is_tensor, plain
from torch_ranks import CLOSE, DIFFERENT, NotRun, Text

warnings.filterwarnings("ignore")

ROOT = pathlib.Path(__file__).resolve().parent.parent
OBSERVED = ROOT / "tests/data/torch-observed.tsv"
OPTIONS = [
    [], [], [], ["--unpack", "copies"], ["--unpack", "views"], ["--mode", "coalesced"], ["--policy", "adjacent"], ["--policy", "xla"],
    ["--dedupe-collectives"], ["--mixed-dtype", "bytes"],
]
CAPS = {"all_gather": "--all-gather", "reduce_scatter": "--reduce-scatter", "all_reduce": "--all-reduce", "broadcast": "--broadcast", "all_to_all": "--all-to-all"}
# Shapes that depend on values differ between ranks; unset memory differs between runs; seeds are set from outside.
UNFIT_TAGS = {"dynamic_output_shape", "data_dependent_output"}
UNFIT = ("empty", "manual_seed", "_debug_", "_version", "resize_storage_bytes", "_assert", "profiler", "_print", "set_data", "shallow_copy_data", "requires_grad",
         "retain", "is_set_to", "_weight_norm_interface", "sym_constrain", "data_ptr", "_has_same_storage", "_nested", "initial_seed", "_adaptive_avg_pool3d",
         "adaptive_max_pool3d_backward", "_fake_quantize_learnable", "unsafe_index", "index_put_impl", "philox", "_sobol", "_use_cudnn", "segment_reduce")


# ---------------------------------------------------------------- which operators


def kind_of(schema, tags):
    """What an operator is drawn as."""
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if "nondeterministic_seeded" in tags:
        return "random"
    if any(a.kwarg_only for a in written):
        return "out"
    if "List[Tensor]" in str(schema.arguments[0].type) if schema.arguments else False:
        return "list"
    if written:
        return "write"
    if any(r.alias_info is not None for r in schema.returns):
        return "view"
    return "plain"


def operators(calls, only):
    observed = {line.split("\t")[0]: line.split("\t") for line in OBSERVED.read_text().splitlines()[1:]}
    kinds = collections.defaultdict(list)
    for name, made in calls.items():
        op = torch_calls.resolve(name)
        tags = {str(tag).split(".")[-1] for tag in op.tags}
        fields = observed.get(name)
        if fields is None or tags & UNFIT_TAGS or any(part in name for part in UNFIT) or "unstable" in fields[5] or only not in name:
            continue
        if keyword.iskeyword(name.split(".")[2]):
            continue  # FX prints what Python does not read
        if not any(is_tensor(leaf) for leaf in torch.utils._pytree.tree_leaves(made[0][:2])) and "random" not in fields[4]:
            continue
        kind = kind_of(op._schema, tags)
        kinds["view" if kind == "plain" and fields[3] else kind].append(name)
    python = [name.removeprefix("python:") for name in observed if name.startswith("python:") and only in name]
    kinds["python"] = [name for name in python if PYTHON.fullmatch(name) and not any(part in name for part in UNFIT) and "unstable" not in observed["python:" + name][5]]
    return {kind: names for kind, names in kinds.items() if names}


PYTHON = re.compile(r"(Tensor|torch)\.[a-z_]\w*\(?\)?|Tensor\.(T|H|mT|mH|data|real)|nn\.functional\.\w+(\((inplace|training)=True\))?|operator\.i\w+|operator\.getitem\((0|-1|None|Ellipsis|slice.*)\)|Tensor\[.*\] = value")
WEIGHTS = {"write": 5, "view": 5, "random": 2, "out": 2, "list": 2, "plain": 4, "python": 4}


# ---------------------------------------------------------------- one graph


def annotation(t):
    return f"{NAMES[t.dtype]}{list(t.shape)}{list(t.stride())}cpu"


def show(value):
    """An argument as FX prints it."""
    if isinstance(value, Name):
        return value.name
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, torch.device):
        return f"device(type='{value.type}')"
    return repr(value)


class Name:
    """A tensor with the name that it has in the text."""

    def __init__(self, name, tensor):
        self.name, self.tensor = name, tensor


class Skip(Exception):
    """A drawn call does not fit; another is drawn."""


class Builder:
    """Builds one graph, and runs it as it grows, so that each call is known to run."""

    def __init__(self, rng, calls, kinds):
        self.rng, self.calls, self.kinds = rng, calls, kinds
        self.lines, self.inputs, self.live, self.count, self.used, self.flying, self.waited = [], [], [], collections.Counter(), [], [], []

    def fresh(self, base):
        base = re.sub(r"\W", "_", base).strip("_") or "value"
        number = self.count[base] = max(self.count[base], keyword.iskeyword(base))
        self.count[base] += 1
        return f"{base}_{number}" if number else base

    def input(self, tensor):
        """A new input of the graph; it is kept as it is given, the copy is what the building writes."""
        kept = copy_arguments(tensor)
        name = Name(self.fresh("arg"), copy_arguments(tensor))
        self.inputs.append((name.name, kept))
        self.live.append(name)
        return name

    def emit(self, base, text, function):
        """One line; what it returns is named. Values that are no tensors keep no name."""
        try:
            out = function()
        except Exception as error:
            raise Skip from error
        name = self.fresh(base)
        if is_tensor(out):
            return self.named(name, out, text)
        self.lines.append(f"{name} = {text}")
        if isinstance(out, (list, tuple)):
            return [self.named(self.fresh("getitem"), part, f"{name}[{at}]") if is_tensor(part) else None for at, part in enumerate(out)]
        return None

    def named(self, name, tensor, text):
        if not plain(tensor) or tensor.dtype not in NAMES or tensor.numel() > 20000:
            raise Skip
        self.lines.append(f'{name}: "{annotation(tensor)}" = {text}')
        found = Name(name, tensor)
        if tensor.numel() > 0:
            self.live.append(found)
        return found

    # -------- operators

    def argument(self, wanted):
        """A live tensor that can stand for `wanted`: itself, a view of it, or its conversion."""
        exact = [v for v in self.live if v.tensor.dtype == wanted.dtype and v.tensor.shape == wanted.shape]
        risky = not (wanted.is_floating_point() or wanted.is_complex())
        if self.rng.random() < (0.97 if risky else 0.12) or wanted.numel() == 0:
            return self.input(wanted)
        if exact and self.rng.random() < 0.6:
            return self.rng.choice(exact)
        room = [v for v in self.live if v.tensor.dtype == wanted.dtype and v.tensor.numel() >= wanted.numel() and v.tensor.is_contiguous()]
        if not room:
            if wanted.dtype == torch.float32:
                return self.input(wanted)
            return self.input(wanted)
        return self.cut(self.rng.choice(room), wanted)

    def cut(self, value, wanted):
        aten, size = torch.ops.aten, wanted.numel()
        start = self.rng.choice([0, value.tensor.numel() - size])
        if value.tensor.dim() != 1:
            value = self.emit("view", f"torch.ops.aten.view.default({value.name}, [-1])", lambda v=value: aten.view.default(v.tensor, [-1]))
        if value.tensor.numel() != size:
            value = self.emit("slice", f"torch.ops.aten.slice.Tensor({value.name}, 0, {start}, {start + size})", lambda v=value: aten.slice.Tensor(v.tensor, 0, start, start + size))
        if value.tensor.shape != wanted.shape:
            shape = list(wanted.shape)
            value = self.emit("view", f"torch.ops.aten.view.default({value.name}, {shape})", lambda v=value: aten.view.default(v.tensor, shape))
        return value

    def call(self, name):
        args, kwargs, _ = self.rng.choice(self.calls[name])

        def put(value):
            if is_tensor(value):
                return self.argument(value)
            return [put(part) for part in value] if isinstance(value, (list, tuple)) else value

        args, kwargs = [put(a) for a in args], {k: put(v) for k, v in kwargs.items()}

        def take(value):
            return value.tensor if isinstance(value, Name) else [take(part) for part in value] if isinstance(value, list) else value

        text = ", ".join([show(a) for a in args] + [f"{k} = {show(v)}" for k, v in kwargs.items()])
        op = torch_calls.resolve(name)
        self.emit(name.split(".")[1], f"torch.ops.{name}({text})", lambda: op(*take(args), **{k: take(v) for k, v in kwargs.items()}))

    def python(self, name):
        """A function, method or statement of Python on one or two live tensors."""
        x = self.rng.choice(self.live)
        same = [v for v in self.live if v.tensor.shape == x.tensor.shape and v.tensor.dtype == x.tensor.dtype]
        y = self.rng.choice(same)
        if name.startswith("operator.i"):
            sign = {"iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/="}.get(name.split(".")[1])
            if sign is None:
                raise Skip
            if self.rng.random() < 0.5:
                return self.emit(name.split(".")[1], f"operator.{name.split('.')[1]}({x.name}, {y.name})", lambda: getattr(__import__("operator"), name.split(".")[1])(x.tensor, y.tensor))
            return self.statement(x, f"{x.name} {sign} {y.name}", y)
        if name.endswith("= value"):
            place = self.rng.choice(["0", "-1", "...", "slice(0, 1, None)"])
            return self.statement(x, f"{x.name}[{place}] = {y.name}" + ("[0]" if place in ("0", "-1") else ""), y)
        if name.startswith("operator.getitem("):
            place = name[len("operator.getitem("):-1]
            return self.emit("getitem", f"{x.name}[{place}]", lambda: x.tensor[eval(place)])
        if name.startswith("Tensor."):
            text = f"{x.name}.{name.removeprefix('Tensor.')}"
        else:
            inside = re.search(r"\((\w+)=True\)$", name)
            base = name.split("(")[0]
            text = f"{'' if base.startswith('torch') else 'torch.'}{base}({x.name}" + (f", {inside[1]} = True)" if inside else ")")
        return self.emit(re.findall(r"\w+", name.split("(")[0])[-1], text, lambda: eval(text, {"torch": torch, x.name: x.tensor}))

    def statement(self, x, text, y):
        try:
            exec(text, {x.name: x.tensor, y.name: y.tensor})
        except Exception as error:
            raise Skip from error
        # As FX prints it: the statement has a name, too.
        self.lines.append(f"{text};  {self.fresh('iadd' if '=' in text.split('[')[0] else 'setitem')} = {x.name}")

    def step(self):
        kinds = list(self.kinds)
        kind = self.rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
        name = self.rng.choice(self.kinds[kind])
        before = len(self.lines), len(self.inputs), len(self.live), self.count.copy()
        try:
            self.python(name) if kind == "python" else self.call(name)
        except Skip:
            lines, inputs, live, self.count = before
            del self.lines[lines:], self.inputs[inputs:], self.live[live:]
            return False
        self.used.append(name)
        return True

    # -------- collectives

    def member(self, kind):
        """What a collective takes: something alive, of a shape that fits."""
        fits = [v for v in self.live if v.tensor.dtype in (torch.float32, torch.bfloat16, torch.float64) and 0 < v.tensor.numel() <= 2000]
        if kind in ("reduce_scatter_tensor", "all_to_all_single"):
            fits = [v for v in fits if v.tensor.dim() and v.tensor.shape[0] % 2 == 0]
        elif kind == "all_gather_into_tensor":
            fits = [v for v in fits if v.tensor.dim()]
        fits = [v for v in fits if v.name not in {name for name, *_ in self.flying}] or fits
        if kind.endswith("_"):
            fits = [v for v in fits if v.tensor.is_contiguous()]
        if not fits or self.rng.random() < 0.15:
            return self.input(torch.randn(self.rng.choice([(4,), (4, 6), (2, 3)]), dtype=torch.float32))
        return self.rng.choice(fits[-6:] if self.rng.random() < 0.6 else fits)

    def launch(self, kind, op):
        x = self.member(kind)
        t, rows = x.tensor, x.tensor.shape[0] if x.tensor.dim() else 0
        prefix, name = f"torch.ops._c10d_functional.{kind}.default", self.fresh(kind)
        if kind.startswith("all_reduce"):
            text, out = f"{prefix}({x.name}, '{op}', '0')", t.contiguous().clone()
        elif kind == "reduce_scatter_tensor":
            text, out = f"{prefix}({x.name}, '{op}', 2, '0')", t[: rows // 2].contiguous().clone()
        elif kind == "all_gather_into_tensor":
            text, out = f"{prefix}({x.name}, 2, '0')", torch.cat([t, t])
        elif kind.startswith("broadcast"):
            text, out = f"{prefix}({x.name}, 0, '0')", t.contiguous().clone()
        else:
            text, out = f"{prefix}({x.name}, [{rows // 2}, {rows // 2}], [{rows // 2}, {rows // 2}], '0')", t.contiguous().clone()
        if kind.endswith("_"):
            out = t
            # What is in flight is nobody's business until the wait.
            self.lines.append(f'{name}: "{annotation(out)}" = {text}')
            return self.wait(name, out)
        self.lines.append(f'{name}: "{annotation(out)}" = {text}')
        self.flying.append((name, out))

    def wait(self, name, out):
        waited = self.named(self.fresh("wait_tensor"), out, f"torch.ops._c10d_functional.wait_tensor.default({name})")
        self.waited.append(waited)

    def land(self, number=1):
        for _ in range(min(number, len(self.flying))):
            self.wait(*self.flying.pop(self.rng.randrange(len(self.flying))))

    # -------- all of it

    def build(self):
        rng = self.rng
        for shape in rng.sample([(8,), (4, 6), (2, 3, 4), (24,), (6,), (4, 4)], 3):
            self.input(torch.randn(shape))
        kinds = rng.choice([["all_reduce"], ["all_gather_into_tensor"], ["reduce_scatter_tensor"], ["all_reduce", "all_gather_into_tensor"],
                            ["reduce_scatter_tensor", "all_reduce"], ["broadcast"], ["all_to_all_single"], ["all_reduce", "all_reduce_"]])
        op = rng.choice(["sum", "sum", "avg", "max"])
        launches = rng.randint(2, 5)
        plan = ["launch"] * launches + ["step"] * rng.randint(2, 9) + ["land"] * (launches // 2)
        rng.shuffle(plan)
        for what in plan:
            if what == "launch":
                self.launch(rng.choice(kinds), op)
            elif what == "land":
                self.land()
            else:
                for _ in range(6):
                    if self.step():
                        break
        self.land(len(self.flying))
        for _ in range(rng.randint(0, 3)):
            self.step()
        outputs = {v.name for v in self.waited} | {v.name for v in rng.sample(self.live, min(len(self.live), 4))} | {v.name for v in self.live[-3:]}
        return [v.name for v in self.live if v.name in outputs and v.name not in dict(self.inputs)]


def text_of(inputs, lines, outputs):
    head = ", ".join(f'{name}: "{annotation(tensor)}"' for name, tensor in inputs)
    body = "".join(f"        {line}\n" for line in lines)
    return f"class GraphModule(torch.nn.Module):\n    def forward(self, {head}):\n{body}        return ({''.join(name + ', ' for name in outputs)})\n"


# ---------------------------------------------------------------- one trial


def on_rank(tensor, rank):
    """Inputs of rank 1: other values, the same places; whole numbers and masks stay what they are."""
    tensor = copy_arguments(tensor)
    if rank and tensor.is_floating_point() and tensor.element_size() > 1 and 0 not in tensor.stride():
        tensor.mul_(0.75)
    return tensor


def execute(text, inputs):
    given = [[on_rank(tensor, rank) for _, tensor in inputs] for rank in range(2)]
    return torch_ranks.run(Text(text), given)


class Trial:
    """A graph, its rewrite, and what came of both."""

    def __init__(self, binary, folder, options):
        self.binary, self.folder, self.options = binary, folder, options

    def rewrite(self, text):
        before, after = os.path.join(self.folder, "before.txt"), os.path.join(self.folder, "after.txt")
        pathlib.Path(before).write_text(text)
        done = subprocess.run([self.binary, "rewrite", before, "-o", after, *self.options], capture_output=True, text=True, timeout=60)
        return done.returncode, pathlib.Path(after).read_text() if done.returncode == 0 else "", done.stderr

    def verdict(self, inputs, lines, outputs):
        """(what happened, the two texts, words of the tool)."""
        text = text_of(inputs, lines, outputs)
        code, after, said = self.rewrite(text)
        if code:
            return "refused", text, after, said
        merged = "# bucketeer: merges" in after or "coalesced" in after
        if not merged and strip(after) == strip(text):
            return "unchanged", text, after, said
        try:
            want = execute(text, inputs)
        except NotRun as error:
            return "not run", text, after, str(error)
        try:
            got = execute(after, inputs)
        except NotRun as error:
            return "fails after", text, after, str(error)
        found = torch_ranks.compare(list(want), list(got))
        if found == DIFFERENT and torch_ranks.compare(list(want), list(execute(text, inputs))) != torch_ranks.EQUAL:
            return "unstable", text, after, said
        return {DIFFERENT: "differs", CLOSE: "close"}.get(found, "merged" if merged else "moved"), text, after, said


def drawn_options(rng, lines):
    """Caps for the kinds that a graph has, and options that go with them."""
    kinds = [kind for kind in CAPS if any(f"_c10d_functional.{kind}" in line for line in lines)]
    fit = [how for how in OPTIONS if not ({"coalesced", "xla"} & set(how) and {"broadcast", "all_to_all"} & set(kinds))
           and ("bytes" not in how or "all_gather" in kinds)]
    return [word for kind in kinds for word in (CAPS[kind], rng.choice(["none", "none", "none", "200"]))] + rng.choice(fit)


def strip(text):
    return re.sub(r";[^\n]*= None", "", text).split()


def smaller(trial, inputs, lines, outputs, wanted):
    """Leaves out lines, with those that need them, while the verdict stays."""
    at = len(lines) - 1
    while at >= 0:
        gone, kept = set(), []
        for number, line in enumerate(lines):
            words = set(re.findall(r"[A-Za-z_]\w*", line))
            if number == at or words & gone:
                gone |= {re.match(r"\w+", line)[0]} if re.match(r"\w+(: \"[^\"]*\")? = ", line) else set()
            else:
                kept.append(line)
        left = [name for name in outputs if name not in gone]
        if left and trial.verdict(inputs, kept, left)[0] == wanted:
            lines, outputs = kept, left
            at = min(at, len(lines))
        at -= 1
    for name in list(outputs):
        left = [other for other in outputs if other != name]
        if left and trial.verdict(inputs, lines, left)[0] == wanted:
            outputs = left
    text = "\n".join(lines)
    used = [pair for pair in inputs if re.search(rf"\b{pair[0]}\b", text + " ".join(outputs))]
    if trial.verdict(used, lines, outputs)[0] == wanted:
        inputs = used
    return inputs, lines, outputs


def try_graph(options, calls, kinds, name):
    """One random graph: what came out, the operators in it, and what to keep of it. None where none could be built."""
    rng = random.Random(name)
    torch.manual_seed(rng.randrange(2**31))
    builder = Builder(rng, calls, kinds)
    try:
        with torch.no_grad():
            outputs = builder.build()
    except Skip:
        return None
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(options.bucketeer, folder, drawn_options(rng, builder.lines))
        try:
            what, text, after, said = trial.verdict(builder.inputs, builder.lines, outputs)
        except subprocess.TimeoutExpired:
            what, text, after, said = "too slow", text_of(builder.inputs, builder.lines, outputs), "", "60 s"
        if what == "differs":
            inputs, lines, outputs = smaller(trial, builder.inputs, builder.lines, outputs, what)
            what, text, after, said = trial.verdict(inputs, lines, outputs)
        return what, builder.used, (what, name, text, after, said, " ".join(trial.options))


def worker(arguments):
    """One job. A call may end its process, so graphs are tried in children."""
    options, seed, graphs, deadline = arguments
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    calls = torch_calls.load(options.calls)
    kinds = operators(calls, options.only)
    counts, used, refusals, wrong, examples = collections.Counter(), collections.Counter(), collections.Counter(), [], {}
    for start in range(0, graphs, 200):
        if time.time() > deadline:
            break
        names = [f"{seed}.{number}" for number in range(start, min(start + 200, graphs))]
        for name, found in torch_calls.in_children(lambda name: try_graph(options, calls, kinds, name) or (), names, 300):
            if not found:
                counts["the process ended" if found is None else "not built"] += 1
                continue
            what, operators_, kept = found
            counts["graphs"] += 1
            counts[what] += 1
            if what in ("merged", "differs", "close"):
                used.update(set(operators_))
            if what == "refused":
                refusals[brief(kept[4])] += 1
                examples.setdefault(brief(kept[4]), kept)
            if what in ("differs", "fails after", "too slow") and len(wrong) < options.most:
                wrong.append(kept)
    return counts, used, refusals, wrong + list(examples.values()), {kind: len(names) for kind, names in kinds.items()}


def brief(said):
    lines = [line for line in said.splitlines() if line.startswith("error")] or said.splitlines()[-1:]
    text = re.sub(r"`[^`]*`|%?\w+_\d+|\d+", "#", lines[0] if lines else "")
    return text[:140]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucketeer", default=str(ROOT / "target/debug/bucketeer"))
    parser.add_argument("--keep", help="where graphs that differ are kept")
    parser.add_argument("--calls", default=os.path.join(tempfile.gettempdir(), "bucketeer-torch-calls.pt"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--only", default="", help="operators whose name has this")
    parser.add_argument("--most", type=int, default=40, help="graphs kept of each job")
    options = parser.parse_args()
    torch_calls.load(options.calls, print)
    began = time.time()
    share = -(-options.graphs // options.jobs)
    work = [(options, f"{options.seed}.{job}", share, began + options.seconds) for job in range(options.jobs)]
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(worker, work))
    counts, used, refusals, wrong = collections.Counter(), collections.Counter(), collections.Counter(), []
    for c, u, r, w, kinds in results:
        counts += c
        used += u
        refusals += r
        wrong += w
    print(json.dumps(dict(counts)), f"seconds={time.time() - began:.0f}")
    print(f"operators to draw from: {sum(kinds.values())} {kinds}; in rewritten graphs: {len(used)}")
    for text, number in refusals.most_common(12):
        print(f"  refused {number}: {text}")
    for what, name, text, after, said, how in wrong:
        print(f"{what}: {name} [{how}] {said.strip().splitlines()[-1][:160] if said.strip() else ''}")
        if options.keep:
            folder = pathlib.Path(options.keep)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.before.txt").write_text(text)
            (folder / f"{name}.after.txt").write_text(after)
            (folder / f"{name}.said.txt").write_text(f"{what}; bucketeer rewrite {how}\n{said}")
    if counts["differs"] or counts["fails after"]:
        return 1
    return 0 if counts["merged"] else 2


if __name__ == "__main__":
    sys.exit(main())
