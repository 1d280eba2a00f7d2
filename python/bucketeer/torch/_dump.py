"""From a model to files that the command line reads, away from the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import _native
from . import _groups
from ._fake import hints_of
from ._graphs import has_launches, outside
from ._operators import describe
from ._private import boxed


@dataclass(frozen=True)
class Dump:
    """What was written."""

    graphs: tuple[Path, ...]
    """FX text of each graph, in the order in which they were compiled."""
    groups: Path
    """Members of the process groups, for `--groups`."""
    operators: Path
    """Schemas of operators that are not PyTorch's, for `--ops`."""
    notes: tuple[str, ...]
    """What to know of them: which have no collectives, and why that may be."""

    def __str__(self) -> str:
        files = [*self.graphs, self.groups, self.operators]
        return "\n".join([*(str(path) for path in files), *self.notes])


def dump(model: Any, inputs: Any, folder: Any = "bucketeer-dump", *, backward: bool = True) -> Dump:
    """Write the graphs of one step of a model, its process groups and the schemas of its operators.

    `inputs` are the positional arguments of the model: a tuple or list of them, one tensor, or a dictionary of keywords. The step
    is traced as `torch.compile` does it, partitioned into forward and backward as Inductor does it, and run eagerly, so that every
    rank has to take part; gradients of its leaves are as they were then. What was compiled before is compiled again when it is called
    again. On one machine without a cluster, a process group of backend `fake` stands in for the others.

    Raises `bucketeer.Error` if nothing was compiled.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found: list[tuple[str, torch.fx.GraphModule]] = []

    def take(direction: str) -> Any:
        def compiler(module: torch.fx.GraphModule, _: Any) -> Any:
            found.append((direction, module))
            return boxed(module.forward)

        return compiler

    backend = aot_autograd(
        fw_compiler=take("forward"),
        bw_compiler=take("backward"),
        inference_compiler=take("inference"),
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    if isinstance(inputs, dict):
        results = compiled(**inputs)
    else:
        results = compiled(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    leaves: list[Any] = pytree.tree_leaves(results)
    roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if backward and roots:
        _backward(roots, [*getattr(model, "parameters", list)(), *(leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))])
    torch._dynamo.reset()
    return _write(found, Path(folder))


def _backward(roots: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
    """Run the backward pass, so that it is compiled; gradients stay what they were."""
    gradients = [(leaf, leaf.grad) for leaf in leaves if leaf.is_leaf]
    for leaf, _ in gradients:
        leaf.grad = None
    try:
        torch.autograd.backward([root.sum() for root in roots])
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient


def _write(found: list[tuple[str, torch.fx.GraphModule]], folder: Path) -> Dump:
    from .._errors import Error

    if not found:
        raise Error("nothing was compiled: the model has no graph that torch.compile takes; see TORCH_LOGS=graph_breaks")
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[list[int]]] = {}
    schemas: dict[str, None] = {}
    paths, notes = [], []
    for number, (direction, module) in enumerate(found):
        path = folder / f"{number}.{direction}.txt"
        text = module.print_readable(print_output=False, include_stride=True, include_device=True, colored=False)
        path.write_text(text if text.endswith("\n") else text + "\n")
        paths.append(path)
        live = _native.read_live(module.graph, path.stem, describe, _groups.ranks_of, hints_of(module.graph))
        groups |= {name: [members] for name, members in live.groups() if members}
        schemas |= dict.fromkeys(live.declared)
        if not has_launches(module.graph):
            notes.append(f"{path}: no collectives: {outside(module.graph)}")
        for symbol, hint in live.hints():
            notes.append(f"{path}: size {symbol} was {hint}: --hint {symbol}={hint}")
    files = folder / "groups.json", folder / "ops.txt"
    files[0].write_text(json.dumps(groups, indent=1) + "\n")
    files[1].write_text("".join(f"{schema}\n" for schema in schemas))
    return Dump(tuple(paths), *files, tuple(notes))
