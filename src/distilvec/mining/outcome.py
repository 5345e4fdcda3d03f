"""The results of mining: counts, distributions, and twenty rows to look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distilvec.corpus.rows import excerpt
from distilvec.files import read_record, write_record, write_text
from distilvec.showing import Shown

#: Rows that are shown.
SHOWN = 20
#: Characters of a text that are shown.
_LONGEST = 90
PAIRS, SUMMARY, PAGE = "mined.jsonl", "mining.json", "mining.md"


@dataclass(repr=False)
class Mined(Shown):
    """The result of `mine`.

    Attributes:
        folder: with mined.jsonl, mining.json and mining.md.
        columns: the text columns of mined.jsonl, for `corpus.text` of a recipe.
        teacher: whose vectors were searched.
        pairs: how many queries with a positive there were; `whole` of them got all their negatives, `none` got none.
        negatives: how many were found, `random` of them drawn at random.
        documents: how many could have been one.
        left_out: further documents that are none because they are texts of held-out pairs.
        candidates: how many of the nearest documents within the ranks, of all queries, met the filters.
        taken: filter -> how many of them it took, each of what those before it left.
        unknown: pairs left without negatives because the teacher has no vector for query or positive.
        shared: held-out pairs left without because other pairs are trained on with their query or positive.
        quantiles: "positive", "negative" -> similarities at 5, 25, 50, 75 and 95 percent.
        shown: some rows: query, positive, scores.
        seconds: of searching and choosing, without the teacher's encoding, in the last call.
        digest: of all that decides the outcome.
    """

    folder: Path
    columns: list[str]
    teacher: str
    digest: str
    pairs: int = 0
    whole: int = 0
    none: int = 0
    negatives: int = 0
    random: int = 0
    documents: int = 0
    left_out: int = 0
    candidates: int = 0
    unknown: int = 0
    shared: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    quantiles: dict[str, list[float]] = field(default_factory=dict)
    shown: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def file(self) -> Path:
        """The pairs with their negatives."""
        return self.folder / PAIRS

    def write(self) -> None:
        """Write the summary and the page into the folder."""
        write_text(self.folder / PAGE, self.page())
        write_record(self.folder / SUMMARY, {key: value for key, value in asdict(self).items() if key != "folder"})

    @classmethod
    def read(cls, folder: Path) -> Mined | None:
        """Return what an earlier call left; None if that is not there, or is damaged."""
        record = read_record(folder / SUMMARY)
        record.pop("own_checksum", None)
        try:
            return cls(folder=folder, **record)
        except TypeError:
            return None

    def text(self) -> str:
        """Return what a terminal shows."""
        return "\n".join(self._lines())

    def page(self) -> str:
        """The same as markdown."""
        told = "\n".join(f"    {line}".rstrip() for line in self._lines())
        return f"# Mined with {self.teacher}\n\n{told}\n"

    def _named(self) -> str:
        return repr(str(self.folder))

    def _repr_markdown_(self) -> str:
        return self.page()

    def _lines(self) -> list[str]:
        fewer = self.pairs - self.whole - self.none
        lines = [
            f"{self.pairs:,} pairs, {self.documents:,} documents, searched with {self.teacher}: {self.negatives:,} "
            f"negatives, {self.random:,} of them drawn at random; {self.seconds:,.0f} s",
            f"{self.whole:,} pairs with all negatives, {fewer:,} with fewer, {self.none:,} without",
        ]
        if self.unknown:
            lines.append(f"{self.unknown:,} pairs are without because the teacher has no vector for one of their texts")
        if self.shared:
            lines.append(
                f"{self.shared:,} held-out pairs are without because other pairs are trained on with one of their texts"
            )
        if self.left_out:
            lines.append(f"{self.left_out:,} of the further documents are texts of held-out pairs, and left out")
        lines += ["", f"{self.candidates:,} candidates within the ranks, beside the queries' own; the filters took"]
        lines += [f"  {number:>12,}  {name}" for name, number in self.taken.items()]
        if self.quantiles:
            lines += ["", "similarity to the query at     5 %    25 %    50 %    75 %    95 %"]
            lines += [
                f"  {name:<22}" + "".join(f"{value:8.3f}" for value in values)
                for name, values in self.quantiles.items()
            ]
        for row in self.shown:
            lines += [
                "",
                f"query            {excerpt(row['query'], _LONGEST)}",
                _scored(row["score"], "positive", row["positive"]),
            ]
            for each in row["negatives"]:
                place = f"rank {each['rank']}" if each["rank"] else "random"
                lines.append(_scored(each["score"], place, each["text"]))
        lines += ["", f"pairs       {self.file}", f"in a recipe text: [{', '.join(self.columns)}]"]
        return lines


def _scored(score: float, place: str, text: str) -> str:
    return f"  {score:6.3f} {place:<8} {excerpt(text, _LONGEST)}"
