"""Students that write: opened from a transformers folder of a causal language model, and shipped as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.spelling import SEPARATOR
from distilvec.modules.writing import open_writer
from distilvec.students.ship import placed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.causal import Writer


def load_writing_student(
    model: str | Path,
    *,
    max_length: int | None = None,
    separator: str | None = SEPARATOR,
    pooling: PoolingChoice | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
) -> SentenceTransformer:
    """Open a causal language model in float32, ready to be trained.

    Args:
        model: transformers folder, or model id on the hub.
        max_length: tokens of prompt and answer together; None = what its positions allow.
        separator: between prompt and answer; None = a line end.
        pooling: "last" (None) or "mean" of the answer's tokens.

    Raises:
        DistilvecError, DataError, EnvironmentProblem: see `open_writer`.
    """
    return open_writer(
        model,
        device=device,
        max_length=max_length,
        separator=SEPARATOR if separator is None else separator,
        pooling=pooling,
        trust_remote_code=trust_remote_code,
    )


def ship_writer(writer: Writer, folder: str | Path) -> None:
    """Save a causal model and its tokenizer as a plain transformers folder, whole or not at all.

    What stands behind it in the pipeline (pooling, a method's head) is left out.

    Raises:
        DistilvecError: the folder holds something that is not a model.
        EnvironmentProblem: the disk is full or the place cannot be written.
    """
    with placed(folder) as partial:
        writer.save(str(partial))
