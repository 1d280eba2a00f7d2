"""Times torch.cat and torch._foreach_copy_ on the buckets of `scripts/gpu-check`, in GB/s read and written."""

import torch


class Numbers:
    """As examples/gpu_check/bound.rs makes them."""

    def __init__(self, seed):
        self.state = seed * 2 + 1

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % max(limit, 1)


def mixed():
    numbers = Numbers(7)
    return [(1 << (10 + numbers.below(10))) + 16 * numbers.below(512) for _ in range(200)]


def best(work, runs=50):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(runs):
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)


def row(name, sizes, dtype, bucket_dtype):
    members = [torch.zeros(size // dtype.itemsize, dtype=dtype, device="cuda") for size in sizes]
    bucket = torch.empty(sum(member.numel() for member in members), dtype=bucket_dtype, device="cuda")
    parts = list(bucket.split([member.numel() for member in members]))
    moved = sum(member.numel() for member in members) * (dtype.itemsize + bucket_dtype.itemsize)
    cells = []
    for work in [
        (lambda: torch.cat(members, out=bucket)) if dtype == bucket_dtype else None,
        lambda: torch._foreach_copy_(parts, members),
        lambda: torch._foreach_copy_(members, parts),
    ]:
        cells.append("-" if work is None else f"{moved / best(work) / 1e9:.1f}")
    print(f"{name:36} {moved:>12} {cells[0]:>10} {cells[1]:>14} {cells[2]:>14}")


print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
print(f"{'':36} {'bytes moved':>12} {'cat':>10} {'_foreach_copy_':>14} {'and back':>14}")
row("200 of 1 KiB to 1 MiB, bf16", mixed(), torch.bfloat16, torch.bfloat16)
row("200 of 1 KiB to 1 MiB, f32", mixed(), torch.float32, torch.float32)
row("200 of 1 KiB to 1 MiB, f32 to bf16", mixed(), torch.float32, torch.bfloat16)
row("200 of 4 KiB, bf16", [4096] * 200, torch.bfloat16, torch.bfloat16)
row("one of 256 MiB, bf16", [256 << 20], torch.bfloat16, torch.bfloat16)
row("one of 256 MiB, f32 to bf16", [256 << 20], torch.float32, torch.bfloat16)
