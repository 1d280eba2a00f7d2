#!/usr/bin/env python3
"""Time steps of gradients beside PyTorch's DDP over gloo, in turn on this machine, and print ratios.

    bench_reducer.py [--sets resnet50,mixed200] [--delays 0,50,200] [--turns 3] [--iters 15] [--page docs/speed.md]

Wants a python with torch in the path, or in BUCKETEER_PYTHON, and an idle machine. For each set of parameters, delay between marks
and way (gradients copied, or in the buckets) it runs both programs in turn, takes the median of each run and the median of
the runs. What is timed is the same on both sides: from just before the first mark to all gradients written, the slowest of two
ranks. On PyTorch's side the marks go to the reducer's own hook, so that no kernel of autograd is timed. With --page the table
is written between the marks of that page.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- reducer: begin -->", "<!-- reducer: end -->"


def resnet50():
    shapes, width_in = [(64, 3, 7, 7), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, width_in, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(width * 4, width, 1, 1), (width * 4,), (width * 4,)]
            if block == 0:
                shapes += [(width * 4, width_in, 1, 1), (width * 4,), (width * 4,)]
            width_in = width * 4
    return shapes + [(1000, 2048), (1000,)]


def shapes_of(name, sizes):
    """The shapes of a set; those that are drawn come from the other side."""
    return resnet50() if name == "resnet50" else [(size,) for size in sizes]


def pause(seconds):
    if seconds >= 2e-4:
        time.sleep(seconds)
    elif seconds > 0:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass


def rank(place, arguments, store):
    """One of PyTorch's ranks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="file://" + store, rank=place, world_size=2)
    shapes = shapes_of(arguments.set, arguments.sizes)
    run = {"marks": None}

    class Marks(torch.autograd.Function):
        """Runs the marks where backward would."""

        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            run["marks"]()
            return gradient

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.params = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)

        def forward(self, value):
            return Marks.apply(value)

    model = Model()
    own = [torch.full(shape, place + 1.0) for shape in shapes]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=arguments.view)
    params, started, times = list(model.params), [0.0], []
    delay = arguments.delay * 1e-6

    def marks():
        started[0] = time.perf_counter()
        for at in range(len(params) - 1, -1, -1):
            if params[at].grad is None:
                params[at].grad = own[at].clone() if arguments.view else own[at]
            else:
                params[at].grad.copy_(own[at])
            ddp.reducer._autograd_hook(at)
            if at:
                pause(delay)

    run["marks"] = marks
    value = torch.ones(1, requires_grad=True)
    for iteration in range(arguments.iters + 4):
        if not arguments.view:
            for at, param in enumerate(params):
                own[at] = torch.full(shapes[at], place + 1.0)
                param.grad = None
        dist.barrier()
        ddp(value).backward()
        took = torch.tensor([time.perf_counter() - started[0]], dtype=torch.float64)
        assert all(abs(float(param.grad.reshape(-1)[-1]) - 1.5) < 1e-6 for param in params)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if iteration >= 4:
            times.append(float(took) * 1e3)
    if place == 0:
        print(json.dumps({"median_ms": statistics.median(times)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def spawn(arguments):
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank, args=(arguments, folder + "/store"), nprocs=2, start_method="fork")


def last_json(command):
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default="resnet50,mixed200")
    parser.add_argument("--delays", default="0,50,200")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--iters", type=int, default=15)
    parser.add_argument("--page")
    # What this program starts itself with.
    parser.add_argument("--set")
    parser.add_argument("--delay", type=float)
    parser.add_argument("--view", action="store_true")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[])
    arguments = parser.parse_args()
    if arguments.set:
        return spawn(arguments)
    python = os.environ.get("BUCKETEER_PYTHON", sys.executable)
    lines = [
        "| parameters | ms between marks | gradients | PyTorch DDP, gloo, ms | this reducer, ms | ratio |",
        "|---|---|---|---|---|---|",
    ]
    subprocess.run(["cargo", "build", "--release", "--bench", "reducer"], cwd=ROOT, check=True)
    bench = ["cargo", "bench", "--bench", "reducer", "--"]
    for name in arguments.sets.split(","):
        sizes = subprocess.run(bench + ["--sizes", name], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        for delay in arguments.delays.split(","):
            for view in (False, True):
                common = ["--set", name, "--iters", str(arguments.iters)] + (["--view"] if view else [])
                ours, theirs = [], []
                for _ in range(arguments.turns):
                    torch = [python, __file__, "--delay", delay, "--sizes", sizes] + common
                    theirs.append(last_json(torch)["median_ms"])
                    ours.append(last_json(bench + ["--delay-us", delay] + common)["median_ms"])
                ours, theirs = statistics.median(ours), statistics.median(theirs)
                way = "in the buckets" if view else "copied"
                row = f"| {name} | {float(delay) / 1000:g} | {way} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} |"
                print(row, flush=True)
                lines.append(row)
    if arguments.page:
        page = ROOT / arguments.page
        text = page.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
