"""A student trained with what the teachers taught, and shipped."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from distilvec import training
from distilvec.corpus import Corpus
from distilvec.evenly import sampled_rows
from distilvec.files import spilled
from distilvec.flow.lessons import Lessons, held_out
from distilvec.flow.prepare import Prepared, fresh_method, fresh_task
from distilvec.flow.teach import Taught
from distilvec.judging.agreement import likeness
from distilvec.modules.layouts import has_head, has_kernels
from distilvec.modules.pipeline import DOCUMENT, side_prompt
from distilvec.modules.projection import flattened, is_identity
from distilvec.recipe import Recipe, given
from distilvec.store import SignalStore
from distilvec.students import load_student
from distilvec.students import ship as save
from distilvec.teachers.sections import models_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.tasks.base import Task

logger = logging.getLogger(__name__)
#: Texts that an expert head is folded on.
FOLDING = 5000
#: Powers of a map's singular values that are tried, flattest first; training texts that they are tried on, and the
#: fewest; share of the teacher's neighbours that a flatter map may miss. Measured in experiments/mpnet.
POWERS, TRIED_ON, FEWEST, MISSED = (0.25, 0.5, 0.75, 1.0), 1000, 200, 0.005


@dataclass(frozen=True)
class Trained:
    """A finished training: the student with its method's heads, and what training says of itself."""

    student: SentenceTransformer
    fitted: training.Fitted


def fit(prepared: Prepared, lessons: Lessons, *, resume: bool = False) -> Trained:
    """Train a fresh student.

    Args:
        resume: continue from the newest checkpoint, if there is one.
    """
    recipe, corpus = prepared.recipe, prepared.corpus
    student = prepared.start.open()
    task, method = fresh_task(recipe, corpus, prepared.info), fresh_method(recipe)
    for teacher, section in zip(prepared.teachers.each, recipe.teachers, strict=True):
        if not section.live:
            teacher.rest()
    settings = training.TrainingSettings(
        recipe.training,
        recipe.optimizer,
        prepared.output,
        cache=prepared.place,
        router_balance=prepared.section.router_balance,
        remember=prepared.section.remember,
        code=prepared.code,
    )
    with adapted(recipe, student):
        fitted = training.fit(student, method, _material(prepared, lessons, task), settings, resume=resume)
    gc.collect()  # optimiser and gradients, which hold each other, before the student is opened once more
    return Trained(student, fitted)


def _material(prepared: Prepared, lessons: Lessons, task: Task | None) -> training.Material:
    """Return what the student learns from."""
    corpus = prepared.corpus
    rows = spilled(corpus.train_rows, corpus.holdout_rows)
    return training.Material(
        corpus,
        [each.info_on(corpus) for each in lessons.taught],
        [each.source(corpus, rows, prepared.place, task) for each in lessons.taught],
        needs=prepared.needs,
        task=task,
        scores=lessons.scores,
        lookup=store_lookup([each.store for each in lessons.taught]),
        evaluate=corpus.kind.metrics(prepared.recipe, held_out(corpus, lessons.first), task),
    )


def adapted(recipe: Recipe, student: SentenceTransformer) -> AbstractContextManager[None]:
    """While the block trains, the student has the adapters that the recipe asks for; afterwards they are merged."""
    lora = given(recipe.student, "student").lora
    if lora is None:
        return nullcontext()
    from distilvec.modules.adapters import adapters

    return adapters(student, **lora.model_dump(), seed=recipe.training.seed)


