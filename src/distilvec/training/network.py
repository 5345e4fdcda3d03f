"""The student's network as it trains; what ships does not depend on it.

Attention. The backward pass of torch's fused attention (sdpa) is slow on CPUs for short texts; plain attention (eager)
is faster there, until the maps of long texts no longer fit into the caches. Where the limit is depends on the machine,
so a few steps of each are timed. The choice is written beside the checkpoints, and a resumed run follows it.

Compilation. Compiled is the transformer alone (or, in a student without one, its first module), with shapes left open.
The whole step has parts that change from batch to batch (equal items, masks, stages of a method), and would be compiled
again and again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.evenly import evenly_spaced
from distilvec.files import read_object, write_text
from distilvec.folders import update
from distilvec.modules.blocks import find_transformer
from distilvec.training.distributed import world_size
from distilvec.training.sample import on_device

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.recipe import TrainingSection
    from distilvec.training.loop import Loop

logger = logging.getLogger(__name__)
FILE = "attention.json"
#: Shorter trainings are over before a choice pays. The choice is made by time: two runs may not make the same.
STEPS = 200
_KERNELS = ("sdpa", "eager")
_ROUNDS = 2
#: Texts whose lengths say which batch a rehearsal takes.
_REHEARSED = 100_000


@contextlib.contextmanager
def as_it_trains(loop: Loop) -> Iterator[None]:
    """The student of a training as its recipe and the machine want it inside the block, and as it was afterwards."""
    student, step = loop.trained.student, functools.partial(rehearse, loop)
    kernel = choose_attention(student, step, loop.home, steps=loop.steps, device=loop.device)
    checkpointing = gradient_checkpointing(student, on=loop.training.gradient_checkpointing)
    with attention(student, kernel), checkpointing, compiled(student, compilation(loop.training)):
        yield


def choose_attention(
    student: SentenceTransformer, step: Callable[[], Any], folder: Path, *, steps: int, device: torch.device
) -> str | None:
    """The kernel to train with; None = as the student has it.

    Args:
        step: one forward and backward pass on a batch of middling length; it leaves no gradients and draws from no
            global generator that training draws from.
        folder: where the choice is kept, and looked for.
        steps: of the whole training.
    """
    model = getattr(find_transformer(student), "model", None)
    kernel = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if device.type != "cpu" or kernel not in _KERNELS or not getattr(model, "_supports_attention_backend", False):
        return None
    chosen = read_object(folder / FILE).get("kernel")  # a file that cannot be read counts as none
    if chosen not in _KERNELS:
        if steps < STEPS or world_size() > 1:
            return None
        seconds = {name: _time(student, name, step) for name in _KERNELS}
        chosen = min(_KERNELS, key=lambda name: seconds[name])
        update(folder, {"training": [FILE]}, more=True)
        write_text(folder / FILE, json.dumps({"kernel": chosen, "seconds": seconds}) + "\n")
    logger.info("training with %s attention", chosen)
    return str(chosen)


def rehearse(loop: Loop) -> None:
    """The student forward and backward on one batch, without a trace; half of all tokens are in longer texts."""
    distiller, collator = loop.distiller, loop.collator
    some = np.asarray(loop.rows)[evenly_spaced(len(loop.rows), _REHEARSED)]
    lengths = collator.lengths(some)
    order = np.argsort(lengths, kind="stable")
    size = min(loop.training.batch, len(order))
    if distiller.mini_batch_size is not None:  # no more rows at a time than in a step
        size = min(size, max(1, distiller.mini_batch_size // len(collator.expand(some[:1]))))
    tokens = lengths[order].cumsum()
    start = min(int(np.searchsorted(tokens, tokens[-1] / 2)), len(order) - size)
    features = collator.tokens.features(collator.expand(some[order[start : start + size]]))
    student = distiller.student
    training = student.training
    with torch.random.fork_rng(devices=[]), loop.accelerator.autocast():
        student.train()
        output = distiller.tap(on_device(features, loop.device), distiller.needs.student.views)
    output.embedding.float().square().sum().backward()
    distiller.zero_grad(set_to_none=True)
    student.train(training)


@contextlib.contextmanager
def attention(student: SentenceTransformer, kernel: str | None) -> Iterator[None]:
    """The student with another attention kernel inside the block; its configuration is as before afterwards."""
    if kernel is None:
        yield
        return
    config: Any = find_transformer(student).model.config  # type: ignore[union-attr]
    before = config._attn_implementation
    config._attn_implementation = kernel
    try:
        yield
    finally:
        config._attn_implementation = before


def _time(student: SentenceTransformer, kernel: str, step: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few steps, after one that does not count."""
    seconds = []
    with attention(student, kernel):
        for _ in range(_ROUNDS + 1):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def compilation(training: TrainingSection) -> dict[str, Any] | None:
    """The arguments of `torch.compile` that `torch_compile` and the keys with its name ask for."""
    backend, mode = training.torch_compile_backend, training.torch_compile_mode
    return {"backend": backend or "inductor", "mode": mode} if training.torch_compile or backend or mode else None


@contextlib.contextmanager
def compiled(student: SentenceTransformer, how: dict[str, Any] | None) -> Iterator[None]:
    """The student with a network that is compiled wherever it trains (not where it is evaluated), inside the block.

    Raises:
        EnvironmentProblem: within the block, at the first step: the network cannot be compiled here.
    """
    if how is None:
        yield
        return
    network: Any = getattr(find_transformer(student), "model", None) or student[0]
    plain, own = network.forward, "forward" in vars(network)
    fast = torch.compile(plain, dynamic=True, **how)

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not network.training:
            return plain(*args, **kwargs)
        try:
            return fast(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise EnvironmentProblem(
                f"the student cannot be compiled here: {str(error).splitlines()[0]}",
                where="training.torch_compile",
                remedy="torch.compile needs a C++ compiler and Python's headers (on GPUs: Triton). Install them, or "
                "leave the key out.",
            ) from error

    network.forward = forward
    try:
        yield
    finally:
        if own:
            network.forward = plain
        else:
            del network.forward


@contextlib.contextmanager
def gradient_checkpointing(student: SentenceTransformer, *, on: bool) -> Iterator[None]:
    """While the block runs, what the student's blocks compute is computed again in the backward pass."""
    if not on:
        yield
        return
    model: Any = getattr(find_transformer(student), "model", None)
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise DistilvecError(
            "this student has no blocks that could be computed again in the backward pass",
            where="training.gradient_checkpointing",
            remedy="Leave it out; training.mini_batch_size or a smaller batch_size saves memory here.",
        )
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # its name before
    getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    try:
        yield
    finally:
        getattr(model, f"{kind}_checkpointing_disable")()
