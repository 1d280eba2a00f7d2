"""The seam to the library: text in, text out."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import rewrite as rewrite_text
from ..reports import RewrittenGraph


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """What a rewrite made of a module."""

    text: str
    before: dict[str, int]
    """Collectives by kind."""
    after: dict[str, int]
    buckets: int
    """How many were made."""
    remarks: tuple[str, ...]
    """Why collectives were left alone."""


def rewrite(text: str, options: dict[str, Any]) -> Rewritten:
    """Merges the collectives of HLO text, those of a bucket in one buffer, and spells groups as lists."""
    made = rewrite_text(text, mode="concat", groups_as="lists", **options)
    (graph,) = made.graphs
    before, after = _counts(graph)
    alone = (
        f"{remark.name} is left alone: {remark.alone.because}" for remark in graph.remarks if remark.alone is not None
    )
    return Rewritten(made.text, before, after, len(graph.buckets), tuple(alone))


def _counts(graph: RewrittenGraph) -> tuple[dict[str, int], dict[str, int]]:
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for row in graph.collectives:
        before[row.kind] = before.get(row.kind, 0) + row.before.count
        after[row.kind] = after.get(row.kind, 0) + row.after.count
    return before, after
