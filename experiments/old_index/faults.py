"""Indexes with planted faults, and clean ones that look odd: what `old_index` checks.

The model is all-MiniLM-L6-v2. An index is 400 to 1,200 of 1,500 sentences in an order of its own; every case has its
own seed for which, in which order and where the fault lies. Vectors are made as somebody would have made them who did
not use this package: by `SentenceTransformer.encode`, at other batch sizes, in bfloat16, stored as float16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK
from experiments.harness.texts import shared_rows

from distilvec.flow.demo import demo_teacher
from distilvec.indexes import IndexCheck, check_index
from distilvec.students import load_student, ship, shrink, static

Vectors = np.ndarray
POOL, ROWS = 1500, 100
PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ")
POOLINGS = ("cls", "lasttoken", "max")


@functools.cache
def texts() -> list[str]:
    """The pool of sentences; no other part of the experiment reads them."""
    found = [row["text"] for row in shared_rows("sentences")]
    order = np.random.default_rng(25).permutation(len(found))[:POOL]
    return [found[row] for row in order]


def kept(name: str, make: Callable[[], Vectors]) -> Vectors:
    """Vectors of the pool, made once."""
    file = WORK / "old_index" / "pool" / f"{name.strip(': ').replace(' ', '_')}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, make())
    return np.load(file)


@functools.cache
def pool(kind: str, value: str = "") -> Vectors:
    """float32 [POOL, 384]: the pool read in one way."""
    return kept(f"{kind}-{value}" if value else kind, functools.partial(_made, kind, value))


def _made(kind: str, value: str) -> Vectors:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    if kind == "other":
        model: Any = SentenceTransformer(str(other_model(value)), device="cpu")
        found = model.encode(texts(), show_progress_bar=False)
        return found / np.linalg.norm(found, axis=1, keepdims=True)
    model = load_student(demo_teacher(), device="cpu")
    if kind == "pooling":
        model = SentenceTransformer(modules=[model[0], Pooling(384, pooling_mode=value), model[2]], device="cpu")
    if kind == "plain":
        model = SentenceTransformer(modules=[model[0], model[1]], device="cpu")
    if kind == "bfloat16":
        model = model.bfloat16()
    options = {"prompt": value} if kind == "prompt" else {"batch_size": int(value)} if kind == "batch" else {}
    found = model.encode(texts(), show_progress_bar=False, convert_to_numpy=False, **options)
    return np.stack([each.float().numpy() for each in found])


def other_model(name: str) -> Path:
    """Models as wide as MiniLM that are not MiniLM: four of its layers, and a table of its word vectors."""
    folder = WORK / "old_index" / "others" / name
    if not (folder / "modules.json").exists():
        made = static(demo_teacher(), dimensions=384) if name == "static" else shrink(demo_teacher(), layers=4)[0]
        ship(made, folder)
    return folder


class Case:
    """An index drawn from the pool.

    Attributes:
        rows: int64 [n], of the pool.
        vectors: float32 [n, 384], clean until something is planted.
        wrong: bool [n], planted rows.
        prompt: what the check is told about the prompt.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.rows = self.random.permutation(POOL)[: int(self.random.integers(400, 1200))]
        self.vectors = pool("clean")[self.rows]
        self.wrong = np.zeros(len(self.rows), bool)
        self.prompt: str | None = None

    def take(self, kind: str, value: str = "", where: np.ndarray | None = None) -> None:
        """Vectors of another kind, of some rows."""
        where = np.ones(len(self.rows), bool) if where is None else where
        self.vectors[where] = pool(kind, value)[self.rows[where]]
        self.wrong |= where

    def block(self, low: float, high: float) -> np.ndarray:
        """bool [n]: a stretch of a share of the rows between two bounds."""
        length = int(len(self.rows) * self.random.uniform(low, high))
        start = int(self.random.integers(0, len(self.rows) - length + 1))
        return (np.arange(len(self.rows)) >= start) & (np.arange(len(self.rows)) < start + length)

    def check(self, seed: int) -> IndexCheck:
        """What check_index says."""
        asked = [texts()[row] for row in self.rows]
        return check_index(demo_teacher(), self.vectors, asked, prompt=self.prompt, rows=ROWS, seed=seed, device="cpu")


def plant(case: Case, kind: str, number: int) -> str:
    """Plant a fault; returns which one of its kind."""
    if kind == "another model":
        name = ("static", "layers")[number % 2]
        case.take("other", name)
        return name
    if kind == "prompt":
        prompt = PROMPTS[number % len(PROMPTS)]
        if number % 2:  # the check is told of a prompt that the index was made without
            case.prompt = prompt
            return f"without {prompt!r}"
        case.take("prompt", prompt)
        return f"with {prompt!r}"
    if kind == "pooling":
        mode = POOLINGS[number % len(POOLINGS)]
        case.take("pooling", mode)
        return mode
    if kind == "normalisation":
        where = case.block(0.1, 0.9) if number % 3 == 2 else None
        case.take("plain", where=where)
        return "all rows" if where is None else "a block"
    if kind == "shuffled rows":
        return _shuffle(case, number)
    name = ("static", "layers")[number % 2]
    scattered = number % 4 > 1
    where = case.random.random(len(case.rows)) < case.random.uniform(0.05, 0.5) if scattered else case.block(0.05, 0.5)
    case.take("other", name, where)
    return f"{name}, {'scattered' if scattered else 'a block'}"


def _shuffle(case: Case, number: int) -> str:
    count = len(case.rows)
    if number % 3 == 0:
        order = case.random.permutation(count)
    elif number % 3 == 1:
        order = np.roll(np.arange(count), int(case.random.integers(1, 4)))
    else:
        order, where = np.arange(count), case.block(0.1, 0.5)
        order[where] = case.random.permutation(order[where])
    case.wrong |= order != np.arange(count)
    case.vectors = case.vectors[order]
    return ("all rows", "shifted", "a block")[number % 3]


def make_odd(case: Case, kind: str, number: int) -> None:
    """Change a clean index in a way that is no fault."""
    if kind == "float16 storage":
        case.vectors = case.vectors.astype(np.float16)
    elif kind == "bfloat16 weights":
        case.take("bfloat16")
    elif kind == "bfloat16 storage":
        case.vectors = (case.vectors.view(np.uint32) & 0xFFFF0000).view(np.float32)
    elif kind == "batch size":
        case.take("batch", ("1", "256")[number % 2])
    elif kind == "the same prompt":
        case.prompt = PROMPTS[number % len(PROMPTS)]
        case.take("prompt", case.prompt)
    elif kind == "repeated texts":
        again = case.random.integers(0, len(case.rows), len(case.rows) // 5)
        case.rows, case.vectors = (
            np.append(case.rows, case.rows[again]),
            np.append(case.vectors, case.vectors[again], 0),
        )
    case.wrong = np.zeros(len(case.rows), bool)
