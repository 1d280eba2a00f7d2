"""Small models that train as large ones do. Each gives a module, and a function that makes the batch of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import parametrize

WIDTH = 16
Batch = Callable[[int], tuple[Tensor, ...]]


@cache
def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    """A mesh over all ranks. Its groups have names that count up, so that each is made once."""
    names = ("ranks",) if len(shape) == 1 else ("replicate", "shard")
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


class Gathered(nn.Module):
    """SimpleFSDP: a parameter is held in shards, and gathered where it is used."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, parameter: DTensor) -> Tensor:
        everywhere = parameter.redistribute(placements=[Replicate()] * self.mesh.ndim)
        return everywhere.to_local(grad_placements=[Partial("avg")] * self.mesh.ndim)


def shard(module: nn.Module, mesh: DeviceMesh, placements: list[Shard | Replicate]) -> nn.Module:
    """Hold all parameters of a module in shards, or copies, over a mesh."""
    for child in list(module.modules()):
        for name, parameter in list(child.named_parameters(recurse=False)):
            held = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements))
            child.register_parameter(name, held)
            parametrize.register_parametrization(child, name, Gathered(mesh), unsafe=True)
    return module


class Block(nn.Module):
    """A residual block: norm, two linear layers."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


def rows(rows_of_step: Callable[[int], int]) -> Batch:
    """Batches of random rows, each rank its own."""

    def batch(step: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        return (torch.randn(rows_of_step(step), WIDTH, generator=generator),)

    return batch


def simple_fsdp(world: int) -> tuple[nn.Module, Batch]:
    """Every parameter is sharded over all ranks."""
    mesh = mesh_of((world,))
    return shard(nn.Sequential(Block(), Block(), Block()), mesh, [Shard(0)]), rows(lambda step: 4)


def hsdp(world: int) -> tuple[nn.Module, Batch]:
    """Parameters are sharded inside of a node and copied over nodes: gradients are scattered, then all-reduced."""
    mesh = mesh_of((2, world // 2))
    return shard(nn.Sequential(Block(), Block()), mesh, [Replicate(), Shard(0)]), rows(lambda step: 4)


def dynamic_batch(world: int) -> tuple[nn.Module, Batch]:
    """As `simple_fsdp`, with another number of rows in each step."""
    mesh = mesh_of((world,))

    def batch(step: int) -> tuple[Tensor, ...]:
        (x,) = rows(lambda step: 4 + 2 * step)(step)
        torch._dynamo.mark_dynamic(x, 0)
        return (x,)

    return shard(nn.Sequential(Block(), Block()), mesh, [Shard(0)]), batch


class Attention(nn.Module):
    """Three projections of one input, mixed, and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return self.out(scores.softmax(-1) @ self.value(x))


class Layer(nn.Module):
    """Attention and a block, each behind a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.second_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.silu(self.up(self.second_norm(x))))


def tensor_parallel(world: int) -> tuple[nn.Module, Batch]:
    """Tensor parallel with sequence parallel norms, by PyTorch's own styles."""
    mesh = mesh_of((world,))
    model = nn.Sequential(Layer(), Layer())
    for layer in model:
        parallelize_module(
            layer,
            mesh,
            {
                "norm": SequenceParallel(),
                "attention.query": ColwiseParallel(input_layouts=Shard(1)),
                "attention.key": ColwiseParallel(input_layouts=Shard(1)),
                "attention.value": ColwiseParallel(input_layouts=Shard(1)),
                "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "second_norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Tensor:
            # Every rank has the same batch, and works on its part of the sequence.
            sequence = DTensor.from_local(x, mesh, [Replicate()], run_check=False).redistribute(placements=[Shard(1)])
            return self.layers(sequence.to_local())

    def batch(step: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(step)
        return (torch.randn(2, 4 * world, WIDTH, generator=generator),)

    return Whole(), batch


class Experts(nn.Module):
    """One expert for each rank: tokens are sent to it and back, an equal part to each."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.group = dist.group.WORLD

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).sigmoid()
        sent = collectives.all_to_all_single_autograd(x, None, None, self.group)
        done = self.expert(sent)
        back = collectives.all_to_all_single_autograd(done, None, None, self.group)
        return x + gates * back


def moe(world: int) -> tuple[nn.Module, Batch]:
    """Experts behind exchanges; what all ranks share is sharded."""
    mesh = mesh_of((world,))
    layers = [Experts(world), Block(), Experts(world)]
    for layer in layers:
        if isinstance(layer, Experts):
            shard(layer.router, mesh, [Shard(0)])
        else:
            shard(layer, mesh, [Shard(0)])
    return nn.Sequential(*layers), rows(lambda step: 2 * world)


@torch.library.custom_op("training::keep_count", mutates_args={"count"})
def keep_count(count: Tensor, x: Tensor) -> None:
    """Add what was seen to a count: an operator of the user's own that writes to what it is given."""
    count += x.detach().abs().sum()


class Counting(nn.Module):
    """A block that counts what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        keep_count(self.count, x)
        return self.block(x) * (1 + self.count * 1e-3)


def custom_operator(world: int) -> tuple[nn.Module, Batch]:
    """As `simple_fsdp`, with an operator between the layers that writes to its argument."""
    mesh = mesh_of((world,))
    return shard(nn.Sequential(Counting(), Counting()), mesh, [Shard(0)]), rows(lambda step: 4)


MODELS: dict[str, Callable[[int], tuple[nn.Module, Batch]]] = {
    "simple_fsdp": simple_fsdp,
    "hsdp": hsdp,
    "tensor_parallel": tensor_parallel,
    "moe": moe,
    "dynamic_batch": dynamic_batch,
    "custom_operator": custom_operator,
}
