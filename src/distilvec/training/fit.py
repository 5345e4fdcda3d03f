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

from distilvec.allocator import keep_freed_memory
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import GO_ON, DataError, DistilvecError, DivergedError, EnvironmentProblem, Interrupted
from distilvec.evenly import sampled_rows
from distilvec.interruption import StopSignals
from distilvec.methods.base import Method, Needs, Sample
from distilvec.modules.blocks import find_writer
from distilvec.recipe.recipe import given
from distilvec.students.tap import StudentTap
from distilvec.tasks.base import Task
from distilvec.teachers.signals import TeacherInfo
from distilvec.training.arguments import training_arguments
from distilvec.training.attention import attention, choose_attention
from distilvec.training.callbacks import Progress, RunLog, SaveByTime, StopPolitely, Ticker
from distilvec.training.checkpoint_folders import newest_checkpoint, refuse_other_data, tidy
from distilvec.training.compiling import compiled, take_compilation
from distilvec.training.data import Collator, SignalSource
from distilvec.training.distiller import Distiller, describe
from distilvec.training.distributed import barrier, first_rank_first, rank
from distilvec.training.held_out import held_out_terms
from distilvec.training.items import PreparedCorpus, student_items
from distilvec.training.sample import SAMPLE, TOKEN_SAMPLE, free_maps, make_sample, on_device
from distilvec.training.sources import LiveSource
from distilvec.training.tokens import TokenizedCorpus
from distilvec.training.trainer import DistillationTrainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.recipe.sections import OptimizerSection, TrainingSection


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
    save_student: Callable[[Path, Method], None] | None = None,
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
        save_student: writes the student as it ships (for `push_to_hub`).
        task: a supervised task beside the method; its head is trained in place.
        router_balance, remember: see `Distiller`.
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
    # First, because it also joins the other processes of a distributed run.
    args = training_arguments(training, optimizer, folder / "checkpoints", len(rows))
    if args.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(args.device)  # what teaching needed is not training's
    tokens = _tokens(student, needs, corpus, sources, seed=training.seed, device=args.device, cache=cache or folder)
    collator = Collator(corpus, tokens, sources, companions, scores)
    limit = SAMPLE if find_writer(student) is None else TOKEN_SAMPLE  # an answer's vector is nobody's embedding
    sample = make_sample(
        student, tokens, sources, corpus.train_rows, seed=training.seed, needs=needs, limit=limit, collator=collator
    )
    data = data_mark(corpus, code)
    checkpoint = _open_checkpoints(folder / "checkpoints", resume, data)
    compilation = take_compilation(args)
    args.eval_on_start = args.eval_on_start and checkpoint is None
    distiller = _build(
        student,
        method,
        needs,
        teachers,
        sample,
        training.seed,
        lookup,
        task=task,
        router_balance=router_balance,
        remember=remember,
        mini_batch_size=training.mini_batch_size,
        gather=training.gather,
    )
    free = free_maps(sample)
    del sample  # as large as many batches, and nobody looks at it again
    trainer = DistillationTrainer(
        distiller.to(args.device),
        args,
        rows=rows,
        collator=collator,
        heads_lr=optimizer.heads_lr,
        muon=optimizer.muon,
        sharpness=optimizer.sharpness.model_dump() if optimizer.sharpness else None,
        evaluate=None if evaluate is None else (lambda: evaluate(student, method)),
        describe=lambda numbers: corpus.texts(np.asarray(numbers)),
        save_student=None if save_student is None else (lambda place: save_student(place, method)),
        callbacks=_callbacks(training, folder, checkpoint),
    )
    trainer.data = data
    kernel = choose_attention(
        student, trainer.rehearse, folder / "checkpoints", steps=trainer.planned_steps, device=args.device
    )
    with attention(student, kernel), compiled(student, compilation):
        seconds = _train(trainer, checkpoint, folder)
    student.eval()
    _check_vectors(student, on_device(tokens.features(rows[:8]), args.device))
    fitted = _outcome(student, method, trainer, free, tokens, rows, seconds)
    if task is None:
        held = sampled_rows(rows_with_companions(corpus, corpus.holdout_rows, needs.companions)[0], HELD_OUT)
        fitted.held_out = held_out_terms(trainer.distiller, trainer.collator, held, trainer.args.train_batch_size)
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
    from transformers import set_seed

    set_seed(seed)
    student.to(device)
    if device.type == "cpu":
        keep_freed_memory()
    with first_rank_first():
        tokens = student_items(student, corpus, cache / "tokens")
        for number, source in enumerate(sources):
            source.prepare(needs.of(number), tokens)
    return tokens


