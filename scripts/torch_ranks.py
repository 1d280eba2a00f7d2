#!/usr/bin/env python3
"""Run FX text on all ranks of a small world in one process, without process groups.

Imported by differential_with_pytorch.py and adversary_with_pytorch.py. A text is cut
at its collectives: what lies between is executed by PyTorch, rank by rank, each rank
with its own random numbers; a collective is computed here from the inputs of all
ranks, as they are at its launch. Until it is waited for, its result is poison (NaN, or
the largest number), so that a rewrite that reads it too early is seen.

Sums are in the order of the ranks, so that equal programs give equal bits.
"""
import re

import torch

# Process groups by name: who talks to whom. Any other name is all ranks.
GROUPS = {"solo": [[0], [1]]}


class NotRun(Exception):
    """The text does not run under PyTorch, or has a collective that this world lacks."""


# ---------------------------------------------------------------- collectives


def reduced(inputs, op):
    total = inputs[0].clone()
    for other in inputs[1:]:
        if op in ("sum", "avg"):
            total = total + other
        elif op == "product":
            total = total * other
        elif op == "max":
            total = torch.maximum(total, other)
        elif op == "min":
            total = torch.minimum(total, other)
        elif op in ("band", "bor", "bxor"):
            total = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op](total, other)
        else:
            raise NotRun(f"reduction {op}")
    if op == "avg":
        total = total / len(inputs) if total.is_floating_point() else total // len(inputs)
    return total


def split_rows(tensor, splits):
    return list(torch.split(tensor, splits, 0))


def pair_all_to_all(inputs, outs, ins):
    parts = [split_rows(tensor, list(sizes)) for tensor, sizes in zip(inputs, ins)]
    results = []
    for rank in range(len(inputs)):
        received = [parts[source][rank] for source in range(len(inputs))]
        if [part.shape[0] for part in received] != list(outs[rank]):
            raise NotRun("ranks disagree on the split")
        results.append(torch.cat(received))
    return results


def compute(kind, calls):
    """What each rank gets: a list over ranks of a list of results. `calls` are (args, kwargs) of each rank."""
    world = len(calls)
    first = [list(args[0]) if isinstance(args[0], (list, tuple)) else [args[0]] for args, _ in calls]
    columns = list(zip(*first))
    rest = [args[1:] for args, _ in calls]
    if kind.startswith("all_reduce"):
        rows = [[reduced(column, rest[0][0])] * world for column in columns]
    elif kind.startswith("all_gather"):
        expect(rest[0][0] == world)
        rows = [[torch.cat([t if t.dim() else t.reshape(1) for t in column])] * world for column in columns]
    elif kind.startswith("reduce_scatter"):
        expect(rest[0][1] == world and all(t.dim() and t.shape[0] % world == 0 for column in columns for t in column))
        rows = [list(torch.chunk(reduced(column, rest[0][0]), world)) for column in columns]
    elif kind.startswith("broadcast"):
        rows = [[column[rest[0][0]]] * world for column in columns]
    elif kind == "all_to_all_single":
        rows = [pair_all_to_all(columns[0], [r[0] for r in rest], [r[1] for r in rest])]
    else:
        raise NotRun(f"collective {kind}")
    return [[row[rank].contiguous().clone() for row in rows] for rank in range(world)]


def expect(condition):
    if not condition:
        raise NotRun("a collective of another group")


def poison(tensor):
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


# ---------------------------------------------------------------- a text


LINE = re.compile(r'^(\w+)(?:: "[^"]*")? = (.*)$')
COLLECTIVE = re.compile(r"torch\.ops\._c10d_functional\.(\w+)\.\w+(\(.*\))$")
DROPPED = re.compile(r";\s+[\w =]+= None$")


class Text:
    """Compiled text, one statement a line: blocks between collectives. `apart` makes each statement a block."""

    def __init__(self, text, apart=False):
        lines = [line.strip() for line in text.splitlines()]
        start = next((at for at, line in enumerate(lines) if line.startswith("def forward(")), None)
        if start is None:
            raise NotRun("no `def forward`")
        self.inputs = re.findall(r'(\w+): "', lines[start])
        self.steps, block = [], []
        for line in lines[start + 1:]:
            if not line or line.startswith("#"):
                continue
            line = DROPPED.sub("", line)
            if line.startswith("return "):
                block.append("__out__ = " + line.removeprefix("return "))
                break
            found = LINE.match(line)
            call = COLLECTIVE.match(found[2]) if found else None
            if call is None:
                block.append(f"{found[1]} = {found[2]}" if found else line)
                if apart:
                    self.close(block)
                    block = []
                continue
            self.close(block)
            block = []
            self.steps.append((call[1], self.compiled("__pack__" + call[2], "eval"), found[1]))
        self.close(block)

    def close(self, block):
        if block:
            self.steps.append((None, self.compiled("\n".join(block), "exec"), None))

    @staticmethod
    def compiled(text, how):
        try:
            return compile(text, "<text>", how)
        except SyntaxError as error:
            raise NotRun(f"no Python: {error}") from error


