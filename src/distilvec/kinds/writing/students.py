"""Students that write: opened from a transformers folder of a causal language model, and shipped as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.flow.start import Start, with_dropout
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


def _opened(recipe: Recipe, model: str | Path) -> SentenceTransformer:
    """A causal language model as the recipe's student opens."""
    section = given(recipe.student, "student")
    return open_writer(
        model,
        max_length=section.max_length,
        separator=given(given(recipe.task, "task").separator, "task.separator"),
        pooling=section.pooling,
        trust_remote_code=section.trust_remote_code,
    )


def writing_start(recipe: Recipe, corpus: Corpus) -> Start:
    """The student before training, opened where it lies."""
    section = given(recipe.student, "student")
    model = at_revision(str(section.model), section.revision)
    return Start(lambda: with_dropout(_opened(recipe, model), section.dropout))


def ship_student(prepared: Prepared, lessons: Lessons, trained: Trained, folder: Path) -> None:
    """Save the causal model and its tokenizer as a plain transformers folder, whole or not at all.

    What stands behind it in the pipeline (pooling, a method's head) is left out.
    """
    writer: Any = trained.student[0]
    with placed(folder) as partial:
        writer.save(str(partial))


def open_shipped(recipe: Recipe, folder: Path) -> SentenceTransformer:
    """A student that was shipped, as the recipe's models are opened."""
    return _opened(recipe, folder).eval()