def _build(
    student: SentenceTransformer,
    method: Method,
    needs: Needs,
    teachers: Sequence[TeacherInfo],
    sample: Sample,
    seed: int,
    lookup: Callable[[int, torch.Tensor], torch.Tensor] | None,
    **beside: Any,
) -> Distiller:
    """The method with its heads, which start from the sample, around the student."""
    from transformers import set_seed

    set_seed(seed)
    former = copy.deepcopy(student).eval().requires_grad_(False) if beside["remember"] else None
    method.build(describe(StudentTap(student).info, beside["task"]), teachers, sample)
    method.lookup = lookup
    method.attach(student)
    return Distiller(student, method, needs, former=former, **beside)


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


def _train(trainer: DistillationTrainer, checkpoint: Path | None, folder: Path) -> float:
    """Train to the end, or to a signal; returns the seconds it took, interruptions apart.

    Raises:
        Interrupted: after the checkpoint is saved.
        EnvironmentProblem: the device has no room for a step.
    """
    trainer.start_clock()
    with StopSignals() as signals:
        polite = StopPolitely(signals)
        trainer.add_callback(polite)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except torch.OutOfMemoryError as problem:
            raise EnvironmentProblem(
                f"the device has no room for step {trainer.state.global_step + 1} ({str(problem).splitlines()[0]})",
                where="training",
                remedy="Set training.mini_batch_size, which changes no loss, or lower training.batch_size or "
                "student.max_length.",
            ) from problem
    if polite.stopped or signals.number is not None:
        raise Interrupted(
            f"stopped by {signals.name or 'a signal to another process'} at step {trainer.state.global_step} of "
            f"{trainer.state.max_steps}; a checkpoint is saved",
            where=str(folder),
            remedy=f"{GO_ON[0].upper()}{GO_ON[1:]}.",
            number=signals.number or signal.SIGINT,
        )
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    return trainer.seconds


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
    if not len(rows):
        raise DataError(
            "there is no text to train on", where="corpus", remedy="Look at what was rejected, and at corpus.holdout."
        )
    if training.arguments.get("dataloader_drop_last") and len(rows) < given(training.batch_size, "training.batch_size"):
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
    if training.arguments.get("dataloader_num_workers") and live:
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


def _callbacks(training: TrainingSection, folder: Path, checkpoint: Path | None) -> list[Any]:
    from transformers import EarlyStoppingCallback

    step = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else None
    folder.mkdir(parents=True, exist_ok=True)
    callbacks: list[Any] = [Progress(Ticker("training", "steps"))]
    if rank() == 0:
        callbacks.append(RunLog(folder / "run.jsonl", step))
    if training.save_every is None and training.best is None:  # an epoch can be days
        callbacks.append(SaveByTime())
    if training.patience:
        callbacks.append(EarlyStoppingCallback(training.patience))
    return callbacks


def _outcome(
    student: SentenceTransformer,
    method: Method,
    trainer: DistillationTrainer,
    free: list[np.ndarray],
    tokens: TokenizedCorpus | PreparedCorpus,
    rows: np.ndarray,
    seconds: float,
) -> Fitted:
    return Fitted(
        method=method,
        free_map=free,
        seconds=seconds,
        peak_bytes=_peak_bytes(trainer.args.device),
        steps=trainer.state.global_step,
        log=list(trainer.state.log_history),
        truncated=tokens.truncated,
        trained=sum(p.numel() for p in student.parameters() if p.requires_grad),
        heads=sum(p.numel() for p in method.parameters()),
        skipped=trainer.sharp_step.skipped if trainer.sharp_step else 0,
        task=trainer.distiller.task,
        tokens=int(tokens.lengths[trainer.collator.expand(rows)].sum()),
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
