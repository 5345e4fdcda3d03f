"""What the step needs of other processes: the whole batch, with gradients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

State = TypeVar("State")


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class _GatherRows(torch.autograd.Function):
    """Concatenate a tensor of all ranks along one axis; the gradient of every rank's copy comes back summed.

    Every rank computes the loss of the whole batch, so the sum over ranks is `world` times the gradient; the
    averaging of DistributedDataParallel takes that factor out again.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.size = dim, tensor.shape[dim]
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.narrow(ctx.dim, rank() * ctx.size, ctx.size).contiguous(), None


def gather_rows(tensor: Tensor, dim: int = 0) -> Tensor:
    """Rows of all ranks along `dim`, in rank order. Every rank must hold equally many."""
    if world_size() == 1:
        return tensor
    if tensor.dtype == torch.bool:
        return _GatherRows.apply(tensor.to(torch.uint8), dim).to(torch.bool)
    return _GatherRows.apply(tensor, dim)


def gather_fields(state: State, dims: dict[str, int]) -> State:
    """A dataclass with the named tensor fields gathered along their batch axis; None stays None."""
    changed = {
        name: gather_rows(value, dim) for name, dim in dims.items() if (value := getattr(state, name)) is not None
    }
    return dataclasses.replace(state, **changed)  # type: ignore[type-var]


def sum_over_ranks(value: Tensor) -> Tensor:
    """The sum over ranks of a value without gradient."""
    if world_size() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean over ranks of a value without gradient."""
    return sum_over_ranks(value) / world_size()


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank. Every rank has to ask."""
    if world_size() == 1:
        return flag
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)) > 0)


def barrier() -> None:
    """Wait until every rank is here."""
    if world_size() > 1:
        dist.barrier()


@contextlib.contextmanager
def first_rank_first() -> Iterator[None]:
    """What is inside is done by rank 0 before the others begin, who then find its files."""
    if rank() > 0:
        barrier()
    yield
    if rank() == 0:
        barrier()
