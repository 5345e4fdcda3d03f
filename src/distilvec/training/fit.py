"""Train one student with one method: heads from a sample, trainer, resume, and what it cost."""

from __future__ import annotations

import contextlib
import copy
import functools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import set_seed

from distilvec.allocator import keep_freed_memory
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import GO_ON, DataError, DistilvecError, DivergedError, EnvironmentProblem, Interrupted
from distilvec.evenly import sampled_rows
from distilvec.interruption import StopSignals
from distilvec.methods.base import Method, Needs
from distilvec.modules.blocks import find_transformer
from distilvec.recipe.training_section import check_evaluations, check_together
from distilvec.students.tap import StudentTap
from distilvec.tasks.base import Task
from distilvec.teachers.signals import TeacherInfo
from distilvec.training.attention import attention, choose_attention, rehearse
from distilvec.training.checkpoint import newest_checkpoint, refuse_other_data, tidy
from distilvec.training.compiling import compilation, compiled
from distilvec.training.data import Collator, SignalSource
from distilvec.training.distributed import (
    barrier,
    check_precision,
    check_trackers,
    first_rank_first,
    join,
    launched,
    rank,
)
from distilvec.training.held_out import held_out_terms
from distilvec.training.items import PreparedCorpus
from distilvec.training.loop import Loop
from distilvec.training.optimizers import make_schedule
from distilvec.training.sample import SAMPLE, free_maps, make_sample, on_device
from distilvec.training.sources import LiveSource
from distilvec.training.step import Distiller, Extras, describe
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.recipe import OptimizerSection, TrainingSection


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


def fit(
    student: SentenceTransformer,
    method: Method,
    teachers: Sequence[TeacherInfo],
    corpus: Corpus,
    sources: Sequence[SignalSource],
    *,
    training: TrainingSection,
    optimizer: OptimizerSection,
    folder: Path,
    resume: bool = False,
    cache: Path | None = None,
    evaluate: Callable[[SentenceTransformer, Method], dict[str, float]] | None = None,
    lookup: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
    task: Task | None = None,
    router_balance: float = 0.0,
    remember: float = 0.0,
    needs: Needs | None = None,
    scores: np.ndarray | None = None,
    code: str | None = None,
) -> Fitted:
    """Train `student` in place.

    Args:
        student: becomes the trained student.
        method: not built yet.
        teachers, sources: one entry per teacher, in the same order.
        corpus: its train rows are trained on.
        training, optimizer: the recipe's sections.
        folder: gets `checkpoints/` and `run.jsonl`.
        resume: go on from the newest whole checkpoint, if there is one.
        cache: where token ids are kept; default `folder`.
        evaluate: held-out metrics, called every `training.evaluate_every` steps.
        lookup: see `Method.lookup`.
        task: a supervised task beside the method; its head is trained in place.
        router_balance, remember: see `Extras`.
        needs: what the method wants, where it has been asked already.
        scores: float32 [rows of the corpus], see `Collator`.
        code: of a method that is not ours; a checkpoint of another is not gone on from.

    Raises:
        DistilvecError: a method that cannot work with this student or these teachers, a refused training key, a
            loss that is not finite, an interruption (with how to go on).
    """
    if needs is None:
        needs = method.needs(describe(StudentTap(student).info, task), teachers)
    rows, companions = rows_with_companions(corpus, corpus.train_rows, companions_of(needs, task, corpus))
    blind = training.evaluate_every is not None and evaluate is None
    live = any(isinstance(each, LiveSource) for each in sources)
    check_training(rows, corpus, training, optimizer, blind=blind, live=live)
    if training.gradient_checkpointing and needs.student.attention:
        raise DistilvecError(
            f"{method.name} reads attention maps of the student's blocks, which are not computed again",
            where="training.gradient_checkpointing",
            remedy="Leave it out; a smaller batch_size with gradient_accumulation_steps saves memory here.",
        )
    # First, because it also joins the other processes of a distributed run.
    accelerator = join(training, folder / "checkpoints")
    device = accelerator.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # what teaching needed is not training's
    tokens = _tokens(student, needs, corpus, sources, seed=training.seed, device=device, cache=cache or folder)
    collator = Collator(corpus, tokens, sources, companions, scores)
    limit = corpus.kind.sample or SAMPLE
    sample = make_sample(
        student, tokens, sources, corpus.train_rows, seed=training.seed, needs=needs, limit=limit, collator=collator
    )
    data = data_mark(corpus, code)
    checkpoint = _open_checkpoints(folder / "checkpoints", resume, data)
    set_seed(training.seed)
    former = copy.deepcopy(student).eval().requires_grad_(False) if remember else None
    method.build(describe(StudentTap(student).info, task), teachers, sample)
    method.lookup = lookup
    method.attach(student)
    extras = Extras(router_balance, training.mini_batch_size, former, remember, training.gather)
    distiller = Distiller(student, method, needs, task, extras)
    free = free_maps(sample)
    del sample  # as large as many batches, and nobody looks at it again
    set_seed(training.seed)
    loop = Loop(
        distiller,
        training,
        optimizer,
        folder,
        rows,
        collator,
        accelerator,
        evaluate=None if evaluate is None else (lambda: evaluate(student, method)),
        describe=lambda numbers: corpus.texts(np.asarray(numbers)),
        data=data,
    )
    _train(loop, checkpoint)
    student.eval()
    _check_vectors(student, on_device(tokens.features(rows[:8]), device))
    fitted = _outcome(loop, free)
    if task is None:
        held = sampled_rows(rows_with_companions(corpus, corpus.holdout_rows, needs.companions)[0], HELD_OUT)
        fitted.held_out = held_out_terms(distiller, collator, held, training.batch)
    return fitted


