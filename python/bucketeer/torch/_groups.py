"""Process groups as c10d knows them."""

from __future__ import annotations

import torch.distributed as dist

from ._private import process_group, world_groups


def ranks_of(name: str) -> list[int] | None:
    """Give the global ranks of a group, in the order of its ranks; none if c10d has no group of that name here."""
    if name.startswith("%") or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return list(dist.get_process_group_ranks(process_group(name)))
    except (LookupError, RuntimeError, ValueError):
        return None


def all_groups() -> list[tuple[str, list[int]]]:
    """Give all groups that this process is in, by name: what a rewrite may hang on beside the graph."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    in_order = ((name, sorted(ranks, key=ranks.__getitem__)) for name, ranks in world_groups())
    return sorted(in_order)
