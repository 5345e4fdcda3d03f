"""Teacher, cut and shipped student of `sparse`, and how sparse vectors are searched and compared."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.texts import shared_rows
from sentence_transformers import SentenceTransformer, SparseEncoder

from distilvec import shrink
from distilvec.judging.tasks import top_rows
from distilvec.modules.blocks import parameters

#: The student: blocks and word pieces kept. Tokens read by all models.
LAYERS, PIECES, LENGTH = 1, 10_000, 256
#: Texts that are trained on, that choose settings, and that report likeness; no text is in two of them.
PARTS = {"train": 6_000, "choice": 500, "report": 500}
#: No sparse vector here is longer; see `Searched`.
BOUND = 100.0


@functools.cache
def texts() -> dict[str, list[str]]:
    """Shared sentences and news, three to one, in parts."""
    found: dict[str, list[str]] = {name: [] for name in PARTS}
    for number, (source, share) in enumerate({"sentences": 0.75, "ag_news.train": 0.25}.items()):
        rows = list(dict.fromkeys(row["text"] for row in shared_rows(source)))
        drawn = iter(np.random.default_rng(number).permutation(len(rows)))
        for name, size in PARTS.items():
            found[name] += [rows[next(drawn)] for _ in range(round(share * size))]
    return found


@functools.cache
def teacher(folder: str) -> SentenceTransformer:
    """The SparseEncoder's modules as a model with one vector for a text, whose numbers are mostly zero."""
    opened = SparseEncoder(folder, device="cpu")
    opened.max_seq_length = LENGTH
    return SentenceTransformer(modules=list(opened.children()), device="cpu")


@functools.cache
def cut(folder: str) -> tuple[SentenceTransformer, np.ndarray]:
    """The untrained student, and the teacher's number of each of its pieces."""
    smaller, _ = shrink(teacher(folder), layers=LAYERS, vocabulary=PIECES, texts=texts()["train"])
    pieces: Any = smaller.tokenizer.get_vocab()
    smaller[1].embedding_dimension = len(pieces)  # a copy of the teacher's: the module does not ask the blocks
    known: Any = teacher(folder).tokenizer.get_vocab()
    return smaller, np.array([known[piece] for piece in sorted(pieces, key=pieces.__getitem__)])


def lesson(folder: str, asked: list[str]) -> np.ndarray:
    """The teacher's vectors, of the pieces that the student has."""
    return dense(teacher(folder), asked)[:, cut(folder)[1]]


def dense(model: Any, asked: list[str]) -> np.ndarray:
    """Vectors with all their zeros, float32."""
    found = model.encode(list(asked), batch_size=32, show_progress_bar=False)
    return np.asarray(found.to_dense() if hasattr(found, "to_dense") else found, np.float32)


def shipped(student: SentenceTransformer, folder: Path) -> SparseEncoder:
    """The student as people open it: saved, and loaded by the stock class alone."""
    SparseEncoder(modules=list(student.children()), device="cpu").save_pretrained(str(folder), create_model_card=False)
    return SparseEncoder(str(folder), device="cpu")


class Searched:
    """Vectors for a search by dot product, from a model of sparse vectors.

    Our search goes by cosine. One number more makes all documents equally long and is zero in queries, so that
    cosine orders documents as the dot product does.
    """

    def __init__(self, encode: Any) -> None:
        self.encode, self.active = encode, dict[str, float]()

    def encode_query(self, asked: list[str]) -> np.ndarray:
        return self._with(asked, "queries")

    def encode_document(self, asked: list[str]) -> np.ndarray:
        return self._with(asked, "documents")

    def _with(self, asked: list[str], side: str) -> np.ndarray:
        vectors = self.encode(asked)
        self.active[side] = mean_active(vectors)
        rest = BOUND**2 - np.square(vectors).sum(1)
        assert rest.min() > 0
        return np.column_stack([vectors, np.sqrt(rest) if side == "documents" else np.zeros_like(rest)])


def mean_active(vectors: np.ndarray) -> float:
    """Numbers of a vector that are not zero, mean over the vectors."""
    return float((vectors != 0).sum(1).mean())


def likeness(own: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Share of the teacher's ten nearest texts (by dot product) that a student finds, and active numbers of both."""
    everyone = np.arange(len(own))
    nearest = []
    for vectors in (own, target):
        ranked = top_rows(vectors, vectors, 11)
        nearest.append([set(row[row != number][:10]) for number, row in zip(everyone, ranked, strict=True)])
    shared = [len(one & other) / 10 for one, other in zip(*nearest, strict=True)]
    return {"neighbours": float(np.mean(shared)), "active": mean_active(own), "teacher_active": mean_active(target)}


def size(model: Any) -> dict[str, int]:
    return {"parameters": parameters(model), "pieces": len(model.tokenizer.get_vocab())}
