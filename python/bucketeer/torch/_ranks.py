"""Do all ranks launch the same? Asked over c10d's store, before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.fx import Graph

from . import _groups
from ._graphs import group_names
from ._messages import RanksDifferError
from ._private import store_under

# What a graph launches, in order: the name of the group, and the kind with the dtype and sizes of each tensor that is sent.
Launches = list[tuple[str, str]]

# How many graphs were compared that have a group, by world and group.
_counts: WeakKeyDictionary[Any, defaultdict[str, Iterator[int]]] = WeakKeyDictionary()
_lock = threading.Lock()


class Turn:
    """One graph, compared by all ranks that are connected by groups in it.

    Of each group, every rank has to compile as many graphs that have it, in the same order; graphs that have none of its groups do
    not count. `timeout_s` is how long ranks wait for one another, in seconds, from when this one is done with its graph.
    """

    def __init__(self, graph: Graph, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._deadline = 0.0
        # By label, which all members of a group know: its ranks, and its name.
        self._members: dict[str, list[int]] = {}
        self._groups: dict[str, str] = {}
        self._has_ended = False
        self.notes: list[str] = []
        """Groups that could not be compared."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        self._me = dist.get_rank()
        self._store: Any = store_under("bucketeer")
        with _lock:
            counts = _counts.setdefault(dist.group.WORLD, defaultdict(itertools.count))
            for group in group_names(graph):
                members = _groups.ranks_of(group)
                if members is None:
                    self.notes.append(f"launches of group `{group}` are not compared, for its ranks are not known")
                    continue
                key = f"{group} of {','.join(map(str, members))}"
                label = f"{key} #{next(counts[key])}"
                self._members[label], self._groups[label] = members, group

    @property
    def has_others(self) -> bool:
        """Whether there is anybody to compare with."""
        return bool(self._members)

    def agree(self, launches: Launches) -> None:
        """Hold this rank's launches against those of all ranks that share a group with it, and hear what the others found.

        Raises `RanksDifferError` on every rank that is connected with one that differs, that failed to rewrite its graph, or that did not
        come within the time.
        """
        if not self._members:
            return
        labels = {group: label for label, group in self._groups.items()}
        mine = [(labels[group], what) for group, what in launches if group in labels]
        self._deadline = time.monotonic() + self._timeout_s
        self._say("launches", mine)
        digests = {label: _digest([what for where, what in mine if where == label]) for label in self._members}
        self._say("plan", {"members": self._members, "digests": digests, "order": [where for where, _ in mine]})
        try:
            plans = self._plans()
            self._compare(mine, digests, plans)
        except RanksDifferError as error:
            self._end(str(error))
            raise
        self._end(None)
        # Those that are slow have all of the time again: who has come so far waits for the same.
        self._deadline = time.monotonic() + self._timeout_s
        for rank, plan in plans.items():
            found = self._get(next(iter(plan["members"])), rank, "end")
            if found is not None:
                raise RanksDifferError(f"graph `{self._name}`: rank {rank} does not rewrite it, so that no rank may: {found}")

    def fail(self, reason: str) -> None:
        """Tell the others that this rank's graph is left as it was, so that they do not wait, nor rewrite theirs."""
        if self._members and not self._has_ended:
            self._say("plan", {"failed": reason})
            self._end(reason)

    def _say(self, what: str, said: Any) -> None:
        for label in self._members:
            self._store.set(f"{label}/{self._me}/{what}", json.dumps(said))

    def _end(self, reason: str | None) -> None:
        self._has_ended = True
        self._say("end", reason)

    def _get(self, label: str, rank: int, what: str) -> Any:
        left = self._deadline - time.monotonic()
        key = f"{label}/{rank}/{what}"
        try:
            self._store.wait([key], timedelta(seconds=max(left, 0.001)))
        except Exception as error:
            if "timeout" not in str(error).lower():
                raise RanksDifferError(f"graph `{self._name}`: c10d's store cannot be asked: {error}") from error
            raise RanksDifferError(
                f"graph `{self._name}`: within {self._timeout_s:g} s nothing came from rank {rank}; each rank has to compile as many graphs "
                "that launch in a group, in the same order"
            ) from error
        return json.loads(self._store.get(key))

    def _plans(self) -> dict[int, Any]:
        """What the others would launch that share a group with this rank, or with one of those, and so on."""
        plans: dict[int, Any] = {}
        asked = [(label, rank) for label, members in self._members.items() for rank in members]
        for label, rank in asked:
            if rank == self._me or rank in plans:
                continue
            plan = plans[rank] = self._get(label, rank, "plan")
            if "failed" in plan:
                raise RanksDifferError(f"graph `{self._name}`: rank {rank} could not rewrite it, so that no rank may: {plan['failed']}")
            # The list grows while it is gone through.
            asked += [(other, further) for other, members in plan["members"].items() for further in members]
        return plans

    def _compare(self, mine: list[tuple[str, str]], digests: dict[str, str], plans: dict[int, Any]) -> None:
        for label, members in self._members.items():
            for rank in members:
                if rank != self._me and plans[rank]["digests"].get(label) != digests[label]:
                    one = [what for where, what in mine if where == label]
                    other = [what for where, what in self._get(label, rank, "launches") if where == label]
                    raise RanksDifferError(self._difference(f"in group `{self._groups[label]}`, ", rank, one, other))
        for rank, plan in plans.items():
            shared = self._members.keys() & plan["members"].keys()
            order = [f"one of group `{self._groups[where]}`" for where, _ in mine if where in shared]
            theirs = [f"one of group `{self._groups[where]}`" for where in plan["order"] if where in shared]
            if len(shared) > 1 and order != theirs:
                raise RanksDifferError(self._difference("over all groups that both are in, ", rank, order, theirs))

    def _difference(self, where: str, rank: int, mine: list[str], theirs: list[str]) -> str:
        both = enumerate(zip(mine, theirs))
        at = next((at for at, (one, other) in both if one != other), min(len(mine), len(theirs)))
        one = mine[at] if at < len(mine) else "nothing"
        other = theirs[at] if at < len(theirs) else "nothing"
        return (
            f"graph `{self._name}`: rank {rank} would not launch what rank {self._me} does: {where}launch {at + 1} of rank {self._me} "
            f"is {one}, that of rank {rank} is {other}; give all ranks the same options, graphs and versions"
        )


def _digest(sequence: list[str]) -> str:
    return hashlib.sha256("\n".join(sequence).encode()).hexdigest()
