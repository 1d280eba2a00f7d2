"""What is in a live graph, as far as a look at its nodes tells."""

from __future__ import annotations

import hashlib

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from ._operators import describe

_NAMESPACES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd")

_POINT_TO_POINT = ("isend", "irecv", "batch_p2p")

_OUTSIDE = (
    "those of FSDP2 and DDP run outside of graphs, in hooks and in DDP's reducer. For DDP, set "
    '`torch._dynamo.config.optimize_ddp = "python_reducer"` and compile the backward pass with compiled autograd; for FSDP, keep '
    "parameters as DTensors that the forward pass gathers (SimpleFSDP)"
)

_NONE_NEEDED = "none of its values is of a process group; if the model is not distributed, that is as it should be"


def is_launch(node: Node) -> bool:
    """Whether a node launches a collective. What goes from one rank to another is none."""
    return _is_functional(node) and not any(word in str(node.target) for word in ("wait_tensor", *_POINT_TO_POINT))


def is_wait(node: Node) -> bool:
    """Whether a node waits for one."""
    return _is_functional(node) and "wait_tensor" in str(node.target)


def _is_functional(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "namespace", None) in _NAMESPACES


def launches_of(graph: Graph) -> int:
    """Count the collectives of a graph."""
    return sum(map(is_launch, graph.nodes))


def has_launches(graph: Graph) -> bool:
    """Whether a graph has a collective."""
    return any(map(is_launch, graph.nodes))


def group_names(graph: Graph) -> list[str]:
    """The groups that a graph's collectives name, in order of first appearance; a group that is a value of the graph by its node."""
    names: dict[str, None] = {}
    for node in filter(is_launch, graph.nodes):
        group = node.kwargs.get("group_name", node.args[-1] if node.args else None)
        names[group if isinstance(group, str) else f"%{group}"] = None
    return list(names)


def outside(graph: Graph) -> str:
    """Say why a graph may have no collectives."""
    import torch.distributed as dist

    bodies = [getattr(graph.owning_module, str(node.target), None) for node in graph.nodes if node.op == "get_attr"]
    if any(isinstance(body, GraphModule) and has_launches(body.graph) for body in bodies):
        return "they are all in graphs that it calls, which are rewritten each on their own"
    is_distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return _OUTSIDE if is_distributed else _NONE_NEEDED


def digest_of(graph: Graph) -> str:
    """Tell graphs apart by their nodes: what is measured of one is of use for the same one only, in any process."""
    digest = hashlib.sha256()

    def plain(value: object) -> object:
        if isinstance(value, Node):
            return f"%{value.name}"
        known = isinstance(value, (str, int, float, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
        return repr(value) if known else type(value).__name__

    for node in graph.nodes:
        value = node.meta.get("val")
        target = describe(node.target)[0] if callable(node.target) else node.target
        args = map_aggregate((node.args, node.kwargs), plain)
        made = (value.dtype, tuple(map(str, value.shape)), tuple(map(str, value.stride())), value.device) if isinstance(value, torch.Tensor) else ()
        digest.update(f"{node.name} {node.op} {target} {args} {made}\n".encode())
    return digest.hexdigest()[:32]
