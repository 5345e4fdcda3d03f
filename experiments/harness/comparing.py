"""New results beside the committed ones: what is the same, what moved, and what moved beyond what seeds do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from experiments.harness.records import FILE, RESULTS, Record, read_records
from experiments.harness.tables import head, line
from scipy import stats

#: What a machine, not a method, decides, and what is no score of a whole row.
LEFT_OUT = {"seed", "seeds", "lr", "interval", "teachers", "peak_bytes", "last_terms", "grad_norm", "speed"}
Figures = dict[str, float]


def compared(experiment: str, new: Iterable[Record]) -> str:
    """Markdown: a line for each figure of the rows that are on both sides."""
    old = read_records(RESULTS / experiment / FILE)
    before, after = _groups(old), _groups(new)
    both = [name for name in before if name in after]
    if not both:
        return f"No new row of {experiment} under these settings has a committed one of its name."
    spread = deviations([*before.values(), *after.values()])
    lines, moved, same = head("row", "figure", "committed", "new", "difference", "beyond seeds"), 0, 0
    for name in both:
        for figure in sorted(_names(before[name]) & _names(after[name])):
            one, other = (_values(side[name], figure) for side in (before, after))
            gap = float(np.mean(other) - np.mean(one))
            if abs(gap) < 1e-12:
                same += 1
                continue
            told = beyond(gap, len(one), len(other), spread.get(figure))
            moved += told == "yes"
            lines.append(
                line(name, figure, *(f"{np.mean(v):.4f} ({len(v)})" for v in (one, other)), f"{gap:+.4f}", told)
            )
    settings = [text for name in both for text in _settings(name, before[name], after[name])]
    return "\n".join(
        [
            f"# {experiment}: new results beside the committed ones",
            "",
            "In brackets: seeds. Beyond seeds: the difference is larger than its 95 % Student interval, with the",
            "deviation over seeds that all rows with several seeds have in this figure; `?` where no row has several.",
            "",
            f"{len(both)} rows on both sides; {same} figures are the same, {len(lines) - 2} moved, {moved} beyond "
            "seeds.",
            *settings,
            "",
            *lines,
        ]
    )


def beyond(gap: float, one: int, other: int, spread: tuple[float, int] | None) -> str:
    """Whether a difference of means over `one` and `other` seeds is larger than seeds make it: yes, no or ?.

    Args:
        spread: standard deviation over seeds, and its degrees of freedom.
    """
    if spread is None:
        return "?"
    deviation, freedom = spread
    reach = float(stats.t.ppf(0.975, freedom)) * deviation * np.sqrt(1 / one + 1 / other)
    return "yes" if abs(gap) > reach else "no"


def deviations(groups: Iterable[list[Record]]) -> dict[str, tuple[float, int]]:
    """Figure -> standard deviation over seeds, pooled over the groups with several, and its degrees of freedom."""
    squares: dict[str, float] = {}
    freedom: dict[str, int] = {}
    for group in groups:
        for figure in _names(group) if len(group) > 1 else ():
            values = np.array(_values(group, figure))
            squares[figure] = squares.get(figure, 0.0) + float(((values - values.mean()) ** 2).sum())
            freedom[figure] = freedom.get(figure, 0) + len(values) - 1
    return {figure: (float(np.sqrt(squares[figure] / freedom[figure])), freedom[figure]) for figure in squares}


def figures(result: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, float]]:
    """Dotted name -> number, of all scores of a result."""
    for name, value in result.items():
        if name in LEFT_OUT or name.endswith(("seconds", "_ms", "parameters", "steps")):
            continue
        if isinstance(value, Mapping):
            yield from figures(value, f"{start}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{start}{name}", float(value)


def _groups(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Row without its seed -> its records, the last of each name."""
    found: dict[str, list[Record]] = {}
    for record in {record["name"]: record for record in records}.values():
        start, _, seed = record["name"].rpartition("-")
        found.setdefault(start if start and seed.isdigit() else record["name"], []).append(record)
    return found


def _names(group: list[Record]) -> set[str]:
    """Figures that all records of a group have."""
    return set.intersection(*({name for name, _ in figures(record["result"])} for record in group))


def _values(group: list[Record], figure: str) -> list[float]:
    return [dict(figures(record["result"]))[figure] for record in group]


def _settings(name: str, before: list[Record], after: list[Record]) -> list[str]:
    """Settings that both sides know and that differ, but for seeds."""
    one, other = before[0]["options"], after[0]["options"]
    changed = [key for key in one if key in other and key != "seed" and one[key] != other[key]]
    return [f"- {name}: {key} was {one[key]!r}, is {other[key]!r}" for key in changed]
