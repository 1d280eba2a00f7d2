"""Trains models on ranks that are processes of a gloo group, without and with bucketeer.

    python -m training.ranks WORLD MODEL... [--options JSON]

Prints a JSON line for each model: launches of a step without and with, what differed on any rank, bit for bit, and whether graphs
were found in Inductor's cache when it was trained once more. Options are those of `bucketeer.torch.enable`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

STEPS = 3


def train(name: str, world: int) -> dict[str, Any]:
    """Train for a few steps: losses, gradients, parameters and buffers, and the launches of the last step."""
    from .models import MODELS
    from .rank_order import launches

    torch._dynamo.reset()
    torch.manual_seed(7)
    model, batch = MODELS[name](world)
    step = torch.compile(model, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        launches.clear()
        loss = step(*batch(number)).square().mean()
        loss.backward()
        losses.append(loss.detach().clone())
        last = list(launches)
        gradients = [local(parameter.grad).clone() for parameter in model.parameters()]
        optimizer.step()
    state = [local(value).detach().clone() for value in [*model.parameters(), *model.buffers()]]
    return {"losses": losses, "gradients": gradients, "state": state, "launches": last}


def local(value: Any) -> torch.Tensor:
    """This rank's part."""
    return value.to_local() if hasattr(value, "to_local") else value


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same bit for bit."""
    found = []
    for part in ("losses", "gradients", "state"):
        if len(one[part]) != len(other[part]):
            found.append(f"{part}: {len(one[part])} and {len(other[part])}")
        pairs = enumerate(zip(one[part], other[part]))
        found += [f"{part} {at}: {(a - b).abs().max()}" for at, (a, b) in pairs if a.dtype != b.dtype or not torch.equal(a, b)]
    return found


def run(rank: int, world: int, names: list[str], folder: str, options: dict[str, Any]) -> None:
    """One rank."""
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{folder}/rendezvous")
    for name in names:
        # PyTorch's cache of joint graphs tells meshes apart by their shape: where ranks share a folder, one would get the graph of
        # another, with that one's groups.
        torch._functorch.config.enable_autograd_cache = name != "hsdp"
        seen = compare(name, world, options)
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, seen)
        if rank == 0:
            seen["differences"] = [f"rank {at}: {what}" for at, other in enumerate(gathered) for what in other["differences"]]
            print(json.dumps(seen), flush=True)
    dist.barrier()


def compare(name: str, world: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train without bucketeer, with it, and with it once more, as the cache has it."""
    from torch._dynamo.utils import counters

    import bucketeer.torch

    without = train(name, world)
    bucketeer.torch.reports(clear=True)
    with bucketeer.torch.enable(strict=True, **options):
        with_ours = train(name, world)
        reports = bucketeer.torch.reports(clear=True)
        counters.clear()
        again = train(name, world)
    return {
        "model": name,
        "world": world,
        "losses": [float(loss) for loss in without["losses"]],
        "launches": {"without": count(without["launches"]), "with": count(with_ours["launches"])},
        "differences": differences(without, with_ours) + [f"again: {what}" for what in differences(without, again)],
        "reports": [report.line() for report in reports],
        "proofs": [report.details.proof.verdict for report in reports if report.outcome == "rewritten"],
        "cache": {key: value for key, value in counters["inductor"].items() if key.startswith("fxgraph_cache_")},
        "compiled again": [report.line() for report in bucketeer.torch.reports(clear=True)],
    }


def count(launches: list[str]) -> dict[str, int]:
    """How often each kind was launched."""
    return {kind: launches.count(kind) for kind in sorted(set(launches))}


def guarded(rank: int, *rest: Any) -> None:
    """A rank that fails ends at once: the others would wait for it."""
    try:
        run(rank, *rest)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Run all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", type=int)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--options", type=json.loads, default={})
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Graphs are looked for in a cache of their own; what was compiled of C++ is kept where the environment says.
        os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{folder}/cache")
        processes.spawn(guarded, args=(asked.world, asked.models, folder, asked.options), nprocs=asked.world, join=True)


if __name__ == "__main__":
    main()
