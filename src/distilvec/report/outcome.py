"""The outcome of a run, as the sections of its report read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import nn

from distilvec.judging import Verdict

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.recipe import Recipe
    from distilvec.scorers.base import Scorer
    from distilvec.store import FillReport, SignalStore
    from distilvec.teachers import Teacher
    from distilvec.teachers.describe import TeacherReport
    from distilvec.teachers.signals import Wanted
    from distilvec.training import Fitted


class TaughtTeacher(Protocol):
    """A teacher with what was seen of it beforehand, its filled store, and what the method asks of it."""

    teacher: Teacher
    seen: TeacherReport
    store: SignalStore
    filled: FillReport
    wanted: Wanted


class Scored(Protocol):
    """A scorer, and what scoring the corpus gave."""

    scorer: Scorer
    filled: FillReport


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        taught: the teachers; agreement is measured with the first.
        untrained, shipped: the student before training, and as it ships.
        trained: the student after training with the head that it may have; None if models are not looked at inside.
        held_out: rows of the held-out items in the corpus, those of `verdict.vectors`.
        folder: the run's folder, with `student/`.
        overlap: task or labelled file -> training texts among its texts.
        compression: the `Compression` of the shipped student, if the recipe asks for one.
        supervised: model -> metric -> value on the file that the recipe's task is tested on.
        notes: further sentences for a reader of the numbers.
    """

    recipe: Recipe
    corpus: Corpus
    taught: Sequence[TaughtTeacher]
    untrained: SentenceTransformer
    shipped: SentenceTransformer
    fitted: Fitted
    held_out: np.ndarray
    folder: Path
    verdict: Verdict = field(default_factory=Verdict)
    scored: Sequence[Scored] = ()
    trained: SentenceTransformer | None = None
    overlap: Mapping[str, int] = field(default_factory=dict)
    supervised: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compression: Any = None
    notes: Sequence[str] = ()

    @property
    def items(self) -> str:
        return self.corpus.kind.noun

    @property
    def has_experts(self) -> bool:
        """Tell whether method, student or a teacher has experts that can be looked at."""
        models = [self.fitted.method, self.trained, *(each.teacher.model for each in self.taught)]
        names = (name for model in models if isinstance(model, nn.Module) for name, _ in model.named_modules())
        return any("expert" in name for name in names)

    @property
    def first(self) -> TaughtTeacher | None:
        """The teacher that agreement is measured with."""
        return self.taught[0] if self.taught else None

    def texts(self) -> Sequence[str]:
        return self.corpus.texts(self.held_out)

    def vectors(self, model: str | None) -> np.ndarray | None:
        """A model's vectors of the held-out items; None without any."""
        found: Any = None if model is None else self.verdict.vectors.get(model)
        return found if found is None else np.asarray(found)

    @property
    def teacher_names(self) -> list[str]:
        return [each.teacher.card.name for each in self.taught]

    @property
    def teacher_name(self) -> str | None:
        return None if self.first is None else self.first.teacher.card.name
