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

from distilvec.errors import DistilvecError
from distilvec.methods.base import Method, Sample
from distilvec.modules.projection import ridge_map
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherInfo
from distilvec.training.arguments import training_arguments
from distilvec.training.callbacks import Progress, RunLog, StopPolitely, Ticker
from distilvec.training.data import Collator, SignalSource, TokenizedCorpus
from distilvec.training.distiller import Distiller
from distilvec.training.sample import make_sample
from distilvec.training.trainer import DistillationTrainer, load_strictly, steps_per_epoch

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

    set_seed(training.seed)
    device = _device(training)
    student.to(device)
    tap = StudentTap(student)
    needs = method.needs(tap.info, teachers)
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), (cache or folder) / "tokens")
    rows = np.asarray(corpus.train_rows)
    sample = make_sample(student, tokens, sources, rows, seed=training.seed, layers=needs.layers)
    set_seed(training.seed)
    method.build(tap.info, teachers, sample)
    method.lookup = lookup
    method.attach(student)
    distiller = Distiller(student, method, teachers).to(device)

    steps = steps_per_epoch(len(rows), training.batch_size, training.arguments.get("gradient_accumulation_steps", 1))
    args = training_arguments(training, optimizer, folder / "checkpoints", steps)
    checkpoint = newest_checkpoint(folder / "checkpoints") if resume else None
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
        raise DistilvecError(
            f"stopped by {ending.stopped} at step {trainer.state.global_step} of {trainer.state.max_steps}; "
            "a checkpoint is saved",
            where=str(folder),
            remedy="Run the same command with --resume to go on.",
        )
    student.eval()
    return Fitted(
        method=method,
        free_map=free_maps(sample),
        seconds=time.perf_counter() - start,
        peak_bytes=_peak_bytes(device),
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


def newest_checkpoint(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step, or None. Half-written ones have another name."""
    found = [
        (int(place.name.removeprefix("checkpoint-")), place)
        for place in folder.glob("checkpoint-*")
        if place.name.removeprefix("checkpoint-").isdigit() and (place / "trainer_state.json").exists()
    ]
    return max(found)[1] if found else None


def _callbacks(training: TrainingSection, folder: Path, checkpoint: Path | None, ending: StopPolitely) -> list[Any]:
    from transformers import EarlyStoppingCallback

    step = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else None
    folder.mkdir(parents=True, exist_ok=True)
    callbacks: list[Any] = [RunLog(folder / "run.jsonl", step), Progress(Ticker("training", "steps")), ending]
    if training.patience:
        callbacks.append(EarlyStoppingCallback(training.patience))
    return callbacks


def _device(training: TrainingSection) -> torch.device:
    """The device that transformers' Trainer will pick."""
    if training.arguments.get("use_cpu"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        import os

        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["Fitted", "fit", "free_maps", "load_strictly", "newest_checkpoint"]
