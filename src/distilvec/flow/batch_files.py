"""Batch jobs by hand: files of requests for people who upload them themselves, and the results that they got."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from distilvec.corpus import Corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.files import whole
from distilvec.flow.prepare import open_corpus, require
from distilvec.flow.teach import fill_store, lacking_texts
from distilvec.interruption import StopSignals
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.store.turns import alone
from distilvec.teachers import Reading
from distilvec.teachers.batch import BatchTeacher, asked_already
from distilvec.teachers.batch_endpoint import Result, read_results, request_files
from distilvec.teachers.endpoint import request_body
from distilvec.teachers.sections import ServiceSection
from distilvec.teachers.service import text_key

logger = logging.getLogger(__name__)


def write_batch_files(recipe: Recipe, folder: Path) -> list[str]:
    """Write `NAME-1.jsonl` ... with requests for what services' stores lack, asking nobody; a line on each file."""
    said = []
    for section, corpus, place, store in _services(recipe):
        prompted = ((section.prompt or "") + text for text in lacking_texts(corpus, store))
        asked = asked_already(place)
        keyed = ((key, text) for text in prompted for key in [text_key(text)] if key not in asked)
        for number, (keys, content) in enumerate(request_files(section.name, request_body(section.api), keyed), 1):
            target = folder / f"{section.name}-{number}.jsonl"
            with whole(target) as file:
                file.write_bytes(content)
            said.append(f"{target}: {len(keys):,} requests")
    return said or ["the stores lack nothing that is not under way"]


def take_results(recipe: Recipe, files: Sequence[Path]) -> list[str]:
    """Take the vectors of files of results into the stores, asking nobody; returns a line on each store.

    Raises:
        DistilvecError: no teacher of the recipe is a service.
        DataError: nothing was taken, or a vector has another width; the other vectors are kept.
    """
    said = []
    for section, corpus, place, before in _services(recipe):
        first = next((each for each in read_results(_lines(files), section.name) if each.vector is not None), None)
        if first is None or first.vector is None:
            raise _unfit(f"no line is an answer to a request for teacher {section.name}", files)
        _check_model(section, first, files)
        seen = first.vector if before is None else np.ones(before.width, np.float32)
        teacher = BatchTeacher(section, Reading(corpus.modality), seen[None])
        store = SignalStore.create(place, teacher.card, teacher.card.width, section.storage)
        with StopSignals() as signals, alone(place, signals):
            wanted = {teacher.key(text) for text in lacking_texts(corpus, store)}
            taken = teacher.take(place, read_results(_lines(files), section.name), wanted)
            filled = fill_store(store, teacher, corpus)
        failed = f"; {taken.failed:,} requests failed ({taken.failure})" if taken.failed else ""
        said.append(f"{place}: {len(store):,} rows, {filled.taught:,} new, {filled.absent:,} missing{failed}")
        if taken.wrong:
            wrong = f"line {taken.wrong[0]} has a vector of width {taken.wrong[1]}, not {teacher.card.width}"
            raise _unfit(f"{wrong} ({said[-1]})", files)
        if wanted and not taken.answered:
            raise _unfit(f"no line has a vector of a text that the store of {section.name} lacks{failed}", files)
    return said


def _check_model(section: ServiceSection, first: Result, files: Sequence[Path]) -> None:
    """Refuse an answer of another width than the recipe asks for, and warn of one that names another model."""
    asked, width = section.api.dimensions, len(first.vector) if first.vector is not None else 0
    if asked not in (None, width):
        raise _unfit(
            f"teacher {section.name}: {asked} dimensions are asked for, and line {first.number} has {width}", files
        )
    if first.model and first.model not in section.api.model and section.api.model not in first.model:
        logger.warning(
            'teacher %s: line %d of the results says that it is of "%s", and api.model is "%s"',
            section.name,
            first.number,
            first.model[:80],
            section.api.model,
        )


def _unfit(what: str, files: Sequence[Path]) -> DataError:
    return DataError(what, where=", ".join(map(str, files)), remedy="Give the answers to files of --batch-files.")


def _services(recipe: Recipe) -> Iterator[tuple[ServiceSection, Corpus, Path, SignalStore | None]]:
    """Each service of a recipe, the corpus, the folder of its store, and the store if there is one."""
    require(recipe, "teach")
    sections = [section for section in recipe.teachers if isinstance(section, ServiceSection)]
    if not sections:
        raise DistilvecError("no teacher is a service", where="teachers", remedy="Batch jobs are for `api`.")
    corpus = open_corpus(recipe)
    for section in sections:
        place = recipe.place / "stores" / section.name
        yield section, corpus, place, SignalStore.open(place) if (place / "store.json").exists() else None


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        with file.open("rb") as lines:
            yield from lines
