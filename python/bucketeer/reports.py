"""What is told of graphs, as data: the JSON documents of the command line, field by field.

Fields have the names that docs/json.md explains; `pass_` is `pass` there. Lists are tuples, and fields that are left out are
`None`, `False` or empty.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

Report = TypeVar("Report")


def read(kind: type[Report], document: str) -> Report:
    """A document as data of this kind."""
    return typing.cast(Report, _value(kind, json.loads(document)))


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        found = _fields(kind)
        return kind(**{name: _value(of, value[key]) for key, (name, of) in found.items() if key in value})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        of = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(map(_value, of, value))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(arguments[0], value)
    # A word that says all by being there.
    return True if kind is bool and value is None else value


@lru_cache(maxsize=None)
def _fields(kind: type[Any]) -> dict[str, tuple[str, Any]]:
    """By name in JSON: the name in Python, and the type."""
    hints = typing.get_type_hints(kind)
    return {one.name.rstrip("_"): (one.name, hints[one.name]) for one in fields(kind)}


@dataclass(frozen=True)
class Change:
    """A number before and after."""

    before: int
    after: int


@dataclass(frozen=True)
class Volume:
    """Collectives of one kind and group: how many, their bytes, and how many of them count as no bytes."""

    count: int
    bytes: int
    unknown_size: int


@dataclass(frozen=True)
class Kind:
    """Collectives of one kind and group, before and after."""

    kind: str
    group: str
    group_size: int | None
    before: Volume
    after: Volume
    buckets: int
    biggest_bucket_bytes: int | None


@dataclass(frozen=True)
class Member:
    """A collective that travels in a bucket, and where it begins in one rank's part of the buffer."""

    name: str
    bytes: int | None
    offset: int | None


@dataclass(frozen=True)
class Bucket:
    """Collectives that travel together."""

    pass_: str
    kind: str
    group: str
    dtype: str | None
    bytes: int | None
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Merged:
    """The bucket that a collective went to, from 1, of how many, and where it begins there."""

    bucket: int
    of: int
    offset: int | None


@dataclass(frozen=True)
class Alone:
    """Why a collective stayed alone: a word to count by, and a sentence."""

    reason: str
    because: str


@dataclass(frozen=True)
class Remark:
    """What became of a collective; of the last four fields one holds."""

    name: str
    kind: str
    group: str
    bytes: int | None
    merged: Merged | None = None
    alone: Alone | None = None
    folded: bool = False
    not_asked: bool = False


@dataclass(frozen=True)
class Reason:
    """How many collectives stayed alone for a reason."""

    reason: str
    count: int


@dataclass(frozen=True)
class Pass:
    """A pass that ran, and how many nodes it removed."""

    pass_: str
    removed: int


@dataclass(frozen=True)
class Memory:
    """What was done to keep a cap on the bytes alive at once."""

    cap_bytes: int
    alive_bytes: Change
    at: str | None
    unknown: int
    buckets_cut: int
    declined: int


@dataclass(frozen=True)
class Proof:
    """Whether a result is proven: `equal`, `not_tried` or `cannot_decide`."""

    verdict: str
    assumptions: tuple[str, ...] = ()
    because: str | None = None


@dataclass(frozen=True)
class RewrittenGraph:
    """What a rewrite did to a graph."""

    graph: str
    nodes: Change
    passes: tuple[Pass, ...]
    collectives: tuple[Kind, ...]
    buckets: tuple[Bucket, ...]
    left_alone: tuple[Reason, ...]
    nodes_moved: int
    copies_added: int
    peak_live_bytes: Change
    peak_live_unknown: Change
    dropped_wishes: tuple[tuple[str, str], ...]
    no_device_data: bool
    remarks: tuple[Remark, ...]
    proof: Proof
    warnings: tuple[str, ...]
    memory: Memory | None = None
    rank: int | None = None


@dataclass(frozen=True)
class RewriteReport:
    """What a rewrite did."""

    format: str
    version: int
    pipeline: str
    graphs: tuple[RewrittenGraph, ...]


@dataclass(frozen=True)
class Run:
    """How a step runs."""

    makespan_ns: int
    compute_ns: int
    exposed_ns: int
    message_ns: int
    peak_bytes: int
    launches: int
    buckets: int


@dataclass(frozen=True)
class Bound:
    """What no plan is shorter than."""

    name: str
    ns: int


@dataclass(frozen=True)
class Link:
    """What faster links of a group would help."""

    group: str
    twice_ns: int
    half_hundredths: int | None


@dataclass(frozen=True)
class MoreMemory:
    """What more memory would help."""

    makespan_ns: int
    peak_bytes: int


@dataclass(frozen=True)
class Helps:
    """What would make a step shorter."""

    links: tuple[Link, ...]
    memory: MoreMemory | None


@dataclass(frozen=True)
class Wait:
    """A message that computation stands still for, from its start to its end on the timeline."""

    node: str
    kind: str
    group: str
    stalled_ns: int
    bytes: int
    members: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class PlanReport:
    """What a plan is worth."""

    format: str
    version: int
    graph: str
    cap_bytes: int | None
    as_written: Run
    planned: Run | None
    bounds: tuple[Bound, ...]
    bounds_as_written: tuple[Bound, ...]
    helps: Helps | None
    waits: tuple[Wait, ...]
    bucketed: Run | None = None


@dataclass(frozen=True)
class Message:
    """What is sent, how long computation goes on beside it, and how long it stands still for it."""

    kind: str
    bytes: int
    members: int
    hidden_ns: int
    stalled_ns: int


