"""Ranks that ask one another whether they would launch the same.

    python -m agreeing.ranks CASE

Prints a JSON line for each of two ranks: what was raised, or how many launches are left.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing as processes
from torch.fx.experimental.proxy_tensor import make_fx

# Options of each rank; none is a rank that compiles nothing.
CASES: dict[str, list[dict[str, Any] | None]] = {
    "same": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "caps": [{"all_gather": "1MB"}, {"all_gather": "64B"}],
    "missing": [{"all_gather": "1MB"}, None],
    "failing": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
}


def run(rank: int, case: str, folder: str) -> None:
    """One rank."""
    import bucketeer
    import bucketeer.torch

    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/rendezvous")
    options = CASES[case][rank]
    said: dict[str, Any] = {"rank": rank}
    if options is not None:
        gather = lambda *shards: [collectives.all_gather_tensor(shard, 0, dist.group.WORLD) * 2 for shard in shards]  # noqa: E731
        warnings.simplefilter("ignore")
        module = make_fx(gather, tracing_mode="fake")(*[torch.randn(2, 4) for _ in range(3)])
        if case == "failing" and rank == 1:
            torch._inductor.config.bucket_all_gathers_fx = "all"
        try:
            bucketeer.torch.BucketeerPass(check_ranks=True, timeout_s=5, **options)(module.graph)
            said["launches"] = sum("all_gather_into_tensor" in str(node.target) for node in module.graph.nodes)
        except bucketeer.Error as error:
            said["raised"] = str(error)
            said["launches"] = sum("all_gather_into_tensor" in str(node.target) for node in module.graph.nodes)
    # In one piece: both ranks write to the same place.
    os.write(1, f"{json.dumps(said)}\n".encode())
    dist.barrier()


def guarded(rank: int, case: str, folder: str) -> None:
    """A rank that fails ends at once."""
    try:
        run(rank, case, folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(guarded, args=(sys.argv[1], folder), nprocs=2, join=True)
