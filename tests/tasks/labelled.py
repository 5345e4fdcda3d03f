"""Small labelled files with something to learn, made from real sentences."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.english import sentences

WORDS = {"praise": "good", "blame": "bad", "other": "there"}


def texts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts that begin with the word that their label goes by."""
    rng, found = random.Random(seed), []
    pool = [text.split()[:6] for text in sentences(200)]
    for number in range(count):
        label = list(WORDS)[number % 3]
        found.append({"text": " ".join([WORDS[label], *rng.choice(pool)]), "label": label})
    return found


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of one text twice (label 1, score 5) or of two texts (label 0, score 0)."""
    rng, found = random.Random(seed), []
    pool = [" ".join(text.split()[:6]) for text in sentences(200)]
    for number in range(count):
        first, second = rng.sample(pool, 2)
        same = number % 2
        found.append({"text1": first, "text2": first if same else second, "label": same, "score": 5.0 * same})
    return found


def write(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
