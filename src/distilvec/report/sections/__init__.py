"""The sections of the report, in the order they are read: one file each, and one line here.

A section's file has its name, and the line names the class in it. Listing them imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from distilvec.report.outcome import Outcome
from distilvec.report.sections.base import Data

#: (key of the chapter, its title, name -> class). The record keeps a section's data under its name.
CHAPTERS: list[tuple[str, str, dict[str, str]]] = [
    ("scores", "What the student keeps", {"scores": "Scores", "reranking": "Reranking", "supervised": "Supervised"}),
    (
        "agreement",
        "How far it agrees with the teacher",
        {
            "agreement": "Agreement",
            "reproduced": "Reproduced",
            "slices": "Slices",
            "tokenisation": "Tokenisation",
            "hardest": "Hardest",
            "collapse": "Collapse",
            "spaces": "Spaces",
            "layers": "Layers",
            "alignment": "Alignment",
            "tokens": "Tokens",
        },
    ),
    ("writing", "What the models write", {"writing": "Writing"}),
    ("compressed", "Compressed", {"compressed": "Compression"}),
    ("training", "How training went", {"training": "Training", "experts": "Experts"}),
    ("mixtures", "Inside the mixtures of experts", {"mixtures": "Mixtures"}),
    ("cost", "What it cost", {"cost": "Cost"}),
    ("data", "Training data", {"corpus": "CorpusFacts"}),
    ("models", "Teacher and student", {"lineage": "Lineage"}),
    ("again", "Running it again", {"rerun": "Rerun", "notes": "Notes"}),
]
SECTIONS = {name: chosen for _, _, members in CHAPTERS for name, chosen in members.items()}


#: Sections that few runs have, and of what; they are imported for no other run.
_RARE: dict[str, Callable[[Outcome], object]] = {
    "writing": lambda outcome: outcome.corpus.kind.writes,
    "reranking": lambda outcome: outcome.corpus.kind.ranks,
    "supervised": lambda outcome: outcome.supervised,
    "compressed": lambda outcome: outcome.compression,
    "experts": lambda outcome: outcome.has_experts,
    "mixtures": lambda outcome: outcome.has_experts,
}


def applies(name: str, outcome: Outcome) -> bool:
    """Tell whether a section has something to measure in a run, as far as that can be seen without it."""
    return name not in _RARE or bool(_RARE[name](outcome))


@cache
def section(name: str) -> type[Data]:
    found: type[Data] = getattr(import_module(f"{__name__}.{name}"), SECTIONS[name])
    return found
