"""A live `torch.fx.Graph`, and what has to change in it, done in place."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from .. import _native
from ._fake import FakeValues, fake_mode
from ._operators import resolve

# What a merged collective shows of the first of those that were merged into it.
_PROVENANCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "fwd_source_fn_stack", "custom")


def apply(graph: Graph, nodes: list[Node], edits: _native.Edits, *, fakes: bool = True) -> int:
    """Make the graph what the edits say, and give how many nodes were made.

    `nodes` are those that were read, in order. Nodes that stay keep all that they have; new ones get fake values by running
    what they call on those of their arguments, unless `fakes` says that somebody else does that. If anything fails, the graph is left
    as it was.
    """
    # All that can be refused is, before anything changes.
    targets = {target: resolve(target) for target in {created[1] for created in edits.created}}
    undo = _Undo(graph)
    try:
        every = _edit(graph, nodes, edits, targets, undo, fakes)
    except BaseException:
        undo.run()
        raise
    # Nothing from here on can fail: nodes that nobody reads go, and the others are brought into order.
    order = [every[place] for place in edits.order]
    stays = set(order)
    for node in reversed(nodes):
        if node not in stays:
            graph.erase_node(node)
    _place(order)
    return len(edits.created)


class _Undo:
    """What was changed so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.arguments: list[tuple[Node, Any, Any]] = []
        self.created: list[Node] = []

    def run(self) -> None:
        for node, args, kwargs in reversed(self.arguments):
            node.args, node.kwargs = args, kwargs
        for node in reversed(self.created):
            self._graph.erase_node(node)


def _edit(graph: Graph, nodes: list[Node], edits: _native.Edits, targets: dict[str, Any], undo: _Undo, fakes: bool) -> list[Node]:
    """Make new nodes and give others their operands; give all nodes, by place."""
    every: list[Node] = list(nodes)
    named = {node.name: node for node in nodes} if any(created[4] for created in edits.created) else {}
    with FakeValues(fake_mode(graph)) as fake:
        for name, target, args, kwargs, members in edits.created:
            args, kwargs = _with_nodes(args, every), _with_nodes(kwargs, every) if kwargs else kwargs
            node = graph.create_node("call_function", targets[target], args, kwargs, name=name)
            undo.created.append(node)
            every.append(node)
            _describe(node, [named[member] for member in members if member in named])
            if fakes:
                fake.give(node)
    for place, operands in edits.rewired:
        node = nodes[place]
        undo.arguments.append((node, node.args, node.kwargs))
        inputs = iter([every[operand] for operand in operands])
        node.args = map_aggregate(node.args, lambda value: next(inputs) if isinstance(value, Node) else value)
        node.kwargs = map_aggregate(node.kwargs, lambda value: next(inputs) if isinstance(value, Node) else value)
    return every


def _with_nodes(value: Any, every: list[Node]) -> Any:
    """Put nodes in the places of references."""
    kind = type(value)
    if kind is _native.Ref:
        return every[value.place]
    if kind is list:
        return [_with_nodes(item, every) for item in value]
    if kind is tuple:
        return tuple([_with_nodes(item, every) for item in value])
    return map_aggregate(value, lambda item: every[item.place] if isinstance(item, _native.Ref) else item)


def _place(order: list[Node]) -> None:
    """Bring all nodes of a graph into this order. Only those that have to move are touched."""
    if not order:
        return
    first = order[0]
    head = next(iter(first.graph.nodes))
    if head is not first:
        head.prepend(first)
    for node in order[1:]:
        if first.next is not node:
            first.append(node)
        first = node


def _describe(node: Node, members: list[Node]) -> None:
    """Give a new node the provenance of what was merged into it."""
    for member in members[:1]:
        node.meta.update({key: member.meta[key] for key in _PROVENANCE if key in member.meta})
    # In a joint graph, what hangs on the backward pass belongs to it.
    if any(of.meta.get("partitioner_tag") == "is_backward" for of in node.all_input_nodes):
        node.meta["partitioner_tag"] = "is_backward"