@torch.no_grad()
def _check_vectors(student: SentenceTransformer, features: dict[str, Any]) -> None:
    """See that the trained student says something: finite weights may be too large for what is made of them.

    Raises:
        DataError: its vectors are not finite.
    """
    if not torch.isfinite(student(features)["sentence_embedding"]).all():
        raise DivergedError(
            "the trained student's vectors are not finite",
            where="student",
            remedy="Lower optimizer.lr and optimizer.heads_lr. Earlier checkpoints are kept.",
        )


def companions_of(needs: Needs, task: Task | None, corpus: Corpus) -> int | None:
    """How many texts of its pair or triplet an item brings: what the method wants, or a task that reads pairs apart.

    Raises:
        DistilvecError: the method trains on pairs, and the corpus has none.
    """
    if needs.companions == 0:
        return 1 if task is not None and task.encoding == "separate" else 0
    if corpus.groups is None:
        raise DistilvecError(
            "this method trains on pairs or triplets, and the corpus has single texts",
            where="corpus.text",
            remedy="Name the columns of anchor and positive (and negatives): text: [anchor, positive].",
        )
    return needs.companions


def _tokens(
    student: SentenceTransformer,
    needs: Needs,
    corpus: Corpus,
    sources: Sequence[SignalSource],
    *,
    seed: int,
    device: torch.device,
    cache: Path,
) -> TokenizedCorpus | PreparedCorpus:
    """Token ids of the corpus; the sources hear what is wanted of them."""
    set_seed(seed)
    student.to(device)
    if device.type == "cpu":
        keep_freed_memory()
    with first_rank_first():
        tokens: TokenizedCorpus | PreparedCorpus = corpus.kind.student_items(student, corpus, cache / "tokens")
        for number, source in enumerate(sources):
            source.prepare(needs.of(number), tokens)
    return tokens


def data_mark(corpus: Corpus, code: str | None = None) -> dict[str, Any]:
    """What tells one training of a recipe from another, for checkpoints.

    Args:
        corpus: "content" is equal for the same items in any order.
        code: of a method that is not ours, see `code_of`.
    """
    words = np.ascontiguousarray(corpus.keys).view("<u8")
    return {
        "fingerprint": corpus.fingerprint,
        "items": len(corpus.keys),
        "train": len(corpus.train_rows),
        "held_out": len(corpus.holdout_rows),
        "content": f"{int(words.sum(dtype=np.uint64)):x}",
        **({} if code is None else {"method": code}),
    }


