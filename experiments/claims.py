"""What the papers claim and what our results say: writes experiments/CLAIMS.md from the result files.

    python experiments/claims.py

Nobody writes a verdict: each follows from the files by the rule of its kind, and the rules stand at the head of the
page. A claim whose files are not there yet is "not tested". A later method adds its claims to `CLAIMS`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from common import RESULTS
from scipy import stats

HERE = Path(__file__).parent
STUDENTS = ("bpe", "cut")
#: A difference of the average that counts as none, in points of percent.
SMALL = 0.5
HOLDS, FAILS, UNTESTED = "holds", "does not hold here", "not tested"


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper that two rows of ours can speak to.

    Attributes:
        paper, where: whose claim, and its table.
        text: the claim in our words.
        figure: the paper's figure.
        kind: better (a scores more than b), small (a and b differ by less than `SMALL`), cost (a step of a takes at
            most `limit` times a step of b), flatter (the largest eigenvalue is smaller with a than with b).
        a, b: names of rows.
        limit: see `kind`.
    """

    paper: str
    where: str
    text: str
    figure: str
    kind: Literal["better", "small", "cost", "flatter"]
    a: str
    b: str
    limit: float = 0.0


@dataclass(frozen=True)
class Finding:
    """Our figure with its interval (None where not tested), what it is made of, and the verdict."""

    value: float | None
    interval: tuple[float, float] | None
    basis: str
    verdict: str


def _talas(where: str, text: str, figure: str, a: str, b: str, kind: Any = "better", limit: float = 0.0) -> Claim:
    return Claim("TALAS", where, text, figure, kind, a, b, limit)


CLAIMS: tuple[Claim, ...] = (
    _talas("Table 1", "The teacher is ahead of TALAS", "79.29 > 74.79", "teacher", "talas+asam"),
    _talas("Table 1", "TALAS beats DistillCSE", "74.79 > 72.30", "talas+asam", "distillcse"),
    _talas("Table 1", "TALAS beats Jasper and Stella", "74.79 > 71.94", "talas+asam", "jasper_stella"),
    _talas("Table 1", "TALAS beats SimCSE", "74.79 > 68.80", "talas+asam", "simcse"),
    _talas("Table 1", "DistillCSE beats Jasper and Stella", "72.30 > 71.94", "distillcse", "jasper_stella"),
    _talas("Table 1", "Jasper and Stella beats SimCSE", "71.94 > 68.80", "jasper_stella", "simcse"),
    _talas("Table 1", "SimCSE beats the untrained student", "68.80 > 52.60", "simcse", "untrained student"),
    _talas("Table 1", "TALAS beats EMO", "74.79 > 72.98", "talas+asam", "emo"),
    _talas("Table 2", "TAMD helps: with SimCSE it beats SimCSE", "71.99 > 68.80", "talas without lasd", "simcse"),
    _talas("Table 2", "TAMD helps: TALAS needs it", "not given", "talas", "talas without tamd"),
    _talas("Table 2", "LASD helps", "72.85 > 71.99", "talas", "talas without lasd"),
    _talas("Table 2", "ASAM helps", "74.79 > 72.85", "talas+asam", "talas"),
    _talas("weights", "The SimCSE term has a small effect", "weight 0.001", "talas", "talas without simcse", "small"),
    _talas("Table 9", "ASAM beats DISAM", "74.79 > 74.37", "talas+asam", "talas+disam"),
    _talas("Table 9", "ASAM beats SAM", "74.79 > 73.90", "talas+asam", "talas+sam"),
    _talas("Table 9", "DISAM beats SAM", "74.37 > 73.90", "talas+disam", "talas+sam"),
    _talas("Table 9", "SAM beats plain AdamW", "73.90 > 72.85", "talas+sam", "talas"),
    _talas("Table 7", "Two anchored layers beat one", "78.83 > 77.17", "talas", "talas anchored 1"),
    _talas("Table 7", "Two anchored layers beat more (three)", "78.83 > 78.78 (four)", "talas", "talas anchored 3"),
    _talas("Table 7", "Two anchored layers beat all (four)", "78.83 > 77.68 (all)", "talas", "talas anchored 4"),
    _talas("Table 8", "LASD over all layers beats the top two", "78.83 > 77.30", "talas", "talas lasd layers 2"),
    _talas("Table 8", "LASD over all layers beats all but one", "78.83 > 78.45", "talas", "talas lasd layers 3"),
    _talas("Table 3", "A step of TALAS without ASAM, in steps of SimCSE", "1.29", "talas", "simcse", "cost", 1.29),
    _talas("Table 3", "A step of TALAS with ASAM, in steps of SimCSE", "2.48", "talas+asam", "simcse", "cost", 2.48),
    _talas("Table 4", "ASAM ends flatter than AdamW", "30.24/14.89 = 2.0 times", "asam", "adamw", "flatter"),
)

