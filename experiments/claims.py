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

import image_tables
import molecule_tables
import numpy as np
from common import RESULTS
from scipy import stats

HERE = Path(__file__).parent
STUDENTS = ("bpe", "cut")
MOLECULES = "molecules"
IMAGES = "images"
#: A difference of the average that counts as none, in points of percent.
SMALL = 0.5
#: What three test sets of 460 to 2,000 images cannot tell apart, in points.
HARM = 1.0
HOLDS, FAILS, UNTESTED = "holds", "does not hold here", "not tested"


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper that two rows of ours can speak to.

    Attributes:
        paper, where: whose claim, and its table.
        text: the claim in our words.
        figure: the paper's figure.
        kind: better (a scores more than b), small (a and b differ by less than `SMALL`), cost (a step of a takes at
            most `limit` times a step of b), flatter (the largest eigenvalue is smaller with a than with b), rank (the
            average rank of a is better than that of b), ahead and harmless (the average accuracy of a over the data
            sets of images is above that of b, or at most `HARM` below it).
        a, b: names of rows.
        limit: see `kind`.
        students: those that it is tested with.
    """

    paper: str
    where: str
    text: str
    figure: str
    kind: Literal["better", "small", "cost", "flatter", "rank", "ahead", "harmless"]
    a: str
    b: str
    limit: float = 0.0
    students: tuple[str, ...] = STUDENTS


@dataclass(frozen=True)
class Finding:
    """Our figure with its interval (None where not tested), what it is made of, and the verdict."""

    value: float | None
    interval: tuple[float, float] | None
    basis: str
    verdict: str


def _talas(where: str, text: str, figure: str, a: str, b: str, kind: Any = "better", limit: float = 0.0) -> Claim:
    students = STUDENTS[:1] if kind in ("cost", "flatter") else STUDENTS
    return Claim("TALAS", where, text, figure, kind, a, b, limit, students)


def _molecules(where: str, text: str, figure: str, b: str, kind: Any = "rank") -> Claim:
    """About the student of all teachers by likelihood."""
    return Claim("Many teachers", where, text, figure, kind, molecule_tables.MAIN, b, students=(MOLECULES,))


def _images(where: str, text: str, figure: str, b: str, kind: Any = "ahead", a: str = "gaussian") -> Claim:
    return Claim("Many teachers", where, text, figure, kind, a, b, students=(IMAGES,))


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
    _molecules("Table 2", "The student beats its best teacher", "3.72 < 4.79", molecule_tables.BEST_TEACHER),
    _molecules("Figure 5", "All teachers beat the best single one", "not given", molecule_tables.BEST_SINGLE),
    _molecules("Table 2", "Likelihood beats squared error", "3.94 < 6.15", "multi_mse"),
    _molecules("Table 2", "Likelihood beats cosine", "3.94 < 5.13", "multi_cosine"),
    _molecules("text", "Kernel depth hardly matters (two hidden layers)", "not given", "gaussian depth 2", "small"),
    _molecules("text", "Kernel depth hardly matters (five hidden layers)", "not given", "gaussian depth 5", "small"),
    _images("Table 21", "All teachers beat the best single one", "92.21 > 91.78", image_tables.BEST_SINGLE),
    _images("Table 1", "Likelihood beats squared error", "92.43 > 90.30", "multi_mse"),
    _images("Table 1", "Likelihood beats cosine", "92.43 > 91.02", "multi_cosine"),
    _images("Table 1", "The student beats its best teacher", "92.43 > 90.99", image_tables.BEST_TEACHER),
    _images("Table 1", "The student beats itself without distillation", "92.43 > 88.48", "labels"),
    _images("ours", "A weak teacher beside seven does not hurt", "not given", "gaussian without vww", "harmless"),
    _images(
        "ours",
        "A weak teacher beside a good one does not hurt",
        "not given",
        "gaussian from resnet56",
        "harmless",
        "gaussian from resnet56+vww",
    ),
)

RULES = f"""# Claims of the papers, and what we found

