"""The training data: what was read, kept, held out, rejected and cut."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from distilvec.report.data import Source
from distilvec.report.sections.base import Block, Cards, Data, Heading, Outcome, Table, Text, facts
from distilvec.words import share


class CorpusFacts(Data):
    """The training data. Shares are fractions of the kept items; overlaps are numbers of training items.

    `made` of the kept items were made from others.
    """

    source: Source = ""
    read: int | None = None
    kept: int | None = None
    made: int | None = None
    trained_on: int | None = None
    held_out: int | None = None
    rejected: dict[str, int] = Field({})
    duplicates: int | None = None
    truncated_teacher: float | None = None
    truncated_student: float | None = None
    overlap: dict[str, int] = Field({})
    fingerprint: str = ""

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        corpus, section, first = outcome.corpus, outcome.recipe.corpus, outcome.first
        source = "" if section is None else section.path or ", ".join(part.called for part in section.source)
        return cls(
            source=source if isinstance(source, str) else f"{len(source):,} items given in Python",
            read=corpus.audit.read,
            kept=len(corpus),
            made=corpus.audit.made or None,
            trained_on=len(corpus.train_rows),
            held_out=len(corpus.holdout_rows),
            rejected=dict(corpus.audit.rejected),
            duplicates=corpus.audit.duplicates,
            truncated_teacher=None if first is None else first.seen.truncated,
            truncated_student=outcome.fitted.truncated / max(len(corpus), 1),
            overlap={name: count for name, count in outcome.overlap.items() if count},
            fingerprint=corpus.fingerprint,
        )

    def blocks(self) -> list[Block]:
        other: list[Block] = []
        if self.rejected:
            rejected = sorted(self.rejected.items(), key=lambda pair: -pair[1])
            other += [Heading("Rejected rows"), facts(*rejected)]
            other.append(Text("Each is in rejected.jsonl with its line and reason.", "small"))
        if any(self.overlap.values()):
            other += [
                Heading(self.about("Training texts that are also evaluation texts")),
                Text("Scores on these tasks may flatter every model that was trained here.", "small"),
                facts(*((task, count) for task, count in self.overlap.items() if count)),
            ]
        return [Cards([card for card in ([self.facts()], other) if card])]

    def facts(self) -> Table:
        rejected, overlap = sum(self.rejected.values()), sum(self.overlap.values())
        of = f" ({share(rejected / self.read)} of what was read)" if self.read else ""
        lines = (
            ("source", self.source),
            ("rows read", self.read),
            ("texts kept", self.kept),
            ("of these made from others", self.made),
            ("trained on", self.trained_on),
            ("held out", self.held_out),
            ("duplicates", self.duplicates),
            ("rejected", f"{rejected:,}{of}" if self.read is not None or rejected else ""),
            ("texts the teacher reads only in part", _share(self.truncated_teacher)),
            ("texts the student reads only in part", _share(self.truncated_student)),
            ("training texts that are also texts of a task, over all tasks", overlap or None),
            ("fingerprint", self.fingerprint),
        )
        return facts(*((self.about(name), value) for name, value in lines))


def _share(value: float | None) -> str:
    return "" if value is None else share(value)
