"""The findings of an index check, in words for a person and in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

#: Probability that a clean index is accused.
FALSE_ALARMS = 0.001
#: Kind of finding -> what to do about it.
REMEDIES = {
    "prompt": "Encode queries for this index with the prompt's counterpart, or encode the texts again; --prompt says "
    "what the index is meant to have.",
    "pooling": "Set this pooling in the model's 1_Pooling/config.json, or encode the texts again.",
    "prompt and pooling": "Set both as they were, or encode the texts again.",
    "length": "Set max_seq_length to what it was, or encode the texts again; short texts are not touched by it.",
    "normalisation": "Divide the vectors by their lengths (or search by cosine), or leave Normalize out of the model.",
    "shuffled rows": "Put texts and vectors into one order: look for a sort, a filter or a merge that only one had.",
    "another model": "Find the model that made them, or make this one fit with `distilvec adapt`.",
    "mixed models": "Encode these rows again with the model of the others.",
    "unrelated": "Check that both files are of one export.",
    "damaged rows": "Encode these rows again, or leave out row and text.",
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        kind: "damaged rows", "width", "shortened", "prompt", "pooling", "prompt and pooling", "length",
            "normalisation", "shuffled rows", "another model", "mixed models" or "unrelated".
        what: a sentence.
        remedy: what to do about it.
        share: of the rows that were looked at, in (0, 1].
        rows: stretches (first, last), counted from 0; of the sample alone where `exact` is false.
        exact: whether `rows` are all of the index that this is about.
    """

    kind: str
    what: str
    remedy: str
    share: float
    rows: list[tuple[int, int]] = field(default_factory=list)
    exact: bool = True


@dataclass(frozen=True)
class IndexCheck:
    """The result of an index check.

    Attributes:
        findings: what is wrong, the most frequent first; nothing of a clean index.
        rows: of the index.
        checked: rows whose text was encoded again.
        least: the threshold: cosine from which on a row fits, in (0, 1).
        false_alarms: probability that a clean index is accused.
        passes: share of wrong rows (a text and the vector of another) that are over the threshold, in [0, 1].
        cosine: median cosine of the checked rows; None where widths differ.
        notes: what is worth knowing and no fault.
    """

    findings: list[Finding]
    rows: int
    checked: int
    least: float
    false_alarms: float = FALSE_ALARMS
    passes: float = 0.0
    cosine: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def belongs(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.findings

    def text(self) -> str:
        """For a person."""
        head = "These vectors and this model belong together."
        lines = [head if self.belongs else head.replace(" belong", " do not belong")]
        for finding in self.findings:
            lines += [f"  {finding.kind}: {finding.what}", f"    {finding.remedy}"]
        told = f"Checked {self.checked:,} of {self.rows:,} rows."
        if self.cosine is not None:
            told += f" Median cosine {self.cosine:.4f}; a row fits from {self.least:.5f} on."
        lines += [told, f"A clean index is accused in {self.false_alarms:.1%} of checks at most."]
        if self.cosine is not None:
            lines[-1] += f" {self.passes:.1%} of wrong rows would pass as right ones."
        if self.checked < self.rows:
            missed = (1 - 0.01) ** self.checked
            lines.append(f"A fault in one row of a hundred, here and there, would be missed in {missed:.1%} of checks.")
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"belongs": self.belongs, **asdict(self)}
