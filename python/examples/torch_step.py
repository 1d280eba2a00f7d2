"""A step of a model whose weights are held in shards, with its collectives in buckets.

    torchrun --nproc-per-node 2 python/examples/torch_step.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize

import bucketeer.torch


class Gather(nn.Module):
    """Gives the whole weight where it is used; its gradient is scattered."""

    def forward(self, shard):
        return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)])
    for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
        for name, whole in list(layer.named_parameters()):
            layer.register_parameter(name, nn.Parameter(distribute_tensor(whole.detach(), mesh, [Shard(0)])))
            parametrize.register_parametrization(layer, name, Gather(), unsafe=True)

    with bucketeer.torch.enable(all_gather="500MB", reduce_scatter="500MB"):
        torch.compile(model)(torch.randn(16, 64)).square().mean().backward()
    if dist.get_rank() == 0:
        print(*bucketeer.torch.reports(), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
