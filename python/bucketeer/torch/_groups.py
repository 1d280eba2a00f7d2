"""Process groups as c10d knows them."""

from __future__ import annotations

import torch.distributed as dist


def ranks_of(name: str) -> list[int] | None:
    """Give the global ranks of a group, in the order of its ranks; none if c10d has no group of that name here."""
    if name.startswith("%") or not dist.is_available() or not dist.is_initialized():
        return None
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        group = _resolve_process_group(name)
    except (LookupError, RuntimeError, ValueError):
        return None
    return list(dist.get_process_group_ranks(group))


def all_groups() -> list[tuple[str, list[int]]]:
    """Give all groups that this process is in, by name: what a rewrite may hang on beside the graph."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    groups = ((world.pg_names.get(group, ""), sorted(ranks.items(), key=lambda item: item[1])) for group, ranks in world.pg_group_ranks.items())
    return sorted((name, [rank for rank, _ in ranks]) for name, ranks in groups)


def rank() -> int | None:
    """Give this process's global rank, or none if there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None
