"""Ranks that ask one another whether they would launch the same.

    python -m agreeing.ranks CASE

Prints a JSON line for each rank: what was raised, or how many launches are left.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx

Options = list[dict[str, Any] | None]

# Options of each rank; none is a rank that compiles nothing.
CASES: dict[str, Options] = {
    "same": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "caps": [{"all_gather": "1MB"}, {"all_gather": "64B"}],
    "missing": [{"all_gather": "1MB"}, None],
    "failing": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "editing": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "order of members": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "exchange": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "more graphs of its own": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "two groups": [{"all_gather": "1MB"}, {"all_gather": "1MB"}],
    "a neighbour's neighbour": [{"all_gather": "64B"}, *[{"all_gather": "1MB"}] * 3],
}


def step(case: str, rank: int) -> tuple[Any, list[torch.Tensor]]:
    """What a rank computes, and of what."""
    if case == "a neighbour's neighbour":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        # Rank 0 is alone in its row with another cap; ranks 2 and 3 share no group with it, or one that is not at odds.
        groups = [mesh.get_group("columns")] * 2 + [mesh.get_group("rows")]
    elif case == "two groups":
        # Of the same ranks; each rank launches in another one.
        groups = [[dist.new_group([0, 1]), dist.new_group([0, 1])][rank]] * 3
    else:
        groups = [dist.group.WORLD] * 3

    def gather(*shards: torch.Tensor) -> list[torch.Tensor]:
        made = [collectives.all_gather_tensor(shard, 0, group) * 2 for shard, group in zip(shards, groups)]
        if case == "exchange":
            # Rows that one rank sends to the other: each as many as it has.
            sent = [2, 2 + rank]
            made.append(collectives.all_to_all_single(shards[0].new_ones(sum(sent), 3), [2, 2 + rank] if rank == 0 else [2, 3], sent, groups[0]))
        return made

    sizes = [2, 3, 2] if case == "order of members" and rank == 1 else [3, 2, 2] if case == "order of members" else [2, 2, 2]
    return gather, [torch.randn(size, 4) for size in sizes]


def run(rank: int, case: str, folder: str) -> None:
    """One rank."""
    import bucketeer
    import bucketeer.torch
    from bucketeer.torch import _edit

    world = len(CASES[case])
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{folder}/rendezvous")
    options = CASES[case][rank]
    said: dict[str, Any] = {"rank": rank}
    if options is not None:
        warnings.simplefilter("ignore")
        function, inputs = step(case, rank)
        if case == "more graphs of its own" and rank == 1:
            alone = make_fx(lambda x: x * 2, tracing_mode="fake")(torch.randn(2))
            bucketeer.torch.BucketeerPass(check_ranks=True, timeout_s=5, **options)(alone.graph)
        if case == "failing" and rank == 1:
            torch._inductor.config.bucket_all_gathers_fx = "all"
        if case == "editing" and rank == 1:

            def fails(*_: Any) -> None:
                raise MemoryError("none left")

            _edit._describe = fails
        module = make_fx(function, tracing_mode="fake")(*inputs)
        try:
            bucketeer.torch.BucketeerPass(check_ranks=True, timeout_s=5, **options)(module.graph)
        except (bucketeer.Error, MemoryError) as error:
            said["raised"] = str(error)
        said["launches"] = sum("all_gather_into_tensor" in str(node.target) for node in module.graph.nodes)
    # In one piece: ranks write to the same place.
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
        processes.spawn(guarded, args=(sys.argv[1], folder), nprocs=len(CASES[sys.argv[1]]), join=True)
