"""What a student keeps of itself when its vectors or its weights are made smaller: the table and its files."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from distilvec.files import write_text
from distilvec.folders import claim
from distilvec.report.grid import Cell, Grid
from distilvec.report.record_parts import Part, ScoreEntry
from distilvec.words import number, points, size

FILES = ("compression.json", "compression.md")


class CompressedRow(Part):
    """One way to keep the vectors, or the model.

    Attributes:
        width: numbers per vector.
        bytes_per_million: of a million vectors, without an index' own overhead.
        size_bytes: of the weights on disk; None = as in the first row, like the speed.
        neighbours, similarity: likeness to the first row: overlap of the ten nearest texts, and Spearman of the cosines
            of all pairs.
        scores: task -> score.
    """

    name: str
    width: int
    bytes_per_million: int
    size_bytes: int | None = None
    texts_per_second: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    neighbours: float
    similarity: float
    scores: dict[str, ScoreEntry] = Field(default_factory=dict)


class Compression(Part):
    """The table. The first row is the model as it is: whole float32 vectors.

    Attributes:
        texts: number of texts that likeness is measured on.
        calibrated_on: number of other texts that the ranges of int8 vectors come from.
    """

    rows: list[CompressedRow]
    texts: int
    calibrated_on: int
    notes: list[str] = Field(default_factory=list)

    def grid(self) -> Grid:
        """Ready to be dressed for the terminal, for markdown or for the page."""
        tasks = list(self.rows[0].scores)
        timed = any(row.texts_per_second is not None for row in self.rows)
        header = ["kept as", "width", "a million vectors", "neighbours", "order", *tasks, "model"]
        lines = []
        for row in self.rows:
            cells = [row.name, str(row.width), size(row.bytes_per_million), points(row.neighbours)]
            cells += [points(row.similarity), *(points(row.scores[task].value) for task in tasks)]
            cells.append("" if row.size_bytes is None else size(row.size_bytes))
            if timed:
                fast = row.texts_per_second is not None
                cells.append(number(row.texts_per_second) if fast else "")
                cells.append(f"{row.latency_p50_ms:.1f} / {row.latency_p95_ms:.1f}" if fast else "")
            lines.append([Cell(cell) for cell in cells])
        told = [
            f"Neighbours and order (Spearman of all cosines) are times 100, against the first row, on {self.texts:,} "
            f"texts. Int8 vectors are calibrated on {self.calibrated_on:,} others.",
            "An empty cell is as in the first row.",
        ]
        return Grid([*header, *(["texts/s", "p50 / p95 ms"] if timed else [])], lines, [*told, *self.notes])

    def write(self, folder: str | Path, name: str) -> Path:
        """`compression.md` and `compression.json`; each appears whole. Returns the page.

        Args:
            folder: made where it is missing.
            name: of the model, for the title.

        Raises:
            DistilvecError: files of these names are not distilvec's.
            EnvironmentProblem: the folder cannot be written.
        """
        out = claim(folder, "compression", FILES)
        page = f"# {name}, compressed\n\n{self.grid().markdown()}\n"
        for file, content in zip(FILES, (self.model_dump_json(indent=1) + "\n", page), strict=True):
            write_text(out / file, content)
        return out / FILES[1]
