"""Changes HLO modules in one place, and sees that `bucketeer verify` calls equal only what XLA does.

    python scripts/adversary_with_jax.py [--bucketeer PATH] [--bases N] [--merges N] [--seconds S] [--seed S] [--only WORD]
                                         [--keep FOLDER]

Needs jax and jaxlib 0.10.2. Three parts make pairs of modules that differ in one place:

  collectives  each attribute of each collective that XLA runs on CPUs: reducer, groups, dimension, pairs, operands and
               their order, the form of the call; also groups and reducers that mean the same and are spelled otherwise
  operators    bounds, dimensions, orders, dtypes, constants and operands of instructions that place, convert or compute,
               alone, before an all-reduce and after one
  merges       what `bucketeer rewrite` made of several collectives, with operands swapped or replaced, or another index,
               dimension, pair or reducer

Both modules of a pair run on eight CPU devices from the same inputs, other ones on each device, on two sets of them. What
verify calls equal (exit code 0) must give equal results, bit for bit. Exit code: 0 so it is, 1 a pair is called equal that
is not.
"""

import argparse
import collections
import hashlib
import itertools
import multiprocessing
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
# By size: groups, and other ways to write the first of them or the same ranks otherwise.
GROUPS = {
    2: ["{{0,1},{2,3},{4,5},{6,7}}", "[4,2]<=[8]", "{{2,3},{0,1},{4,5},{6,7}}", "{{1,0},{3,2},{5,4},{7,6}}",
        "{{0,2},{1,3},{4,6},{5,7}}", "[4,2]<=[2,2,2]T(0,2,1)", "{{0,4},{1,5},{2,6},{3,7}}", "[4,2]<=[2,4]T(1,0)",
        "{{0,1},{2,3},{4,6},{5,7}}"],
    4: ["{{0,1,2,3},{4,5,6,7}}", "[2,4]<=[8]", "{{4,5,6,7},{0,1,2,3}}", "{{0,2,1,3},{4,5,6,7}}", "{{0,2,4,6},{1,3,5,7}}",
        "[2,4]<=[4,2]T(1,0)"],
    8: ["{{0,1,2,3,4,5,6,7}}", "{}", "[1,8]<=[8]", "{{0,2,1,3,4,5,6,7}}"],
}
ALL_GROUPS = [spelled for size in GROUPS.values() for spelled in size] + ["{{0,1,2},{3,4,5,6,7}}", "{{0,1},{2},{3},{4,5,6,7}}"]
PAIRS = ["{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}", "{1,2},{0,1},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}",
         "{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7}", "{1,0},{2,1},{3,2},{4,3},{5,4},{6,5},{7,6},{0,7}",
         "{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}", "{0,0},{1,1},{2,2},{3,3},{4,4},{5,5},{6,6},{7,7}", "{0,7}"]
REDUCERS = ["add", "add named otherwise", "add of swapped", "maximum", "minimum", "multiply", "add in f32"]


class Unfit(Exception):
    """Values of attributes that no module can have together."""


