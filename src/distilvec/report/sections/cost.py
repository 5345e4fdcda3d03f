"""The cost of the run: time, memory and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from distilvec.report.sections.base import Block, Data, Outcome, facts
from distilvec.report.surroundings import folder_bytes
from distilvec.words import duration, number, size


class Cost(Data):
    """The cost of the run. `teacher_texts_per_second` is the rate of teaching, without training."""

    teaching_seconds: float = 0.0
    texts_taught: int = 0
    teacher_texts_per_second: float | None = None
    training_seconds: float = 0.0
    steps: int = 0
    judging_seconds: float = 0.0
    peak_memory_bytes: int = 0
    store_bytes: int = 0

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        filled = [each.filled for each in outcome.taught]
        encoded, teaching = sum(each.taught for each in filled), sum(each.seconds for each in filled)
        return cls(
            teaching_seconds=teaching,
            texts_taught=encoded,
            teacher_texts_per_second=encoded / teaching if encoded and teaching else None,
            training_seconds=outcome.fitted.seconds,
            steps=outcome.fitted.steps,
            judging_seconds=outcome.verdict.seconds,
            peak_memory_bytes=outcome.fitted.peak_bytes,
            store_bytes=sum(folder_bytes(Path(each.store.path)) for each in outcome.taught),
        )

    def blocks(self) -> list[Block]:
        rate = self.teacher_texts_per_second
        taught = f"{duration(self.teaching_seconds)}, {self.texts_taught:,} {self.items}"
        taught += f" ({number(rate)} {self.items} per second)" if rate else ": all vectors were in the stores"
        per_step = f" ({1e3 * self.training_seconds / self.steps:,.0f} ms a step)" if self.steps else ""
        return [
            facts(
                ("teaching", taught if self.store_bytes else ""),
                ("training", f"{duration(self.training_seconds)}, {self.steps:,} steps{per_step}"),
                ("judging", duration(self.judging_seconds)),
                ("peak memory", size(self.peak_memory_bytes)),
                ("stores of teachers' vectors", size(self.store_bytes) if self.store_bytes else ""),
            )
        ]
