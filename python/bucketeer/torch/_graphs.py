"""What is in a live graph, as far as a look at its nodes tells."""

from __future__ import annotations

import hashlib

from torch.fx import Graph, Node

_NAMESPACES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd")

_OUTSIDE = (
    "those of FSDP2 and DDP run outside of graphs, in hooks and in DDP's reducer. For DDP, set "
    '`torch._dynamo.config.optimize_ddp = "python_reducer"` and compile the backward pass with compiled autograd; for FSDP, keep '
    "parameters as DTensors that the forward pass gathers (SimpleFSDP)"
)

_NONE_NEEDED = "none of its values is of a process group; if the model is not distributed, that is as it should be"


def is_launch(node: Node) -> bool:
    """Whether a node launches a collective."""
    return _is_functional(node) and "wait_tensor" not in str(node.target)


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


def outside(graph: Graph) -> str:
    """Say why a graph may have no collectives."""
    import torch.distributed as dist

    is_distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return _OUTSIDE if is_distributed else _NONE_NEEDED


def digest_of(graph: Graph) -> str:
    """Tell graphs apart by their nodes: what is measured of one is of use for the same one only."""
    digest = hashlib.sha256()
    for node in graph.nodes:
        value = node.meta.get("val")
        shape = tuple(map(str, value.shape)) if hasattr(value, "shape") else ()
        digest.update(f"{node.name} {node.op} {node.target} {shape}\n".encode())
    return digest.hexdigest()[:32]