Written by `python experiments/claims.py` from the files under `experiments/results` and `benchmarks/results`; nothing
here is written by hand. Paper figures are of its own students, teachers and five epochs; ours of the students named
(`bpe`: 4 layers x 256 with a tokenizer of its own; `cut`: two layers kept from the teacher), see talas_table.py, and
`molecules`: GINE of 5 layers x 128 on 20,000 molecules, see molecules.py; `images`: a residual network of 8 layers on
9,000 images, see images.py (the paper's figures there are averages over CIFAR-10, Fashion-MNIST and MNIST).

- **better**: mean over the sets (nine of texts, the columns of the molecule files) of the difference of the main metric
  in points, paired by set, averaged over the seeds that both rows have; 95 % Student interval over the sets. It holds
  where the whole interval is above 0.
- **small**: the same difference; it holds where the whole interval lies within ±{SMALL} points.
- **cost**: ratio of processor time per step, median with least and greatest round (benchmarks/step.py). It holds where
  the greatest is at most the paper's ratio.
- **flatter**: how many times larger the largest eigenvalue is with the second optimiser, geometric mean over the
  checkpoints after the start and the seeds, 95 % Student interval of the logarithm over them. It holds where the whole
  interval is above 1. Checkpoints of one run are not independent, so the interval is somewhat too narrow.
- **rank**: how much better the average rank over the columns of the molecule files is, among teachers, main students
  and single-teacher students, with scores averaged over seeds first; 95 % bootstrap interval over the columns. It holds
  where the whole interval is above 0. "Best" is the best on these same columns, to the advantage of what is compared.
- **ahead**: difference of the average accuracy over the three data sets of images in points, paired by seed; 95 %
  Student interval over the seeds. It holds where the whole interval is above 0. "Best" is the best on these same test
  images (of single-teacher students: with seed 0), to the advantage of what is compared.
- **harmless**: the same difference; it holds where the whole interval is above -{HARM:g}, about what the test images
  can tell apart, and the opposite holds where it is below that.

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
    neutral = {"better": 0.0, "rank": 0.0, "flatter": 1.0, "ahead": 0.0, "harmless": -HARM}[kind]
    if low > neutral:
        return HOLDS
    return f"{FAILS} ({'the opposite' if high < neutral else 'not told apart'})"


def task_scores(results: Path, student: str, row: str) -> dict[int | None, dict[str, float]]:
    """Seed -> task -> main metric; the seed is None for models that are not trained here."""
    if student == MOLECULES:
        return dict(molecule_tables.task_scores(results / "molecules", row))
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


def compare_ranks(claim: Claim, results: Path) -> Finding:
    """The difference of two average ranks over the columns of the molecule files."""
    found = molecule_tables.compare_ranks(results / "molecules", claim.a, claim.b)
    if found is None:
        return Finding(None, None, f"{claim.a} or {claim.b} is not whole", UNTESTED)
    _, other, value, interval, tasks = found
    named = "" if other == claim.b else f", {other}"
    return Finding(value, interval, f"{tasks} columns{named}", verdict("rank", interval))


def compare_images(claim: Claim, results: Path) -> Finding:
    """The difference of two average accuracies, by seed."""
    other, found = image_tables.differences(results / "images", claim.a, claim.b)
    if len(found) < 2:
        return Finding(None, None, f"fewer than two seeds of {claim.a} and {other}", UNTESTED)
    value, interval = student_interval(found)
    named = "" if other == claim.b else f", {other}"
    return Finding(value, interval, f"3 sets, {len(found)} seeds{named}", verdict(claim.kind, interval))


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
        for student in claim.students:
            if claim.kind == "cost":
                finding = compare_cost(claim, benchmarks)
            elif claim.kind == "flatter":
                finding = compare_curvature(claim, results)
            elif claim.kind == "rank":
                finding = compare_ranks(claim, results)
            elif claim.kind in ("ahead", "harmless"):
                finding = compare_images(claim, results)
            else:
                finding = compare_scores(claim, results, student)
            found.append((claim, student, finding))
    return found


def page(found: list[tuple[Claim, str, Finding]]) -> str:
    """CLAIMS.md."""
    lines = [
        RULES,
        *_counts(found),
        "",
        "| paper | claim | kind | the paper's figure | student | ours, with interval | from | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for claim, student, finding in found:
        ours = ""
        if finding.value is not None and finding.interval is not None:
            sign = "" if claim.kind in ("cost", "flatter") else "+"
            low, high = finding.interval
            ours = f"{finding.value:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"
        lines.append(
            f"| {claim.paper}, {claim.where} | {claim.text} | {claim.kind} | {claim.figure} | {student} | {ours} "
            f"| {finding.basis} | {finding.verdict} |"
        )
    return "\n".join(lines) + "\n"


def _counts(found: list[tuple[Claim, str, Finding]]) -> list[str]:
    """A line per paper: how many claims hold, do not hold, and are not tested."""
    lines: list[str] = []
    for paper in dict.fromkeys(claim.paper for claim, _, _ in found):
        verdicts = [finding.verdict for claim, _, finding in found if claim.paper == paper]
        counts = {word: sum(one.startswith(word) for one in verdicts) for word in (HOLDS, FAILS, UNTESTED)}
        lines.append(f"- {paper}: {'; '.join(f'{count} {word}' for word, count in counts.items())}.")
    return lines


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
