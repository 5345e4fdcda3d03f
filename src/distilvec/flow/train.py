"""A job's student trained with signals from the stores, and shipped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distilvec.errors import DistilvecError
from distilvec.evenly import sampled_rows
from distilvec.flow.job import Job
from distilvec.flow.judge import held_out_metrics
from distilvec.methods.base import Method
from distilvec.modules.adapters import merge_adapters
from distilvec.modules.blocks import find_writer
from distilvec.modules.lora import adapters
from distilvec.modules.opening import locate_adapters
from distilvec.store import SignalStore
from distilvec.students import fold_head, load_student, router, ship
from distilvec.students.writing import ship_writer
from distilvec.teachers.text import TextTeacher
from distilvec.training import Fitted, fit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Texts that an expert head is folded on.
FOLDING = 5000


def train_student(job: Job) -> tuple[SentenceTransformer, Fitted]:
    """Train a fresh student; held-out agreement comes in as a callable.

    Raises:
        DistilvecError: whatever teaching and training refuse.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint is saved.
    """
    taught, scores, student, recipe = job.taught, job.scores, job.student(), job.recipe
    for teacher, section in zip(job.teachers, recipe.teachers, strict=True):
        if isinstance(teacher, TextTeacher) and not section.live:
            teacher.rest()

    def save(folder: Path, method: Method) -> None:
        ship_student(job, student, method, folder)

    with adapted(job, student):
        fitted = fit(
            student,
            job.method,
            [each.info_on(job.corpus) for each in taught],
            job.corpus,
            job.sources(),
            needs=job.needs,
            training=recipe.training,
            optimizer=recipe.optimizer,
            folder=job.output,
            resume=job.resume,
            cache=job.place,
            evaluate=held_out_metrics(recipe, job.held_out(), job.task),
            lookup=store_lookup([each.store for each in taught]),
            save_student=save,
            task=job.task,
            router_balance=job.student_section.router_balance,
            remember=job.student_section.remember,
            scores=scores,
            code=job.code,
        )
    return student, fitted


def adapted(job: Job, student: SentenceTransformer) -> AbstractContextManager[None]:
    """While the block trains, the student has the adapters that the recipe asks for; afterwards they are merged."""
    lora = job.student_section.lora
    if lora is None:
        return nullcontext()
    return adapters(student, **lora.model_dump(), seed=job.recipe.training.seed)


def store_lookup(stores: Sequence[SignalStore]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """(teacher, keys uint8 [n, 16]) -> sentence vectors [n, D], for methods that keep keys."""

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        store = stores[teacher]
        return torch.from_numpy(store.read(store.rows(keys.cpu().numpy())))

    return lookup


def ship_student(job: Job, student: SentenceTransformer, method: Method, folder: Path) -> float | None:
    """Save the student as people load it, with its task head, and the router where the recipe asks for one.

    Returns:
        Where a head was folded, the mean cosine of the linear map's vectors to the head's; None otherwise.

    Raises:
        DistilvecError: the student is to live in the teacher's space, and the method has no map into it.
        EnvironmentProblem: the disk is full or the place cannot be written; what lay there is as it was.
    """
    writer = find_writer(student)
    if writer is not None:
        ship_writer(writer, folder)
        return None
    kept, section = None, job.student_section
    if section.fold:
        student = copy.deepcopy(student)
        kept = fold_head(student, job.corpus.texts(sampled_rows(job.corpus.train_rows, FOLDING)))
    head = None
    if section.space == "teacher":
        head = method.teacher_map()
        if head is None:
            raise DistilvecError(
                f'method "{method.name}" has no linear map into one teacher\'s space',
                where="student.space",
                remedy="Use space: own, or a method with a map (leaf, cosine, mse, talas) and one teacher.",
            )
    normalized = job.first is not None and bool(job.first.teacher.card.normalized)
    beside: list[Callable[[Path], None]] = [method.keep]
    if job.task is not None and job.task.head is not None:
        beside.append(job.task.head.save)
    ship(student, folder, space=section.space or "own", teacher_map=head, normalize=normalized, beside=beside)
    if section.router:
        # On the CPU: a large teacher, in float32, is only put together and saved here.
        own = load_student(str(folder), trust_remote_code=section.trust_remote_code, device="cpu")
        ship(router(own, _documents(job)), folder.parent / "router")
    return kept


def _documents(job: Job) -> SentenceTransformer:
    """The teacher as it read the corpus, for the side of the documents.

    Before a document stands the model's own prompt for one, or what the recipe puts before all: its text, or a prompt
    of the model by its name. That of queries is not for documents.
    """
    section = job.recipe.teachers[0]
    model = load_student(
        str(section.address),
        max_length=section.max_length,
        pooling=section.pooling,
        trust_remote_code=section.trust_remote_code,
        device="cpu",
    )
    if section.adapters:
        merge_adapters(model, [locate_adapters(each) for each in section.adapters])
    if section.prompt is not None and section.prompt != "query":
        put = model.prompts.get(section.prompt, section.prompt)
        model.prompts, model.default_prompt_name = {"document": put or ""}, None
    return model
