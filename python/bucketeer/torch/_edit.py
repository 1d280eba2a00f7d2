"""A live `torch.fx.Graph`, and what has to change in it, done in place."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from .. import _native
from ._fake import FakeValues, fake_mode
from ._operators import resolve
from ._private import erase, forget_unplaced

# What a merged collective, and what hands its parts on, shows of the first of those that were merged into it.
_PROVENANCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "fwd_source_fn_stack", "custom")

# Says that a node is, or hangs on, what was merged.
_MADE = "bucketeer"


class Editing:
    """The edits of a graph, half done: new nodes are made, and nodes that stay have their operands, but all can be undone.

    `nodes` are those that were read, in order. Nodes that stay keep all that they have; new ones get fake values by running
    what they call on those of their arguments, unless `fakes` says that somebody else does that. If making them fails, the graph is as it
    was.
    """

    def __init__(self, graph: Graph, nodes: list[Node], edits: _native.Edits, *, fakes: bool = True) -> None:
        # All that can be refused is, before anything changes.
        targets = {target: resolve(target) for target in {created[1] for created in edits.created}}
        self._graph = graph
        self._nodes = nodes
        self._arguments: list[tuple[Node, Any, Any]] = []
        self._created: list[Node] = []
        self._is_done = False
        try:
            self._make(edits, targets, fakes)
            self._rewire(edits)
        except BaseException:
            self.undo()
            raise
        every = self._nodes + self._created
        self._order = [every[place] for place in edits.order]
        self.changed = bool(self._created or edits.rewired) or edits.order != list(range(len(nodes)))

    def undo(self) -> None:
        """Leave the graph as it was. Does nothing once it is done."""
        if self._is_done:
            return
        for node, args, kwargs in reversed(self._arguments):
            node.args, node.kwargs = args, kwargs
        for node in reversed(self._created):
            erase(self._graph, node)
        self._arguments.clear()
        self._created.clear()

    def finish(self) -> list[str]:
        """Bring the nodes into order, and take out those that nobody reads. From here on the graph is the new one.

        Gives what hooks of others raised, that hear of nodes which go; an interrupt goes on when all is done.
        """
        self._is_done = True
        stays = set(self._order)
        _place(self._order)
        # A collective that stayed would be launched by this rank alone, so that all of them go, whatever happens.
        failures = [erase(self._graph, node) for node in reversed(self._nodes) if node not in stays]
        for failure in filter(None, failures):
            if not isinstance(failure, Exception):
                raise failure
        return [f"a hook that hears of nodes failed: {type(failure).__name__}: {failure}" for failure in filter(None, failures)]

    def _make(self, edits: _native.Edits, targets: dict[str, Any], fakes: bool) -> None:
        every = list(self._nodes)
        is_joint = any("partitioner_tag" in node.meta for node in every)
        named = {node.name: node for node in every} if any(created[4] for created in edits.created) else {}
        with FakeValues(fake_mode(self._graph)) as fake:
            for name, target, args, kwargs, members in edits.created:
                args, kwargs = _with_nodes(args, every), _with_nodes(kwargs, every) if kwargs else kwargs
                try:
                    node = self._graph.create_node("call_function", targets[target], args, kwargs, name=name)
                except BaseException:
                    forget_unplaced(self._graph, every)
                    raise
                self._created.append(node)
                every.append(node)
                _describe(node, [named[member] for member in members if member in named], is_joint)
                if fakes:
                    fake.give(node)

    def _rewire(self, edits: _native.Edits) -> None:
        every = self._nodes + self._created
        for place, operands in edits.rewired:
            node = self._nodes[place]
            self._arguments.append((node, node.args, node.kwargs))
            inputs = iter([every[operand] for operand in operands])
            node.args = map_aggregate(node.args, lambda value: next(inputs) if isinstance(value, Node) else value)
            node.kwargs = map_aggregate(node.kwargs, lambda value: next(inputs) if isinstance(value, Node) else value)


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


def _describe(node: Node, members: list[Node], is_joint: bool) -> None:
    """Give a new node the provenance of what was merged into it; what hangs on it has the same."""
    inputs = node.all_input_nodes
    source = members[0] if members else next((of for of in inputs if _MADE in of.meta), None)
    meta = node.meta
    if source is not None:
        meta[_MADE] = True
        for key in _PROVENANCE:
            if key in source.meta:
                meta[key] = source.meta[key]
    if not is_joint:
        return
    # What hangs on the backward pass belongs to it, and what is computed again is so where all agree.
    if any(of.meta.get("partitioner_tag") == "is_backward" for of in inputs):
        meta["partitioner_tag"] = "is_backward"
    for key in ("recompute", "ac_graph_id"):
        values = {of.meta.get(key) for of in members or inputs if members or _MADE in of.meta}
        if len(values) == 1 and None not in values:
            meta[key] = values.pop()
