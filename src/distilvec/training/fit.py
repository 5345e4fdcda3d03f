"""Train one student with one method: heads from a sample, trainer, resume, and what it cost."""

from __future__ import annotations

import copy
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import set_seed

from distilvec.allocator import keep_freed_memory
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import GO_ON, DivergedError, EnvironmentProblem, Interrupted
from distilvec.evenly import sampled_rows
from distilvec.interruption import StopSignals
from distilvec.methods.base import Method, Needs
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherInfo
from distilvec.training.checkpoint import newest_checkpoint, read_state, refuse_other_data, tidy
from distilvec.training.checks import check_checkpointing, check_training, companions_of, data_mark
from distilvec.training.data import Collator, SignalSource
from distilvec.training.distributed import apart, barrier, join, rank
from distilvec.training.items import PreparedCorpus
from distilvec.training.loop import Loop
from distilvec.training.network import as_it_trains
from distilvec.training.sample import SAMPLE, free_maps, make_sample, on_device
from distilvec.training.sources import LiveSource
from distilvec.training.step import Distiller, Extras, describe
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.recipe import OptimizerSection, TrainingSection
    from distilvec.tasks.base import Task


#: Held-out rows over which the terms are averaged after training.
HELD_OUT = 2000


@dataclass
class Fitted:
    """A finished training.

    Attributes:
        method: with its trained heads.
        free_map: per teacher the ridge map [d, D] of the untrained student (the free baseline).
        seconds: wall clock of the training itself; where it was resumed, with what earlier calls took up to their
            checkpoints.
        peak_bytes: highest resident memory of the process (device memory on an accelerator).
        steps: optimiser steps.
        log: every logged entry.
        truncated: texts that the student reads only in part.
        trained, heads: parameters of the student and of the heads.
        task: the supervised task with its trained head.
        held_out: mean of each term over held-out rows after training, unweighted.
    """

    method: Method
    free_map: list[np.ndarray]
    seconds: float
    peak_bytes: int
    steps: int
    log: list[dict[str, Any]]
    truncated: int
    trained: int
    heads: int
    skipped: int = 0
    task: Task | None = None
    held_out: dict[str, float] = field(default_factory=dict)
    tokens: int = field(default=0, metadata={"help": "tokens of an epoch"})


