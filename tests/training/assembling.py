"""A distiller and a loop in this process, on the tests' corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.training import jobs

from distilvec.corpus import Corpus
from distilvec.methods.base import Needs, WantedOfStudent
from distilvec.methods.table import build_method
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.students.tap import StudentTap
from distilvec.training import (
    BucketedBatches,
    Collator,
    Distiller,
    Fitted,
    Material,
    TokenizedCorpus,
    TrainingSettings,
    fit,
)
from distilvec.training.distributed import join
from distilvec.training.loop import Loop
from distilvec.training.sample import make_sample


@dataclass
class Assembled:
    distiller: Distiller
    collator: Collator
    corpus: Corpus
    rows: np.ndarray

    def batches(self, size: int, epochs: int = 1, seed: int = 0) -> Iterator[dict[str, Any]]:
        """The batches that the loop will see, in its order."""
        sampler = BucketedBatches(self.collator.tokens.lengths[self.rows], size, seed=seed)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for positions in sampler:
                yield self.collator(self.rows[positions].tolist())

    def loop(self, out: Path, training: dict[str, Any], optimizer: dict[str, Any] | None = None, **more: Any) -> Loop:
        section = OptimizerSection(**{"lr": 1e-2, "heads_lr": None, "weight_decay": 0.0, **(optimizer or {})})
        given = {"epochs": 1, "batch_size": 8, "lr_scheduler_type": "constant", "optim": "adamw_torch", "use_cpu": True}
        asked = TrainingSection(**given | training)
        torch.manual_seed(asked.seed)
        return Loop(
            self.distiller,
            asked,
            section,
            out,
            self.rows,
            self.collator,
            join(asked, out),
            describe=lambda rows: self.corpus.texts(np.asarray(rows)),
            **more,
        )

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.distiller.state_dict().items()}


def assemble(home: Path, method: str, student: str = "student", rows: int = 40, **options: Any) -> Assembled:
    given = jobs.parts(home, student)
    corpus, infos = given["corpus"], given["teachers"]
    tokens = TokenizedCorpus.build(
        given["student"], corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint
    )
    torch.manual_seed(0)
    made = build_method(method, options)
    tap = StudentTap(given["student"])
    needs = made.needs(tap.info, infos)
    train = np.asarray(corpus.train_rows)[:rows]
    sample = make_sample(
        given["student"],
        tokens,
        given["sources"],
        train,
        seed=0,
        needs=Needs(WantedOfStudent(layers=needs.student.layers)),
    )
    torch.manual_seed(0)
    made.build(tap.info, infos, sample)
    made.attach(given["student"])
    return Assembled(
        Distiller(given["student"], made, needs), Collator(corpus, tokens, given["sources"]), corpus, train
    )


def run(
    home: Path, out: Path, method: str = "cosine", resume: bool = False, **given: Any
) -> tuple[dict[str, Any], Fitted]:
    parts = jobs.parts(home)
    parts["corpus"].train_rows = parts["corpus"].train_rows[: given.pop("rows", 40)]
    torch.manual_seed(0)
    optimizer = OptimizerSection(**given.pop("optimizer", {"lr": 1e-2}))
    built = build_method(method, given.pop("options", {}))
    learnt = Material(parts["corpus"], parts["teachers"], parts["sources"], evaluate=given.pop("evaluate", None))
    training = TrainingSection(**{"epochs": 1, "batch_size": 8, "use_cpu": True, **given})
    fitted = fit(parts["student"], built, learnt, TrainingSettings(training, optimizer, out, cache=home), resume=resume)
    return parts, fitted


def weights(parts: dict[str, Any], fitted: Fitted) -> dict[str, torch.Tensor]:
    return {f"s.{k}": v for k, v in parts["student"].state_dict().items()} | dict(fitted.method.state_dict())
