"""Graphs as text."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, cast, overload

from . import _native, reports
from ._errors import InputWarning, OptionError
from ._options import Content, Option, flags

Text = TypeVar("Text", str, bytes)
"""A result has the type of what was given; that of a file is bytes."""

Graph = Union[str, bytes, "os.PathLike[str]"]
"""A file of graphs: its content, or the path where it is."""

MOST_DRAWN = 200
"""So many collectives are drawn in a notebook; of more a table is shown."""


@dataclass(frozen=True)
class Rewritten(Generic[Text]):
    """A file with its graphs rewritten, and what was done."""

    text: Text
    """The file, in the form it came in."""
    summary: str = field(repr=False)
    """What was done, as the command line says it."""
    said: tuple[str, ...] = field(repr=False)
    """Warnings and notes, and what `explain` and `stats` say, line by line."""
    json: str = field(repr=False)
    """What was done, as the JSON document of `bucketeer rewrite --json`."""
    _facts: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def report(self) -> reports.RewriteReport:
        """What was done, as data."""
        return reports.read(reports.RewriteReport, self.json)

    @property
    def graphs(self) -> tuple[reports.RewrittenGraph, ...]:
        """What was done to each graph."""
        return self.report.graphs

    @property
    def buckets(self) -> tuple[reports.Bucket, ...]:
        """What travels together, of all graphs."""
        return tuple(bucket for graph in self.graphs for bucket in graph.buckets)

    @property
    def remarks(self) -> tuple[reports.Remark, ...]:
        """What became of each collective, of all graphs."""
        return tuple(remark for graph in self.graphs for remark in graph.remarks)

    @property
    def proven(self) -> bool:
        """Whether all graphs are proven to compute what they did."""
        return all(graph.proof.verdict == "equal" for graph in self.graphs)

    def __str__(self) -> str:
        return self.summary.rstrip("\n")

    def _repr_html_(self) -> str:
        """The collectives as a picture, what was merged in thick frames; of many a table."""
        if 0 < len(self.remarks) <= MOST_DRAWN:
            return draw(self.text, **self._facts)
        return _table(str(self))


@dataclass(frozen=True)
class Plan(Generic[Text]):
    """A file with its graph planned, and what the plan is worth."""

    text: Text
    """The file, in the form it came in."""
    summary: str = field(repr=False)
    """What the plan is worth, as the command line says it."""
    said: tuple[str, ...] = field(repr=False)
    """Warnings and notes, and on which conditions the plan is proven, line by line."""
    json: str = field(repr=False)
    """What the plan is worth, as the JSON document of `bucketeer plan --json`."""
    timeline: reports.Timeline = field(repr=False)
    """What runs when, as it came and as planned: as data, as a picture and as a page, as `bucketeer plan --timeline` writes them."""

    @cached_property
    def report(self) -> reports.PlanReport:
        """What the plan is worth, as data."""
        return reports.read(reports.PlanReport, self.json)

    @property
    def waits(self) -> tuple[reports.Wait, ...]:
        """Messages that computation stands still for, the dearest first."""
        return self.report.waits

    def __str__(self) -> str:
        return self.summary.rstrip("\n")

    def _repr_html_(self) -> str:
        """The timeline as a picture, which needs no scripts."""
        return self.timeline.svg


@dataclass(frozen=True)
class Sweep:
    """What several caps come to."""

    summary: str = field(repr=False)
    """The same, as the command line says it."""
    said: tuple[str, ...] = field(repr=False)
    """Warnings and notes, line by line."""
    json: str = field(repr=False)
    """The same, as the JSON document of `bucketeer plan --sweep --json`."""

    @cached_property
    def report(self) -> reports.SweepReport:
        """The same, as data."""
        return reports.read(reports.SweepReport, self.json)

    def __str__(self) -> str:
        return self.summary.rstrip("\n")

    def _repr_html_(self) -> str:
        return _table(str(self))


@dataclass(frozen=True)
class Inspected:
    """What is in a file."""

    summary: str = field(repr=False)
    """The collectives, groups and sums, as the command line lists them."""
    said: tuple[str, ...] = field(repr=False)
    """What is wrong with graphs that are not well-formed, warnings and notes, line by line."""
    json: str = field(repr=False)
    """The same, as the JSON document of `bucketeer inspect --json`."""

    @cached_property
    def report(self) -> reports.InspectReport:
        """The same, as data."""
        return reports.read(reports.InspectReport, self.json)

    @property
    def graphs(self) -> tuple[reports.InspectedGraph, ...]:
        """What is in each graph."""
        return self.report.graphs

    def __str__(self) -> str:
        return self.summary.rstrip("\n")

    def _repr_html_(self) -> str:
        return _table(str(self))


@dataclass(frozen=True)
class Verified:
    """Whether a file's graphs compute what those of another do. It is true if they provably do."""

    summary: str = field(repr=False)
    """What was found, as the command line says it."""
    said: tuple[str, ...] = field(repr=False)
    """Warnings, line by line."""
    json: str = field(repr=False)
    """What was found, as the JSON document of `bucketeer verify --json`."""

    @cached_property
    def report(self) -> reports.VerifyReport:
        """What was found, as data."""
        return reports.read(reports.VerifyReport, self.json)

    @property
    def equal(self) -> bool:
        """Whether all graphs are proven equal, and ran alike if they were to run."""
        ran = (pair.evaluation for pair in self.report.graphs if pair.evaluation is not None)
        return all(pair.proof.verdict == "equal" for pair in self.report.graphs) and all(
            evaluation.verdict == "equal" for evaluation in ran
        )

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        return self.summary.rstrip("\n")


