"""One model over several processes: DistributedDataParallel, or FSDP2, where each keeps a part of the student.

With FSDP2 the student's blocks are sharded one by one, and what is around them together. Heads stay whole on every
process; their gradients are averaged here. Whoever needs whole weights (an evaluation, a checkpoint, the end) has them
copied into a model that is not sharded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from distilvec.modules.blocks import find_blocks, find_transformer
from distilvec.training.distributed import rank, world_size
from distilvec.training.step import Distiller


def replicated(distiller: Distiller, device: torch.device) -> nn.Module:
    """The distiller as this process trains it: itself, or wrapped so that gradients are averaged over processes."""
    if world_size() == 1:
        return distiller
    devices = [device.index] if device.type == "cuda" else None
    # Every parameter takes part in every step; a method's queue is equal on all processes already, and large.
    return nn.parallel.DistributedDataParallel(distiller, devices, broadcast_buffers=False)


def shard(distiller: Distiller, device: torch.device) -> None:
    """Leave of every parameter of the student this process's part, in place; all begin with those of the first."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for value in distiller.state_dict().values():
        dist.broadcast(value, 0)
    mesh = init_device_mesh(device.type, (world_size(),))
    student = {parameter for parameter in distiller.student.parameters() if parameter.dim() > 0}
    whole = {parameter for parameter in distiller.parameters() if parameter not in student}
    transformer = find_transformer(distiller.student)
    found = None if transformer is None else find_blocks(transformer.model)
    for block in () if found is None else found[1]:
        fully_shard(block, mesh=mesh, ignored_params=whole)
    fully_shard(distiller, mesh=mesh, ignored_params=whole)


def collect(distiller: nn.Module, into: nn.Module) -> None:
    """Load the whole weights and buffers of a sharded model into one that is not; every process has to ask."""
    own, others = into.state_dict(), dict[str, Any]()
    with torch.no_grad():
        for name, value in distiller.state_dict().items():
            if isinstance(value, DTensor):
                own[name].copy_(value.full_tensor())  # one by one: all of them would be a further copy
            else:
                others[name] = value
    into.load_state_dict(others, strict=False)  # some are state that no tensor of the model holds


def spread(source: nn.Module, distiller: nn.Module) -> None:
    """Load the weights and buffers of a model into a sharded one."""
    like = distiller.state_dict()
    distiller.load_state_dict({name: part(value, like[name]) for name, value in source.state_dict().items()})


def whole(value: Any) -> Any:
    """A tensor with the parts of all processes; what is not sharded as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def part(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as another one is."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def whole_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state with whole tensors; every process has to ask."""
    state: dict[str, Any] = optimizer.state_dict()

    def kept(value: Any) -> Any:
        found = whole(value)
        return found if rank() == 0 else None  # the others only take part in gathering it

    entries = state["state"].items()
    return {**state, "state": {number: {key: kept(value) for key, value in each.items()} for number, each in entries}}


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what `whole_state` gave; tensors as large as a sharded parameter are sharded as it is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def own(value: Any, like: Tensor) -> Any:
        return part(value, like) if isinstance(value, Tensor) and value.shape == like.shape else value

    entries = state["state"].items()
    parts = {number: {key: own(value, parameters[number]) for key, value in each.items()} for number, each in entries}
    optimizer.load_state_dict({**state, "state": parts})


def average_whole(parameters: Iterable[nn.Parameter]) -> None:
    """The mean over processes of the gradients of what is not sharded."""
    for parameter in parameters:
        if parameter.grad is not None and not isinstance(parameter.grad, DTensor):
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size()


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], most: float | None) -> Tensor:
    """Norm of the gradients of all parameters, before they are made shorter where it is more than `most`.

    Args:
        most: None or 0 = gradients are measured and left as they are.
    """
    kept = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in kept if parameter.grad is not None]
    sharded = [each for each in gradients if isinstance(each, DTensor)]
    if not sharded:
        return nn.utils.clip_grad_norm_(kept, most) if most else nn.utils.get_total_norm(gradients)
    others = [each for each in gradients if not isinstance(each, DTensor)]
    norms = [whole(nn.utils.get_total_norm(each)) for each in (sharded, others) if each]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if most:
        shorter = (most / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([each.to_local() for each in sharded] + others, shorter)
    return norm
