"""Measuring this machine's rates for the calculator."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from distilvec.choosing.probe import short_training
from distilvec.choosing.sample import counted, sampled
from distilvec.choosing.scale.reckoning import INDEX_BYTES, PEAKS, Devices, Rates, Scale
from distilvec.corpus import Corpus
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import DistilvecError
from distilvec.evenly import evenly_spaced
from distilvec.flow.defaults import training_defaults
from distilvec.flow.lessons import fill_stores
from distilvec.flow.prepare import Teachers, fresh_method, make_start, open_corpus, open_teachers, require
from distilvec.flow.settle import settle
from distilvec.flow.teach import Taught
from distilvec.judging import speed
from distilvec.judging.speed import machine_of
from distilvec.recipe import Recipe
from distilvec.store.layout import DTYPES, KEY_BYTES
from distilvec.students import describe_student
from distilvec.training.checks import companions_of

SCALE_BYTES = 4
PROBE_TEXTS, PROBE_STEPS, SECONDS = 400, 6, 3.0
#: Texts of which the time tells the rate of a function.
FEWEST_TIMED = 64


def scale(recipe: Recipe, rows: int, devices: Devices | None = None, price: float | None = None) -> Scale:
    """Measure this machine's rates on a sample of a recipe's corpus, and reckon with them.

    Args:
        rows: number of texts asked about, at least 1.
        price: of one device for an hour.

    Raises:
        DistilvecError: fewer than one text, a negative price, a teacher that is a service, or whatever teaching and
            training refuse.
    """
    if rows < 1:
        raise DistilvecError(f"{rows} texts cost nothing", where="--rows", remedy="For example 1e9.")
    if price is not None and price < 0:
        raise DistilvecError(f"a price of {price:g}", where="--price-per-hour", remedy="Give a positive one.")
    if paid := next((section.name for section in recipe.teachers if section.sold), None):
        raise DistilvecError(
            "a service is as fast, and costs as much, as whoever runs it says; neither is measured here",
            where=f"--rows, teacher {paid}",
            remedy="`distilvec teach --dry-run` says how many requests and tokens, and the price.",
        )
    require(recipe, "scale")
    corpus = open_corpus(recipe)
    recipe = training_defaults(recipe, corpus)
    method = fresh_method(recipe)
    notes = ["Times are without reading the corpus, judging and waiting for machines; devices are taken to add up."]
    if method.inside:
        notes.append(f"{method.name} also keeps tokens of the teacher: `distilvec run --dry-run` says how many bytes.")
    rates = measure_rates(recipe, sampled(corpus, PROBE_TEXTS, whole=True), counted(corpus))
    if rates.training is not None:
        notes.append(f"Training was measured with batches of {rates.batch_size}; more devices need larger ones.")
    if recipe.training.max_steps:
        notes.append("Training is reckoned by epochs; the recipe's max_steps would end it at the same step everywhere.")
    return Scale(rates, devices or Devices(), rows, price, notes)


def measure_rates(recipe: Recipe, sample: Corpus, whole: Corpus) -> Rates:
    """Measure the rates of the recipe's teachers and student on this machine, on a small sample of the corpus.

    Args:
        whole: what the student is made of (its word pieces are those of a corpus).
    """
    teachers = open_teachers(recipe, sample)
    taught = fill_stores(recipe.model_copy(update={"combine": "separate"}), sample, teachers)
    texts = sample.teacher_texts(sample.train_rows)
    seconds = 0.0
    parts: list[tuple[int, str]] = []
    machine = ""
    for section, each in zip(recipe.teachers, taught, strict=True):
        if not each.teacher.can.made:
            seconds += 1 / _teaching_rate(each, texts)
            here = machine_of(each.teacher)
            machine = f"{here['machine']}, {here['device']}, {here['threads']} threads"
        parts.append(_stored(each.teacher.card.width, section.storage))
    if teachers.combined is not None:  # a store of its own, next to theirs
        parts.append(_stored(teachers.combined.width, recipe.teachers[0].storage))
    if not seconds:
        raise DistilvecError("vectors from elsewhere are not encoded here", where="--rows", remedy="Name a model.")
    peak, source = _peak()
    training: dict[str, Any] = {"epochs": recipe.training.epochs, "batch_size": recipe.training.batch_size}
    if recipe.student is not None and recipe.student.auto is None:
        training |= _training_rate(recipe, sample, teachers, taught, whole)
    length = float(np.mean([len(text.encode()) for text in texts]))
    vector_bytes, told = sum(part[0] for part in parts), [part[1] for part in parts]
    return Rates(machine, 1 / seconds, length, vector_bytes, told, peak, source, **training)


def _teaching_rate(taught: Taught, texts: list[str]) -> float:
    """Texts per second. A function may be paid for each text, and is asked for none twice that was just taught."""
    teacher, filled = taught.teacher, taught.filled
    if not teacher.can.paid:
        return float(speed(teacher, texts, singles=1, seconds=SECONDS)["texts_per_second"])
    if filled.taught >= FEWEST_TIMED:
        return filled.taught / max(filled.seconds, 1e-9)
    few = [texts[row] for row in evenly_spaced(len(texts), FEWEST_TIMED)]
    begun = time.perf_counter()
    teacher.encode(few)
    return len(few) / max(time.perf_counter() - begun, 1e-9)


def _stored(width: int, storage: str) -> tuple[int, str]:
    """Bytes of a vector in a store, and what they are."""
    value = np.dtype(DTYPES[storage]).itemsize
    extra = SCALE_BYTES if storage == "int8" else 0
    scale_part = f" + {extra} scale" if extra else ""
    told = f"{width} x {value}{scale_part} + {KEY_BYTES} key + {INDEX_BYTES} index"
    return width * value + extra + KEY_BYTES + INDEX_BYTES, told


def _training_rate(
    recipe: Recipe, sample: Corpus, teachers: Teachers, taught: Sequence[Any], whole: Corpus
) -> dict[str, Any]:
    """Texts (of pairs both) per second of a few steps of the recipe's own training; empty where it needs more than
    vectors.
    """
    method = fresh_method(recipe)
    if method.inside or recipe.task is not None or recipe.scorers:
        return {}
    with tempfile.TemporaryDirectory(prefix="distilvec-scale-") as place:  # a run may be at work in the recipe's own
        apart = recipe.model_copy(update={"output": place})
        prepared = settle(apart, whole, teachers, make_start(apart, whole, teachers), [])
        student = prepared.start.open()
    items = len(rows_with_companions(sample, sample.train_rows, companions_of(prepared.needs, None, sample))[0])
    batch = min(recipe.training.batch, items)
    one = {"max_steps": PROBE_STEPS, "batch_size": batch, "gradient_accumulation_steps": 1}
    training = recipe.training.model_dump() | one
    fitted = short_training(student, method, sample, taught, training, recipe.optimizer)
    wide = (describe_student(student)["vocabulary"] or 0) > 1 << 16
    return {
        "training": PROBE_STEPS * batch / fitted.seconds * len(sample.train_rows) / items,
        "token_bytes": (4 if wide else 2) * fitted.tokens / len(sample.train_rows),
        "parameters": fitted.trained + fitted.heads,
    }


def _peak() -> tuple[float, str]:
    """TFLOPS of matrix products of this machine, and where that is from."""
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        for kind in sorted(PEAKS, key=len, reverse=True):
            # A whole word: an A1000 is no A100, and a T400 no T4.
            if re.search(rf"\b{'[ -]?'.join(re.split('-|(?<=RTX)', kind))}\b", name, re.IGNORECASE):
                return PEAKS[kind], f"data sheet of this machine's {name}"
    return _matrix_product(), "measured here in a matrix product"


@cache
def _matrix_product() -> float:
    """TFLOPS of a square product, the best of as many as fit into half a second, in the device's fastest type; once."""
    from distilvec.training import bfloat16_pays

    width, cuda = 1536, torch.cuda.is_available()
    dtype = torch.bfloat16 if cuda or bfloat16_pays() else torch.float32
    left = torch.ones(width, width, dtype=dtype, device="cuda" if cuda else "cpu")
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begun < 0.5:
        start = time.perf_counter()
        _ = left @ left
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * width**3 / best / 1e12
