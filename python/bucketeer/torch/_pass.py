"""The pass that Inductor runs on each graph."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from pathlib import Path
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes
from torch.fx import Graph

from .. import _native, reports
from . import _groups, _ranks
from ._edit import apply
from ._fake import hints_of
from ._flags import Flags, build
from ._graphs import has_launches, launches_of, outside
from ._messages import BucketeerWarning, ConflictError, log
from ._operators import describe
from ._order import hold
from ._private import graph_name, structured_artifact
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

    Takes the options of `enable`. One pass may serve several threads.
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

        That ranks differ is always an error: they would wait for one another.
        """
        name = graph_name()
        turn = _ranks.Turn(name, self._timeout_s) if self._check_ranks else None
        try:
            report = self._rewrite(graph, name, turn)
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            if turn is not None:
                turn.fail(reason)
            launches = launches_of(graph)
            report = Report(graph=name, outcome="left", launches_before=launches, launches_after=launches, reason=reason)
            add(report)
            if self._strict or turn is not None or not isinstance(error, Exception):
                raise
            warnings.warn(f"bucketeer: {report.line()}", BucketeerWarning, stacklevel=2)
            return
        add(report)
        _tell(report)

    def _rewrite(self, graph: Graph, name: str, turn: _ranks.Turn | None) -> Report:
        if not has_launches(graph):
            if turn is not None:
                turn.agree([])
            return Report(graph=name, outcome="empty", launches_before=0, launches_after=0, reason=outside(graph))
        refuse_conflicts()
        seconds: dict[str, float] = {}
        clock = _Clock(seconds)
        nodes = list(graph.nodes)
        live = _native.read_live(graph, name, describe, _groups.ranks_of, hints_of(graph))
        before = live.launch_count()
        clock.lap("read")
        work = live.plan if self._flags.plans else live.rewrite
        words, files = list(self._flags.words), list(self._flags.files)
        notes: list[str] = []
        if self._times is not None:
            measured = times_of(self._times, graph)
            if measured is None:
                notes.append(f"{self._times} has no times of this graph; they are taken from shapes")
            else:
                words.append("--times=<times>")
                files.append(("<times>", measured))
        told = work(words, files)
        unknown = [name for name, members in live.groups() if not members and not name.startswith("%")]
        if unknown:
            notes.append(f"c10d knows no group {', '.join(map(repr, unknown))} here, so that its ranks are not known")
        edits = live.edits()
        clock.lap("rewrite")
        if turn is not None:
            turn.agree(live.launches())
            clock.lap("agree")
        # Order edges of a plan are made with what nodes hold.
        made = apply(graph, nodes, edits, fakes=self._flags.plans or not self._is_last_of_post_grad())
        if self._flags.plans:
            try:
                hold(graph)
            except Exception as error:
                # What it computes is right all the same.
                notes.append(f"Inductor may move launches and waits of this plan: {type(error).__name__}: {error}")
        clock.lap("edit")
        changed = made > 0 or bool(edits.rewired) or edits.order != list(range(len(nodes)))
        done = "planned" if self._flags.plans else "rewritten"
        return Report(
            graph=name,
            outcome=done if changed else "unchanged",
            launches_before=before,
            launches_after=live.launch_count(),
            said=(*notes, *told.said),
            summary=told.summary,
            seconds=seconds,
            json=told.report,
            timeline=_timeline(told),
        )

    def _is_last_of_post_grad(self) -> bool:
        """Whether nobody reads this pass's graph before Inductor gives new nodes their fake values, as it does behind its hook for passes
        of post-grad graphs. It runs each new node for that, whether it has one or not.
        """
        from torch._inductor import config

        hooks = ("joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass")
        elsewhere = any(one is self for hook in hooks for one in get_custom_graph_passes(getattr(config, hook)))
        last = get_custom_graph_passes(config.post_grad_custom_post_pass)[-1:]
        return not elsewhere and any(one is self or getattr(one, "inner", None) is self for one in last)

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
            digest.update(path.read_bytes())
        return f"bucketeer-{digest.hexdigest()}"


def _timeline(told: _native.Told) -> reports.Timeline | None:
    """Give what runs when, of a plan."""
    if told.timeline is None or told.svg is None or told.spans is None:
        return None
    return reports.Timeline(told.timeline, told.svg, told.spans)


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
