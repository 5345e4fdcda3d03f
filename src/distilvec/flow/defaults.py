"""A recipe whose open settings are filled in from the table of defaults, and one line for each that says why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec import plain_yaml
from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError
from distilvec.flow.start import make_student, source_model, teacher_model
from distilvec.methods.table import build_methods
from distilvec.modules.blocks import parameters
from distilvec.modules.invariance import cosine_distances
from distilvec.modules.opening import locate
from distilvec.modules.settings import object_in
from distilvec.recipe import AutoSection, Recipe, StudentSection
from distilvec.recipe.defaults import DEFAULTS, Default
from distilvec.recipe.method_section import AUTO
from distilvec.students.sizes import cut_of
from distilvec.teachers.sections import at_revision, models_of
from distilvec.words import millions

logger = logging.getLogger(__name__)
#: Texts up to which token states are kept in the store: some 25 kB a text.
MOST_TOKEN_STATES = 50_000
#: Texts that a student and its teacher are compared on, and the mean centred cosine from which on they share a space.
PROBED, ALIKE = 32, 0.5


def with_defaults(recipe: Recipe, corpus: Corpus, *, choose_method: bool = True) -> Recipe:
    """The recipe with a value for every setting that it leaves open; what it gives stands.

    Args:
        corpus: its number of texts decides on the epochs.
        choose_method: False leaves an open method open, for a comparison, whose rows have methods of their own.

    Returns:
        A recipe without open settings, whose `chosen` says what was filled in and why.
    """
    if not is_open(recipe):
        return recipe
    texts, chosen = len(corpus.train_rows), list[str]()
    section = _student(recipe, corpus, chosen)
    kind = kind_of(recipe, section)
    if kind == "embedder" and recipe.method.is_open and shares_space(recipe, corpus):
        kind = "same space"
    row = DEFAULTS[kind]
    method, student = recipe.method.entries, section
    if recipe.method.is_open and choose_method:
        method = _method(recipe, section, row, texts)
        given = {name: value for name, value in section.items() if value is not None}
        student = _further(recipe, row, method) | given
        shown = " + ".join(_told(entry) for entry in method)
        chosen.append(f"method: {shown}, as the student is {row.kind} (see {row.evidence})")
    rate, training = recipe.optimizer.lr, recipe.training
    epochs, batch = training.epochs or row.epochs(texts), training.batch_size or row.batch_size
    left_open = {
        f"learning rate {row.lr:g}": rate,
        f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'}": training.epochs,
        f"batches of {batch}": training.batch_size,
    }
    if filled_in := [told for told, value in left_open.items() if value is None]:
        chosen.append(
            f"training: {', '.join(filled_in)}, as there are {texts:,} {corpus.kind.noun} to train on and the student "
            f"is {row.kind} (see {row.evidence})"
        )
    data = recipe.model_dump()
    data |= {"student": student, "method": method}
    data["optimizer"]["lr"] = rate or row.lr
    data["training"] |= {"epochs": epochs, "batch_size": batch}
    filled = Recipe.build(data)
    made = recipe.model_copy(update={name: getattr(filled, name) for name in Recipe.model_fields})
    made._chosen = (*recipe.chosen, *chosen)
    return made


def log_chosen(recipe: Recipe) -> Recipe:
    """Log what was filled in and why, a line each; returns the recipe."""
    for line in recipe.chosen:
        logger.info("chosen %s", line)
    return recipe


def training_defaults(recipe: Recipe, corpus: Corpus) -> Recipe:
    """The same for a command that looks for a student: none is filled in where the recipe names none."""
    if recipe.student is not None:
        return with_defaults(recipe, corpus)
    looking = recipe.model_copy(update={"student": StudentSection(auto=AutoSection())})
    return with_defaults(looking, corpus).model_copy(update={"student": None})


def _told(entry: Mapping[str, Any]) -> str:
    """A method and its options, as a line says them."""
    options = plain_yaml.flow({name: value for name, value in entry.items() if name != "name"})
    return f"{entry['name']} ({options[1:-1]})" if options != "{}" else str(entry["name"])


def is_open(recipe: Recipe) -> bool:
    """Tell whether a recipe leaves a setting to the table."""
    student = recipe.student
    settings = (student, recipe.optimizer.lr, recipe.training.epochs, recipe.training.batch_size)
    shrink = student.shrink if student is not None else None
    return any(value is None for value in settings) or recipe.method.is_open or (shrink is not None and shrink.is_open)


def kind_of(recipe: Recipe, section: dict[str, Any]) -> str:
    """The row of the table that a student's section belongs to."""
    if recipe.kind.row is not None:
        return recipe.kind.row
    if section.get("resnet") or section.get("molecule"):
        return "network"
    if section.get("shrink"):
        return "cut" if section["shrink"].get("embedding") else "wide"
    if model := section.get("model"):
        if Path(model).suffix == ".safetensors":
            return "network"
        address = at_revision(model, section.get("revision"))
        folder = locate(address, bool(section.get("trust_remote_code")))
        return "embedder" if (folder / "modules.json").is_file() else _words(folder)
    return "static" if section.get("static") else "cut" if section.get("auto") else "fresh"


