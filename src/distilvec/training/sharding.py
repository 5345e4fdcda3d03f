"""One model over several processes: DistributedDataParallel, or FSDP2, where each keeps a part of the student.

With FSDP2 the student's blocks are sharded one by one, and what is around them together. Heads stay whole on every
process; their gradients are averaged here. Whoever needs whole weights (an evaluation, a checkpoint, the end) has them
collected into a model that is not sharded and holds none in between.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from distilvec.modules.blocks import find_blocks, find_transformer
from distilvec.training.checkpoint import writable
from distilvec.training.distributed import rank, world_size
from distilvec.training.step import Distiller


def replicated(distiller: Distiller, device: torch.device) -> nn.Module:
    """The distiller as this process trains it: itself, or wrapped so that gradients are averaged over processes."""
    if world_size() == 1:
        return distiller
    devices = [device.index] if device.type == "cuda" else None
    # Every parameter takes part in every step; a method's queue is equal on all processes already, and large.
    return nn.parallel.DistributedDataParallel(distiller, devices, broadcast_buffers=False)


def sharded(distiller: Distiller, device: torch.device) -> Distiller:
    """A copy that has this process's part of every parameter of the student; they are the first process's.

    The distiller's own are released.
    """
    twin = distiller.twin()
    _shard(twin, device)
    release(distiller, twin)
    return twin


def _shard(distiller: Distiller, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for value in distiller.state_dict().values():
        dist.broadcast(value, 0)
    mesh = init_device_mesh(device.type, (world_size(),))
    student = {parameter for parameter in distiller.student.parameters() if parameter.dim() > 0}
    others = {parameter for parameter in distiller.parameters() if parameter not in student}
    transformer = find_transformer(distiller.student)
    found = None if transformer is None else find_blocks(transformer.model)
    for block in () if found is None else found[1]:
        fully_shard(block, mesh=mesh, ignored_params=others)
    fully_shard(distiller, mesh=mesh, ignored_params=others)


def release(whole: nn.Module, sharded: nn.Module) -> None:
    """Give back the memory of the weights of which another model has parts, if any; `collect` brings them back."""
    own = dict(whole.named_parameters(remove_duplicate=False))
    for name, value in sharded.state_dict().items():
        if isinstance(value, DTensor):
            own[name].data = own[name].new_empty(0)


def collect(distiller: nn.Module, into: nn.Module) -> None:
    """Load the whole weights and buffers of a sharded model into one that is not; every process has to ask."""
    own, others = dict(into.named_parameters(remove_duplicate=False)), dict[str, Any]()
    for name, value in distiller.state_dict().items():
        if isinstance(value, DTensor):
            own[name].data = value.full_tensor().clone()  # what was gathered may be a part of a larger table
        else:
            others[name] = value
    into.load_state_dict(others, strict=False)  # some are state that no tensor of the model holds


def spread(source: nn.Module, distiller: nn.Module) -> None:
    """Load the weights and buffers of a model into a sharded one, and release them."""
    like = distiller.state_dict()
    distiller.load_state_dict({name: part(value, like[name]) for name, value in source.state_dict().items()})
    release(source, distiller)


def whole(value: Any) -> Any:
    """A tensor with the parts of all processes; what is not sharded as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def part(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as another one is."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def whole_state(optimizer: torch.optim.Optimizer, folder: Path) -> dict[str, Any]:
    """The optimiser's state with whole tensors; every process has to ask, and the first alone gets them.

    What is sharded is gathered one tensor at a time and lies in files in this folder, of which the tensors are views:
    all of it would be more than a process has room for. The checkpoint is written from them.
    """
    state: dict[str, Any] = optimizer.state_dict()
    numbers = count()

    def kept(value: Any) -> Any:
        found = whole(value)
        if rank() or found is value:
            return None if rank() else value
        file = folder / f"optimizer-{next(numbers)}"
        with writable(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(memoryview(found.contiguous().cpu().view(-1).view(torch.uint8).numpy()))
        return torch.from_file(str(file), shared=True, size=found.numel(), dtype=found.dtype).view(found.shape)

    entries = state["state"].items()
    try:
        whole_entries = {number: {key: kept(value) for key, value in each.items()} for number, each in entries}
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return {**state, "state": whole_entries}


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
    """Norm of the gradients of all parameters, before they are made shorter where it is more than `most`, if given."""
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
