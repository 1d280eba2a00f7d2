"""Do all ranks launch the same? Asked over c10d's store, before anything runs."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import threading
from typing import Any

import torch.distributed as dist

from ._messages import RanksDifferError
from ._private import store_under

# A group's name, its members' global ranks, and what it launches, in order.
Launches = list[tuple[str, list[int], list[str]]]

_counts = itertools.count()
_lock = threading.Lock()


class Turn:
    """One graph, compared by all ranks that share a group in it. Every rank has to take as many turns, in the same order."""

    def __init__(self, graph: str, timeout_s: float) -> None:
        with _lock:
            number = next(_counts)
        self._graph = graph
        self._timeout_s = timeout_s
        self._said = False
        has_others = dist.is_initialized() and dist.get_world_size() > 1
        self._store: Any = store_under(f"bucketeer/{number}") if has_others else None

    def agree(self, launches: Launches) -> None:
        """Hold this rank's launches against those of all ranks that share a group with it.

        Raises `RanksDifferError` with the ranks that differ and the first launch in which they do, that failed to rewrite their graph,
        or that did not come within the time.
        """
        if self._store is None:
            return
        me = dist.get_rank()
        groups = _by_members(launches)
        for key, (_, _, sequence) in groups.items():
            self._store.set(f"launches/{me}/{key}", json.dumps(sequence))
        self._say({"groups": {key: _digest(sequence) for key, (_, _, sequence) in groups.items()}})
        plans = self._plans(sorted({rank for _, members, _ in groups.values() for rank in members} - {me}))
        for key, (name, members, mine) in groups.items():
            differ = [rank for rank in members if rank != me and plans[rank]["groups"].get(key) != _digest(mine)]
            if differ:
                known = key in plans[differ[0]]["groups"]
                theirs = json.loads(self._store.get(f"launches/{differ[0]}/{key}")) if known else []
                raise RanksDifferError(self._difference(name, me, mine, differ, theirs))

    def fail(self, reason: str) -> None:
        """Tell the others that this rank's graph is left as it was, so that they do not wait; nothing if they know its launches."""
        if self._store is not None and not self._said:
            self._say({"failed": reason})

    def _say(self, plan: dict[str, Any]) -> None:
        self._said = True
        self._store.set(f"plan/{dist.get_rank()}", json.dumps(plan))

    def _plans(self, ranks: list[int]) -> dict[int, Any]:
        """What the others would launch."""
        try:
            self._store.wait([f"plan/{rank}" for rank in ranks], datetime.timedelta(seconds=self._timeout_s))
        except Exception as error:
            missing = [rank for rank in ranks if not self._store.check([f"plan/{rank}"])]
            raise RanksDifferError(
                f"graph `{self._graph}`: within {self._timeout_s:g} s nothing came from {_ranks(missing)}; each rank has to compile as many "
                "graphs, in the same order"
            ) from error
        plans = {rank: json.loads(self._store.get(f"plan/{rank}")) for rank in ranks}
        failed = [rank for rank in ranks if "failed" in plans[rank]]
        if failed:
            reason = plans[failed[0]]["failed"]
            raise RanksDifferError(f"graph `{self._graph}`: {_ranks(failed)} could not rewrite it, so that no rank may: {reason}")
        return plans

    def _difference(self, group: str, me: int, mine: list[str], differ: list[int], theirs: list[str]) -> str:
        both = enumerate(zip(mine, theirs))
        at = next((at for at, (one, other) in both if one != other), min(len(mine), len(theirs)))
        one = mine[at] if at < len(mine) else "nothing"
        other = theirs[at] if at < len(theirs) else "nothing"
        return (
            f"graph `{self._graph}`: {_ranks(differ)} would not launch what rank {me} does: in group `{group}`, launch {at + 1} of rank {me} "
            f"is {one}, that of rank {differ[0]} is {other}; give all ranks the same options, graphs and versions"
        )


def _by_members(launches: Launches) -> dict[str, tuple[str, list[int], list[str]]]:
    """Groups by what ranks know alike: names differ from rank to rank, members do not; of several with the same, their order."""
    groups: dict[str, tuple[str, list[int], list[str]]] = {}
    for name, members, sequence in launches:
        if not members:
            continue
        same = ",".join(map(str, members))
        number = next(number for number in itertools.count() if f"{same}#{number}" not in groups)
        groups[f"{same}#{number}"] = (name, members, sequence)
    return groups


def _ranks(ranks: list[int]) -> str:
    words = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def _digest(sequence: list[str]) -> str:
    return hashlib.sha256("\n".join(sequence).encode()).hexdigest()