@dataclass(frozen=True)
class Material:
    """The data that a student learns from.

    Attributes:
        corpus: its train rows are trained on.
        teachers, sources: one entry per teacher, in the same order.
        needs: what the method wants, if it has been asked already.
        task: a supervised task next to the method; its head is trained in place.
        scores: float32 [rows of the corpus], see `Collator`.
        lookup: see `Method.lookup`.
        evaluate: held-out metrics, called every `training.evaluate_every` steps.
    """

    corpus: Corpus
    teachers: Sequence[TeacherInfo]
    sources: Sequence[SignalSource]
    needs: Needs | None = None
    task: Task | None = None
    scores: np.ndarray | None = None
    lookup: Callable[[int, torch.Tensor], torch.Tensor] | None = None
    evaluate: Callable[[SentenceTransformer, Method], dict[str, float]] | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training, and the places of its files.

    Attributes:
        training, optimizer: the recipe's sections.
        folder: gets `checkpoints/` and `run.jsonl`.
        cache: where token ids are kept; None = `folder`.
        router_balance, remember: see `Extras`.
        code: of a method that is not ours; a checkpoint of another one is not resumed.
    """

    training: TrainingSection
    optimizer: OptimizerSection
    folder: Path
    cache: Path | None = None
    router_balance: float = 0.0
    remember: float = 0.0
    code: str | None = None


def fit(
    student: SentenceTransformer,
    method: Method,
    material: Material,
    settings: TrainingSettings,
    *,
    resume: bool = False,
) -> Fitted:
    """Train `student` in place.

    Args:
        student: becomes the trained student.
        method: not built yet.
        resume: continue from the newest whole checkpoint, if there is one.

    Raises:
        DistilvecError: a method that cannot work with this student or these teachers, a refused training key, a
            loss that is not finite, an interruption (with how to go on).
    """
    training, corpus, task = settings.training, material.corpus, material.task
    needs = material.needs or method.needs(describe(StudentTap(student).info, task), material.teachers)
    rows, companions = rows_with_companions(corpus, corpus.train_rows, companions_of(needs, task, corpus))
    blind = training.evaluate_every is not None and material.evaluate is None
    live = any(isinstance(each, LiveSource) for each in material.sources)
    check_training(rows, corpus, training, settings.optimizer, blind=blind, live=live)
    check_checkpointing(training, method, needs)
    # Before anything else on a device, because it also joins the other processes of a distributed run.
    home = settings.folder / "checkpoints"
    newest = newest_checkpoint(home) if resume else None
    accelerator = join(training, home, read_state(newest).data.get("precision") if newest else None)
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(accelerator.device)  # what teaching needed is not training's
    tokens = _tokens(student, needs, material, settings, accelerator)
    collator = Collator(corpus, tokens, material.sources, companions, material.scores)
    data = data_mark(corpus, settings.code) | {"precision": accelerator.mixed_precision}
    _open_checkpoints(home, newest, data, resume=resume)
    narrow = accelerator.mixed_precision == "bf16"
    distiller, free = _assemble(student, method, material, settings, needs, collator, narrow=narrow)
    evaluate = material.evaluate
    loop = Loop(
        distiller,
        training,
        settings.optimizer,
        settings.folder,
        rows,
        collator,
        accelerator,
        evaluate=None if evaluate is None else (lambda: evaluate(student, method)),
        describe=lambda numbers: corpus.texts(np.asarray(numbers)),
        data=data,
    )
    _train(loop, newest)
    student.eval()
    _check_vectors(student, on_device(tokens.features(rows[:8]), accelerator.device))
    fitted = _outcome(loop, free)
    if task is None:
        held = sampled_rows(rows_with_companions(corpus, corpus.holdout_rows, needs.companions)[0], HELD_OUT)
        with accelerator.autocast():  # as in training
            fitted.held_out = held_out_terms(distiller, collator, held, training.batch)
    return fitted


def _assemble(
    student: SentenceTransformer,
    method: Method,
    material: Material,
    settings: TrainingSettings,
    needs: Needs,
    collator: Collator,
    *,
    narrow: bool,
) -> tuple[Distiller, list[np.ndarray]]:
    """The module that is trained, with heads that start from a sample of the corpus; and the free baseline's maps."""
    seed, task = settings.training.seed, material.task
    limit = material.corpus.kind.sample or SAMPLE
    sample = make_sample(
        student,
        collator.tokens,
        material.sources,
        material.corpus.train_rows,
        seed=seed,
        needs=needs,
        limit=limit,
        collator=collator,
        narrow=narrow,
    )
    set_seed(seed)
    former = copy.deepcopy(student).eval().requires_grad_(False) if settings.remember else None
    method.build(describe(StudentTap(student).info, task), material.teachers, sample)
    method.lookup = material.lookup
    method.attach(student)
    extras = Extras(
        settings.router_balance, settings.training.mini_batch_size, former, settings.remember, settings.training.gather
    )
    distiller = Distiller(student, method, needs, task, extras)
    free = free_maps(sample)
    set_seed(seed)
    return distiller, free


@torch.no_grad()
def _check_vectors(student: SentenceTransformer, features: dict[str, Any]) -> None:
    """See that the trained student says something: finite weights may be too large for what is made of them."""
    if not torch.isfinite(student(features)["sentence_embedding"]).all():
        raise DivergedError(
            "the trained student's vectors are not finite",
            where="student",
            remedy="Lower optimizer.lr and optimizer.heads_lr. Earlier checkpoints are kept.",
        )