def _open_checkpoints(folder: Path, resume: bool, data: dict[str, Any]) -> Path | None:
    """The checkpoint to go on from, once the folder is cleared of what is of no use."""
    newest = newest_checkpoint(folder) if resume else None
    if newest is not None:
        refuse_other_data(newest, data)
    barrier()  # the others have to look before rank 0 tidies up
    if rank() == 0:
        tidy(folder, resume=resume)
    return newest


def _train(loop: Loop, checkpoint: Path | None) -> None:
    """Train to the end, or to a signal.

    Raises:
        Interrupted: after the checkpoint is saved.
        EnvironmentProblem: the device has no room for a step.
    """
    student, step = loop.trained.student, functools.partial(rehearse, loop)
    kernel = choose_attention(student, step, loop.home, steps=loop.steps, device=loop.device)
    checkpointing = gradient_checkpointing(student, on=loop.training.gradient_checkpointing)
    compiling = compiled(student, compilation(loop.training))
    with attention(student, kernel), checkpointing, compiling, StopSignals() as signals:
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


@contextlib.contextmanager
def gradient_checkpointing(student: SentenceTransformer, *, on: bool) -> Iterator[None]:
    """While the block runs, what the student's blocks compute is computed again in the backward pass.

    Raises:
        DistilvecError: the student has no blocks that can do so.
    """
    if not on:
        yield
        return
    model: Any = getattr(find_transformer(student), "model", None)
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise DistilvecError(
            "this student has no blocks that could be computed again in the backward pass",
            where="training.gradient_checkpointing",
            remedy="Leave it out; training.mini_batch_size or a smaller batch_size saves memory here.",
        )
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # its name before
    getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    try:
        yield
    finally:
        getattr(model, f"{kind}_checkpointing_disable")()


def check_training(
    rows: np.ndarray,
    corpus: Corpus,
    training: TrainingSection,
    optimizer: OptimizerSection,
    *,
    blind: bool,
    live: bool,
) -> None:
    """Refuse what would fail late, or do nothing at all.

    Args:
        rows: of the corpus, to be trained on.
        blind: there are to be evaluations, and there is nothing to evaluate on.
        live: a teacher is to read every batch.

    Raises:
        DistilvecError: naming the key.
        DataError: there is nothing to train on.
    """
    check_together(training, optimizer)
    check_evaluations(training)
    check_precision(training)
    check_trackers(training)
    _check_processes(training)
    make_schedule(training, torch.optim.SGD([torch.zeros(1)]), 1)
    if not len(rows):
        raise DataError(
            "there is no text to train on", where="corpus", remedy="Look at what was rejected, and at corpus.holdout."
        )
    if training.dataloader_drop_last and len(rows) < training.batch:
        raise DistilvecError(
            f"{len(rows)} items are no whole batch of {training.batch_size}, and others are dropped",
            where="training.dataloader_drop_last",
            remedy="Leave it out, or lower training.batch_size.",
        )
    if blind:
        raise DistilvecError(
            f"there is nothing to evaluate on: of {len(corpus.holdout_rows)} held-out texts fewer than 20 have a "
            "vector of the first teacher",
            where="training.evaluate_every",
            remedy="Raise corpus.holdout, give vectors of its texts too, or leave evaluate_every out.",
        )
    if training.dataloader_num_workers and live:
        raise DistilvecError(
            "batches are read by a live teacher, and each worker that prepares them would hold a copy of it",
            where="training.dataloader_num_workers",
            remedy="Leave it out, or leave the teacher's `live` out: its store needs no copies.",
        )
    if optimizer.sharpness is not None and optimizer.sharpness.kind == "disam" and corpus.domains is None:
        raise DistilvecError(
            "disam compares domains, and the corpus names none",
            where="optimizer.sharpness.kind",
            remedy="Set corpus.domain.",
        )


def _check_processes(training: TrainingSection) -> None:
    """Refuse a batch that the processes cannot share."""
    world = launched()[1]
    if world > 1 and training.batch % world:
        raise DistilvecError(
            f"a batch of {training.batch_size} cannot be shared evenly by {world} processes",
            where="training.batch_size",
            remedy=f"Use a multiple of {world}.",
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


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