def shares_space(recipe: Recipe, corpus: Corpus) -> bool:
    """Tell whether the vectors of a student that is an embedder are comparable with its only teacher's without a map.

    That is so of a student which this teacher taught in its own space before: a map behind it would only be in the way.
    """
    teacher = next(iter(models_of(recipe.teachers).values()), None)
    if recipe.student is None or teacher is None or len(recipe.teachers) > 1 or not corpus.kind.cut:
        return False
    if teacher.adapters or teacher.load or teacher.causal is False:
        return False  # such a model is not opened for a probe
    models = [make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed), teacher_model(teacher)]
    if len({model.get_embedding_dimension() for model in models}) > 1:
        return False
    texts = corpus.texts(corpus.train_rows[:PROBED])
    mine, other = (model.encode(texts, normalize_embeddings=True, show_progress_bar=False) for model in models)
    # Less their means: what all vectors of a model share says nothing about the texts.
    return float(1 - cosine_distances(mine - mine.mean(0), other - other.mean(0)).mean()) >= ALIKE


def _words(folder: Path) -> str:
    """The row of a model that was pretrained on words only, by its width; an unknown width counts as a large one."""
    config = object_in(folder / "config.json")
    width = next((config[name] for name in ("hidden_size", "dim", "d_model") if name in config), None)
    return "words" if isinstance(width, int) and width < 512 else "wide words"


def _student(recipe: Recipe, corpus: Corpus, chosen: list[str]) -> dict[str, Any]:
    """The student's section as a dictionary, with the sizes of a cut that names none."""
    teacher = next(iter(models_of(recipe.teachers)), None)
    if recipe.student is None:
        kind = corpus.kind
        fresh: dict[str, Any] = {"shrink": {}} if kind.cut and teacher is not None else {kind.fresh: {}}
        if teacher is None:
            chosen.append(
                f"student: {next(iter(fresh))}, with random weights, as no teacher is a model to cut one out of"
            )
        section = StudentSection.model_validate(fresh)
    else:
        section = recipe.student
    data = section.model_dump()
    if section.shrink is None or not section.shrink.is_open:
        return data
    of = section.shrink.of or teacher
    if of is None:
        raise DistilvecError(
            "no teacher is a model that a student could be cut out of",
            where="student.shrink.of",
            remedy="Name a folder or hub id there, or another student: student: {model: ...}.",
        )
    if section.shrink.is_sized:
        data["shrink"]["of"] = of
        return data
    model = source_model(of, section, recipe.teachers)
    whole = parameters(model)
    most = section.shrink.parameters
    data["shrink"] |= {"of": of, "parameters": None, **cut_of(model, None if most is None else int(most))}
    size = "a quarter" if most is None else f"at most {millions(int(most))}"
    chosen.append(
        f"student: cut out of {of}, {size} of its {millions(whole)} parameters: "
        + ", ".join(f"{name} {size}" for name, size in data["shrink"].items() if size and name != "of")
    )
    return data


def _method(recipe: Recipe, section: dict[str, Any], row: Default, texts: int) -> list[dict[str, Any]]:
    """The entries of an open method: the row's, as far as the teachers allow it, and what the recipe says."""
    given = recipe.method.entries
    if not recipe.teachers and build_methods(row.method).needs_teacher:
        pairs = recipe.corpus is not None and not isinstance(recipe.corpus.text, str)
        name = "score_kl" if recipe.scorers else "sft" if recipe.task is not None else "mnrl" if pairs else "simcse"
        entries: list[dict[str, Any]] = [{"name": name}]
    else:
        entries = [dict(entry) for entry in row.method]
        cut = (section.get("shrink") or {}).get("of") in models_of(recipe.teachers)
        if len(recipe.teachers) > 1 or not (cut or row is DEFAULTS["same space"]):
            # Token states need the teacher it was cut out of, vectors as they are that one or the one that taught it.
            entries = [{"name": entries[0]["name"]}]
        if texts > MOST_TOKEN_STATES:
            entries = [entry for entry in entries if entry["name"] != "token_states"]
    chosen = entries[0]["name"]
    said: dict[Any, dict[str, Any]] = {entry["name"]: dict(entry) for entry in entries}
    for entry in given:
        name = chosen if entry["name"] == AUTO else entry["name"]
        said[name] = {**said.get(name, {}), **entry, "name": name}
    return [entry for entry in said.values() if entry.get("weight") != 0]


def _further(recipe: Recipe, row: Default, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The row's further keys of the student; one of several teachers, of a task or with prefixes has its own space."""
    further, method = dict(row.student), build_methods(entries)
    alone = len(recipe.teachers) == 1 or (recipe.teachers and recipe.combine != "separate")
    if recipe.task is not None or method.prefixes or not alone or not method.has_map:
        further.pop("space", None)
    return further
