"""What the step benchmarks work on: real texts, a student, random teacher vectors, and the step of each method.

Teacher vectors are random unit vectors in a store: the cost of a step does not depend on what they say.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from distilvec.corpus import Corpus, docstring_pairs, read_corpus
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.recipe import OptimizerSection, SharpnessSection, TrainingSection
from distilvec.store import SignalStore
from distilvec.students import StudentTap, fresh, load_student
from distilvec.teachers.signals import TeacherInfo
from distilvec.training import BucketedBatches, Collator, Distiller, StoreSource, TokenizedCorpus
from distilvec.training.distributed import join
from distilvec.training.loop import Loop
from distilvec.training.sample import make_sample

TEACHER_WIDTH = 384
#: name -> method, its options, sharpness-aware steps.
METHODS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "simcse": ("simcse", {}, None),
    "talas": ("talas", {}, None),
    "talas without simcse": ("talas", {"simcse_weight": 0}, None),
    "talas+asam": ("talas", {}, {"kind": "asam"}),
    "talas+sam": ("talas", {}, {"kind": "sam"}),
    "talas+disam": ("talas", {}, {"kind": "disam", "rho": 0.01}),
    "cosine": ("cosine", {}, None),
    "mse": ("mse", {}, None),
    "leaf": ("leaf", {}, None),
    "relational": ("relational", {}, None),
    # Stage 2, in which the student is trained.
    "jasper_stella": ("jasper_stella", {"heads_share": 0.0}, None),
    "distilcse": ("distilcse", {}, None),
    "distillcse": ("distillcse", {}, None),
}
BARE = "bare student"
CLIPPED = "bare student, gradients clipped"


def shared() -> Path | None:
    """The folder with the shared data, where there is one."""
    folder = Path(os.environ.get("DISTILVEC_DATA", Path(__file__).parent.parent.parent / "shared"))
    return folder if (folder / "data").is_dir() else None


def real_texts(count: int) -> list[dict[str, str]]:
    """Texts of varying length with a domain: TALAS's corpus from the shared data, else docstrings."""
    folder = shared()
    if folder is None:
        pairs = docstring_pairs(count)
        rows = [{"text": p["summary"], "domain": "summary"} for p in pairs]
        return (rows + [{"text": p["description"], "domain": "description"} for p in pairs])[:count]
    with gzip.open(folder / "data" / "talas_corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(count), lines, strict=False)]


def make_student(kind: str, texts: Sequence[str]) -> Any:
    """bpe: `student-bpe` of the shared data, or one of its size; base: a fresh one of BERT-base's size."""
    folder = shared()
    if kind == "bpe" and folder is not None and (folder / "models" / "student-bpe").is_dir():
        student = load_student(folder / "models" / "student-bpe")
    else:
        torch.manual_seed(0)
        shape = {"bpe": (4, 256, 8192), "base": (12, 768, 30_000), "tiny": (2, 64, 1000)}[kind]
        layers, width, vocabulary = shape
        student = fresh(layers=layers, width=width, vocabulary=vocabulary, texts=texts)
    student.max_seq_length = min(128, student.max_seq_length or 128)
    return student


@dataclass
class Workload:
    """One corpus, one untrained student, one teacher, and where things lie."""

    corpus: Corpus
    store: SignalStore
    student: Any
    tokens: TokenizedCorpus
    folder: Path
    batch_size: int
    device: torch.device

    @classmethod
    def make(cls, kind: str, folder: Path, *, texts: int, batch_size: int, device: str) -> Workload:
        corpus = read_corpus(real_texts(texts), folder / "corpus", domain="domain", holdout=0.0)
        student = make_student(kind, corpus.texts()).to(device)
        card = {"name": "random", "kind": "vectors", "fingerprint": "random-normal"}
        store = SignalStore.create(folder / "store", card, TEACHER_WIDTH)
        if not len(store):
            vectors = np.random.default_rng(0).standard_normal((len(corpus), TEACHER_WIDTH), dtype=np.float32)
            with store.writer("benchmark") as writer:
                writer.add(corpus.keys, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
            store = SignalStore.open(folder / "store")
        tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), folder / "tokens")
        return cls(corpus, store, student, tokens, folder, batch_size, torch.device(device))

    @property
    def rows(self) -> np.ndarray:
        return np.asarray(self.corpus.train_rows)

    def collator(self) -> Collator:
        return Collator(self.corpus, self.tokens, [StoreSource(self.store, self.corpus)])

    def batch_rows(self) -> list[list[int]]:
        """The batches of the first epoch, in the order of training, without a short last one."""
        batches = BucketedBatches(self.tokens.lengths[self.rows], self.batch_size, seed=0)
        return [[int(row) for row in self.rows[batch]] for batch in batches if len(batch) == self.batch_size]

    def batches(self, count: int) -> list[dict[str, Any]]:
        """The first batches, as the loop's data loader gives them."""
        collate = self.collator()
        return [collate(rows) for rows in self.batch_rows()[:count]]

    def loop(self, name: str, steps: int = 1000) -> Loop:
        """A loop as `distilvec.training.fit` makes it, for a copy of the student."""
        method_name, options, _ = METHODS[name]
        student, method = copy.deepcopy(self.student), build_method(method_name, options)
        teachers = [TeacherInfo("random", TEACHER_WIDTH)]
        tap = StudentTap(student)
        needs = method.needs(tap.info, teachers)
        sample = make_sample(student, self.tokens, self.collator().sources, self.rows, seed=0, needs=needs, limit=512)
        del tap
        method.build(StudentTap(student).info, teachers, sample)
        fill_queues(method)
        return self.around(Distiller(student, method, needs), name, self.collator(), steps)

    def around(self, distiller: Distiller, name: str, collator: Collator, steps: int) -> Loop:
        """The loop that trains a distiller, with the sharpness-aware steps of a row."""
        place = {"use_cpu": True, "bf16": False} if self.device.type == "cpu" else {"bf16": True}
        training = TrainingSection(
            batch_size=self.batch_size, save_every=10**6, max_steps=steps, logging_steps=50, **place
        )
        sharpness = METHODS[name][2] if name in METHODS else None
        section = OptimizerSection(lr=1e-4, sharpness=None if sharpness is None else SharpnessSection(**sharpness))
        folder = self.folder / "runs" / name
        return Loop(distiller, training, section, folder, self.rows, collator, join(training, folder))

    def method_step(self, name: str) -> Callable[[dict[str, Any]], None]:
        """One optimiser step of a method: what the loop does between two batches."""
        loop = self.loop(name)
        loop.state.global_step = 500

        def step(batch: dict[str, Any]) -> None:
            loop.step([batch])
            loop.model.zero_grad()

        return step

    def bare_step(self, *, clipped: bool) -> Callable[[dict[str, Any]], None]:
        """Forward, backward of a sum, and the same optimiser, of the student alone: no loss, no teacher."""
        student = copy.deepcopy(self.student).train()
        parameters = list(student.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

        def step(batch: dict[str, Any]) -> None:
            features = {key: value.to(self.device) for key, value in batch["features"].items()}
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                embedding = student(features)["sentence_embedding"]
            embedding.sum().backward()
            if clipped:
                nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def step(self, name: str) -> Callable[[dict[str, Any]], None]:
        if name in (BARE, CLIPPED):
            return self.bare_step(clipped=name == CLIPPED)
        return self.method_step(name)


def fill_queues(method: Method) -> None:
    """Fill DistilCSE's queue: a step is as dear as it stays, not as it begins."""
    generator = torch.Generator().manual_seed(0)
    for queue in getattr(method, "queues", []):
        size = len(queue.keys)
        queue.keys.copy_(torch.randint(0, 256, queue.keys.shape, generator=generator, dtype=torch.uint8))
        queue.vectors.copy_(nn.functional.normalize(torch.randn(queue.vectors.shape, generator=generator)))
        queue.position.copy_(torch.tensor([0, size]))
