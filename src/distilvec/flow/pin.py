"""The versions of what a recipe takes from the hub, written into it: what is run again tomorrow reads the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.modules.opening import commit_of
from distilvec.recipe import CorpusSection, PartSection, Recipe
from distilvec.recipe.places import or_a_teacher
from distilvec.teachers.sections import ModelSource, at_revision

SAVED = "recipe.yaml"


def pin(recipe: Recipe, saved: Path | None = None, *, mining: bool = False) -> Recipe:
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
            "scorers": [each.model_copy() for each in recipe.scorers],
            "mining": recipe.mining.model_copy(
                update={"documents": recipe.mining.documents and recipe.mining.documents.model_copy()}
            ),
            "student": recipe.student and recipe.student.model_copy(),
        }
    )
    before = _saved(saved or Path(recipe.output) / SAVED)
    _pin_data(wanted.corpus, before.corpus if before else None)
    if mining:
        _pin_data(wanted.mining.documents, before.mining.documents if before else None)
    _pin_models(wanted.teachers, before.teachers if before else [])
    _pin_models(wanted.scorers, before.scorers if before else [])
    student = wanted.student
    if student is not None:
        of = _made_of(student, {teacher.name for teacher in wanted.teachers})
        other = None if before is None else before.student
        with or_a_teacher(of or "", wanted.teachers):
            _pin_model(student, of, None if other is None else (_made_of(other, ()), other.revision))
    return wanted


def _pin_data(data: CorpusSection | None, known: CorpusSection | None) -> None:
    """Set a section's revision, where its data are the hub's."""
    if data is None:
        return
    data.parts = [part.model_copy() for part in data.parts]
    _pin_source(data, known)
    for part, before in zip_longest(data.parts, (known.parts if known else [])[: len(data.parts)]):
        _pin_source(part, before)


def _pin_source(data: CorpusSection | PartSection, known: CorpusSection | PartSection | None) -> None:
    if not isinstance(data.path, str) or not data.path.startswith("hub:"):
        return
    if data.revision is None and known is not None and known.path == data.path and known.revision:
        data.revision = known.revision
        return
    from distilvec.corpus import hub

    data.revision = hub.commit_of(hub.HubAddress.read(data.path, data.revision)) or data.revision


def _pin_models(sections: Sequence[Any], kept: Sequence[Any]) -> None:
    """The same for teachers or scorers, whose places in the saved recipe are their places here."""
    for section, known in zip_longest(sections, kept[: len(sections)]):
        if isinstance(section, ModelSource):
            before = (known.model, known.revision) if isinstance(known, ModelSource) else None
            _pin_model(section, section.model, before)


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
