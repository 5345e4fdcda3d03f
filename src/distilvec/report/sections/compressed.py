"""The quality that a student keeps with smaller vectors or weights: the table and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field

from distilvec.files import write_text
from distilvec.folders import claim
from distilvec.report.grid import Grid
from distilvec.report.rows import ModelRow
from distilvec.report.sections.base import Block, Data, Outcome, Table, table
from distilvec.words import number, points, size

FILES = ("compression.json", "compression.md")


class CompressedRow(ModelRow):
    """One compressed form of the vectors, or of the model. Without a size or speed it has those of the first row.

    Attributes:
        bytes_per_million: of a million vectors, without an index' own overhead.
        neighbours, similarity: against the first row, the overlap of the ten nearest texts, and Spearman of the
            cosines of all pairs.
    """

    width: int
    bytes_per_million: int
    neighbours: float
    similarity: float


class Compression(Data):
    """The table. The first row is the model as it is: whole float32 vectors.

    Attributes:
        texts: number of texts that the forms are compared on.
        calibrated_on: number of other texts that the ranges of int8 vectors come from.
    """

    rows: list[CompressedRow]
    texts: int
    calibrated_on: int
    notes: list[str] = Field(default_factory=list)

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        return outcome.compression if isinstance(outcome.compression, cls) else None

    def blocks(self) -> list[Block]:
        return [Table(self.grid(), brief=True)]

    def grid(self) -> Grid:
        tasks = list(self.rows[0].scores)
        timed = any(row.texts_per_second is not None for row in self.rows)
        lines = []
        for row in self.rows:
            cells = [row.name, str(row.width), size(row.bytes_per_million), points(row.neighbours)]
            cells += [points(row.similarity), *(points(row.scores[task].value) for task in tasks)]
            cells.append("" if row.size_bytes is None else size(row.size_bytes))
            fast = row.texts_per_second is not None
            cells += [number(row.texts_per_second) if fast else "", row.latency if fast else ""] if timed else []
            lines.append(cells)
        header = ["kept as", "width", "a million vectors", "neighbours", "order", *tasks, "model"]
        return table(
            [*header, *([f"{self.items}/s", "p50 / p95 ms"] if timed else [])],
            lines,
            f"Neighbours and order (Spearman of all cosines) are times 100, against the first row, on {self.texts:,} "
            f"{self.items}. Int8 vectors are calibrated on {self.calibrated_on:,} others.",
            "An empty cell has the value of the first row.",
            *self.notes,
        ).grid

    def write(self, folder: str | Path, name: str) -> Path:
        """`compression.md` and `compression.json`; each appears whole. Returns the page.

        Args:
            folder: made where it is missing.

        Raises:
            DistilvecError: files of these names are not distilvec's.
            EnvironmentProblem: the folder cannot be written.
        """
        out = claim(folder, "compression", FILES)
        page = f"# {name}, compressed\n\n{self.grid().markdown()}\n"
        for file, content in zip(FILES, (self.model_dump_json(indent=1) + "\n", page), strict=True):
            write_text(out / file, content)
        return out / FILES[1]
