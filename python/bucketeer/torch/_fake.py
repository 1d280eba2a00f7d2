"""Fake values of a graph: which mode they are of, what its symbols are likely to be, and those of new nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from ._private import meta_kernels, shape_hints

# What rewrites are made of: each has a meta kernel, which the dispatch of fake tensors would end up in as well.
_BY_META_KERNEL = {
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.wait_tensor.default,
    torch.ops.aten.cat.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.split_with_sizes.default,
    torch.ops.aten.view.default,
    torch.ops.prims.convert_element_type.default,
}


def fake_mode(graph: Graph) -> Any:
    """Give the mode of the graph's fake values; none if it has none."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else (value,):
            mode = getattr(item, "fake_mode", None)
            if mode is not None:
                return mode
    return None


def hints_of(graph: Graph) -> Callable[[str], int | None]:
    """Give a function that finds the likely value of a symbol: what it was when the graph was traced."""
    by_name = shape_hints(fake_mode(graph))

    def hint(symbol: str) -> int | None:
        value = by_name.get(symbol)
        return value if value is not None and value >= 0 else None

    return hint


class FakeValues:
    """Gives nodes their fake values, by running what they call on those of their arguments; a context manager.

    What rewrites are made of runs as meta kernels, where the dispatch of fake tensors ends up, too, after ten times as long.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._kernels = meta_kernels(mode)
        self._inside = ExitStack()
        self._is_inside = False

    def __enter__(self) -> FakeValues:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside.close()
        self._is_inside = False

    def give(self, node: Node) -> None:
        """Set `meta["val"]` of a call, where all of its arguments have one. Without a mode they are no fake values."""
        known = self._mode is not None

        def value(item: Any) -> Any:
            nonlocal known
            if isinstance(item, Node):
                known &= "val" in item.meta
                return item.meta.get("val")
            return item

        args, kwargs = map_aggregate(node.args, value), map_aggregate(node.kwargs, value)
        if known:
            node.meta["val"] = self._run(node.target, args, kwargs)

    def _run(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator.getitem:
            return args[0][args[1]]
        if self._kernels is not None and target in _BY_META_KERNEL and _is_static(args):
            return self._run_kernel(target, args, kwargs)
        self._leave()
        with self._mode, torch.no_grad():
            return target(*args, **kwargs)

    def _run_kernel(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_inside:
            self._inside.enter_context(torch.no_grad())
            self._inside.enter_context(self._kernels())
            self._is_inside = True
        first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        made = target(*args, **kwargs)
        wrap, device = self._mode.fake_tensor_converter.from_meta_and_device, first.fake_device
        if isinstance(made, torch.Tensor):
            return wrap(self._mode, made, device)
        return type(made)(wrap(self._mode, part, device) for part in made)


def _is_static(value: Any) -> bool:
    """Whether no size in it is symbolic: those need the dispatcher of Python."""
    if isinstance(value, (list, tuple)):
        return all(_is_static(item) for item in value)
    if isinstance(value, torch.Tensor):
        return not value._has_symbolic_sizes_strides
    return not isinstance(value, torch.SymInt)
