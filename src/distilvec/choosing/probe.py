"""A few steps of training on a few items: what `plan`, `plan --rows` and `--dry-run` learn rates and floors from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.corpus import Corpus
from distilvec.methods.base import Method, TeacherInfo
from distilvec.progress import within
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.store import SignalStore
from distilvec.training import Fitted, Material, StoreSource, TrainingSettings, fit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.flow.teach import Taught


@dataclass(frozen=True)
class Stored:
    """A teacher that is known by its vectors alone, as another process opens it."""

    info: TeacherInfo
    store: SignalStore

    def source(self, corpus: Corpus, rows: np.ndarray, cache: Path) -> StoreSource:
        return StoreSource(self.store, corpus, rows)


#: Nothing is evaluated, saved, stopped or sent to a tracker on the way.
QUIET: dict[str, Any] = {
    "save_every": 10**9,
    "evaluate_every": None,
    "best": None,
    "eval_on_start": False,
    "patience": None,
    "report_to": [],
}


def short_training(
    student: SentenceTransformer,
    method: Method,
    corpus: Corpus,
    taught: Sequence[Taught | Stored],
    training: Mapping[str, Any],
    optimizer: OptimizerSection,
) -> Fitted:
    """Train a student in place for a few steps, and leave nothing behind but the trained student.

    Args:
        method: not built yet.
        training: keys of the recipe's section, with `max_steps`.
    """
    rows = np.concatenate([corpus.train_rows, corpus.holdout_rows])
    with tempfile.TemporaryDirectory(prefix="distilvec-plan-") as folder, within("measuring"):
        place = Path(folder)
        learnt = Material(corpus, [each.info for each in taught], [each.source(corpus, rows, place) for each in taught])
        return fit(student, method, learnt, quiet_settings(training, optimizer, place))


def quiet_settings(training: Mapping[str, Any], optimizer: OptimizerSection, place: Path) -> TrainingSettings:
    """Settings of a training of which nothing is kept, in a folder that is thrown away."""
    return TrainingSettings(TrainingSection.model_validate({**training, **QUIET}), optimizer, place / "probe-run")
