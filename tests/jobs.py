"""A recipe opened for a test: its parts, made by the functions of the flow when a test asks for them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.corpus import Corpus
from distilvec.flow import prepare as parts
from distilvec.flow.bench import comparison_identity
from distilvec.flow.defaults import with_defaults
from distilvec.flow.fit import Trained, fit
from distilvec.flow.lessons import Lessons, fill_scores, fill_stores, held_out, held_out_rows, teach
from distilvec.flow.prepare import Prepared, Teachers
from distilvec.flow.score import QueryDocuments
from distilvec.flow.settle import settle, wants_of
from distilvec.methods.base import Method
from distilvec.recipe import Recipe
from distilvec.scorers.load import open_scorer
from distilvec.training import Fitted


class Job:
    """The parts of a recipe that names all that it needs."""

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        self.recipe, self.resume = recipe, resume
        self.output, self.place = Path(recipe.output), recipe.place

    def require(self, command: str) -> None:
        parts.require(self.recipe, command)

    @cached_property
    def corpus(self) -> Corpus:
        return parts.open_corpus(self.recipe)

    @cached_property
    def filled(self) -> Recipe:
        """The recipe without open settings."""
        return with_defaults(self.recipe, self.corpus)

    @cached_property
    def opened(self) -> Teachers:
        return parts.open_teachers(self.recipe, self.corpus)

    @property
    def student_section(self) -> Any:
        return self.filled.student

    @property
    def teachers(self) -> list[Any]:
        return list(self.opened.each)

    @property
    def infos(self) -> list[Any]:
        return self.opened.met

    @cached_property
    def start(self) -> Any:
        return parts.make_start(self.filled, self.corpus, Teachers())

    def student(self) -> SentenceTransformer:
        return self.start.open()

    @cached_property
    def prepared(self) -> Prepared:
        tasks = parts.named_tasks(self.recipe)
        return settle(self.filled, self.corpus, self.opened, self.start, tasks)

    @property
    def needs(self) -> Any:
        return self.prepared.needs

    @property
    def wanted(self) -> Any:
        return list(self.prepared.wanted)

    @property
    def tasks(self) -> Any:
        return parts.judging_tasks(self.recipe, self.corpus, parts.named_tasks(self.recipe))

    @property
    def student_info(self) -> Any:
        return self.prepared.info

    @property
    def code(self) -> str | None:
        return self.prepared.code

    @cached_property
    def task(self) -> Any:
        return self.prepared.task()

    @cached_property
    def method(self) -> Method:
        return parts.fresh_method(self.filled)

    @cached_property
    def lessons(self) -> Lessons:
        return teach(self.prepared)

    @property
    def taught(self) -> list[Any]:
        return list(self.lessons.taught)

    @property
    def first(self) -> Any:
        return self.lessons.first

    @property
    def scored(self) -> list[Any]:
        return list(self.lessons.scored)

    @property
    def scores(self) -> np.ndarray | None:
        return self.lessons.scores

    @property
    def scorers(self) -> list[Any]:
        return [open_scorer(section) for section in self.recipe.scorers]

    @property
    def pairs(self) -> QueryDocuments:
        return QueryDocuments.of(self.corpus)

    def score(self, *, shard: tuple[int, int] | None = None) -> list[Any]:
        return fill_scores(self.recipe, self.pairs, shard)

    def teach(self, *, shard: tuple[int, int] | None = None, vectors_only: bool = False) -> list[Any]:
        wanted = None if vectors_only else wants_of(self.recipe, self.corpus, self.opened)
        return fill_stores(self.recipe, self.corpus, self.opened, wanted, shard)

    def held_out(self, limit: int = 1000) -> tuple[list[str], np.ndarray | None]:
        return held_out(self.corpus, self.first, limit)

    def held_out_rows(self, limit: int = 1000) -> np.ndarray:
        return held_out_rows(self.corpus, self.first, limit)


def identity_of(job: Job) -> str:
    """What a comparison of this recipe holds for."""
    return comparison_identity(job.recipe, job.corpus, job.opened, job.tasks)


def check_job(job: Job) -> None:
    """Refuse what can be seen to fail before teaching."""
    _ = job.prepared


def train_student(job: Job) -> tuple[SentenceTransformer, Fitted]:
    """The trained student, and what training says of itself."""
    trained = fit(job.prepared, job.lessons, resume=job.resume)
    return trained.student, trained.fitted


def ship_student(job: Job, student: SentenceTransformer, method: Method, folder: Path) -> float | None:
    """Save a student of a finished training; its method is the job's."""
    fitted = Fitted(method, [], 0.0, 0, 0, [], 0, 0, 0, task=job.task)
    kept: float | None = job.corpus.kind.ship(job.prepared, job.lessons, Trained(student, fitted), folder)
    return kept


def tiny_recipe(folder: Path, teacher: Path, texts: Any, **sections: Any) -> Recipe:
    """Two steps of a student of `teacher`, which is a folder; other `sections` replace or add to these."""
    return Recipe.build(
        {
            "corpus": {"path": texts, "holdout": 0.3},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"model": str(teacher)},
            "method": {"name": "cosine"},
            "training": {"max_steps": 2, "epochs": 2, "batch_size": 8, "use_cpu": True},
            "judging": {"speed": False},
            "output": str(folder / "out"),
            **sections,
        }
    )
