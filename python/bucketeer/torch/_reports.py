"""What became of each graph."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import reports as details

# So many graphs are remembered.
_MOST = 200


@dataclass(frozen=True)
class Report:
    """What became of one graph."""

    graph: str
    """Its name: that which AOTAutograd gives it, such as `model__0_forward_1`."""
    outcome: str
    """`rewritten`, `planned`, `unchanged` (nothing was to be merged), `empty` (no collectives) or `left` (see `reason`)."""
    launches_before: int
    launches_after: int
    reason: str = ""
    """Why the graph was left as it was, or what a graph without collectives lacks."""
    said: tuple[str, ...] = ()
    """Warnings and notes."""
    summary: str = ""
    """The table that the command line prints."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long reading, rewriting with its proof, agreeing and editing took."""
    json: str = field(default="", repr=False)
    """The report as `bucketeer rewrite --json`, or `bucketeer plan --json`, writes it."""
    timeline: details.Timeline | None = field(default=None, repr=False)
    """Of a plan: what runs when, as data, as a picture and as an HTML page."""

    @cached_property
    def details(self) -> details.RewrittenGraph | details.PlanReport | None:
        """What was done, as data: buckets, remarks and proof of a rewritten graph, or what a plan is worth."""
        from .. import reports as details

        if not self.json:
            return None
        if '"format": "bucketeer-plan"' in self.json:
            return details.read(details.PlanReport, self.json)
        return details.read(details.RewriteReport, self.json).graphs[0]

    def line(self) -> str:
        """Say it in one line."""
        if self.outcome == "left":
            return f"graph {self.graph}: left as it was: {self.reason}"
        if self.outcome == "empty":
            return f"graph {self.graph}: no collectives: {self.reason}"
        took = sum(self.seconds.values())
        return f"graph {self.graph}: {self.launches_before} launches became {self.launches_after}, in {took:.3f} s"

    def __str__(self) -> str:
        # The table's first line names the graph again.
        _, _, table = self.summary.partition("\n")
        return "\n".join([self.line(), *table.splitlines(), *self.said])

    def _repr_html_(self) -> str:
        """Of a plan the timeline as a picture, else what is printed."""
        if self.timeline is not None:
            return self.timeline.svg
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


_reports: deque[Report] = deque(maxlen=_MOST)
_lock = threading.Lock()


def add(report: Report) -> None:
    """Remember a report."""
    with _lock:
        _reports.append(report)


def reports(*, clear: bool = False) -> list[Report]:
    """Give what became of each graph that was compiled in this process, in order; the last 200.

    Graphs that Inductor finds in its cache are not compiled, and not reported. `clear` forgets them.
    """
    with _lock:
        found = list(_reports)
        if clear:
            _reports.clear()
    return found
