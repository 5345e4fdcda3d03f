"""The results of an export: files, agreement with torch, size and speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One form of the model.

    Attributes:
        name: torch, onnx float32 or onnx int8.
        file: its file in the export's folder; None for torch.
        size_bytes: of the weights (and, for ONNX, the graph).
        cosine_min, cosine_mean: against torch, over the texts of the check.
        texts_per_second, latency_p50_ms, latency_p95_ms: on this machine; latency is of one text.
    """

    name: str
    file: str | None
    size_bytes: int
    cosine_min: float
    cosine_mean: float
    texts_per_second: float
    latency_p50_ms: float
    latency_p95_ms: float


@dataclass(frozen=True)
class ExportReport:
    """The outcome of `export_onnx`. `notes` say what a user should look at before shipping."""

    folder: Path
    variants: list[Variant]
    texts: int
    notes: list[str] = field(default_factory=list)

    def variant(self, name: str) -> Variant:
        """The variant of this name (KeyError where it was not made)."""
        return {variant.name: variant for variant in self.variants}[name]

    def table(self) -> str:
        """Size, agreement and speed before and after, as plain text."""
        from distilvec.report.grid import Cell, Grid
        from distilvec.words import number, size

        rows = [
            [
                Cell(each.name),
                Cell(each.file or "—"),
                Cell(size(each.size_bytes)),
                Cell(f"{each.cosine_mean:.5f}"),
                Cell(f"{each.cosine_min:.5f}"),
                Cell(number(each.texts_per_second)),
                Cell(f"{each.latency_p50_ms:.1f} / {each.latency_p95_ms:.1f}"),
            ]
            for each in self.variants
        ]
        header = ["model", "file", "size", "cosine to torch, mean", "least", "texts/s", "p50 / p95 ms"]
        notes = [f"Agreement over {self.texts} texts; speed on this machine.", *self.notes]
        return Grid(header, rows, notes).text()

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without the folder's place."""
        return {"variants": [asdict(each) for each in self.variants], "texts": self.texts, "notes": self.notes}