RULES = f"""# Claims of the papers, and what we found

Written by `python experiments/claims.py` from the files under `experiments/results` and `benchmarks/results`; nothing
here is written by hand. Paper figures are of its own students, teachers and five epochs; ours of the students named
(`bpe`: 4 layers x 256 with a tokenizer of its own; `cut`: two layers kept from the teacher), see talas_table.py.

- **better**: mean over the nine sets of the difference of the main metric in points, paired by set, averaged over the
  seeds that both rows have; 95 % Student interval over the sets. It holds where the whole interval is above 0.
- **small**: the same difference; it holds where the whole interval lies within ±{SMALL} points.
- **cost**: ratio of processor time per step, median with least and greatest round (benchmarks/step.py). It holds where
  the greatest is at most the paper's ratio.
- **flatter**: how many times larger the largest eigenvalue is with the second optimiser, geometric mean over the
  checkpoints after the start and the seeds, 95 % Student interval of the logarithm over them. It holds where the whole
  interval is above 1. Checkpoints of one run are not independent, so the interval is somewhat too narrow.

"Does not hold here" says that the rule is not met in our setting: "not told apart" where the interval also leaves the
opposite open, "the opposite" where it does not. "Not tested" says that a row is not there yet. With so many rows one
in forty comparisons of equals would "hold" by chance.
"""


def student_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean and 95 % Student interval of at least two values; with no spread the interval is the mean."""
    given = np.asarray(values, float)
    mean, error = float(given.mean()), float(given.std(ddof=1) / np.sqrt(len(given)))
    reach = float(stats.t.ppf(0.975, len(given) - 1)) * error
    return mean, (mean - reach, mean + reach)


def verdict(kind: str, interval: tuple[float, float], limit: float = 0.0) -> str:
    """The rule of each kind, as RULES states it."""
    low, high = interval
    if kind == "small":
        return HOLDS if low >= -SMALL and high <= SMALL else FAILS
    if kind == "cost":
        return HOLDS if high <= limit else FAILS
    neutral = {"better": 0.0, "flatter": 1.0}[kind]
    if low > neutral:
        return HOLDS
    return f"{FAILS} ({'the opposite' if high < neutral else 'not told apart'})"


def task_scores(results: Path, student: str, row: str) -> dict[int | None, dict[str, float]]:
    """Seed -> task -> main metric; the seed is None for models that are not trained here."""
    home = results / "talas_table"
    fixed = {"teacher": home / "teacher.json"}.get(row, home / student / "references.json")
    if fixed.exists():
        models = json.loads(fixed.read_text())["models"]
        if row in models:
            return {None: _values(models[row])}
    files = (home / student).glob(f"{row.replace(' ', '_')}-[0-9]*.json")
    runs = [json.loads(file.read_text()) for file in sorted(files)]
    return {run["seed"]: _values(run) for run in runs if run["row"] == row}


def _values(run: dict[str, Any]) -> dict[str, float]:
    return {name: task["value"] for name, task in run["tasks"].items()}


def compare_scores(claim: Claim, results: Path, student: str) -> Finding:
    """The paired difference of two rows, in points."""
    first, second = (task_scores(results, student, row) for row in (claim.a, claim.b))
    missing = [row for row, found in ((claim.a, first), (claim.b, second)) if not found]
    if missing:
        return Finding(None, None, f"no {' and no '.join(missing)}", UNTESTED)
    pairs = [(first[one], second[other]) for one in first for other in second if one == other or None in (one, other)]
    if not pairs:
        return Finding(None, None, "no seed in common", UNTESTED)
    tasks = sorted(set.intersection(*(set(scores) for pair in pairs for scores in pair)))
    if len(tasks) < 2:
        return Finding(None, None, "fewer than two sets in common", UNTESTED)
    differences = [100 * float(np.mean([a[task] - b[task] for a, b in pairs])) for task in tasks]
    value, interval = student_interval(differences)
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    return Finding(value, interval, f"{len(tasks)} sets, {seeds}", verdict(claim.kind, interval))


def compare_cost(claim: Claim, benchmarks: Path) -> Finding:
    """The ratio of two steps' processor time."""
    file = benchmarks / "step.json"
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    if claim.a not in rows or claim.b not in rows:
        return Finding(None, None, "no step.json with both rows", UNTESTED)
    found = rows[claim.a]["ratio_processor_time"]
    interval = (found["least"], found["greatest"])
    return Finding(found["median"], interval, "student bpe, 1 thread", verdict("cost", interval, claim.limit))


