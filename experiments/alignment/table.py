"""The page of what `alignment` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, committed
from experiments.harness.tables import head, line, written
from experiments.harness.verdicts import HOLDS, NEAR, Finding, untested

from distilvec.alignment import MODES

SETS = {"scitail": "SciTail", "control": "ConTRoL", "anli_r2": "ANLI R2"}


#: EMO, Table 6: teacher and student, in percent, over train, dev and test together.
PAPER = {"scitail": (71.03, 80.22), "control": (68.86, 75.48), "anli_r2": (66.37, 74.47)}


ONE_TO_ONE = [mode for mode in MODES if mode != "full"]


CUT = 512


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown table of the sets that are there, also written to `table.md`."""
    found = [rows[name] for name in SETS if name in rows]
    lines = [
        HEADER,
        *head("mode", *(SETS[result["set"]] for result in found)),
        line("EMO, Table 6 (published)", *("{:.2f} / {:.2f}".format(*PAPER[result["set"]]) for result in found)),
    ]
    for mode in ONE_TO_ONE:
        lines.append(_row(mode, [result["modes"][mode] for result in found]))
    lines.append(_row(f"strict, texts cut to {CUT} tokens", [result["strict_cut"] for result in found]))
    lines.append(_row("strict, without digits", [result["strict_without_digits"] for result in found]))
    told = {result["set"]: result for result in found}
    if {"control", "anli_r2"} <= set(told):
        lines += ["", unexplained(told["control"], told["anli_r2"])]
    sizes = "; ".join(
        f"{SETS[result['set']]} {result['texts']:,} texts of {result['student_tokens']:.1f} (student) and "
        f"{result['teacher_tokens']:.1f} (teacher) tokens"
        for result in found
    )
    return written(folder, [*lines, "", sizes + "."])


def unexplained(control: dict[str, Any], anli: dict[str, Any]) -> str:
    """Where the strict rates of the teacher's tokens are far from the published ones, and what was looked at."""
    (low, ours), high = PAPER["anli_r2"], PAPER["control"][0]
    strict, without = anli["modes"]["strict"]["teacher"], anli["strict_without_digits"]["teacher"]
    ratio = anli["teacher_per_student"]
    more = control["modes"]["strict"]["teacher"] - high
    return (
        f"Unexplained: strict pairs {low - strict:.1f} points fewer of the teacher's tokens than published on ANLI R2, "
        f"and {more:.1f} more on ConTRoL. On ANLI R2 most of it are numbers, which the teacher's tokenizer cuts into "
        f"single digits: without digits {without:.1f} % pair. The published rates imply {ours / low:.2f} of the "
        f"teacher's tokens for one of the student's; here there are {ratio['all']:.2f}, without digits "
        f"{ratio['without_digits']:.2f}. So the paper's texts may have had fewer digits or none; nearly all of them "
        "are training rows, which are not here. What differs on ConTRoL (other rows, special tokens, cut passages) was "
        "not found."
    )


def _row(name: str, cells: list[dict[str, float]]) -> str:
    return line(name, *(f"{cell['teacher']:.2f} / {cell['student']:.2f}" for cell in cells))


HEADER = """# Mapping rates between bert-base-uncased and Mistral

Percent of the teacher's / the student's tokens that are in a one-to-one pair. Made by
`python -m experiments.alignment.run`; its README says how. Ours are of the test sets, the paper's of all splits; it
does not say whether special tokens count.
"""


def measured(results: Path, name: str, side: str, student: str) -> Finding:
    """Our rate in the published mode; it is counted, so that no interval belongs to it."""
    found = committed("alignment", results).get(name)
    if found is None:
        return untested(f"no run of {name}")
    rate, published = found["modes"]["strict"][side], PAPER[name][("teacher", "student").index(side)]
    judged = Finding(HOLDS, rate, None, f"{found['texts']:,} texts")
    gap = abs(rate - published)
    away = f"{gap:.1f} points {'above' if rate > published else 'below'}; theirs is of all splits, ours of the test set"
    return judged if gap <= NEAR else judged.not_tested(away)
