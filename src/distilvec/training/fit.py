"""Train one student with one method: heads from a sample, trainer, resume, and what it cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.errors import DataError, DistilvecError, Interrupted
from distilvec.methods.base import Method, Sample
from distilvec.modules.projection import ridge_map
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherInfo
from distilvec.training.arguments import training_arguments
from distilvec.training.callbacks import Progress, RunLog, StopPolitely, Ticker
from distilvec.training.checkpoints import load_strictly, newest_checkpoint, tidy
from distilvec.training.data import Collator, SignalSource
from distilvec.training.distiller import Distiller
from distilvec.training.distributed import barrier, first_rank_first, rank
from distilvec.training.sample import make_sample
from distilvec.training.tokens import TokenizedCorpus
from distilvec.training.trainer import DistillationTrainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.recipe import OptimizerSection, TrainingSection


@dataclass
class Fitted:
    """A finished training.

    Attributes:
        method: with its trained heads.
        free_map: per teacher the ridge map [d, D] of the untrained student (the free baseline).
        seconds: wall clock of the training itself; of this call only where it was resumed.
        peak_bytes: highest resident memory of the process (device memory on an accelerator).
        steps: optimiser steps.
        log: every logged entry.
        truncated: texts that the student reads only in part.
        trained, heads: parameters of the student and of the heads.
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

    Raises:
        DistilvecError: a method that cannot work with this student or these teachers, a refused training key, a
            loss that is not finite, an interruption (with how to go on).
    """
    from transformers import set_seed

    rows = np.asarray(corpus.train_rows)
    _check(rows, corpus, optimizer)
    # First, because it also joins the other processes of a distributed run.
    args = training_arguments(training, optimizer, folder / "checkpoints", len(rows))
    set_seed(training.seed)
    student.to(args.device)
    tap = StudentTap(student)
    needs = method.needs(tap.info, teachers)
    with first_rank_first():
        tokens = TokenizedCorpus.build(
            student, corpus.texts, len(corpus), (cache or folder) / "tokens", corpus.fingerprint
        )
    sample = make_sample(student, tokens, sources, rows, seed=training.seed, layers=needs.layers)
    set_seed(training.seed)
    method.build(tap.info, teachers, sample)
    method.lookup = lookup
    method.attach(student)
    distiller = Distiller(student, method, teachers).to(args.device)

    checkpoint = newest_checkpoint(folder / "checkpoints") if resume else None
    args.eval_on_start = args.eval_on_start and checkpoint is None
    barrier()  # the others have to look before rank 0 tidies up
    if rank() == 0:
        tidy(folder / "checkpoints", resume=resume)
    ending = StopPolitely()
    trainer = DistillationTrainer(
        distiller,
        args,
        rows=rows,
        collator=Collator(corpus, tokens, sources),
        heads_lr=optimizer.heads_lr,
        sharpness=optimizer.sharpness.model_dump() if optimizer.sharpness else None,
        evaluate=None if evaluate is None else (lambda: evaluate(student, method)),
        describe=lambda numbers: corpus.texts(np.asarray(numbers)),
        save_student=None if save_student is None else (lambda place: save_student(place, method)),
        callbacks=_callbacks(training, folder, checkpoint, ending),
    )
    start = time.perf_counter()
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        ending.release()
    if ending.stopped:
        raise Interrupted(
            f"stopped by {ending.stopped} at step {trainer.state.global_step} of {trainer.state.max_steps}; "
            "a checkpoint is saved",
            where=str(folder),
            remedy="Run the same command with --resume to go on.",
        )
    if args.push_to_hub:
        trainer.push_to_hub()
    student.eval()
    return Fitted(
        method=method,
        free_map=free_maps(sample),
        seconds=time.perf_counter() - start,
        peak_bytes=_peak_bytes(args.device),
        steps=trainer.state.global_step,
        log=list(trainer.state.log_history),
        truncated=tokens.truncated,
        trained=sum(p.numel() for p in student.parameters() if p.requires_grad),
        heads=sum(p.numel() for p in method.parameters()),
        skipped=trainer.sharp_step.skipped if trainer.sharp_step else 0,
        tokens=int(tokens.lengths[rows].sum()),
    )


def free_maps(sample: Sample) -> list[np.ndarray]:
    """Per teacher the ridge map [d, D] from the untrained student's vectors to the teacher's."""
    source = sample.student.embedding[0]
    return [
        ridge_map(source, signals.sentence, present=signals.present).T.contiguous().numpy()
        for signals in sample.teachers
        if signals.sentence is not None
    ]


def _check(rows: np.ndarray, corpus: Corpus, optimizer: OptimizerSection) -> None:
    """What would otherwise fail late, or not at all."""
    if not len(rows):
        raise DataError(
            "there is no text to train on", where="corpus", remedy="Look at what was rejected, and at corpus.holdout."
        )
    if optimizer.sharpness is not None and optimizer.sharpness.kind == "disam" and corpus.domains is None:
        raise DistilvecError(
            "disam compares domains, and the corpus names none",
            where="optimizer.sharpness.kind",
            remedy="Set corpus.domain.",
        )


def _callbacks(training: TrainingSection, folder: Path, checkpoint: Path | None, ending: StopPolitely) -> list[Any]:
    from transformers import EarlyStoppingCallback

    step = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else None
    folder.mkdir(parents=True, exist_ok=True)
    callbacks: list[Any] = [Progress(Ticker("training", "steps")), ending]
    if rank() == 0:
        callbacks.append(RunLog(folder / "run.jsonl", step))
    if training.patience:
        callbacks.append(EarlyStoppingCallback(training.patience))
    return callbacks


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["Fitted", "fit", "free_maps", "load_strictly", "newest_checkpoint"]