def compare_curvature(claim: Claim, results: Path) -> Finding:
    """How many times larger the largest eigenvalue is with b than with a."""
    first, second = (_curvatures(results / "sharpness", row) for row in (claim.a, claim.b))
    shared = [point for point in first if point in second]
    ratios = [np.log(second[point] / first[point]) for point in shared if min(first[point], second[point]) > 0]
    if len(ratios) < 2:
        return Finding(None, None, "fewer than two checkpoints in common", UNTESTED)
    value, (low, high) = student_interval(ratios)
    interval = (float(np.exp(low)), float(np.exp(high)))
    return Finding(float(np.exp(value)), interval, f"{len(ratios)} checkpoints", verdict("flatter", interval))


def _curvatures(folder: Path, row: str) -> dict[tuple[int, float], float]:
    """(seed, epoch) -> largest eigenvalue, after the start."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob(f"{row}-[0-9]*.json"))]
    return {(run["seed"], p["epoch"]): p["curvature"] for run in runs for p in run["points"] if p["step"]}


def findings(results: Path, benchmarks: Path) -> list[tuple[Claim, str, Finding]]:
    """Every claim with the student it is tested on and what was found."""
    found: list[tuple[Claim, str, Finding]] = []
    for claim in CLAIMS:
        if claim.kind == "cost":
            found.append((claim, "bpe", compare_cost(claim, benchmarks)))
        elif claim.kind == "flatter":
            found.append((claim, "bpe", compare_curvature(claim, results)))
        else:
            found += [(claim, student, compare_scores(claim, results, student)) for student in STUDENTS]
    return found


def page(found: list[tuple[Claim, str, Finding]]) -> str:
    """CLAIMS.md."""
    counts = {
        word: sum(finding.verdict.startswith(word) for _, _, finding in found) for word in (HOLDS, FAILS, UNTESTED)
    }
    lines = [
        RULES,
        "; ".join(f"{count} {word}" for word, count in counts.items()) + ".",
        "",
        "| paper | claim | kind | the paper's figure | student | ours, with interval | from | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for claim, student, finding in found:
        ours = ""
        if finding.value is not None and finding.interval is not None:
            sign = "+" if claim.kind in ("better", "small") else ""
            low, high = finding.interval
            ours = f"{finding.value:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"
        lines.append(
            f"| {claim.paper}, {claim.where} | {claim.text} | {claim.kind} | {claim.figure} | {student} | {ours} "
            f"| {finding.basis} | {finding.verdict} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--benchmarks", type=Path, default=HERE.parent / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=HERE / "CLAIMS.md")
    options = parser.parse_args()
    text = page(findings(options.results, options.benchmarks))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