class Rank:
    def __init__(self, inputs, names, seed):
        self.names = dict(torch=torch, device=torch.device, inf=float("inf"), nan=float("nan"), __pack__=lambda *a, **k: (a, k))
        self.names.update(zip(names, inputs))
        self.inputs = inputs
        torch.default_generator.manual_seed(seed)
        self.random = torch.get_rng_state()
        self.flying = []

    def wait(self, tensor):
        key = tensor.untyped_storage()._cdata
        for out, result in self.flying:
            if out.untyped_storage()._cdata == key:
                out.copy_(result)
        self.flying = [pair for pair in self.flying if pair[0].untyped_storage()._cdata != key]
        return tensor


def by_group(kind, calls):
    """Results of each rank, computed among the ranks of its group."""
    names = {args[-1] for args, _ in calls}
    expect(len(names) == 1)
    parts, results = GROUPS.get(names.pop(), [list(range(len(calls)))]), [None] * len(calls)
    for ranks in parts:
        for rank, row in zip(ranks, compute(kind, [calls[rank] for rank in ranks])):
            results[rank] = row
    return results


def launch(kind, ranks, code, target):
    calls = [eval(code, rank.names) for rank in ranks]
    if kind == "wait_tensor":
        for rank, (args, _) in zip(ranks, calls):
            rank.names[target] = rank.wait(args[0])
        return
    stem = kind.removesuffix("_").removesuffix("_out")
    for rank, (args, kwargs), results in zip(ranks, calls, by_group(stem, calls)):
        several = isinstance(args[0], (list, tuple))
        if kind.endswith("_out"):
            outs = list(kwargs["out"]) if several else [kwargs["out"]]
        elif kind.endswith("_"):
            outs = list(args[0]) if several else [args[0]]
        else:
            outs = [torch.empty_like(result) for result in results]
        for out, result in zip(outs, results):
            if out.shape != result.shape:
                raise NotRun("`out` has another shape")
            poison(out)
        rank.flying += list(zip(outs, results))
        rank.names[target] = outs if several else outs[0]


def run(text, inputs, seed=7, watch=None):
    """Outputs of all ranks, and the inputs as they were left. `inputs` is a list over ranks, and is written.

    `watch` is called with the names of rank 0 after each block.
    """
    ranks = []
    for number, given in enumerate(inputs):
        if len(given) != len(text.inputs):
            raise NotRun("another number of inputs")
        ranks.append(Rank(given, text.inputs, seed + number))
    try:
        with torch.no_grad():
            for kind, code, target in text.steps:
                if kind is not None:
                    launch(kind, ranks, code, target)
                else:
                    for rank in ranks:
                        torch.set_rng_state(rank.random)
                        exec(code, rank.names)
                        rank.random = torch.get_rng_state()
                if watch is not None:
                    watch(ranks[0].names)
    except NotRun:
        raise
    except Exception as error:
        raise NotRun(f"{type(error).__name__}: {re.sub(chr(10), ' ', str(error))[:200]}") from error
    return [rank.names["__out__"] for rank in ranks], [rank.inputs for rank in ranks]


# ---------------------------------------------------------------- comparison

EQUAL, CLOSE, DIFFERENT = 0, 1, 2


def compare(a, b):
    """Bit by bit; NaN equals NaN. CLOSE is what another order of a sum or another vector width explains."""
    if isinstance(a, (list, tuple)):
        if not isinstance(b, (list, tuple)) or len(a) != len(b):
            return DIFFERENT
        return max(map(compare, a, b), default=EQUAL)
    if not isinstance(a, torch.Tensor):
        return EQUAL if not isinstance(b, torch.Tensor) and (a == b or (a != a and b != b)) else DIFFERENT
    if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return DIFFERENT
    if a.numel() == 0 or bits(a) == bits(b):
        return EQUAL
    if not (a.is_floating_point() or a.is_complex()):
        return DIFFERENT
    hole = a.isnan()
    if torch.equal(hole, b.isnan()) and bits(a.masked_fill(hole, 0)) == bits(b.masked_fill(hole, 0)):
        return EQUAL
    wide = torch.complex128 if a.is_complex() else torch.float64
    near = torch.allclose(a.to(wide), b.to(wide), rtol=1e-5, atol=1e-7, equal_nan=True)
    return CLOSE if near else DIFFERENT


def bits(tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()
