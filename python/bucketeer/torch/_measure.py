"""How long the calls of a step compute on the device at hand, for the planner."""

from __future__ import annotations

import json
import operator
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from ._enable import Hooked
from ._graphs import digest_of, is_launch, is_wait
from ._private import graph_name
from ._times import SCHEMA


@dataclass(frozen=True)
class Measured:
    """What was measured."""

    files: tuple[Path, ...]
    """One for each graph of the step; `enable(profile=.., times=folder)` finds them again."""
    calls: int
    """So many different calls were run."""
    failed: tuple[str, ...]
    """Calls that did not run, and why; the planner takes their time from their shapes."""


def measure(step: Callable[[], Any], folder: Any = "bucketeer-times", *, steps: int = 5, warm_up: int = 2) -> Measured:
    """Measure how long each call of the graphs of a step computes, and write a file of times for each graph.

    `step` runs once, compiled anew, so that its graphs are seen; it has to call what `torch.compile` gave. Each different call, by
    operator, arguments, types and sizes, is then run alone, `warm_up` times unmeasured and `steps` times under PyTorch's profiler,
    on made-up values of the same sizes and strides (integers are 0, as they may be indices); the median counts. Collectives, waits and
    views take no time here: a profile has that of messages. Fusion is not seen: pointwise calls take longer here than in a kernel
    that several share.
    """
    recorder = _Recorder()
    torch._dynamo.reset()
    with Hooked(recorder):
        step()
    torch._dynamo.reset()
    calls = {key: call for graph in recorder.graphs.values() for key, call in graph.calls.items()}
    times, failed = _run(calls, steps, warm_up)
    failed = [*recorder.failed, *failed]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for digest, graph in recorder.graphs.items():
        nanoseconds = {name: round(times[key]) for name, key in graph.nodes if key in times}
        path = folder / f"{digest}.json"
        path.write_text(json.dumps({"schema": SCHEMA, "graph": graph.name, "ns": nanoseconds}, indent=1) + "\n")
        files.append(path)
    if failed:
        warnings.warn(f"bucketeer: {len(failed)} calls did not run alone and were not measured; the first: {failed[0]}", stacklevel=2)
    return Measured(tuple(files), len(times), tuple(failed))


class _Calls:
    """The calls of one graph: which node makes which."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[tuple[str, Any]] = []
        self.calls: dict[Any, tuple[Any, Any, Any]] = {}


class _Recorder(CustomGraphPass):
    """Keeps what the graphs call that Inductor compiles."""

    def __init__(self) -> None:
        self.graphs: dict[str, _Calls] = {}
        self.failed: dict[str, None] = {}

    def __call__(self, graph: Graph) -> None:
        calls = _Calls(graph_name())
        for node in graph.nodes:
            if not _computes(node):
                continue
            known = all("val" in of.meta for of in node.all_input_nodes)
            if not known:
                continue
            fake = lambda item: item.meta["val"] if isinstance(item, Node) else item  # noqa: E731
            args, kwargs = map_aggregate(node.args, fake), map_aggregate(node.kwargs, fake)
            try:
                key = (str(node.target), str(map_aggregate((args, kwargs), _describe)))
            except ValueError as error:
                self.failed[f"{node.target}: {error}"] = None
                continue
            calls.nodes.append((node.name, key))
            calls.calls.setdefault(key, (node.target, args, kwargs))
        self.graphs[digest_of(graph)] = calls

    def uuid(self) -> None:
        """Nothing is taken from a cache: graphs have to be seen."""
        return None


def _computes(node: Node) -> bool:
    target = node.target
    if node.op != "call_function" or is_launch(node) or is_wait(node) or target is operator.getitem:
        return False
    return isinstance(target, torch._ops.OpOverload) and not target.is_view


def _describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(map(_likely, value.shape)), tuple(map(_likely, value.stride())), str(value.device))
    return _likely(value) if isinstance(value, torch.SymInt) else value


def _likely(size: Any) -> int:
    """What a size was when the graph was traced."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    if hint is None:
        raise ValueError(f"nothing is known of size {size}")
    return int(hint)


class _Values:
    """Makes up values by fake ones."""

    def of(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return map_aggregate(args, self._value), map_aggregate(kwargs, self._value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return _likely(value)
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides = [_likely(size) for size in value.shape], [_likely(stride) for stride in value.stride()]
        made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point and value.dtype.itemsize > 1:
            return made.normal_()
        return made.zero_()


def _run(calls: dict[Any, tuple[Any, Any, Any]], steps: int, warm_up: int) -> tuple[dict[Any, float], list[str]]:
    """Give the median time of each call in nanoseconds, on a device that of its kernels; and what did not run."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.accelerator.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    failed: dict[str, None] = {}
    values = _Values()
    named = {f"bucketeer call {number}": (key, *call) for number, (key, call) in enumerate(calls.items())}
    with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
        for name, (_, target, args, kwargs) in named.items():
            try:
                made, words = values.of(args, kwargs)
                for _ in range(warm_up):
                    target(*made, **words)
                for _ in range(steps):
                    with torch.profiler.record_function(name):
                        target(*made, **words)
            except Exception as error:
                failed[f"{target}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"] = None
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    taken: dict[Any, list[float]] = {}
    for event in profile.events():
        if event.name in named and str(event.device_type).endswith("CPU"):
            kernels = event.device_time_total
            taken.setdefault(named[event.name][0], []).append(kernels if kernels > 0 else event.cpu_time_total)
    whole = {key: statistics.median(spans) * 1000 for key, spans in taken.items() if len(spans) == steps}
    return whole, list(failed)
