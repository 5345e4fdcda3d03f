"""The student's network compiled for its training; what ships does not depend on it.

Compiled is the transformer alone (or, in a student without one, its first module), with shapes left open. The whole
step has parts that change from batch to batch (equal items, masks, stages of a method), and would be compiled again and
again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from distilvec.errors import EnvironmentProblem
from distilvec.modules.blocks import find_transformer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.recipe import TrainingSection


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