def _tokens(
    student: SentenceTransformer, needs: Needs, material: Material, settings: TrainingSettings, accelerator: Accelerator
) -> TokenizedCorpus | PreparedCorpus:
    """Token ids of the corpus; the sources hear what is wanted of them."""
    set_seed(settings.training.seed)
    student.to(accelerator.device)
    if accelerator.device.type == "cpu" and not settings.training.sharded:  # sharding is there to free memory
        keep_freed_memory()
    with accelerator.main_process_first():  # the others find its files
        tokens: TokenizedCorpus | PreparedCorpus = material.corpus.kind.student_items(
            student, material.corpus, (settings.cache or settings.folder) / "tokens"
        )
        for number, source in enumerate(material.sources):
            source.prepare(needs.of(number), tokens)
    return tokens


def _open_checkpoints(folder: Path, newest: Path | None, data: dict[str, Any], *, resume: bool) -> None:
    """See that the checkpoint to go on from is of this training, and clear the folder of what is of no use."""
    if newest is not None:
        refuse_other_data(newest, data)
    barrier()  # the others have to look before rank 0 tidies up
    if rank() == 0:
        tidy(folder, resume=resume)


def _train(loop: Loop, checkpoint: Path | None) -> None:
    """Train to the end, or to a signal.

    Raises:
        Interrupted: after the checkpoint is saved.
        EnvironmentProblem: the device has no room for a step.
    """
    with as_it_trains(loop), StopSignals() as signals:
        loop.signals = signals
        try:
            loop.train(checkpoint)
        except torch.OutOfMemoryError as problem:
            raise EnvironmentProblem(
                f"the device has no room for step {loop.state.global_step + 1} ({str(problem).splitlines()[0]})",
                where="training",
                remedy="Set training.gradient_checkpointing or training.mini_batch_size, which change no loss, or "
                "lower training.batch_size or student.max_length.",
            ) from problem
    if loop.stopped or signals.number is not None:
        raise Interrupted(
            f"stopped by {signals.name or 'a signal to another process'} at step {loop.state.global_step} of "
            f"{loop.steps}; a checkpoint is saved",
            where=str(loop.folder),
            remedy=f"{GO_ON[0].upper()}{GO_ON[1:]}.",
            number=signals.number or signal.SIGINT,
        )


def _outcome(loop: Loop, free: list[np.ndarray]) -> Fitted:
    distiller, tokens = loop.distiller, loop.collator.tokens
    return Fitted(
        method=distiller.method,
        free_map=free,
        seconds=loop.seconds,
        peak_bytes=_peak_bytes(loop.device),
        steps=loop.state.global_step,
        log=loop.state.log_history,
        truncated=tokens.truncated,
        trained=sum(p.numel() for p in distiller.student.parameters() if p.requires_grad),
        heads=sum(p.numel() for p in distiller.method.parameters()),
        skipped=loop.sums.skipped,
        task=distiller.task,
        tokens=int(tokens.lengths[loop.collator.expand(loop.rows)].sum()),
    )


@torch.no_grad()
def held_out_terms(distiller: Distiller, collator: Collator, rows: np.ndarray, batch_size: int) -> dict[str, float]:
    """Means of the method's terms over rows that were not trained on, in eval mode.

    A term in which not every item counts is the mean over those that do, and left out where none does. Terms that
    couple the rows of a batch are those of full batches, and empty where there is none. Every rank computes all of
    them.
    """
    end = len(rows) // batch_size * batch_size if distiller.needs.coupled else len(rows)
    if end == 0:
        return {}
    was_training, device = distiller.training, next(distiller.parameters()).device
    distiller.eval()
    terms: dict[str, list[tuple[float, float]]] = {}
    for start in range(0, end, batch_size):
        part = rows[start : min(start + batch_size, end)]
        with apart():
            result = distiller(**on_device(collator(part.tolist()), device))
        for name, value in result["terms"].items():
            terms.setdefault(name, []).append((float(value), float(result["counts"].get(name, len(part)))))
    distiller.train(was_training)
    pooled = {name: np.array(pairs).T for name, pairs in terms.items()}
    return {name: float(values @ counts / counts.sum()) for name, (values, counts) in pooled.items() if counts.sum()}


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
