"""A small world of models that write: tiny causal models, prompts with answers, and the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests import tiny_models
from tests.english import sentences

from distilvec.corpus import Corpus, read_corpus
from distilvec.flow.teach import teacher_info
from distilvec.kinds.base import find_kind
from distilvec.methods.base import Method, Needs
from distilvec.methods.table import build_method
from distilvec.modules.writing import open_writer
from distilvec.store import SignalStore, fill
from distilvec.tasks.generation import Generation
from distilvec.teachers import Teacher, load_teacher
from distilvec.training import LiveSource, StoreSource
from distilvec.training.data import Collator
from distilvec.training.sample import make_sample
from distilvec.training.step import Distiller

#: Options that the tiny models of two layers need, and a head that is not wide.
OPTIONS: dict[str, dict[str, Any]] = {"distillmoe": {"layers": 2, "width": 16}}


def items(count: int = 40) -> list[dict[str, str]]:
    """Prompts with answers of one to ten words."""
    found = []
    for number, text in enumerate(dict.fromkeys(sentences(4 * count))):
        words = text.split()
        if len(words) >= 6:
            found.append({"prompt": " ".join(words[:5]), "answer": " ".join(words[5 : 6 + number % 10])})
    return found[:count]


class WritingWorld:
    """A student, a teacher and a corpus.

    Args:
        folder: where all of it comes to lie.
        student, teacher: kinds of `tiny_models.WRITERS`, or folders.
        max_length: of the student.
    """

    def __init__(
        self,
        folder: Path,
        student: str | Path = "gpt2",
        teacher: str | Path = "qwen3",
        *,
        max_length: int | None = None,
        rows: Sequence[dict[str, str]] | None = None,
    ) -> None:
        self.folder = folder
        folders = [each if isinstance(each, Path) else built(each, folder) for each in (student, teacher)]
        self.student = open_writer(folders[0], device="cpu", max_length=max_length)
        self.teacher: Teacher = load_teacher(model=folders[1], name="big", separator="\n", device="cpu")
        self.corpus: Corpus = read_corpus(
            list(rows or items()), folder / "corpus", text=["prompt", "answer"], joint=True, holdout=0.0
        )
        self.tokens = find_kind("writing").student_items(self.student, self.corpus, folder / "tokens")

    def source(self, needs: Needs, kind: str = "live", dtype: str = "float32") -> LiveSource | StoreSource:
        """The teacher's signals, live or from a store that is filled for it."""
        source: LiveSource | StoreSource
        if kind == "live":
            source = LiveSource(self.teacher, self.corpus, self.folder / "alignments")
        else:
            card = self.teacher.card
            store = SignalStore.create(self.folder / f"store-{dtype}", card, card.width, dtype)
            texts = self.corpus.teacher_texts(np.arange(len(self.corpus)))
            fill(store, self.teacher, texts, self.corpus.teacher_keys, needs.of(0))
            source = StoreSource(store, self.corpus)
        source.prepare(needs.of(0), self.tokens)
        return source

    def method(self, name: str, kind: str = "live", **options: Any) -> tuple[Method, Collator, Distiller]:
        """A built method, what makes batches for it, and the distiller with a task of weight 1/2."""
        from distilvec.students.tap import StudentTap

        method = build_method(name, {**OPTIONS.get(name, {}), **options})
        info, teachers = StudentTap(self.student).info, [teacher_info(self.teacher)]
        needs = method.needs(info, teachers)
        sources = [self.source(needs, kind)]
        rows = np.arange(len(self.corpus))
        sample = make_sample(self.student, self.tokens, sources, rows, seed=0, needs=needs)
        torch.manual_seed(0)
        method.build(info, teachers, sample)
        method.attach(self.student)
        distiller = Distiller(self.student, method, needs, Generation())
        return method, Collator(self.corpus, self.tokens, sources), distiller

    def terms(self, name: str, rows: Sequence[int], kind: str = "live", **options: Any) -> dict[str, torch.Tensor]:
        """Means of the terms of one batch, in eval mode."""
        _, collator, distiller = self.method(name, kind, **options)
        distiller.eval()
        result = distiller(**collator(list(rows)))
        return {"loss": result["loss"], **result["terms"]}


def built(kind: str, folder: Path) -> Path:
    """The folder of a tiny causal model."""
    place = folder / "models" / kind
    return place if place.is_dir() else tiny_models.build_writer(kind, place)
