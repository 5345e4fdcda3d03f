"""The texts that `quarter` trains on, and the pairs that retrieval is judged on."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path

import numpy as np
from experiments.harness.script import WORK, shared
from experiments.headline import run as headline

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.corpus.similar import NearDuplicates

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
        rows = [json.loads(line) for line in headline.pool().read_text(encoding="utf-8").splitlines()]
        of_pairs = {text for pair in pairs() for text in pair.values()}
        singles = [row for row in rows if row["text"] not in of_pairs]
        chosen = singles[: TEXTS - OF_PAIRS] + [row for row in rows if row["text"] in of_pairs][:OF_PAIRS]
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
        partial.replace(file)
    return file


def larger() -> Path:
    """All singles of the pool, and what installed packages say of themselves, apart from what the demo takes of it.

    The docstrings come alone, and once more several of a package in a row, up to as many words as a text may have.
    """
    file = FOLDER / "larger.jsonl"
    if not file.exists():
        rows = [json.loads(line) for line in headline.pool().read_text(encoding="utf-8").splitlines()]
        of_pairs = {text for pair in pairs() for text in pair.values()}
        kept = {json.loads(line)["text"] for line in pool().read_text(encoding="utf-8").splitlines()}
        chosen = [row for row in rows if row["text"] in kept or row["text"] not in of_pairs]
        chosen += [*documented(), *documents()]
        partial = file.with_suffix(".partial")
        partial.write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
        partial.replace(file)
    return file


def everything() -> Path:
    """The larger corpus and the texts of pairs, but for those that retrieval is judged on."""
    file = FOLDER / "all.jsonl"
    if not file.exists():
        lines = larger().read_text(encoding="utf-8").splitlines()
        taken = {json.loads(line)["text"] for line in lines} | {text for pair in drawn() for text in pair.values()}
        more = dict.fromkeys(text for pair in pairs() for text in pair.values() if text not in taken)
        lines += [json.dumps({"text": text, "source": "pairs"}) for text in more]
        partial = file.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        partial.replace(file)
    return file


def documents() -> list[dict[str, str]]:
    """Docstrings of one package in a row, 100 to 180 words together."""
    made: list[dict[str, str]] = []
    parts: dict[str, list[str]] = {}
    for pair in others():
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
    with gzip.open(shared() / "data" / "pairs.jsonl.gz", "rt", encoding="utf-8") as rows:
        found = [json.loads(line) for line in rows]
    return [{key: row[key] for key in ("anchor", "positive", "negative") if row.get(key)} for row in found]


def drawn() -> list[dict[str, str]]:
    """Pairs for retrieval, none of whose texts the smallest corpus holds."""
    inside = {json.loads(line)["text"] for line in pool().read_text(encoding="utf-8").splitlines()}
    outside = [pair for pair in pairs() if pair["anchor"] not in inside and pair["positive"] not in inside]
    return [outside[row] for row in np.random.default_rng(0).choice(len(outside), 2000, replace=False)]