def store_lookup(stores: Sequence[SignalStore]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """(teacher, keys uint8 [n, 16]) -> sentence vectors [n, D], for methods that keep keys."""

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        store = stores[teacher]
        return torch.from_numpy(store.read(store.rows(keys.cpu().numpy())))

    return lookup


def ship_student(prepared: Prepared, lessons: Lessons, trained: Trained, folder: Path) -> float | None:
    """Save the student as people load it, with its task head, and the router if the recipe asks for one.

    Returns:
        If a head was folded, the mean cosine of the linear map's vectors to the head's; else None.
    """
    student, method, section = trained.student, trained.fitted.method, prepared.section
    kept = None
    if section.interpolate:
        student = interpolated(prepared.start.open(), student, section.interpolate)
    if section.fold:
        student = copy.deepcopy(student)
        from distilvec.students import fold_head

        kept = fold_head(student, prepared.corpus.texts(sampled_rows(prepared.corpus.train_rows, FOLDING)))
    head = method.teacher_map() if section.space == "teacher" else None
    if head is not None and section.interpolate and trained.fitted.free_map:
        head = _interpolated_map(trained.fitted.free_map[0], head, section.interpolate)
    first, task = lessons.first, trained.fitted.task
    normalized = first is not None and bool(first.teacher.card.normalized)
    if head is not None and first is not None and normalized:
        head = _flatter(head, student, prepared.corpus, first)
    beside: list[Callable[[Path], None]] = [method.keep]
    if task is not None and task.head is not None:
        beside.append(task.head.save)
    save(student, folder, teacher_map=head, normalize=normalized, beside=beside)
    if section.router:
        # On the CPU: a large teacher, in float32, is only put together and saved here.
        own = load_student(str(folder), trust_remote_code=section.trust_remote_code, device="cpu")
        from distilvec.students import router

        documents = _documents(prepared.recipe)
        if prepared.corpus.prompts:  # which the teacher has read, too
            documents.prompts, documents.default_prompt_name = {"document": side_prompt(own, "document")}, None
        save(router(own, documents), folder.parent / "router")
    return kept


@torch.no_grad()
def interpolated(before: SentenceTransformer, after: SentenceTransformer, share: float) -> SentenceTransformer:
    """The model between two, that share of the way from the first to the second, which stays as it is.

    Weights that the training added (a method of one's own may) stay as they were trained.

    Source: Wortsman et al. 2022 (arXiv:2109.01903), WiSE-FT.
    """
    between = copy.deepcopy(after)
    old = before.state_dict()
    for name, weight in (*between.named_parameters(), *between.named_buffers()):  # shared ones once
        if weight.is_floating_point() and name in old:
            weight.lerp_(old[name].to(weight), 1 - share)
    return between


@torch.no_grad()
def _interpolated_map(before: np.ndarray, after: nn.Linear, share: float) -> nn.Linear:
    """The map into the teacher's space, that share of the way from the untrained student's ridge map, [d, D].

    The trained map is fitted to the end of the training, and half way there it is worse than none of it. That it began
    elsewhere (`init: random`) does not matter. One that is not trained, and one with an offset, stays as it is.
    """
    if after.bias is not None or is_identity(after):
        return after
    between = copy.deepcopy(after)
    between.weight.lerp_(torch.from_numpy(before.T).to(after.weight), 1 - share)
    return between


def _flatter(head: nn.Linear, student: SentenceTransformer, corpus: Corpus, first: Taught) -> nn.Linear:
    """The map into the teacher's space, as flat as it can be without losing the teacher's neighbours of training texts.

    Of texts alone, and where the map changes anything: see `modules.projection.flattened`.
    """
    rows = sampled_rows(np.asarray(corpus.train_rows), TRIED_ON)
    places = first.store.rows(corpus.teacher_keys[rows])
    rows, places = rows[places >= 0], places[places >= 0]
    if not corpus.kind.tokenized or head.bias is not None or is_identity(head) or len(rows) < FEWEST:
        return head
    told = first.store.read(places)
    own = student.encode(corpus.texts(rows), batch_size=64, show_progress_bar=False, convert_to_numpy=True)
    maps = {power: flattened(head.weight.detach().cpu(), power) for power in POWERS}
    found = {power: likeness(told, own @ weight.numpy().T)["neighbours"] for power, weight in maps.items()}
    power = next(power for power in POWERS if found[power] >= max(found.values()) - MISSED)
    if power < 1:
        logger.info(
            "the map into the teacher's space is flattened (singular values to the power of %g), which helps searches: "
            "of %d training texts it finds %.1f %% of the teacher's neighbours, unflattened %.1f %%",
            power,
            len(rows),
            100 * found[power],
            100 * found[1.0],
        )
    flat = copy.deepcopy(head)
    flat.weight.data = maps[power].to(head.weight)
    return flat


def open_shipped(recipe: Recipe, folder: Path) -> SentenceTransformer:
    """Open a student as it was shipped, with its task head or kernels if it has any."""
    trusted = given(recipe.student, "student").trust_remote_code
    if not (has_head(folder) or has_kernels(folder)):
        return load_student(folder, trust_remote_code=trusted)
    from distilvec.tasks.answering import finished_student

    return finished_student(folder, trust_remote_code=trusted)


def _documents(recipe: Recipe) -> SentenceTransformer:
    """The teacher as it read the corpus, for the side of the documents.

    Before a document stands the model's own prompt for one, or what the recipe puts before all: its text, or the
    model's default or prompt for documents by its name. By other names a model has prompts of queries (`s2p_query`).
    """
    section = models_of(recipe.teachers)[recipe.teachers[0].name]
    model = load_student(
        section.address,
        max_length=section.max_length,
        pooling=section.pooling,
        trust_remote_code=section.trust_remote_code,
        device="cpu",
    )
    if section.adapters:
        from distilvec.modules.adapters import merge_adapters
        from distilvec.modules.opening import locate_adapters

        merge_adapters(model, [locate_adapters(each) for each in section.adapters])
    others = (set(model.prompts) - {*DOCUMENT, model.default_prompt_name}) | {"query"}
    if section.prompt is not None and section.prompt not in others:
        put = model.prompts.get(section.prompt, section.prompt)
        model.prompts, model.default_prompt_name = {"document": put or ""}, None
    return model
