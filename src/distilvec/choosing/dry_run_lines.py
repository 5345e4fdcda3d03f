"""The lines of a dry run: stages with what will happen, examples and notes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.flow.mine import mining_cost
from distilvec.recipe import Recipe
from distilvec.words import duration, size

if TYPE_CHECKING:
    from distilvec.corpus import Corpus


@dataclass
class Plan:
    """The plan of a run.

    Attributes:
        lines: (stage, what will happen).
        examples: texts as the teachers read them.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, stage: str, text: str) -> None:
        self.lines.append((stage, text))

    def text(self) -> str:
        width = max(len(stage) for stage, _ in self.lines)
        lines = [f"{stage:<{width}}  {text}" for stage, text in self.lines]
        return "\n".join([*lines, *self.examples, *(f"note: {note}" for note in self.notes)])


def describe_corpus(corpus: Corpus, summary: Plan) -> None:
    """Say what was read, and what was left out of it."""
    audit = corpus.audit
    summary.add(
        "corpus",
        f"{len(corpus):,} {audit.noun} of {audit.read:,} rows; {len(corpus.train_rows):,} to train on, "
        f"{len(corpus.holdout_rows):,} held out, {audit.duplicates:,} duplicates",
    )
    if audit.rejected:
        summary.add("", "rejected: " + ", ".join(f"{count:,} {reason}" for reason, count in audit.rejected.items()))


def describe_mining(corpus: Corpus, further: Corpus | None, width: int, summary: Plan) -> float:
    """Say what a search through all documents takes; its seconds."""
    cost = mining_cost(corpus, further, width)
    summary.add(
        "mining",
        f"{cost.queries:,} queries in {cost.documents:,} documents, {cost.products:,.3g} products of vectors: "
        f"{duration(cost.seconds)}",
    )
    return cost.seconds


def describe_end(recipe: Recipe, seconds: float, disk: float, summary: Plan, *, teaching_only: bool) -> None:
    """Say how much room and time all of it takes, and what it leaves."""
    output = Path(recipe.output).absolute()
    free = shutil.disk_usage(next(place for place in (output, *output.parents) if place.exists())).free
    summary.add("disk", f"{size(disk)} will be written; {size(free)} are free")
    summary.add("time", f"about {duration(seconds)}" + ("" if teaching_only else " before judging"))
    if disk > free:
        summary.notes.append("there is not enough room on the disk")
    if not teaching_only:
        summary.add(
            "output", f"{recipe.output}: student/, report.html, report.md, report.json, run.jsonl, checkpoints/"
        )
