"""Students that write: opened from a transformers folder of a causal language model, and shipped as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.flow.start import Start, with_dropout
from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.spelling import SEPARATOR
from distilvec.modules.writing import open_writer
from distilvec.recipe import Recipe, given
from distilvec.students.ship import placed
from distilvec.teachers.sections import at_revision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.flow.fit import Trained
    from distilvec.flow.lessons import Lessons
    from distilvec.flow.prepare import Prepared
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


def writing_start(recipe: Recipe, corpus: Corpus) -> Start:
    """The student before training, opened where it lies."""
    section, task = given(recipe.student, "student"), given(recipe.task, "task")

    def opened() -> SentenceTransformer:
        student = load_writing_student(
            at_revision(str(section.model), section.revision),
            max_length=section.max_length,
            separator=task.separator,
            pooling=section.pooling,
            trust_remote_code=section.trust_remote_code,
        )
        return with_dropout(student, section.dropout)

    return Start(opened)


def ship_student(prepared: Prepared, lessons: Lessons, trained: Trained, folder: Path) -> None:
    """Save the trained student; what `ship_writer` raises."""
    writer: Any = trained.student[0]
    ship_writer(writer, folder)


def ship_writer(writer: Writer, folder: str | Path) -> None:
    """Save a causal model and its tokenizer as a plain transformers folder, whole or not at all.

    What stands behind it in the pipeline (pooling, a method's head) is left out.

    Raises:
        DistilvecError: the folder holds something that is not a model.
        EnvironmentProblem: the disk is full or the place cannot be written.
    """
    with placed(folder) as partial:
        writer.save(str(partial))
