"""Do all ranks launch the same? Asked over c10d's store, before anything runs."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import threading

import torch.distributed as dist

from ._messages import RanksDifferError
from ._private import store_under

# A group's name, its members' global ranks, and what it launches, in order.
Launches = list[tuple[str, list[int], list[str]]]

_counts = itertools.count()
_lock = threading.Lock()


def agree(graph: str, launches: Launches, timeout_s: float) -> None:
    """Hold this rank's launches against those of all ranks that share a group with it.

    Every rank has to come here as often as the others, in the same order. Raises `RanksDifferError` with the ranks that
    differ and the first launch in which they do, or if a rank does not come within the time.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    with _lock:
        number = next(_counts)
    me, world = dist.get_rank(), dist.get_world_size()
    store = store_under(f"bucketeer/{number}")
    mine = {_key(name, members): _digest(sequence) for name, members, sequence in launches}
    for name, members, sequence in launches:
        store.set(f"launches/{me}/{_key(name, members)}", json.dumps(sequence))
    store.set(f"plan/{me}", json.dumps({"graph": graph, "groups": mine}))
    deadline = datetime.timedelta(seconds=timeout_s)
    # Ranks that are in no group with this one may have other graphs.
    others = sorted({rank for _, members, _ in launches for rank in members} - {me}) or [rank for rank in range(world) if rank != me]
    try:
        store.wait([f"plan/{rank}" for rank in others], deadline)
    except Exception as error:
        missing = [rank for rank in others if not store.check([f"plan/{rank}"])]
        what = f"graph `{graph}`: within {timeout_s:g} s nothing came from {_ranks(missing)}; each rank has to compile as many graphs"
        raise RanksDifferError(what) from error
    plans = {rank: json.loads(store.get(f"plan/{rank}")) for rank in others}
    for name, members, sequence in launches:
        key = _key(name, members)
        differ = [rank for rank in members if rank != me and plans[rank]["groups"].get(key) != mine[key]]
        if differ:
            theirs = json.loads(store.get(f"launches/{differ[0]}/{key}")) if key in plans[differ[0]]["groups"] else []
            raise RanksDifferError(_difference(graph, name, me, sequence, differ, theirs))


def _difference(graph: str, group: str, me: int, mine: list[str], differ: list[int], theirs: list[str]) -> str:
    at = next((at for at, (one, other) in enumerate(zip(mine, theirs)) if one != other), min(len(mine), len(theirs)))
    one = mine[at] if at < len(mine) else "nothing"
    other = theirs[at] if at < len(theirs) else "nothing"
    return (
        f"graph `{graph}`: {_ranks(differ)} would not launch what rank {me} does: in group `{group}`, launch {at + 1} of rank {me} "
        f"is {one}, that of rank {differ[0]} is {other}; give all ranks the same options, graphs and versions"
    )


def _ranks(ranks: list[int]) -> str:
    words = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def _key(name: str, members: list[int]) -> str:
    """Names of groups differ from rank to rank; their members do not."""
    return ",".join(map(str, members)) or name


def _digest(sequence: list[str]) -> str:
    return hashlib.sha256("\n".join(sequence).encode()).hexdigest()
