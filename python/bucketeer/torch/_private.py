"""Names of PyTorch that it does not promise to keep, in one place. Tested with PyTorch 2.15.

What is missing in another version is None, or has a stand-in, where it can be done without.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def process_group(name: str) -> Any:
    """Find a process group by name; raises what c10d raises."""
    from torch.distributed import distributed_c10d

    return getattr(distributed_c10d, "_resolve_process_group")(name)


def world_groups() -> list[tuple[str, dict[int, int]]]:
    """Give the groups that this process made: names, and group ranks by global rank."""
    from torch.distributed import distributed_c10d

    world: Any = distributed_c10d._world
    return [(world.pg_names.get(group, ""), ranks) for group, ranks in world.pg_group_ranks.items()]


def store_under(prefix: str) -> Any:
    """Give a part of the store that all ranks share."""
    from torch.distributed import distributed_c10d

    return getattr(dist, "PrefixStore")(prefix, getattr(distributed_c10d, "_get_default_store")())


def graph_name() -> str:
    """Give the name of the graph that is being compiled: that which AOTAutograd gives it."""
    try:
        from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name
    except ImportError:
        return "graph"
    return str(get_aot_graph_name())


def structured_artifact(name: str, payload: Callable[[], str]) -> None:
    """Leave an artifact in PyTorch's structured log, which tlparse shows."""
    from torch import _logging

    trace: Any = getattr(_logging, "trace_structured", None)
    if trace is not None:
        trace("artifact", metadata_fn=lambda: {"name": name, "encoding": "json"}, payload_fn=payload)


def shape_hints(mode: Any) -> dict[str, int]:
    """Give the values that symbols had when a graph was traced under this mode of fake tensors."""
    shapes = getattr(mode, "shape_env", None)
    values = getattr(shapes, "backed_var_to_val", None)
    if values is None:
        # What earlier versions call it.
        values = getattr(shapes, "var_to_val", None) or {}
    hints: dict[str, int] = {}
    for symbol, value in values.items():
        # Sizes of nested tensors are no numbers.
        with contextlib.suppress(TypeError, ValueError):
            hints[str(symbol)] = int(value)
    return hints


def meta_kernels(mode: Any) -> Any:
    """Give a context in which operators on fake tensors run as on meta tensors; none where there is no such context."""
    from torch._subclasses import fake_tensor

    manager: Any = getattr(fake_tensor, "in_kernel_invocation_manager", None)
    return None if manager is None or mode is None else lambda: manager(mode)


def boxed(function: Callable[..., Any]) -> Any:
    """Give the form in which AOTAutograd calls what a compiler gives back: with a list, which may be emptied."""
    from torch._functorch import aot_autograd

    return getattr(aot_autograd, "make_boxed_func")(function)


def set_for_other_threads(name: str, value: Any) -> Callable[[Any], None]:
    """Give a setting of Inductor to threads that have none of their own, and give back what puts another in its place: none is what
    was there before anything of ours.

    What is set in one thread is seen in that thread alone; others see the default. A thread that has read it keeps it.
    """
    from torch._inductor import config

    entry: Any = getattr(config, "_config", {}).get(name)
    if entry is None or not hasattr(entry, "default"):
        return lambda other: None
    before = entry.default
    entry.default = value

    def undo(other: Any) -> None:
        if entry.default is value:
            # Ours have an `inner`; what a user has set as the default stays.
            entry.default = other if other is not None or hasattr(before, "inner") else before

    return undo


def is_in_post_grad() -> bool:
    """Whether the caller was called from Inductor's passes over a post-grad graph, behind which it makes fake values of new nodes."""
    frame = sys._getframe(1)
    for _ in range(16):
        if frame.f_code.co_name == "post_grad_passes" and frame.f_globals.get("__name__") == "torch._inductor.fx_passes.post_grad":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def passes_of(value: Any) -> tuple[Any, ...]:
    """Give the passes that a setting holds: none, one or several."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def erase(graph: Any, node: Any) -> BaseException | None:
    """Take a node out of a graph, also if a hook of somebody's that hears of it fails; give that failure."""
    try:
        graph.erase_node(node)
    except BaseException as error:
        module = graph.owning_module
        hooks = getattr(module, "_erase_node_hooks", None)
        if not hooks:
            return error
        module._erase_node_hooks = []
        try:
            graph.erase_node(node)
        except BaseException as again:
            return again
        finally:
            module._erase_node_hooks = hooks
        return error
    return None


def forget_unplaced(graph: Any, inputs: Any) -> None:
    """Take from nodes the readers that are in no graph: what a hook that failed has left of a node that was being made."""
    placed = set(graph.nodes)
    for node in inputs:
        for reader in list(node.users):
            if reader not in placed:
                reader.args, reader.kwargs = (), {}
