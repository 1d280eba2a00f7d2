"""Do all ranks launch the same? Asked over c10d's store, before anything runs."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.fx import Graph

from . import _groups
from ._graphs import group_names
from ._messages import RanksDifferError
from ._private import store_under

# What a graph launches, in order: the group's name, and the kind, dtypes and sizes, those of each tensor that is merged apart.
Launches = list[tuple[str, str]]

# How many graphs were compared that have a group, by its ranks.
_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
_lock = threading.Lock()


class Turn:
    """One graph, compared by all ranks that are connected by groups in it.

    Of each group, every rank has to compile as many graphs that have it, in the same order; graphs that have none of its groups do
    not count.
    """

    def __init__(self, graph: Graph, name: str, timeout_s: float) -> None:
        self._name = name
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._members: dict[str, list[int]] = {}
        self._labels: dict[str, str] = {}
        self._ends = False
        self.notes: list[str] = []
        """Groups that could not be compared."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        self._me = dist.get_rank()
        self._store: Any = store_under("bucketeer")
        with _lock:
            for group in group_names(graph):
                members = _groups.ranks_of(group)
                if members is None:
                    self.notes.append(f"launches of group `{group}` are not compared, for its ranks are not known")
                    continue
                label = self._label(members)
                self._labels[group], self._members[label] = label, members

    def _label(self, members: list[int]) -> str:
        """What ranks call a group alike: names differ from rank to rank, members do not. Of several with the same, their order counts."""
        ranks = ",".join(map(str, members))
        same = next(number for number in itertools.count() if not any(label.startswith(f"{ranks}#{number}@") for label in self._members))
        return f"{ranks}#{same}@{next(_counts[f'{ranks}#{same}'])}"

    def agree(self, launches: Launches) -> None:
        """Hold this rank's launches against those of all ranks that share a group with it, and hear what the others found.

        Raises `RanksDifferError` on every rank that is connected with one that differs, that failed to rewrite its graph, or that did not
        come within the time.
        """
        if not self._members:
            return
        mine = [(self._labels[group], what) for group, what in launches if group in self._labels]
        self._say("plan", {"launches": mine, "members": self._members})
        try:
            plans = self._plans()
            self._compare(mine, plans)
        except RanksDifferError as error:
            self._end(str(error))
            raise
        self._end(None)
        for rank, label in self._reached(plans).items():
            found = self._get(f"{label}/{rank}/end", [rank])
            if found is not None:
                raise RanksDifferError(f"graph `{self._name}`: rank {rank} does not rewrite it, so that no rank may: {found}")

    def fail(self, reason: str) -> None:
        """Tell the others that this rank's graph is left as it was, so that they do not wait, nor rewrite theirs."""
        if self._members and not self._ends:
            self._say("plan", {"failed": reason})
            self._end(reason)

    def _say(self, what: str, said: Any) -> None:
        for label in self._members:
            self._store.set(f"{label}/{self._me}/{what}", json.dumps(said))

    def _end(self, reason: str | None) -> None:
        if not self._ends:
            self._ends = True
            self._say("end", reason)

    def _get(self, key: str, ranks: list[int]) -> Any:
        left = self._deadline - time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=max(left, 0.001)))
        except Exception as error:
            raise RanksDifferError(
                f"graph `{self._name}`: within {self._timeout_s:g} s nothing came from {_ranks(ranks)}; each rank has to compile as many graphs "
                "that launch in a group, in the same order"
            ) from error
        return json.loads(self._store.get(key))

    def _plans(self) -> dict[int, Any]:
        """What the others would launch that share a group with this rank, or with one of those, and so on."""
        plans: dict[int, Any] = {}
        open_ = [(label, rank) for label, members in self._members.items() for rank in members if rank != self._me]
        for label, rank in open_:
            if rank in plans:
                continue
            plan = plans[rank] = self._get(f"{label}/{rank}/plan", [rank])
            if "failed" in plan:
                raise RanksDifferError(f"graph `{self._name}`: rank {rank} could not rewrite it, so that no rank may: {plan['failed']}")
            # Found while the list is gone through.
            open_ += [(other, further) for other, members in plan["members"].items() for further in members if further != self._me]
        return plans

    def _reached(self, plans: dict[int, Any]) -> dict[int, str]:
        """The ranks that were asked, each with a group of its own."""
        return {rank: next(iter(plan["members"])) for rank, plan in plans.items()}

    def _compare(self, mine: list[tuple[str, str]], plans: dict[int, Any]) -> None:
        names = {label: group for group, label in self._labels.items()}
        for label, members in self._members.items():
            one = [what for where, what in mine if where == label]
            for rank in members:
                other = [what for where, what in plans[rank]["launches"] if where == label] if rank != self._me else one
                if one != other:
                    raise RanksDifferError(self._difference(f"in group `{names[label]}`, ", rank, one, other))
        for rank, plan in plans.items():
            shared = self._members.keys() & plan["members"].keys()
            order = [f"one of group {names[where]}" for where, _ in mine if where in shared]
            theirs = [f"one of group {names[where]}" for where, _ in plan["launches"] if where in shared]
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


def _ranks(ranks: list[int]) -> str:
    words = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"

