"""A plan's order, where data alone does not hold it.

Inductor schedules by what reads what. A launch that is placed early, and a wait that is placed late, would move; so each gets
an order edge to the computation beside it, as Inductor's own overlap scheduling makes them.
"""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Graph, Node
from torch.utils.flop_counter import flop_registry

from ._graphs import is_launch, is_wait


def hold(graph: Graph) -> int:
    """Keep launches before, and waits behind, the computation that they hide behind; give how many edges that took.

    Computation is what PyTorch counts floating-point operations of. A launch comes before the next one of it behind the launch,
    and a wait after the last one before the wait.
    """
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    edges: dict[Node, Any] = {}
    launched: list[Node] = []
    started: dict[Node, int] = {}
    computed: list[Node] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if is_launch(node):
            launched.append(node)
            started[node] = len(computed)
        elif is_wait(node):
            # What was computed between a launch and its wait is what hides it.
            launched_at = [started[of] for of in map(_launch_of, node.all_input_nodes) if of in started]
            if launched_at and min(launched_at) < len(computed):
                edges.setdefault(node, OrderedSet()).add(computed[-1])
        elif getattr(node.target, "overloadpacket", None) in flop_registry:
            if launched:
                edges.setdefault(node, OrderedSet()).update(launched)
                launched = []
            computed.append(node)
    preserve_node_ordering(graph, edges)
    return sum(map(len, edges.values()))


def _launch_of(node: Node) -> Node:
    """What was launched of which a wait waits for this: the launch itself, or one of several results."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def why_not(graph: Graph) -> str:
    """Say why a plan's order cannot be held in this graph; empty if it can."""
    try:
        from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering  # noqa: F401
    except ImportError as error:
        return str(error)
    return "" if graph.owning_module is not None else "the graph is of no module"
