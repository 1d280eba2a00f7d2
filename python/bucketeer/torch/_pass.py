"""The pass that Inductor runs on each graph."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from .. import _native, reports
from . import _groups, _ranks
from ._edit import Editing
from ._fake import hints_of
from ._flags import Flags, build
from ._graphs import has_launches, launches_of, outside
from ._messages import BucketeerWarning, ConflictError, log
from ._operators import describe
from ._order import hold, why_not
from ._private import graph_name, is_in_post_grad, passes_of, structured_artifact
from ._reports import Report, add
from ._times import times_of

# What of Inductor decides the same things, and the values with which it does not.
_CONFLICTS = {
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
    "reorder_for_compute_comm_overlap": False,
    "_fuse_ddp_communication": False,
    "aten_distributed_optimizations.enable_overlap_scheduling": False,
}


class BucketeerPass(CustomGraphPass):
    """Merges the collectives of a graph, in place; for `torch._inductor.config.post_grad_custom_post_pass`.

    Takes the options of `enable`. One pass may serve several threads. `timeout_s` is how long ranks wait for one another, in seconds.
    """

    def __init__(
        self,
        *,
        verify: bool = True,
        check_ranks: bool = False,
        strict: bool = False,
        timeout_s: float = 300.0,
        **options: Any,
    ) -> None:
        times = options.get("times")
        # A folder of `measure` has a file for each graph.
        self._times = Path(times) if isinstance(times, (str, os.PathLike)) and Path(times).is_dir() else None
        self._flags = Flags.of(options if self._times is None else {**options, "times": None}, verify=verify)
        self._check_ranks = check_ranks
        self._strict = strict
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"BucketeerPass({' '.join(self._flags.words)})"

    def __call__(self, graph: Graph) -> None:
        """Rewrite one graph. If that fails, it stays as it was, and a warning says so.

        Where ranks are compared, that is always an error, for the others leave theirs as it was.
        """
        name = graph_name()
        turn: _ranks.Turn | None = None
        try:
            if self._check_ranks:
                turn = _ranks.Turn(graph, name, self._timeout_s)
            with _without_collection():
                report = self._rewrite(graph, name, turn)
        except BaseException as error:
            has_others = turn is not None and turn.has_others
            if turn is not None:
                # That the store is gone, too, says less than this error.
                with contextlib.suppress(Exception):
                    turn.fail(f"{type(error).__name__}: {error}")
            launches = launches_of(graph)
            reason = f"{type(error).__name__}: {error}"
            report = Report(graph=name, outcome="left", launches_before=launches, launches_after=launches, reason=reason)
            add(report)
            if self._strict or has_others or not isinstance(error, Exception):
                raise
            warnings.warn(f"bucketeer: {report.line()}", BucketeerWarning, stacklevel=2)
            return
        add(report)
        _tell(report)

    def _rewrite(self, graph: Graph, name: str, turn: _ranks.Turn | None) -> Report:
        if not has_launches(graph):
            return Report(graph=name, outcome="empty", launches_before=0, launches_after=0, reason=outside(graph))
        refuse_conflicts()
        seconds: dict[str, float] = {}
        clock = _Clock(seconds)
        nodes = list(graph.nodes)
        # What one rank has seen of a size, another may not have, nor who finds this graph in Inductor's cache.
        hints = hints_of(graph) if self._check_ranks else lambda symbol: None
        live = _native.read_live(graph, name, describe, _groups.ranks_of, hints)
        before = live.launch_count()
        clock.lap("read")
        notes = [] if turn is None else list(turn.notes)
        if self._flags.plans:
            refuse_edges(graph)
        words, files = list(self._flags.words), list(self._flags.files)
        if self._times is not None:
            measured = times_of(self._times, graph)
            if measured is None:
                notes.append(f"{self._times} has no times of this graph; they are taken from shapes")
            else:
                words.append("--times=<times>")
                files.append(("<times>", measured))
        told = live.plan(words, files) if self._flags.plans else live.rewrite(words, files)
        notes += self._notes(live, told)
        edits = live.edits()
        clock.lap("rewrite")
        # Order edges of a plan are made with what nodes hold.
        editing = Editing(graph, nodes, edits, fakes=self._flags.plans or not self._is_last_of_post_grad())
        clock.lap("edit")
        if turn is not None:
            try:
                turn.agree(live.launches())
            except BaseException:
                editing.undo()
                raise
            clock.lap("agree")
        notes += editing.finish()
        edges = 0
        if self._flags.plans:
            reason = why_not(graph)
            try:
                edges = 0 if reason else hold(graph)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if reason:
                notes.append(f"Inductor may move launches and waits of this plan, which computes the same: {reason}")
        clock.lap("finish")
        done = "planned" if self._flags.plans else "rewritten"
        return Report(
            graph=name,
            outcome=done if editing.changed or edges else "unchanged",
            launches_before=before,
            launches_after=live.launch_count(),
            said=(*notes, *told.said),
            summary=told.summary,
            seconds=seconds,
            json=told.report,
            timeline=_timeline(told),
        )

    def _notes(self, live: _native.LiveGraph, told: _native.Told) -> list[str]:
        """What to know of a graph that was rewritten."""
        notes = []
        unknown = [name for name, members in live.groups() if not members and not name.startswith("%")]
        if unknown:
            notes.append(f"c10d knows no group {', '.join(map(repr, unknown))} here, so that its ranks are not known")
        symbols = [symbol for symbol in live.symbols() if symbol not in dict(live.hints())]
        if symbols and '"size unknown"' in told.report:
            notes.append(
                f"sizes with {', '.join(symbols[:8])} are taken as unknown, for ranks may have seen different ones: "
                f"hints={{'{symbols[0]}': ..}} states one, check_ranks=True compares"
            )
        return notes

    def _is_last_of_post_grad(self) -> bool:
        """Whether Inductor gives new nodes their fake values behind this pass, before it looks at what they are: behind its hook for passes
        of post-grad graphs it runs each new node, whether it has a value or not.
        """
        from torch._inductor import config

        hooks = ("joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass")
        elsewhere = any(one is self for hook in hooks for one in passes_of(getattr(config, hook)))
        last = passes_of(config.post_grad_custom_post_pass)[-1:]
        is_last = any(one is self or getattr(one, "inner", None) is self for one in last)
        return is_last and not elsewhere and is_in_post_grad()

    def uuid(self) -> Any:
        """Identify what this pass makes of a graph, for Inductor's cache.

        Beside the graph it hangs on this build, the options, what the files hold that they name, and the process groups that this
        rank is in. With `check_ranks` graphs are not cached: all ranks have to compile, to compare.
        """
        if self._check_ranks:
            return None
        digest = hashlib.sha256()
        groups = _groups.all_groups()
        for part in (build(), self._flags, groups):
            digest.update(repr(part).encode() + b"\n")
        for path in sorted(self._times.glob("*.json")) if self._times is not None else ():
            digest.update(path.name.encode() + path.read_bytes())
        return f"bucketeer-{digest.hexdigest()}"


def refuse_edges(graph: Graph) -> None:
    """Raise `ConflictError` where a graph has order edges: it was planned already, here or by Inductor."""
    if any(node.op == "call_function" and "control_deps" in str(node.target) for node in graph.nodes):
        raise ConflictError("the graph has order edges (`control_deps`): it was planned before, and is not planned again")


def _timeline(told: _native.Told) -> reports.Timeline | None:
    """Give what runs when, of a plan."""
    if told.timeline is None or told.svg is None or told.spans is None:
        return None
    return reports.Timeline(told.timeline, told.svg, told.spans)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Put the garbage collector off: it would go through all that a compiler holds, several times, and find nothing of ours."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Clock:
    """Takes the times of parts."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name] = now - self._start
        self._start = now


def refuse_conflicts() -> None:
    """Raise `ConflictError` where Inductor is to bucket or to move collectives, too."""
    from torch._inductor import config

    for name, off in _CONFLICTS.items():
        at: Any = config
        for part in name.split("."):
            at = getattr(at, part, off)
        if at != off:
            raise ConflictError(
                f"torch._inductor.config.{name} is {at!r}: Inductor would bucket or move the same collectives; set it to {off!r}, or do "
                "without bucketeer"
            )


def _tell(report: Report) -> None:
    """Log a line, all at debug, and an artifact that tlparse shows."""
    log.info("%s", report.line())
    if log.isEnabledFor(10):
        log.debug("%s", report)
    for said in report.said:
        log.info("%s", said)
    if report.json:
        structured_artifact(f"bucketeer_{report.graph}", lambda: report.json)
