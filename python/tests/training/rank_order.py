"""Reductions that add in the order of ranks, whatever is sent together: gloo's own order hangs on the size of a message.

Importing this replaces the reducing kernels of PyTorch's functional collectives on the CPU. All else, and all gathers, stay
gloo's.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

launches: list[str] = []
"""What was launched, by the operators' names."""

_kernels = torch.library.Library("_c10d_functional", "IMPL")


def _sum(tensor: torch.Tensor, op: str, group: dist.ProcessGroup) -> torch.Tensor:
    """Reduce over a group, element by element, rank 0 first."""
    size = dist.get_world_size(group)
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    total = parts[0].clone()
    for part in parts[1:]:
        match op.lower():
            case "sum" | "avg":
                total += part
            case "max":
                total = torch.maximum(total, part)
            case _:
                raise NotImplementedError(f"reduction {op}")
    return total / size if op.lower() == "avg" else total


def _scatter(tensor: torch.Tensor, op: str, group_size: int, name: str) -> torch.Tensor:
    group = _resolve_process_group(name)
    return _sum(tensor, op, group).chunk(group_size)[dist.get_rank(group)].clone()


def _reduce_scatter(tensor: torch.Tensor, op: str, group_size: int, name: str) -> torch.Tensor:
    launches.append("reduce_scatter")
    return _scatter(tensor, op, group_size, name)


def _reduce_scatters(tensors: list[torch.Tensor], op: str, group_size: int, name: str) -> list[torch.Tensor]:
    launches.append("reduce_scatter")
    return [_scatter(tensor, op, group_size, name) for tensor in tensors]


def _all_reduce(tensor: torch.Tensor, op: str, name: str) -> torch.Tensor:
    launches.append("all_reduce")
    return _sum(tensor, op, _resolve_process_group(name))


def _all_reduce_in_place(tensor: torch.Tensor, op: str, name: str) -> torch.Tensor:
    launches.append("all_reduce")
    return tensor.copy_(_sum(tensor, op, _resolve_process_group(name)))


def _all_reduces(tensors: list[torch.Tensor], op: str, name: str) -> list[torch.Tensor]:
    launches.append("all_reduce")
    group = _resolve_process_group(name)
    return [_sum(tensor, op, group) for tensor in tensors]


def _all_gather(tensor: torch.Tensor, group_size: int, name: str) -> torch.Tensor:
    launches.append("all_gather")
    out = tensor.new_empty((group_size * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(out, tensor.contiguous(), group=_resolve_process_group(name))
    return out


def _all_gather_out(tensor: torch.Tensor, group_size: int, name: str, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_all_gather(tensor, group_size, name))


for operator, kernel in {
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatters,
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_in_place,
    "all_reduce_coalesced": _all_reduces,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather_out,
}.items():
    _kernels.impl(operator, kernel, "CPU")
