#!/usr/bin/env python3
"""How long bucketing takes inside torch.compile: bucketeer's pass beside PyTorch's own, on the same graph, in one process.

    bench_torch_pass.py [--layers 32] [--turns 3] [--cap-mb 256]

The graph is the forward pass of a decoder of Llama-3 8B's shape (32 layers) whose weights are gathered where they are used, of
fake tensors over a fake process group of 8 ranks, as Inductor's hook sees it: about 5,700 nodes and 291 gathers. Both passes
get a fresh graph each turn. Ours is timed as Inductor calls it, from its hook: reading the live graph, rewriting it, the proof and the
edits; and once more called by hand, with the fake values of new nodes, which Inductor makes itself behind the hook. PyTorch's is `bucket_all_gather` with the sort that it needs. Both run on one thread; times are those of the
processor. Prints the fastest turn of each, their ratio, and how long `import bucketeer` takes in a fresh interpreter.
"""
import argparse
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as functional
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketeer.torch

RANKS = 8
WIDTH, HEADS, KEY_HEADS, HIDDEN, WORDS, ROWS, TOKENS = 4096, 32, 8, 14336, 128256, 2, 2048


def gather(shard):
    """The whole weight, in bf16."""
    return collectives.all_gather_tensor(shard.to(torch.bfloat16), 0, dist.group.WORLD)


def norm(x, weight):
    """RMS norm, in f32 as Llama does it."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * gather(weight)


def rotate(x, cos, sin):
    """Rotary embedding."""
    even, odd = x.float().chunk(2, -1)
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1).to(x.dtype)


def layer(x, weights, cos, sin):
    """One decoder layer."""
    first, q, k, v, out, second, gate, up, down = weights
    h = norm(x, first)
    size = WIDTH // HEADS
    queries = functional.linear(h, gather(q)).view(ROWS, TOKENS, HEADS, size).transpose(1, 2)
    keys = functional.linear(h, gather(k)).view(ROWS, TOKENS, KEY_HEADS, size).transpose(1, 2)
    values = functional.linear(h, gather(v)).view(ROWS, TOKENS, KEY_HEADS, size).transpose(1, 2)
    queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
    keys, values = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (keys, values))
    scores = (queries @ keys.transpose(2, 3)).float() / size**0.5
    mixed = (scores.softmax(-1).to(x.dtype) @ values).transpose(1, 2).reshape(ROWS, TOKENS, WIDTH)
    x = x + functional.linear(mixed, gather(out))
    h = norm(x, second)
    return x + functional.linear(functional.silu(functional.linear(h, gather(gate))) * functional.linear(h, gather(up)), gather(down))


def graph_of(layers):
    """A fresh graph of the model."""
    key_width = WIDTH * KEY_HEADS // HEADS
    shapes = [(WIDTH,), (WIDTH, WIDTH), (key_width, WIDTH), (key_width, WIDTH), (WIDTH, WIDTH), (WIDTH,), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]
    shard = lambda shape: torch.empty((shape[0] // RANKS, *shape[1:]))  # noqa: E731
    with FakeTensorMode():
        parameters = [shard(shape) for _ in range(layers) for shape in shapes]
        ends = [shard((WORDS, WIDTH)), shard((WIDTH,)), shard((WORDS, WIDTH))]
        inputs = [torch.zeros(ROWS, TOKENS, dtype=torch.int64), torch.empty(TOKENS, WIDTH // HEADS // 2), torch.empty(TOKENS, WIDTH // HEADS // 2)]

    def forward(tokens, cos, sin, embedding, last, head, *weights):
        x = functional.embedding(tokens, gather(embedding))
        for at in range(0, len(weights), len(shapes)):
            x = layer(x, weights[at : at + len(shapes)], cos, sin)
        return functional.linear(norm(x, last), gather(head))

    return make_fx(forward, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs, *ends, *parameters)


def timed(work):
    """The processor time that it takes, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main():
    """Time both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cap-mb", type=float, default=256.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    from torch._inductor import config
    from torch._inductor.fx_passes.bucketing import bucket_all_gather
    from torch._inductor.pattern_matcher import stable_topological_sort

    cap = f"{asked.cap_mb}MiB"
    # Inductor makes fake values of new nodes itself behind its hook, which the pass knows by its caller.
    bucketeer.torch._pass.is_in_post_grad = lambda: True
    by_hand = bucketeer.torch.BucketeerPass(all_gather=cap, strict=True)
    ours, alone, theirs, parts = [], [], [], {}
    for turn in range(asked.turns):
        module = graph_of(asked.layers)
        if turn == 0:
            print(f"graph: {len(module.graph.nodes)} nodes")
        with bucketeer.torch.enable(all_gather=cap, strict=True):
            ours.append(timed(lambda: config.post_grad_custom_post_pass(module.graph)))
        report = bucketeer.torch.reports(clear=True)[0]
        parts = report.seconds if ours[-1] == min(ours) else parts
        module.graph.lint()
        module = graph_of(asked.layers)
        alone.append(timed(lambda: by_hand(module.graph)))
        module = graph_of(asked.layers)
        theirs.append(timed(lambda: (bucket_all_gather(module, lambda _: asked.cap_mb, "default"), stable_topological_sort(module.graph))))
        left = sum("all_gather_into_tensor" in str(node.target) for node in module.graph.nodes)
    before = report.launches_before
    split = ", ".join(f"{name} {took:.3f}" for name, took in parts.items())
    print(f"in Inductor's hook:       {min(ours):.3f} s, {before} gathers became {report.launches_after} ({split})")
    print(f"by hand, fake values too: {min(alone):.3f} s")
    print(f"PyTorch:                  {min(theirs):.3f} s, {before} gathers became {left}")
    print(f"ratio:                    1/{min(theirs) / min(ours):.0f}, by hand 1/{min(theirs) / min(alone):.0f}")
    command = "import time; start = time.perf_counter(); import bucketeer; print(time.perf_counter() - start)"
    took = min(float(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout) for _ in range(5))
    print(f"import:                   {took * 1000:.1f} ms")


if __name__ == "__main__":
    main()
