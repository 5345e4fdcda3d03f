"""Recipes settled and trained with a corpus and teachers that many rows share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.corpus import Corpus
from distilvec.flow.fit import fit
from distilvec.flow.lessons import Lessons, teach
from distilvec.flow.prepare import Prepared, make_start, named_tasks, open_corpus, open_teachers, teachers_of
from distilvec.flow.run import run
from distilvec.flow.settle import settle
from distilvec.flow.teach import Taught
from distilvec.recipe import Recipe
from distilvec.teachers import Teacher
from distilvec.training import Fitted


def settled(recipe: Recipe, corpus: Corpus | None = None, teachers: Sequence[Teacher] | None = None) -> Prepared:
    """A recipe settled with this corpus and these opened teachers; None opens the recipe's own."""
    corpus = open_corpus(recipe) if corpus is None else corpus
    opened = open_teachers(recipe, corpus) if teachers is None else teachers_of(recipe, teachers)
    return settle(recipe, corpus, opened, make_start(recipe, corpus, opened), named_tasks(recipe))


def trained(
    prepared: Prepared, taught: Sequence[Taught] | None = None, *, resume: bool = False
) -> tuple[SentenceTransformer, Fitted, Lessons]:
    """The trained student, what its training says, and the lessons: these taught teachers, or all of the recipe's."""
    lessons = teach(prepared) if taught is None else Lessons(tuple(taught))
    done = fit(prepared, lessons, resume=resume)
    return done.student, done.fitted, lessons


def student_of(made: Recipe) -> Path:
    """The folder of a recipe's student; the run is made, or gone on with, where it is not whole."""
    if not (Path(made.output) / "report.json").exists():
        run(made, resume=True)
    return Path(made.output) / "student"