class Value:
    def __init__(self, name, dtype, shape):
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)

    def __str__(self):
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Module:
    """Text that grows, one instruction after the other."""

    def __init__(self):
        self.bodies, self.lines, self.params = {}, [], 0

    def param(self, dtype, shape):
        self.params += 1
        return self.add(dtype, shape, f"parameter({self.params - 1})")

    def add(self, dtype, shape, call, name=None):
        value = Value(name or f"v{len(self.lines)}", dtype, shape)
        if any(size < 0 for size in value.shape):
            raise Unfit
        self.lines.append(f"  {value.name} = {value} {call}")
        return value

    def several(self, values, call):
        """Results of an instruction that makes a tuple of values like these."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"  {name} = ({', '.join(map(str, values))}) {call}")
        return [self.add(v.dtype, v.shape, f"get-tuple-element({name}), index={i}") for i, v in enumerate(values)]

    def reducer(self, word, dtype):
        name = re.sub(r"\W", "_", word) + "_" + dtype
        op, inner = word.split()[0], dtype
        if op in ("and", "or", "xor") and dtype not in ("s32", "pred") or dtype == "pred" and op in ("add", "multiply"):
            raise Unfit
        lines = [f"a.{name} = {dtype}[] parameter(0)", f"b.{name} = {dtype}[] parameter(1)"]
        a, b = f"a.{name}", f"b.{name}"
        if word == "add of swapped":
            a, b = b, a
        if word == "add in f32":
            if dtype != "bf16":
                raise Unfit
            inner = "f32"
            lines += [f"c.{name} = f32[] convert({a})", f"d.{name} = f32[] convert({b})"]
            a, b = f"c.{name}", f"d.{name}"
        lines.append(f"r.{name} = {inner}[] {op}({a}, {b})")
        if inner != dtype:
            lines.append(f"s.{name} = {dtype}[] convert(r.{name})")
        lines[-1] = "ROOT " + lines[-1]
        self.bodies[name] = "\n".join([name + " {", *("  " + line for line in lines), "}"])
        return name

    def text(self, results):
        root = f"  ROOT results = ({', '.join(map(str, results))}) tuple({', '.join(v.name for v in results)})"
        entry = "\n".join(["ENTRY main {", *self.lines, root, "}"])
        return "\n\n".join(["HloModule m, replica_count=8", *self.bodies.values(), entry]) + "\n"


def size_of(groups):
    for size, spelled in GROUPS.items():
        if groups in spelled:
            return size
    raise Unfit


def scaled(shape, dim, by, over=1):
    if dim >= len(shape) or shape[dim] * by % over:
        raise Unfit
    return [size * by // over if place == dim else size for place, size in enumerate(shape)]


# Each maps fields to the results of a module: its first values are a base, and each other value of one field a change.


def all_reduce(m, f, x, y):
    operand = {"x": x, "y": y}[f["operand"]]
    call = f"replica_groups={f['groups']}, to_apply={m.reducer(f['reducer'], x.dtype)}"
    return [m.add(x.dtype, x.shape, f"all-reduce({operand.name}), {call}")]


def all_reduce_of_two(m, f, x, y):
    call = f"replica_groups={f['groups']}, to_apply={m.reducer(f['reducer'], x.dtype)}"
    operands = [{"x": x, "y": y}[letter] for letter in f["operands"]]
    if f["form"] == "tuple":
        made = m.several(operands, f"all-reduce({', '.join(v.name for v in operands)}), {call}")
    else:
        made = [m.add(v.dtype, v.shape, f"all-reduce({v.name}), {call}") for v in operands]
    return [made[int(place)] for place in f["results"]]


def all_gather(m, f, x, y):
    operands = [{"x": x, "y": y}[letter] for letter in f["operands"]]
    shape = scaled(x.shape, f["dim"], size_of(f["groups"]))
    call = f"replica_groups={f['groups']}, dimensions={{{f['dim']}}}"
    made = [Value("", x.dtype, shape) for _ in operands]
    if f["form"] == "tuple" and len(operands) > 1:
        return m.several(made, f"all-gather({', '.join(v.name for v in operands)}), {call}")
    return [m.add(x.dtype, shape, f"all-gather({v.name}), {call}") for v in operands]


def reduce_scatter(m, f, x, y):
    operands = [{"x": x, "y": y}[letter] for letter in f["operands"]]
    shape = scaled(x.shape, f["dim"], 1, size_of(f["groups"]))
    call = f"replica_groups={f['groups']}, dimensions={{{f['dim']}}}, to_apply={m.reducer(f['reducer'], x.dtype)}"
    if f["form"] == "tuple" and len(operands) > 1:
        made = [Value("", x.dtype, shape) for _ in operands]
        return m.several(made, f"reduce-scatter({', '.join(v.name for v in operands)}), {call}")
    return [m.add(x.dtype, shape, f"reduce-scatter({v.name}), {call}") for v in operands]


def all_to_all(m, f, x, y):
    operand = {"x": x, "y": y}[f["operand"]]
    scaled(x.shape, f["dim"], 1, size_of(f["groups"]))
    return [m.add(x.dtype, x.shape, f"all-to-all({operand.name}), replica_groups={f['groups']}, dimensions={{{f['dim']}}}")]


def all_to_all_of_two(m, f, x, y):
    if size_of(f["groups"]) != 2:
        raise Unfit
    operands = [{"x": x, "y": y}[letter] for letter in f["operands"]]
    made = m.several(operands, f"all-to-all({', '.join(v.name for v in operands)}), replica_groups={f['groups']}")
    return [made[int(place)] for place in f["results"]]


def permute(m, f, x, y):
    operand = {"x": x, "y": y}[f["operand"]]
    return [m.add(x.dtype, x.shape, f"collective-permute({operand.name}), source_target_pairs={{{f['pairs']}}}")]


def broadcast_of_ranks(m, f, x, y):
    operand = {"x": x, "y": y}[f["operand"]]
    return [m.add(x.dtype, x.shape, f"collective-broadcast({operand.name}), replica_groups={f['groups']}")]


def rank_number(m, f, x, y):
    made = m.add("u32", [], f["which"])
    return [m.add("u32", [], f"all-reduce({made.name}), replica_groups={f['groups']}, to_apply={m.reducer('add', 'u32')}"), x, y]


DTYPES = ["f32", "bf16", "s32"]
SHAPES = [(8, 16), (16, 8), (16, 8, 8)]
ONE, TWO = ["x", "y"], ["xy", "yx", "xx", "yy"]
COLLECTIVES = {
    "all-reduce": (all_reduce, {"operand": ONE, "reducer": [*REDUCERS, "and", "or"], "groups": ALL_GROUPS}),
    "all-reduce of two": (all_reduce_of_two, {"operands": TWO, "form": ["tuple", "apart"], "results": ["01", "10", "00", "11"],
                                              "reducer": REDUCERS, "groups": ALL_GROUPS}),
    "all-gather": (all_gather, {"operands": ONE, "form": ["apart"], "dim": [0, 1, 2], "groups": ALL_GROUPS}),
    "all-gather of two": (all_gather, {"operands": TWO, "form": ["tuple", "apart"], "dim": [0, 1, 2], "groups": ALL_GROUPS}),
    "reduce-scatter": (reduce_scatter, {"operands": ONE, "form": ["apart"], "dim": [0, 1, 2], "reducer": REDUCERS,
                                        "groups": ALL_GROUPS}),
    "reduce-scatter of two": (reduce_scatter, {"operands": TWO, "form": ["apart", "tuple"], "dim": [0, 1, 2],
                                               "reducer": REDUCERS, "groups": ALL_GROUPS}),
    "all-to-all": (all_to_all, {"operand": ONE, "dim": [0, 1, 2], "groups": ALL_GROUPS}),
    "all-to-all of two": (all_to_all_of_two, {"operands": TWO, "results": ["01", "10", "00", "11"], "groups": GROUPS[2]}),
    "collective-permute": (permute, {"operand": ONE, "pairs": PAIRS}),
    "collective-broadcast": (broadcast_of_ranks, {"operand": ONE, "groups": ALL_GROUPS}),
    "replica-id": (rank_number, {"which": ["replica-id()", "partition-id()", "constant(3)", "constant(4)"], "groups": ALL_GROUPS}),
}


def sliced(m, f, x, y):
    parts, shape = [], []
    for size, (start, end, step) in zip(x.shape, f["bounds"]):
        if end > size:
            raise Unfit
        parts.append(f"[{start}:{end}]" if step == 1 and f["step"] == "left out" else f"[{start}:{end}:{step}]")
        shape.append(-(-(end - start) // step))
    return m.add(x.dtype, shape, f"slice({x.name}), slice={{{', '.join(parts)}}}")


def transposed(m, f, x, y):
    order = f["order"]
    return m.add(x.dtype, [x.shape[place] for place in order], f"transpose({x.name}), dimensions={{{','.join(map(str, order))}}}")


def joined(m, f, x, y):
    operands = [{"x": x, "y": y}[letter] for letter in f["operands"]]
    shape = scaled(x.shape, f["dim"], len(operands))
    return m.add(x.dtype, shape, f"concatenate({', '.join(v.name for v in operands)}), dimensions={{{f['dim']}}}")


def padded(m, f, x, y):
    value = m.add(x.dtype, [], f"constant({f['value']})")
    shape = [size + low + high + max(size - 1, 0) * inner for size, (low, high, inner) in zip(x.shape, f["by"])]
    by = "x".join(f"{low}_{high}" + (f"_{inner}" if inner else "") for low, high, inner in f["by"])
    return m.add(x.dtype, shape, f"pad({x.name}, {value.name}), padding={by}")


def converted(m, f, x, y):
    made = x
    for dtype in f["through"]:
        made = m.add(dtype, x.shape, f"convert({made.name})")
    return made


def recast(m, f, x, y):
    wide = {"f32": ["s32", "u32"], "s32": ["f32", "u32"], "bf16": ["s16", "u16"]}[x.dtype]
    return m.add(wide[f["to"]], x.shape, f"{f['by']}({x.name})")


def at_place(m, f, x, y):
    starts = [m.add("s32", [], f"constant({start})") for start in f["starts"]]
    if f["swapped"]:
        starts.reverse()
    sizes = ",".join(map(str, f["sizes"]))
    names = ", ".join(v.name for v in starts)
    return m.add(x.dtype, f["sizes"], f"dynamic-slice({x.name}, {names}), dynamic_slice_sizes={{{sizes}}}")


def updated(m, f, x, y):
    starts = [m.add("s32", [], f"constant({start})") for start in f["starts"]]
    part, into = ({"x": x, "y": y}[f[field]] for field in ("part", "into"))
    part = m.add(x.dtype, [2, 2], f"slice({part.name}), slice={{[0:2], [0:2]}}")
    return m.add(x.dtype, x.shape, f"dynamic-update-slice({into.name}, {part.name}, {', '.join(v.name for v in starts)})")


def reshaped(m, f, x, y):
    made = x
    for shape in f["through"]:
        if np.prod(shape) != np.prod(x.shape):
            raise Unfit
        made = m.add(x.dtype, shape, f"{f['by']}({made.name})")
    return made


def spread(m, f, x, y):
    first = f["row"]
    part = m.add(x.dtype, [1, 8], f"slice({x.name}), slice={{[{first}:{first + 1}], [0:8]}}")
    row = m.add(x.dtype, [8], f"reshape({part.name})")
    return m.add(x.dtype, [8, 8], f"broadcast({row.name}), dimensions={{{f['dim']}}}")


def reverted(m, f, x, y):
    return m.add(x.dtype, x.shape, f"reverse({x.name}), dimensions={{{f['dims']}}}")


def chosen(m, f, x, y):
    a, b = ({"x": x, "y": y}[letter] for letter in f["compared"])
    which = m.add("pred", x.shape, f"compare({a.name}, {b.name}), direction={f['direction']}")
    c, d = ({"x": x, "y": y}[letter] for letter in f["chosen"])
    return m.add(x.dtype, x.shape, f"select({which.name}, {c.name}, {d.name})")


def numbered(m, f, x, y):
    made = m.add(x.dtype, x.shape, f"iota(), iota_dimension={f['dim']}")
    return m.add(x.dtype, x.shape, f"add({made.name}, {x.name})")


def folded(m, f, x, y):
    start = m.add(x.dtype, [], f"constant({f['start']})")
    shape = [size for place, size in enumerate(x.shape) if str(place) not in f["dims"].split(",")]
    call = f"dimensions={{{f['dims']}}}, to_apply={m.reducer(f['reducer'], x.dtype)}"
    return m.add(x.dtype, shape, f"reduce({x.name}, {start.name}), {call}")


def multiplied(m, f, x, y):
    left, right = x, m.add(y.dtype, y.shape[::-1], f"transpose({y.name}), dimensions={{1,0}}") if f["turned"] else y
    a, b = f["over"]
    if left.shape[a] != right.shape[b]:
        raise Unfit
    shape = [left.shape[1 - a], right.shape[1 - b]]
    call = f"lhs_contracting_dims={{{a}}}, rhs_contracting_dims={{{b}}}"
    return m.add(x.dtype, shape, f"dot({left.name}, {right.name}), {call}")


def computed(m, f, x, y):
    a, b = ({"x": x, "y": y}[letter] for letter in f["operands"])
    return m.add(x.dtype, x.shape, f"{f['op']}({a.name}, {b.name})")


def changed(m, f, x, y):
    if x.dtype == "s32" and f["op"] not in ("negate", "abs", "copy", "sign"):
        raise Unfit
    return m.add(x.dtype, x.shape, f"{f['op']}({x.name})")


def constant(m, f, x, y):
    value = m.add(x.dtype, [], f"constant({f['value']})")
    wide = m.add(x.dtype, x.shape, f"broadcast({value.name}), dimensions={{}}")
    return m.add(x.dtype, x.shape, f"{f['op']}({x.name}, {wide.name})")


def rounded(m, f, x, y):
    if x.dtype == "s32":
        raise Unfit
    return m.add(x.dtype, x.shape, f"reduce-precision({x.name}), exponent_bits={f['exponent']}, mantissa_bits={f['mantissa']}")


def bounded(m, f, x, y):
    low, high = (m.add(x.dtype, [], f"constant({value})") for value in f["bounds"])
    return m.add(x.dtype, x.shape, f"clamp({low.name}, {x.name}, {high.name})")


def both(start, end, step=1):
    return ((start, end, step), (0, 8, 1))


OPERATORS = {
    "slice": (sliced, {"bounds": [both(0, 4), both(1, 5), both(0, 8, 2), both(1, 8, 2), both(0, 7, 2), both(4, 8), both(0, 5),
                                  ((0, 8, 1), (0, 4, 1)), ((0, 4, 1), (0, 8, 1))], "step": ["left out", "said"]}),
    "transpose": (transposed, {"order": [(0, 1), (1, 0)]}),
    "concatenate": (joined, {"operands": [*TWO, "xyx", "xxy", "x"], "dim": [0, 1]}),
    "pad": (padded, {"value": [0, 1, 2], "by": [((1, 0, 0), (0, 0, 0)), ((0, 1, 0), (0, 0, 0)), ((0, 0, 0), (1, 0, 0)), ((0, 0, 1), (0, 0, 0)),
                                               ((-1, 2, 0), (0, 0, 0)), ((0, 0, 0), (0, 0, 0)), ((2, -1, 0), (0, 0, 0))]}),
    "convert": (converted, {"through": [(), ("bf16",), ("f16",), ("s32",), ("f32",), ("s8",), ("u8",), ("bf16", "f32"), ("f16", "f32"),
                                        ("s32", "f32"), ("f64", "f32"), ("s16", "s32"), ("f32", "bf16"), ("pred", "f32")]}),
    "bitcast-convert": (recast, {"to": [0, 1], "by": ["bitcast-convert", "convert"]}),
    "dynamic-slice": (at_place, {"starts": [(0, 0), (1, 0), (0, 1), (-1, 0), (2, 2), (7, 0), (6, 0), (100, 0)], "swapped": [False, True],
                                 "sizes": [(2, 2), (2, 4), (8, 8)]}),
    "dynamic-update-slice": (updated, {"starts": [(0, 0), (1, 0), (0, 1), (-1, 0), (2, 2), (7, 0), (6, 0)], "part": ["x", "y"], "into": ["x", "y"]}),
    "reshape": (reshaped, {"through": [((8, 8),), ((64,),), ((4, 16),), ((64,), (8, 8)), ((4, 16), (8, 8)), ((4, 16), (64,)), ((2, 4, 8),)],
                           "by": ["reshape", "bitcast"]}),
    "broadcast": (spread, {"row": [0, 1], "dim": [0, 1]}),
    "reverse": (reverted, {"dims": ["0", "1", "0,1", "1,0", ""]}),
    "compare and select": (chosen, {"compared": ["xy", "yx", "xx"], "direction": ["LT", "GT", "GE", "EQ", "NE"], "chosen": TWO}),
    "iota": (numbered, {"dim": [0, 1]}),
    "reduce": (folded, {"start": [0, 1], "dims": ["0", "1", "0,1", "1,0"], "reducer": REDUCERS[:-1]}),
    "dot": (multiplied, {"over": [(0, 0), (1, 1), (1, 0), (0, 1)], "turned": [False, True]}),
    "two operands": (computed, {"op": ["add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder"], "operands": TWO}),
    "one operand": (changed, {"op": ["negate", "abs", "exponential", "tanh", "sqrt", "floor", "ceil", "sign", "copy", "cosine", "sine"]}),
    "constant": (constant, {"op": ["add", "multiply"], "value": [0, 1, 2, -1]}),
    "reduce-precision": (rounded, {"exponent": [5, 8, 4], "mantissa": [10, 7, 23, 2]}),
    "clamp": (bounded, {"bounds": [(0, 2), (-1, 2), (0, 1), (2, 0)]}),
}


def collective_module(build, fields, dtype, shape, place):
    m = Module()
    x, y = m.param(dtype, shape), m.param(dtype, shape)
    return m.text(build(m, fields, x, y))


def operator_module(build, fields, dtype, shape, place):
    m = Module()
    x, y = m.param(dtype, (8, 8)), m.param(dtype, (8, 8))
    call = "replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply="
    if place == "after":
        x = m.add(x.dtype, x.shape, f"all-reduce({x.name}), {call}{m.reducer('add', x.dtype)}")
    made = build(m, fields, x, y)
    if place == "before":
        made = m.add(made.dtype, made.shape, f"all-reduce({made.name}), {call}{m.reducer('maximum', made.dtype)}")
    return m.text([made, y])


def pairs_of(cases, module, places, bases, rng, only):
    """Each base with each change of one field."""
    for name, (build, fields) in cases.items():
        if only and only not in name:
            continue
        seen = set()
        for number, place in itertools.product(range(bases), places):
            base = {field: (values[0] if number == 0 else rng.choice(values)) for field, values in fields.items()}
            dtype, shape = (DTYPES[0], SHAPES[0]) if number == 0 else (rng.choice(DTYPES), rng.choice(SHAPES))
            for field, values in fields.items():
                for value in values:
                    if value == base[field]:
                        continue
                    try:
                        before = module(build, base, dtype, shape, place)
                        after = module(build, {**base, field: value}, dtype, shape, place)
                    except Unfit:
                        continue
                    if before != after and (before, after) not in seen:
                        seen.add((before, after))
                        yield name, field, before, after


LINE = re.compile(r"^  (?:ROOT )?%?([\w.-]+) = (.*?) ([a-z-]+)\((.*?)\)(.*)$")
CHANGED = {"index": lambda text: str(1 - int(text)), "dimensions": lambda text: {"{0}": "{1}", "{1}": "{0}"}.get(text, text)}


def changes_of(text, rng):
    """Texts that differ from this one in one operand, or in the order of two, or in one attribute."""
    lines = text.split("\n")
    first = next(place for place, line in enumerate(lines) if line.startswith("ENTRY"))
    types = {}
    reducers = re.findall(r"^%?([\w.-]+) \{", text, re.M)
    for place in range(first + 1, len(lines)):
        found = LINE.match(lines[place])
        if not found:
            continue
        name, dtype, op, operands, rest = found.groups()
        names = [operand.strip() for operand in operands.split(",")]
        head = lines[place][: found.start(4)]
        others = []
        if op not in ("parameter", "constant"):
            for a, b in itertools.combinations(range(len(names)), 2):
                swapped = list(names)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                if types.get(names[a]) == types.get(names[b]) and names[a] != names[b]:
                    others.append(("order", f"{head}{', '.join(swapped)}){rest}"))
            for a, operand in enumerate(names):
                like = [other for other in types if types[other] == types.get(operand) and other != operand]
                for other in rng.sample(like, min(2, len(like))):
                    others.append(("operand", f"{head}{', '.join([*names[:a], other, *names[a + 1:]])}){rest}"))
        for attribute, other in CHANGED.items():
            value = re.search(rf"\b{attribute}=(\d+|\{{\d\}})", rest)
            if value and other(value[1]) != value[1]:
                others.append((attribute, lines[place].replace(value[0], f"{attribute}={other(value[1])}")))
        body = re.search(r"to_apply=%?([\w.-]+)", rest)
        for reducer in reducers if body else []:
            if reducer != body[1]:
                others.append(("to_apply", lines[place].replace(body[0], f"to_apply={reducer}")))
        for attribute, changed in others:
            yield attribute, "\n".join([*lines[:place], changed, *lines[place + 1 :]])
        types[name] = dtype


def merged_modules(count, rng, bucketeer, folder):
    """Modules of several collectives, and what `bucketeer rewrite` made of them."""
    for number in range(count):
        m = Module()
        dtype, shape = rng.choice(DTYPES), rng.choice([(8, 8), (8, 16)])
        groups, reducer = rng.choice(GROUPS[rng.choice([2, 4, 8])]), rng.choice(["add", "maximum"])
        inputs = [m.param(dtype, shape) for _ in range(3)]
        m.reducer("minimum", dtype)
        # XLA does not take in scatters and permutes of several tensors.
        kind = rng.choice([all_reduce, all_gather])
        fields = {"operand": "x", "operands": "x", "form": "apart", "dim": rng.choice([0, 1]), "groups": groups, "reducer": reducer}
        made = [kind(m, fields, value, value)[0] for value in inputs]
        made.append(m.add(made[0].dtype, made[0].shape, f"subtract({made[0].name}, {made[1].name})"))
        before = folder / "before.hlo"
        before.write_text(m.text(made), encoding="utf-8")
        ran = subprocess.run(
            [bucketeer, "rewrite", before, "--all-gather", "none", "--all-reduce", "none"],
            capture_output=True, text=True, check=False)
        if ran.returncode == 0 and ran.stdout != before.read_text(encoding="utf-8"):
            yield kind.__name__, before.read_text(encoding="utf-8"), ran.stdout


# XLA for CPUs (jaxlib 0.10.2) gathers several bf16 tensors wrongly along any dimension but the first: each alone is what HLO
# says, both in one call are not; other dtypes are right.
GATHERED_WRONGLY = re.compile(r" = \(bf16\[.* all-gather\(.*dimensions=\{[1-9]\d*\}")


class Judge:
    """What texts give under XLA, kept. XLA runs in a process of its own, since some modules end it."""

    def __init__(self):
        self.results, self.why, self.process = {}, collections.Counter(), None

    def of(self, text, name):
        if text not in self.results and GATHERED_WRONGLY.search(text):
            self.why["all-gather: XLA for CPUs gathers several bf16 tensors wrongly along an inner dimension"] += 1
            self.results[text] = None
        if text not in self.results:
            if self.process is None:
                self.pipe, other = multiprocessing.Pipe()
                self.process = multiprocessing.get_context("spawn").Process(target=serve, args=(other,), daemon=True)
                self.process.start()
                other.close()
            try:
                self.pipe.send(text)
                if not self.pipe.poll(120):
                    raise EOFError
                found, why = self.pipe.recv()
            except (EOFError, OSError):
                self.process.kill()
                self.process, found, why = None, None, "the process ended, or it took too long"
            if why:
                self.why[f"{name}: {why}"] += 1
            self.results[text] = found
        return self.results[text]

    def same(self, before, after, name):
        """True or False, or None where XLA does not run both."""
        results = self.of(before, name), self.of(after, name)
        return None if None in results else results[0] == results[1]


def serve(pipe):
    """Answers texts with a digest of their results, or why there are none."""
    import check_with_jax as xla

    while True:
        try:
            text = pipe.recv()
        except EOFError:
            return
        try:
            module = xla._hlo.hlo_module_from_text(text)
            shapes = xla._hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape().parameter_shapes()
            digest = hashlib.sha256()
            for inputs in inputs_of(shapes, xla.DEVICES):
                for value in itertools.chain(*xla.run(text, inputs)):
                    digest.update(f"{value.dtype} {value.shape}:".encode() + value.tobytes())
            pipe.send((digest.hexdigest(), None))
        except Exception as error:
            pipe.send((None, str(error).split("\n")[0][:100]))


def inputs_of(shapes, devices):
    """Two sets: small whole numbers, and any."""
    for kind in range(2):
        rng = np.random.default_rng(kind)
        of_shape = []
        for shape in shapes:
            dtype, sizes = shape.numpy_dtype(), shape.dimensions()
            whole = kind == 0 or np.issubdtype(dtype, np.integer) or dtype == np.bool_
            draw = (lambda: rng.integers(-6, 7, sizes)) if whole else (lambda: rng.standard_normal(sizes) * 3)
            of_shape.append([draw().astype(dtype) for _ in range(devices)])
        yield of_shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucketeer", default=ROOT / "target/debug/bucketeer")
    parser.add_argument("--bases", type=int, default=4, help="modules that are changed, of each instruction")
    parser.add_argument("--merges", type=int, default=30, help="merged modules that are changed")
    parser.add_argument("--seconds", type=float, default=1e9, help="no pair is begun after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="instructions whose name holds this word")
    parser.add_argument("--keep", type=pathlib.Path, help="where pairs go that are called equal and are not")
    options = parser.parse_args()
    rng, judge, begun = random.Random(options.seed), Judge(), time.monotonic()
    counts, wrong, number = collections.defaultdict(collections.Counter), [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def pairs():
            args = (options.bases, rng, options.only)
            for part, cases, module, places in [
                ("collectives", COLLECTIVES, collective_module, ["alone"]),
                ("operators", OPERATORS, operator_module, ["alone", "before", "after"]),
            ]:
                for name, field, before, after in pairs_of(cases, module, places, *args):
                    yield part, name, field, before, after
            if not options.only:
                for kind, source, merged in merged_modules(options.merges, rng, options.bucketeer, folder):
                    yield "merges", kind, "none", source, merged
                    for attribute, other in changes_of(merged, rng):
                        yield "merges", kind, attribute, source, other

        for part, name, field, before, after in pairs():
            if time.monotonic() - begun > options.seconds:
                print("the time is over; pairs are left")
                break
            files = folder / "a.hlo", folder / "b.hlo"
            for file, text in zip(files, (before, after)):
                file.write_text(text, encoding="utf-8")
            ran = subprocess.run([options.bucketeer, "verify", *files], capture_output=True, text=True, check=False)
            said = {0: "equal", 1: "different", 2: "cannot decide"}.get(ran.returncode, "crash")
            if said == "different" and ran.stderr.startswith("error"):
                said = "refused to read"
            same = judge.same(before, after, name)
            is_so = {True: "same", False: "not same", None: "not run"}[same]
            counts[part, name][said, is_so] += 1
            number += 1
            if said == "crash" or (said == "equal" and same is False):
                wrong.append((part, name, field, before, after))
                print(f"WRONG: {part}, {name}, {field}: {said}, under XLA {is_so}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    for letter, text in zip("ab", (before, after)):
                        (options.keep / f"{len(wrong)}.{letter}.hlo").write_text(text, encoding="utf-8")
    heads = [("equal", "same"), ("equal", "not same"), ("equal", "not run"), ("different", "not same"), ("different", "same"),
             ("cannot decide", "not same"), ("cannot decide", "same")]
    print(f"{'':38}" + "".join(f"{said + ',':>15}" for said, _ in heads) + f"{'':>9}")
    print(f"{'':38}" + "".join(f"{is_so:>15}" for _, is_so in heads) + f"{'others':>9}")
    totals = collections.Counter()
    for key, found in counts.items():
        totals.update(found)
        others = sum(found.values()) - sum(found[head] for head in heads)
        print(f"{', '.join(key):38}" + "".join(f"{found[head]:15}" for head in heads) + f"{others:9}")
    print(f"{'all':38}" + "".join(f"{totals[head]:15}" for head in heads) + f"{sum(totals.values()) - sum(totals[head] for head in heads):9}")
    for why, count in judge.why.most_common(12):
        print(f"XLA does not run {count} modules: {why}")
    run = sum(count for (_, is_so), count in totals.items() if is_so != "not run")
    print(f"{number} pairs, {run} of them run under XLA, {len(wrong)} called equal that are not (or crashed)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
