"""A recipe with scorers, and the rows that they judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def overlap(pairs: list[tuple[str, str]]) -> list[float]:
    """Words that both have."""
    return [float(len(set(query.lower().split()) & set(document.lower().split()))) for query, document in pairs]


def rows_of(sentences: list[str]) -> list[dict[str, Any]]:
    """Queries, answers and two negatives each, of which every fifth lacks the second."""
    return [
        {
            "q": sentence.rsplit(" ", 3)[0],
            "d": sentence,
            "n1": sentences[number - 7],
            "n2": None if number % 5 == 0 else sentences[number - 13],
        }
        for number, sentence in enumerate(sentences)
    ]


def settings(place: Path, tiny: Path, sentences: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "corpus": {"path": rows_of(sentences), "text": ["q", "d", "n1", "n2"], "holdout": 0.3},
        "student": {"shrink": {"of": str(tiny), "layers": 1}},
        "scorers": [{"name": "words", "call": overlap}],
        "method": {"name": "margin_mse"},
        "training": {"max_steps": 3, "batch_size": 8, "use_cpu": True},
        "judging": {"speed": False, "agreement": False},
        "output": str(place / "out"),
        **changes,
    }
