"""The versions of what a recipe takes from the hub, written into it: what is run again tomorrow reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from distilvec import plain_yaml
from distilvec.corpus import hub
from distilvec.errors import DistilvecError
from distilvec.modules.opening import commit_of
from distilvec.recipe import Recipe
from distilvec.recipe.places import at_revision

SAVED = "recipe.yaml"


def pin(recipe: Recipe, saved: Path | None = None) -> Recipe:
    """A recipe whose models and data from the hub name their commits; one without any is given back as it is.

    Where the output (or the file `saved`) holds the same recipe with commits, they are taken from there, whatever is
    newest by now.

    Raises:
        DistilvecError: no such model or data.
        EnvironmentProblem: the hub cannot be reached, and what is asked for is not in its cache.
    """
    # Shallow copies of what gets a revision: functions and what they hold are not to be copied, and often cannot be.
    wanted = recipe.model_copy(
        update={
            "corpus": recipe.corpus and recipe.corpus.model_copy(),
            "teachers": [each.model_copy() for each in recipe.teachers],
            "student": recipe.student and recipe.student.model_copy(),
        }
    )
    before = _saved(saved or Path(recipe.output) / SAVED)
    _pin_corpus(wanted, before)
    for number, teacher in enumerate(wanted.teachers):
        known = before.teachers[number] if before is not None and number < len(before.teachers) else None
        _pin_model(teacher, teacher.model, None if known is None else (known.model, known.revision))
    student = wanted.student
    if student is not None:
        of = _made_of(student, {teacher.name for teacher in wanted.teachers})
        other = None if before is None else before.student
        _pin_model(student, of, None if other is None else (_made_of(other, ()), other.revision))
    return wanted


def _pin_corpus(wanted: Recipe, before: Recipe | None) -> None:
    corpus = wanted.corpus
    if corpus is None or not isinstance(corpus.path, str) or not corpus.path.startswith(hub.HUB):
        return
    known = None if before is None else before.corpus
    if corpus.revision is None and known is not None and known.path == corpus.path and known.revision:
        corpus.revision = known.revision
        return
    corpus.revision = hub.commit_of(hub.Address.read(corpus.path, corpus.revision)) or corpus.revision


def _pin_model(section: Any, model: str | None, known: tuple[str | None, str | None] | None) -> None:
    """Set a section's revision, where its model is the hub's."""
    if model is None or Path(model).suffix == ".safetensors" or Path(model).expanduser().exists():
        return
    if section.revision is None and known is not None and known[0] == model and known[1]:
        section.revision = known[1]
        return
    section.revision = commit_of(at_revision(model, section.revision)) or section.revision


def _made_of(student: Any, teachers: Any) -> str | None:
    """The model that a student is, or is cut out of; None where a teacher of the recipe's is, which has its own."""
    cut = student.shrink or student.static or student.auto
    model = student.model or (cut.of if cut else None) or (student.fresh.embeddings_from if student.fresh else None)
    return None if model in teachers else model


def _saved(file: Path) -> Recipe | None:
    try:
        return Recipe.build(plain_yaml.read(file.read_text(encoding="utf-8")))
    except (OSError, DistilvecError, yaml.YAMLError, AttributeError, TypeError, ValueError):
        return None  # there is none, or something else lies there, about which the run says what is to be said