@dataclass(frozen=True)
class Checked:
    """Whether all ranks launch the same, and none wait for one another in a ring. It is true if that is so."""

    summary: str = field(repr=False)
    """What was found, as the command line says it."""
    said: tuple[str, ...] = field(repr=False)
    """Warnings, line by line."""
    json: str = field(repr=False)
    """What was found, as the JSON document of `bucketeer check-ranks --json`."""

    @cached_property
    def report(self) -> reports.CheckRanksReport:
        """What was found, as data."""
        return reports.read(reports.CheckRanksReport, self.json)

    @property
    def agree(self) -> bool:
        """Whether ranks agree on all graphs."""
        return all(graph.agree for graph in self.report.graphs)

    def __bool__(self) -> bool:
        return self.agree

    def __str__(self) -> str:
        return self.summary.rstrip("\n")


@overload
def rewrite(
    graph: str,
    /,
    *,
    all_gather: Option = ...,
    reduce_scatter: Option = ...,
    all_reduce: Option = ...,
    policy: str | None = ...,
    memory: str | int | None = ...,
    mode: str | None = ...,
    verify: bool | None = ...,
    groups: Content = ...,
    ops: Content = ...,
    hints: Mapping[str, int] | None = ...,
    **options: Option,
) -> Rewritten[str]: ...
@overload
def rewrite(
    graph: bytes | os.PathLike[str],
    /,
    *,
    all_gather: Option = ...,
    reduce_scatter: Option = ...,
    all_reduce: Option = ...,
    policy: str | None = ...,
    memory: str | int | None = ...,
    mode: str | None = ...,
    verify: bool | None = ...,
    groups: Content = ...,
    ops: Content = ...,
    hints: Mapping[str, int] | None = ...,
    **options: Option,
) -> Rewritten[bytes]: ...
def rewrite(
    graph: Graph,
    /,
    *,
    all_gather: Option = None,
    reduce_scatter: Option = None,
    all_reduce: Option = None,
    policy: str | None = None,
    memory: str | int | None = None,
    mode: str | None = None,
    verify: bool | None = True,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> Rewritten[str] | Rewritten[bytes]:
    """Merges collectives into buckets, and proves that the result computes the same.

    `graph` is FX text, HLO text, native text or JSON, a program of torch.export, or the path of such a file. Caps are the most
    bytes of a bucket, such as `"25MB"` or `25_000_000`; a list is for the first bucket, the second, and so on. `groups` are the
    ranks of process groups, such as `{"0": [[0, 1], [2, 3]]}`, `hints` likely values of symbols. If `verify` is true, what is not
    proven is refused; if it is `None`, small graphs are proven and `proven` says whether that worked out. All other options
    of `bucketeer rewrite --help` are keywords, too.

    Raises `InputError`, `OptionError`, `RefusedError`, or `Error`.
    """
    # What a picture of the result has to know, too.
    facts = {"groups": groups, "ops": ops, "hints": hints, "graph": options.get("graph")}
    given = {
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_reduce": all_reduce,
        "policy": policy,
        "memory": memory,
        "mode": mode,
        "verify": verify,
        **options,
        **facts,
    }
    words, files = flags("rewrite", given)
    result, report, summary, said = _native.rewrite(_source(graph), words, files)
    _warn(said)
    rest = (summary, tuple(said), report, facts)
    return Rewritten(result.decode(), *rest) if isinstance(graph, str) else Rewritten(result, *rest)


@overload
def plan(
    graph: str,
    /,
    *,
    costs: Content = ...,
    profile: Content = ...,
    times: Content = ...,
    memory: str | int | None = ...,
    effort: str | None = ...,
    groups: Content = ...,
    ops: Content = ...,
    hints: Mapping[str, int] | None = ...,
    own: Content = ...,
    **options: Option,
) -> Plan[str]: ...
@overload
def plan(
    graph: bytes | os.PathLike[str],
    /,
    *,
    costs: Content = ...,
    profile: Content = ...,
    times: Content = ...,
    memory: str | int | None = ...,
    effort: str | None = ...,
    groups: Content = ...,
    ops: Content = ...,
    hints: Mapping[str, int] | None = ...,
    own: Content = ...,
    **options: Option,
) -> Plan[bytes]: ...
def plan(
    graph: Graph,
    /,
    *,
    costs: Content = None,
    profile: Content = None,
    times: Content = None,
    memory: str | int | None = None,
    effort: str | None = None,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    own: Content = None,
    **options: Option,
) -> Plan[str] | Plan[bytes]:
    """Says when collectives are launched, travel together and are waited for, so that the step ends sooner.

    `costs` say what nodes and messages take; in their place `profile` names a machine, such as `"h100"`, and `times` holds
    measured times. `memory` caps the bytes alive at once, `effort` is how long to look. The result is proven. All other options
    of `bucketeer plan --help` are keywords, too, but those that make no graph.

    Raises `InputError`, `OptionError`, `RefusedError`, or `Error`.
    """
    for name, instead in (("sweep", "`bucketeer.sweep` sweeps"), ("as_written", "`report.as_written` says it")):
        if name in options:
            raise OptionError(f"{name} makes no graph; {instead}")
    given = {
        "costs": costs,
        "profile": profile,
        "times": times,
        "memory": memory,
        "effort": effort,
        "own": own,
        "groups": groups,
        "ops": ops,
        "hints": hints,
    }
    words, files = flags("plan", {**given, **options})
    result, report, summary, timeline, said = _native.plan(_source(graph), words, files)
    _warn(said)
    assert result is not None and timeline is not None, "what was planned has a result"
    rest = (summary, tuple(said), report, reports.Timeline(*timeline))
    return Plan(result.decode(), *rest) if isinstance(graph, str) else Plan(result, *rest)


def sweep(
    graph: Graph,
    /,
    *,
    costs: Content = None,
    profile: Content = None,
    times: Content = None,
    effort: str | None = None,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> Sweep:
    """Plans a step for several caps on memory, and buckets it with several caps on buckets: what each takes.

    Options are those of `plan`. Raises `InputError`, `OptionError`, or `Error`.
    """
    given = {
        "costs": costs,
        "profile": profile,
        "times": times,
        "effort": effort,
        "groups": groups,
        "ops": ops,
        "hints": hints,
    }
    words, files = flags("plan", {**given, **options, "sweep": True})
    _, report, summary, _, said = _native.plan(_source(graph), words, files)
    _warn(said)
    return Sweep(summary, tuple(said), report)


def inspect(
    graph: Graph,
    /,
    *,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> Inspected:
    """Lists the collectives of a file's graphs, also of StableHLO, and checks that they are well-formed.

    Raises `InputError`, `OptionError`, or `Error`. That a graph is not well-formed is told in its `errors`.
    """
    for name in ("dot", "svg", "lanes"):
        if name in options:
            raise OptionError(f"{name} asks for a drawing; `bucketeer.draw` draws")
    words, files = flags("inspect", {"groups": groups, "ops": ops, "hints": hints, **options})
    report, listing, said = _native.inspect(_source(graph), words, files)
    _warn(said)
    assert report is not None, "what is not drawn has a report"
    return Inspected(listing, tuple(said), report)


def draw(
    graph: Graph,
    /,
    *,
    form: str = "svg",
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> str:
    """Draws which collectives depend on which, in colours those that `rewrite` would merge with the same options.

    `form` is `"svg"`, `"lanes"` (SVG by program order, for graphs of any size) or `"dot"` (text for Graphviz). Raises
    `InputError`, `OptionError`, or `Error`.
    """
    forms = {"svg": {"svg": True}, "lanes": {"svg": True, "lanes": True}, "dot": {"dot": True}}
    if form not in forms:
        raise OptionError(f"form: expected one of {', '.join(forms)}, found {form!r}")
    given = {"groups": groups, "ops": ops, "hints": hints, **options, **forms[form]}
    words, files = flags("inspect", given)
    _, picture, said = _native.inspect(_source(graph), words, files)
    _warn(said)
    return picture


def verify(
    before: Graph,
    after: Graph,
    /,
    *,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> Verified:
    """Proves that a file's graphs compute what those of another do, for all inputs and sizes.

    With `eval=True` both also run on random inputs. Raises `InputError`, `OptionError`, or `Error`. That they are not
    proven equal is told, not raised.
    """
    words, files = flags("verify", {"groups": groups, "ops": ops, "hints": hints, **options})
    report, text, said = _native.verify(_source(before), _source(after), words, files)
    return Verified(text, tuple(said), report)


def check_ranks(
    graphs: Graph | Sequence[Graph],
    /,
    *,
    groups: Content = None,
    ops: Content = None,
    hints: Mapping[str, int] | None = None,
    **options: Option,
) -> Checked:
    """Checks that all ranks launch the same collectives in each group, and that none wait for one another in a ring.

    One file is for all ranks; of several, the first is rank 0's. Raises `InputError`, `OptionError`, `RefusedError` where it is
    not known who is in a group, or `Error`. That ranks do not agree is told, not raised.
    """
    one = isinstance(graphs, (str, bytes, os.PathLike))
    sources = [cast(Graph, graphs)] if one else list(cast("Sequence[Graph]", graphs))
    words, files = flags("check-ranks", {"groups": groups, "ops": ops, "hints": hints, **options})
    report, text, said = _native.check_ranks([_source(graph) for graph in sources], words, files)
    return Checked(text, tuple(said), report)


def _source(graph: object) -> bytes | os.PathLike[str]:
    """What Rust reads: text as bytes."""
    if isinstance(graph, str):
        return graph.encode()
    if isinstance(graph, (bytes, os.PathLike)):
        return graph
    raise TypeError(f"a graph is text, bytes or a path, not {type(graph).__name__}")


def _warn(said: Sequence[str]) -> None:
    """Warns the caller's caller of what was left out."""
    for line in said:
        if line.startswith("error: "):
            warnings.warn(line.removeprefix("error: "), InputWarning, stacklevel=3)


def _table(text: str) -> str:
    import html

    return f"<pre>{html.escape(text)}</pre>"
