"""What the papers claim, with their figures for each of their pairs, and the rows of ours that can speak to it.

`claimed.csv` has a line per claim. A paper's claim is one that it makes in words; "Ours" are comparisons that no paper
claims, with what they are about in the place of a table. Its columns are the fields of `Claim`, several students with a
bar between them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("claimed.csv")
OWN = "Ours"
FORMS = ("as published", "our form")
_PAIRS = re.compile(r"[\d.]+/[\d.]+(; [\d.]+/[\d.]+)*")
Pair = tuple[str, str]


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and the rows of ours that can speak to it.

    Attributes:
        paper, where: whose claim, and its table or section.
        text: the claim.
        theirs: words, or the paper's figures for each of its pairs of models or its sets, "A/B; A/B", that which is
            claimed to be better first.
        ours: first and second row with our defaults, or of a form that is not the published one.
        published: first and second row in the paper's form (`preset: paper` or `code`).
        students: the settings that it is tested with (claims/settings.py).
        kind: "" (the first scores more), small (they differ by less than `SMALL`), harmless (the first is at most
            `HARM` below), rank (the average rank of the first is better), flatter (its largest eigenvalue is smaller),
            cost and memory (a step of the first takes at most `limit` times one of the second), time, rate and geometry
            (counted or timed once, see `claims`), none (nothing of ours).
        part: the sets that count (`compared.PARTS`); all where empty.
        limit: see `kind`.
        why: why nothing of ours speaks to it.
    """

    paper: str
    where: str
    text: str
    theirs: str
    ours: Pair | None
    published: Pair | None
    students: tuple[str, ...]
    kind: str
    part: str
    limit: float
    why: str

    @property
    def forms(self) -> dict[str, Pair | None]:
        return dict(zip(FORMS, (self.published, self.ours), strict=True))

    @property
    def figures(self) -> str:
        """The paper's figures; pairs that are the other way round are marked as reversed."""
        if not _PAIRS.fullmatch(self.theirs):
            return self.theirs or "not given"
        pairs = [tuple(each.split("/")) for each in self.theirs.split("; ")]
        gaps = sorted(round(float(a) - float(b), 2) for a, b in pairs)
        if len(gaps) > 3:
            return f"ahead on {sum(gap > 0 for gap in gaps)} of {len(gaps)}, {gaps[0]:+.1f} to {gaps[-1]:+.1f}"
        shown = []
        for a, b in pairs:
            gap = float(a) - float(b)
            turned = gap > 0 if self.kind == "rank" else gap < 0
            shown.append(f"{a} {'<' if gap < 0 else '>' if gap > 0 else '='} {b}{' (reversed)' if turned else ''}")
        return "; ".join(shown)


def read() -> tuple[Claim, ...]:
    with FILE.open(encoding="utf-8", newline="") as lines:
        return tuple(_claim(row) for row in csv.DictReader(lines))


def _claim(row: dict[str, str]) -> Claim:
    first, second = (
        (row[f"{form}first"], row[f"{form}second"]) if row[f"{form}first"] else None for form in ("", "published_")
    )
    return Claim(
        **{name: row[name] for name in ("paper", "where", "text", "theirs", "kind", "part", "why")},
        ours=first,
        published=second,
        students=tuple(row["students"].split("|")) if row["students"] else ("none",),
        limit=float(row["limit"] or 0),
    )


CLAIMS = read()
