"""The texts of `run.py`: what the students are trained on, chosen by, and judged on."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.harness.records import WORK
from experiments.harness.script import shared

EXPERIMENT = "languages"
ENGLISH = "en"
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh")
TWO = ("de", "en")
#: Captions that are read, in three languages each; every so-many-th translation of STS-B has its own vector as lesson.
CAPTIONS, OWN = 4_000, 8
#: Pairs of STS-B a language that are judged, and news sentences that a choice is made by.
PAIRS, NEWS = 700, 500


@functools.cache
def rows(name: str) -> list[dict[str, Any]]:
    """A file of the shared folder `data/multilingual`."""
    with gzip.open(shared() / "data" / "multilingual" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def corpus(languages: tuple[str, ...] = LANGUAGES, *, translations: bool = True) -> Path:
    """The corpus: a text, its language, and what the teacher reads in its place.

    Args:
        translations: of a text whose English side is known the teacher reads that side, but for one in eight; without,
            the teacher reads what the student reads.
    """
    kind = f"{len(languages)}-{'translations' if translations else 'own'}"
    file = WORK / EXPERIMENT / f"{kind}.jsonl"
    if not file.exists():
        found: dict[str, dict[str, str]] = {}
        for language, text, english in _texts(translations):
            if language in languages and len(text.split()) < 200:
                found.setdefault(text, {"text": text, "language": language, "read": english})
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in found.values())
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(file)
    return file


def _texts(translations: bool) -> Iterator[tuple[str, str, str]]:
    """(language, text, what the teacher reads)."""
    for row in rows("sentences"):
        yield row["lang"], row["text"], row["text"]
    stsb: dict[str, list[str]] = {}
    for row in rows("stsb_multi.train"):
        stsb.setdefault(row["lang"], []).extend((row["text1"], row["text2"]))
    sources: Iterable[dict[str, str]] = [
        *(dict(zip(stsb, texts, strict=True)) for texts in zip(*stsb.values(), strict=True)),
        *rows("captions_parallel.train")[:CAPTIONS],
    ]
    for place, sides in enumerate(sources):
        own = place % OWN == 0
        for language, text in sides.items():
            if translations:
                yield language, text, text if own else sides[ENGLISH]
            elif own or language == ENGLISH:
                yield language, text, text


def news() -> dict[str, list[str]]:
    """Language -> its news sentences, in one order; what students are chosen by."""
    taken = rows("news_parallel.validation")[:NEWS]
    return {language: [row[language] for row in taken] for language in LANGUAGES if language in taken[0]}


def stsb(split: str = "test", most: int = PAIRS) -> dict[str, list[tuple[str, str, float]]]:
    """Language -> pairs with their scores."""
    found: dict[str, list[tuple[str, str, float]]] = {}
    for row in rows(f"stsb_multi.{split}"):
        pairs = found.setdefault(row["lang"], [])
        if len(pairs) < most:
            pairs.append((row["text1"], row["text2"], row["score"]))
    return found


def tatoeba() -> dict[str, list[tuple[str, str]]]:
    """Language -> 1,000 sentences with their English translations."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in rows("tatoeba.test"):
        found.setdefault(row["lang"], []).append((row["text"], row["english"]))
    return found
