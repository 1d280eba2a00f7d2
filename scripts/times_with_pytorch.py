#!/usr/bin/env python3
"""Measure how long each call of an FX text computes under PyTorch.

    times_with_pytorch.py GRAPH -o times.json [--device D] [--repeat N] [--hint s0=8] [--operators FILE]

Each distinct call, by operator, arguments and the types of its operands, is run alone
on the device: a few times unmeasured, then N times, and the median counts. Operands
are made up from their annotations, integers all 0, as they may be indices; what has no
annotation is computed by the call that makes it. Views take nothing and are left out,
as are collectives, waits, and calls of graphs. A call that does not run is named on
stderr and left out, so that its time stays the one that its shapes give.

The file has schema `bucketeer-times-1`: nanoseconds by node, see docs/costs.md.

Exit code: 0 all ran, 1 some did not, 2 bad usage or a text that is not read.
"""
import argparse
import ast
import importlib
import json
import math
import platform
import re
import statistics
import sys
import time

import torch

import check_with_pytorch as reader

# Runs before any is measured.
WARM_UP = 3
# A call whose runs took so long is not run more often.
MOST_SECONDS = 2.0
SKIPPED = re.compile(r"torch\.ops\.(_c10d_functional|_dtensor|bucketing)\.|__(cond|invoke|group)__|operator\.getitem")


class Given:
    """The values of names, made up or computed when they are asked for."""

    def __init__(self, graph, statements, notes, device):
        self.annotations, self.statements = graph.annotations, statements
        self.notes, self.device, self.values = notes, device, {}

    def note(self, name):
        note = self.annotations.get(name)
        return None if note is None else str(self.notes(note))

    def value(self, name):
        """A new tensor each time it is asked for, as a call may write it."""
        note = self.annotations.get(name)
        if note is not None:
            made = reader.make_input(name, note, self.notes, 0, 0, 1)
            return made.to(self.device) if isinstance(made, torch.Tensor) else made
        if name not in self.statements:
            raise ValueError(f"nothing says what `{name}` is")
        return self.run(self.statements[name])()

    def run(self, expression):
        """A function that runs an expression on values of the names in it."""
        code = compile(ast.Expression(expression), "<call>", "eval")
        scope = {"torch": torch, "math": math, "inf": math.inf, "nan": math.nan, "device": lambda *a, **k: self.device,
                 "__functionalized__": reader.functionalized}
        scope.update((name, self.value(name)) for name in operands(expression) if name not in scope)
        self.scope = scope
        return lambda: eval(code, scope)


def operands(expression):
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(names) if name not in ("torch", "device", "math")]


def statements_of(path):
    """The right sides of a graph by the names that they make, in program order."""
    _, func = reader.forward_of(ast.parse(reader.read_text(path, as_cpu=True)))
    found = {}
    for node in func.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and node.value is not None:
            # `a = b = None` only drops names.
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                found[target.id] = node.value
    return found


def is_view(result, scope, expression):
    """Whether a call hands on the memory of an operand and writes nothing."""
    target = ast.unparse(expression.func)
    if re.search(r"\w_\.\w+$", target) or "out=" in ast.unparse(expression).replace(" ", ""):
        return False
    given = {value.untyped_storage()._cdata for value in scope.values() if isinstance(value, torch.Tensor)}
    leaves = result if isinstance(result, (tuple, list)) else [result]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(leaf.untyped_storage()._cdata in given for leaf in tensors)


def synchronize(device):
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def median_ns(run, device, repeat):
    """The median of measured runs: by the device's own clock where it has one."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    for _ in range(WARM_UP):
        run()
    synchronize(device)
    times, start = [], time.perf_counter()
    for _ in range(repeat):
        if module is None:
            before = time.perf_counter_ns()
            run()
            times.append(time.perf_counter_ns() - before)
        else:
            begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e6)
        if time.perf_counter() - start > MOST_SECONDS:
            break
    return max(1, round(statistics.median(times)))


def measure(path, device, repeat, hints):
    """Nanoseconds by node, and what did not run."""
    graph, statements = reader.Graph(path, True), statements_of(path)
    given = Given(graph, statements, reader.Annotations(hints), device)
    for name in graph.annotations:
        try:
            given.note(name)
        except NameError as error:
            raise ValueError(f"`{name}` has the symbol {error.name}; state --hint {error.name}=8") from error
    if graph.inductor:
        importlib.import_module("torch._inductor.inductor_prims")  # registers prims.fma
    known, times, failed = {}, {}, {}
    for name, expression in statements.items():
        text = ast.unparse(expression)
        if not isinstance(expression, ast.Call) or SKIPPED.search(text):
            continue
        used = operands(expression)
        numbered = {operand: f"%{at}" for at, operand in enumerate(used)}
        shape = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: numbered.get(word[0], word[0]), text)
        key = (shape, tuple(given.note(operand) or operand for operand in used))
        if key not in known:
            try:
                run = given.run(expression)
                scope = given.scope
                with torch.no_grad():
                    known[key] = None if is_view(run(), scope, expression) else median_ns(run, device, repeat)
            except Exception as error:
                known[key] = None
                failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if known[key] is not None:
            times[name] = known[key]
    return times, failed, len(known)


def device_name(device):
    if device.type == "cpu":
        return platform.processor() or platform.machine()
    return torch.get_device_module(device).get_device_name(device)


def default_device():
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return str(found or "cpu")


def hint(text):
    name, _, value = text.partition("=")
    return name, int(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", help="FX text, also packed with gzip")
    parser.add_argument("-o", "--output", required=True, help="where the times go")
    parser.add_argument("--device", default=default_device(), help="as PyTorch names it; the first accelerator, or cpu")
    parser.add_argument("--repeat", type=int, default=20, help="measured runs of each call")
    parser.add_argument("--hint", type=hint, action="append", default=[], help="the value of a symbol: s0=8")
    parser.add_argument("--operators", help="Python that defines custom operators, run first")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"--repeat: found {options.repeat}, expected at least 1")
    device = torch.device(options.device)
    try:
        if options.operators:
            with open(options.operators) as f:
                exec(compile(f.read(), options.operators, "exec"), {"torch": torch})
        times, failed, distinct = measure(options.graph, device, options.repeat, dict(options.hint))
    except (OSError, SyntaxError, ValueError) as error:
        print(f"{options.graph}: {error}", file=sys.stderr)
        return 2
    source = f"PyTorch {torch.__version__} on {device_name(device)}, median of {options.repeat}"
    with open(options.output, "w") as f:
        json.dump({"schema": "bucketeer-times-1", "source": source, "ns": times}, f, indent=2)
        f.write("\n")
    for name, why in failed.items():
        print(f"{name}: did not run: {why}", file=sys.stderr)
    print(f"{len(times)} calls timed, {distinct} distinct ones tried, {len(failed)} of them did not run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
