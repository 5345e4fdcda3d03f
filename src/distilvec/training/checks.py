"""Checks before a training starts, and the mark that identifies its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.corpus import Corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.methods.base import Method, Needs
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.recipe.training_section import check_evaluations, check_together
from distilvec.training.distributed import check_precision, check_trackers, launched
from distilvec.training.optimizers import make_schedule

if TYPE_CHECKING:
    from distilvec.tasks.base import Task


def companions_of(needs: Needs, task: Task | None, corpus: Corpus) -> int | None:
    """Return how many texts of its pair or triplet an item brings: for the method, or a task that reads pairs apart.

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


def data_mark(corpus: Corpus, code: str | None = None) -> dict[str, Any]:
    """Return what tells one training of a recipe from another, for checkpoints.

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
    make_schedule(training, torch.optim.SGD([torch.zeros(1)], optimizer.lr or 1e-3), 1)  # some look at the rate
    if not len(rows):
        raise DataError(
            "there is no text to train on", where="corpus", remedy="Look at what was rejected, and at corpus.holdout."
        )
    _check_epoch(corpus.epoch_items(rows), len(rows), training)
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


def _check_epoch(read: int, items: int, training: TrainingSection) -> None:
    """Refuse an epoch without a batch, after which the next would begin for ever."""
    if not read:
        raise DistilvecError(
            f"with these weights an epoch reads none of {items} items",
            where="corpus.parts",
            remedy="Give larger weights.",
        )
    if training.dataloader_drop_last and read < training.batch:
        raise DistilvecError(
            f"{read} items are no whole batch of {training.batch_size}, and others are dropped",
            where="training.dataloader_drop_last",
            remedy="Leave it out, or lower training.batch_size.",
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


def check_checkpointing(training: TrainingSection, method: Method, needs: Needs) -> None:
    """Refuse gradient checkpointing for a method that reads attention maps."""
    if training.gradient_checkpointing and needs.student.attention:
        raise DistilvecError(
            f"{method.name} reads attention maps of the student's blocks, which are not computed again",
            where="training.gradient_checkpointing",
            remedy="Leave it out; a smaller batch_size with gradient_accumulation_steps saves memory here.",
        )
