"""The texts that `quarter` trains on, and the pairs that retrieval is judged on."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from experiments.harness.records import WORK
from experiments.harness.texts import read_rows, shared_rows, write_rows
from experiments.headline import run as headline

from distilvec.corpus.docstrings import NearDuplicates, docstring_pairs

FOLDER = WORK / "quarter"
#: Of the corpus' texts so many come from the pairs; the pairs behind them are for retrieval.
TEXTS, OF_PAIRS = 100_000, 20_000
#: Words of a longer text.
LONG = (100, 180)
#: Pairs of docstrings that the demo takes: the first 600 are its tests, and ours.
DEMO = 2600
_PARTS = ("summary", "description")


def pool() -> Path:
    """The corpus: one text a line, each once."""
    file = FOLDER / "pool.jsonl"
    if not file.exists():
        rows = list(read_rows(headline.pool()))
        of_pairs = {text for pair in pairs() for text in pair.values()}
        singles = [row for row in rows if row["text"] not in of_pairs]
        chosen = singles[: TEXTS - OF_PAIRS] + [row for row in rows if row["text"] in of_pairs][:OF_PAIRS]
        write_rows(file, chosen)
    return file


def larger() -> Path:
    """All singles of the pool, and what installed packages say of themselves, apart from what the demo takes of it.

    The docstrings come alone, and once more several of a package in a row, up to as many words as a text may have.
    """
    file = FOLDER / "larger.jsonl"
    if not file.exists():
        rows = list(read_rows(headline.pool()))
        of_pairs = {text for pair in pairs() for text in pair.values()}
        kept = {row["text"] for row in read_rows(pool())}
        chosen = [row for row in rows if row["text"] in kept or row["text"] not in of_pairs]
        chosen += [*documented(), *documents()]
        write_rows(file, chosen)
    return file


def everything() -> Path:
    """The larger corpus and the texts of pairs, but for those that retrieval is judged on."""
    file = FOLDER / "all.jsonl"
    if not file.exists():
        rows = list(read_rows(larger()))
        taken = {row["text"] for row in rows} | {text for pair in drawn() for text in pair.values()}
        more = dict.fromkeys(text for pair in pairs() for text in pair.values() if text not in taken)
        write_rows(file, [*rows, *({"text": text, "source": "pairs"} for text in more)])
    return file


def documents(pairs: list[dict[str, str]] | None = None) -> list[dict[str, str]]:
    """Docstrings of one package in a row, 100 to 180 words together; of all packages where none are given."""
    made: list[dict[str, str]] = []
    parts: dict[str, list[str]] = {}
    for pair in others() if pairs is None else pairs:
        told = parts.setdefault(pair["package"], [])
        told += f"{pair['summary']} {pair['description']}".split()
        if len(told) >= LONG[0]:
            made.append({"text": " ".join(told[: LONG[1]]), "source": "documents"})
            told.clear()
    return made


def documented(words: float = float("inf"), skip: int = 0) -> list[dict[str, str]]:
    """Summaries with their descriptions, none of them the demo's, until there are so many words."""
    made: list[dict[str, str]] = []
    for pair in others()[skip:]:
        text = f"{pair['summary']} {pair['description']}"
        words -= len(text.split())
        made.append({"text": text, "source": "docstrings"})
        if words < 0:
            break
    return made


@functools.cache
def others() -> list[dict[str, str]]:
    """Docstrings that are not nearly the demo's."""
    demo = NearDuplicates(0.7)
    for pair in docstring_pairs(limit=DEMO):
        for part in _PARTS:
            demo.add(pair[part].split())
    return [pair for pair in docstring_pairs() if not any(pair[part].split() in demo for part in _PARTS)]


def pairs() -> list[dict[str, str]]:
    """The shared pairs, their texts alone."""
    return [
        {key: row[key] for key in ("anchor", "positive", "negative") if row.get(key)} for row in shared_rows("pairs")
    ]


def drawn() -> list[dict[str, str]]:
    """Pairs for retrieval, none of whose texts the smallest corpus holds."""
    inside = {row["text"] for row in read_rows(pool())}
    outside = [pair for pair in pairs() if pair["anchor"] not in inside and pair["positive"] not in inside]
    return [outside[row] for row in np.random.default_rng(0).choice(len(outside), 2000, replace=False)]
