#!/usr/bin/env python3
"""Rewrite programs of torch.export and hold them against what they were, under real PyTorch.

    check_export_with_pytorch.py BUCKETEER

BUCKETEER is the command. Two processes of a gloo group export a few programs: plain
ones, with sizes known only at run time, with a buffer that is written, with
collectives in the branches of a cond, and two in one archive. Each archive is
rewritten in several ways. Then, of every result:

  * `bucketeer convert` of the archive as it was gives the same bytes;
  * torch.export.load reads it, and the graph is well-formed;
  * all members but the JSONs are what they were, at the same place modulo 64;
  * fewer collectives are left;
  * on both ranks it gives the same outputs and buffers, bit for bit (all values are
    small whole numbers, so that no order of sums matters).

Exit code: 0 all ok, 1 a difference was found, 2 bad usage.
"""
import multiprocessing
import os
import subprocess
import sys
import tempfile
import zipfile

import torch
import torch.distributed as dist
from torch.export import Dim
from torch.export.pt2_archive._package import load_pt2, package_pt2

RANKS = 2
WAYS = {
    "concat": [],
    "coalesced": ["--mode", "coalesced"],
    "bytes": ["--mixed-dtype", "bytes", "--all-gather", "none", "--all-reduce", "none"],
    "views": ["--unpack", "views", "--all-reduce", "none", "--reduce-scatter", "none"],
}
c10d = torch.ops._c10d_functional


def gather(x):
    return c10d.wait_tensor(c10d.all_gather_into_tensor(x, RANKS, "0"))


def scatter(x):
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(x, "sum", RANKS, "0"))


def reduce(x):
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0"))


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = lambda n: torch.nn.Parameter(torch.arange(8.0).reshape(2, 4) % (n + 2))
        self.ws = torch.nn.ParameterList([weight(n) for n in range(3)])
        self.narrow_weight = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))

    def forward(self, x):
        a, b, c = (gather(w) for w in self.ws)
        h = gather(self.narrow_weight)
        y, z = x @ a, x @ b
        return scatter(y), scatter(z), reduce(y + 1), reduce(z) + x @ c, h * 2


class Sized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x, y):
        a, b = reduce(x * 2), reduce(y + 1)
        c, d = gather(x), gather(y)
        self.count.add_(a.sum() + b.sum())
        return a, b, c, d, a.shape[0]


class Branches(torch.nn.Module):
    def forward(self, flag, x):
        merged = lambda x: reduce(x) + reduce(x * 2)
        return torch.cond(flag, merged, lambda x: x + 1, (x,)), reduce(x + 3), reduce(x + 4)


def whole(*shape):
    return torch.randint(-4, 5, shape).float()


def programs():
    """Names, programs and inputs; those of one name go into one archive."""
    rows, some, columns = (Dim(name, min=2, max=64) for name in ("rows", "some", "columns"))
    plain = torch.export.export(Plain(), (whole(4, 4),))
    sized = torch.export.export(
        Sized(), (whole(6, 4), whole(3, 5)), dynamic_shapes=({0: rows}, {0: some, 1: columns})
    )
    branches = torch.export.export(Branches(), (torch.tensor(True), whole(4, 4)))
    yield "plain", {"model": plain}, {"model": [(whole(4, 4),)]}
    yield "sized", {"model": sized}, {"model": [(whole(6, 4), whole(3, 5)), (whole(5, 4), whole(2, 7))]}
    yield "lowered", {"model": sized.run_decompositions()}, {"model": [(whole(3, 4), whole(4, 4))]}
    flags = [(torch.tensor(flag), whole(4, 4)) for flag in (True, False)]
    yield "branches", {"model": branches}, {"model": flags}
    yield "two", {"a": plain, "b": branches}, {"a": [(whole(4, 4),)], "b": flags[:1]}


def results(program, inputs):
    module = program.module()
    outputs = [module(*(x.clone() for x in each)) for each in inputs]
    return [x for each in outputs for x in each] + [buffer for _, buffer in module.named_buffers()]


def collectives(program):
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for graph in graphs:
        graph.lint()
    targets = [str(node.target) for graph in graphs for node in graph.nodes]
    return sum("_c10d_functional" in target and "wait" not in target for target in targets)


def check_members(before, after):
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(after) as new:
        assert new.testzip() is None, "a checksum is wrong"
        assert old.namelist() == new.namelist(), "members came or went"
        for a, b in zip(old.infolist(), new.infolist()):
            assert a.header_offset % 64 == b.header_offset % 64, f"{a.filename} lost its alignment"
            assert "/models/" in a.filename or old.read(a) == new.read(b), f"{a.filename} changed"


def same(a, b):
    if not isinstance(a, torch.Tensor):
        return a == b
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


def check(bucketeer, folder, name, exported, inputs, rank):
    before = os.path.join(folder, f"{name}.pt2")
    if rank == 0:
        package_pt2(before, exported_programs=exported)
        copy = os.path.join(folder, "copy.pt2")
        subprocess.run([bucketeer, "convert", before, copy], check=True, capture_output=True)
        with open(before, "rb") as old, open(copy, "rb") as new:
            assert old.read() == new.read(), f"{name}: the copy has other bytes"
    for way, options in WAYS.items():
        after = os.path.join(folder, f"{name}.{way}.pt2")
        if rank == 0:
            subprocess.run([bucketeer, "rewrite", before, "-o", after, *options], check=True, capture_output=True)
            check_members(before, after)
        dist.barrier()
        old, new = load_pt2(before).exported_programs, load_pt2(after).exported_programs
        counts = [sum(collectives(program) for program in each.values()) for each in (old, new)]
        assert counts[1] < counts[0], f"{name}, {way}: {counts[0]} collectives before, {counts[1]} after"
        for key, program in old.items():
            pairs = zip(results(program, inputs[key]), results(new[key], inputs[key]), strict=True)
            for at, (a, b) in enumerate(pairs):
                assert same(a, b), f"{name}, {way}, rank {rank}: output {at} differs\n{a}\n{b}"
        if rank == 0:
            print(f"ok    {name:10} {way:10} {counts[0]} collectives before, {counts[1]} after", flush=True)


def of_rank(rank, bucketeer, folder):
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    for name, exported, inputs in programs():
        check(bucketeer, folder, name, exported, inputs, rank)
    dist.barrier()
    dist.destroy_process_group()


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=of_rank, args=(rank, sys.argv[1], folder)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        # When one fails, the others wait for it in vain.
        while any(process.is_alive() for process in ranks):
            for process in ranks:
                process.join(0.2)
            if any(process.exitcode for process in ranks):
                for process in ranks:
                    process.terminate()
        return int(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    sys.exit(main())