@dataclass(frozen=True)
class Span:
    """A stretch of time of the compute stream, whose `group` is `None`, or of a group."""

    node: str
    doing: str
    """`compute`, `pack`, `wait` or `unpack` of the compute stream, `comm` of a group."""
    group: str | None
    start_ns: int
    end_ns: int
    message: Message | None = None
    """Of `comm`: what is sent. The node is its launch."""
    awaits: tuple[str, ...] = ()
    """Of `wait`: the launches that computation stands still for. The node is their wait."""


@dataclass(frozen=True)
class TimelineReport:
    """What runs when: the compute stream first, then group by group, each in order of time."""

    format: str
    version: int
    graph: str
    as_written: tuple[Span, ...]
    planned: tuple[Span, ...] | None
    bucketed: tuple[Span, ...] | None = None


@dataclass(frozen=True)
class Timeline:
    """What runs when, in all forms."""

    page: str = field(repr=False)
    """An HTML page of its own with scripts: zoom, search, names under the pointer."""
    svg: str = field(repr=False)
    """A picture without scripts; names are under the pointer."""
    json: str = field(repr=False)
    """The JSON document of `bucketeer plan --timeline FILE.json`."""

    @cached_property
    def report(self) -> TimelineReport:
        """The same as data, also of the graph as it came."""
        return read(TimelineReport, self.json)

    @property
    def spans(self) -> tuple[Span, ...]:
        """What runs when as planned."""
        return self.report.planned or ()

    def _repr_html_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class WithinMemory:
    """The shortest plan that was found within a cap on the bytes alive at once."""

    cap_bytes: int
    planned: Run


@dataclass(frozen=True)
class WithinBuckets:
    """How a step runs with a cap on buckets: as `rewrite` leaves it, and with launches and waits moved."""

    cap_bytes: int | None
    bucketed: Run
    planned: Run | None


@dataclass(frozen=True)
class SweepReport:
    """What several caps come to."""

    format: str
    version: int
    graph: str
    as_written: Run
    memory: tuple[WithinMemory, ...]
    caps: tuple[WithinBuckets, ...]


@dataclass(frozen=True)
class Collective:
    """A collective of a graph."""

    name: str
    kind: str
    op: str | None
    group: str
    group_size: int | None
    dtype: str | None
    bytes: int | None
    wait: str | None
    depth: int


@dataclass(frozen=True)
class Communication:
    """A call that communicates, or may, and is not a collective."""

    name: str
    kind: str
    group: str | None
    region: str | None
    keeps_order: bool


@dataclass(frozen=True)
class Total:
    """Collectives of one kind, group and class of sizes."""

    kind: str
    group: str
    size: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Group:
    """A process group, and the lists of ranks that have its name."""

    name: str
    size: int | None
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class InspectedGraph:
    """What a graph communicates, or why it is not well-formed."""

    graph: str
    nodes: int
    collectives: tuple[Collective, ...]
    other_communication: tuple[Communication, ...]
    totals: tuple[Total, ...]
    groups: tuple[Group, ...]
    peak_live_bytes: int
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class StableCollective:
    """A collective of a StableHLO module."""

    name: str
    kind: str
    reduction: str | None
    function: str
    line: int
    groups: str
    group_size: int | None
    dtype: str | None
    bytes: int | None


@dataclass(frozen=True)
class InspectReport:
    """What is in a file: its graphs, or of StableHLO the collectives."""

    format: str
    version: int
    input_format: str
    graphs: tuple[InspectedGraph, ...] = ()
    collectives: tuple[StableCollective, ...] = ()


@dataclass(frozen=True)
class RankNote:
    """A rank that a result is made for, and the node that holds it."""

    group: str
    rank: int
    node: str


@dataclass(frozen=True)
class Assumption:
    """What has to hold of an operator that nothing describes."""

    operator: str
    assumed: str


@dataclass(frozen=True)
class Term:
    """What a node computes, in words."""

    node: str | None
    term: str


@dataclass(frozen=True)
class PairProof:
    """Whether two graphs compute the same: `equal`, `different` or `cannot_decide`, and what goes with it."""

    verdict: str
    nodes: int | None = None
    collectives_before: int | None = None
    collectives_after: int | None = None
    ranks: tuple[RankNote, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    shared_outputs: tuple[tuple[str, str], ...] = ()
    what: str | None = None
    before: Term | None = None
    after: Term | None = None
    side: str | None = None
    node: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """What came of running two graphs: `equal`, `different` or `cannot_evaluate`."""

    verdict: str
    ranks: int | None = None
    outputs: int | None = None
    differences: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Scaling:
    """How graphs were scaled down before they were run."""

    bytes_before: int
    bytes_after: int
    sizes: tuple[tuple[int, int], ...]
    guessed: str | None = None


@dataclass(frozen=True)
class VerifiedPair:
    """Two graphs, and what was found."""

    before: str
    after: str
    proof: PairProof
    evaluation: Evaluation | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True)
class VerifyReport:
    """What was found of pairs of graphs."""

    format: str
    version: int
    graphs: tuple[VerifiedPair, ...]


@dataclass(frozen=True)
class GroupLaunches:
    """How often ranks launch in a group."""

    group: str
    fewest_launches: int
    most_launches: int


@dataclass(frozen=True)
class CheckedGraph:
    """Whether ranks agree on a graph."""

    graph: str
    agree: bool
    groups: tuple[GroupLaunches, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class CheckRanksReport:
    """Whether ranks agree."""

    format: str
    version: int
    graphs: tuple[CheckedGraph, ...]
