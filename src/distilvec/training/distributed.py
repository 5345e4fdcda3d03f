"""Devices and processes of a training: ranks, and the whole batch, with gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from distilvec.errors import DistilvecError, EnvironmentProblem, nearest
from distilvec.precision import bfloat16_pays
from distilvec.students.output import StudentOutput
from distilvec.teachers.signals import TeacherSignals

if TYPE_CHECKING:
    from accelerate import Accelerator

    from distilvec.recipe import TrainingSection

State = TypeVar("State")
_apart: ContextVar[bool] = ContextVar("apart", default=False)


def join(training: TrainingSection, folder: Path, begun: str | None = None) -> Accelerator:
    """The device, precision and trackers of this training; joins the other processes that torchrun has started.

    Args:
        folder: where trackers that write files have them.
        begun: `mixed_precision` of the checkpoint to go on from; it holds where the recipe names none.
    """
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState

    # There is no public way to have another precision in a second training of one process.
    AcceleratorState._reset_state(reset_partial_state=True)
    wait = timedelta(days=1)  # the others wait while the first process reads and tokenises millions of texts
    try:
        PartialState(cpu=_on_cpu(training), timeout=wait)
        if training.bf16 is not None:
            narrow = training.bf16
        elif begun in ("bf16", "no"):
            narrow = begun == "bf16"
        else:  # measured by each process, and one for all
            narrow = not any_rank(not narrow_by_itself(training))
        return Accelerator(
            cpu=_on_cpu(training),
            mixed_precision="fp16" if training.fp16 else "bf16" if narrow else "no",
            log_with=list(training.report_to) or None,
            project_dir=str(folder),
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise EnvironmentProblem(f"training cannot be set up ({error})", where="training") from error


def narrow_by_itself(training: TrainingSection) -> bool:
    """Tell whether training is in bfloat16 where its precision is not named: on devices that are faster in it."""
    if training.bf16 is not None or training.fp16:
        return False
    return bfloat16_pays("cpu" if training.use_cpu else None)


def _on_cpu(training: TrainingSection) -> bool:
    return training.use_cpu or not (torch.cuda.is_available() or torch.backends.mps.is_available())


def check_precision(training: TrainingSection) -> None:
    """Refuse fp16 where training is on the processor, which has no instructions for it."""
    if training.fp16 and _on_cpu(training):
        why = "training.use_cpu asks for the processor" if training.use_cpu else "there is none here"
        raise EnvironmentProblem(
            f"fp16 needs a GPU, and {why}", where="training.fp16", remedy="Leave it out, or set bf16."
        )


def check_trackers(training: TrainingSection) -> None:
    """See that the trackers asked for are there: accelerate leaves out what is not installed, without a word."""
    if not training.report_to:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known, there = sorted(map(str, LOGGER_TYPE_TO_CLASS)), [str(each) for each in get_available_trackers()]
    for name in training.report_to:
        if name not in known:
            raise DistilvecError(
                f'there is no tracker "{name}"', where="training.report_to", remedy=nearest(name, known)
            )
        if name not in there:
            raise EnvironmentProblem(
                f'the tracker "{name}" is not installed', where="training.report_to", remedy=f"pip install {name}"
            )


def world_size() -> int:
    """Return how many processes train together; 1 within `apart`."""
    if _apart.get():
        return 1
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def launched() -> tuple[int, int]:
    """(rank, processes) as torchrun says them, before the processes have joined; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Let this rank compute the block for itself, as one process would: nothing waits for other ranks."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


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


#: Batch axes of a student's output. Of a teacher's signals it is always the first.
_AXES = {"embedding": 1, "layers": 2, "tokens": 1, "attention": 1, "mask": 0, "content": 0, "extras": 1, "logits": 1}


def gather_student(output: StudentOutput) -> StudentOutput:
    """Return what the student says of the items of all ranks, in rank order, with its gradient."""
    return _gather_fields(output, _AXES)


def gather_teacher(signals: TeacherSignals) -> TeacherSignals:
    """A teacher's signals for the items of all ranks, in rank order."""
    return _gather_fields(signals, {})


def _gather_fields(state: State, axes: Mapping[str, int]) -> State:
    """A dataclass with tensors, and dictionaries of tensors, gathered along their batch axis; None stays None.

    Ranks pad to their own longest item, so tensors are first filled at the end to the largest shape of all ranks.
    Every rank must hold the same fields.
    """
    leaves: dict[tuple[str, Any], Tensor] = {}
    for name, value in vars(state).items():
        if value is not None:
            leaves |= {(name, key): leaf for key, leaf in (value if isinstance(value, dict) else {None: value}).items()}
    if not leaves or world_size() == 1:
        return state
    sizes = torch.tensor([size for leaf in leaves.values() for size in leaf.shape])
    sizes = sizes.to(next(iter(leaves.values())).device)
    dist.all_reduce(sizes, dist.ReduceOp.MAX)
    largest = iter(sizes.tolist())
    changed: dict[str, Any] = {}
    for (name, key), leaf in leaves.items():
        missing = [next(largest) - size for size in leaf.shape]
        # `pad` counts axes from the last one and takes a number for each of their ends.
        ends = [count for short in reversed(missing) for count in (0, short)]
        fill = -1 if name == "alignments" else 0
        whole = gather_rows(pad(leaf, ends, value=fill) if any(missing) else leaf, axes.get(name, 0))
        if key is None:
            changed[name] = whole
        else:
            changed.setdefault(name, {})[key] = whole
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
    """Tell whether the flag is set on any rank. Every rank has to ask."""
    if world_size() == 1:
        return flag
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)) > 0)


def barrier() -> None:
    """Wait until every rank is here."""
    if world_size() > 1:
        dist.barrier()
