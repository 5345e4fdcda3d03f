"""What the papers claim and what our results say: writes experiments/CLAIMS.md from the result files.

    python experiments/claims.py

Nobody writes a verdict: each follows from the files by the rule of its kind, and the rules stand at the head of the
page. A claim whose files are not there yet is "not tested". What is claimed stands in claimed.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cross_table
import image_tables
import many_text_table
import mixture_table
import molecule_tables
import numpy as np
from claimed import CLAIMS, MOLECULES, OUT_OF_DOMAIN, PARTS, TEXTS, Claim
from common import RESULTS
from scipy import stats

HERE = Path(__file__).parent
#: A difference of the average that counts as none, in points of percent.
SMALL = 0.5
#: What three test sets of 460 to 2,000 images cannot tell apart, in points.
HARM = 1.0
Scores = dict[int | None, dict[str, float]]
HOLDS, FAILS, UNTESTED, UNLIKE = "holds", "does not hold here", "not tested", "not comparable"


@dataclass(frozen=True)
class Finding:
    """Our figure with its interval (None where not tested), what it is made of, and the verdict.

    Attributes:
        seeds: what an interval over sets leaves out: the mean difference in points of each seed that both rows have.
    """

    value: float | None
    interval: tuple[float, float] | None
    basis: str
    verdict: str
    seeds: tuple[float, ...] = ()


RULES = f"""# Claims of the papers, and what we found

Written by `python experiments/claims.py` from the files under `experiments/results` and `benchmarks/results`; nothing
here is written by hand. Paper figures are of its own students, teachers and five epochs; ours of the students named
(`bpe`: 4 layers x 256 with a tokenizer of its own; `cut`: two layers kept from the teacher), see talas_table.py, and
`molecules`: GINE of 5 layers x 128 on 20,000 molecules, see molecules.py; `images`: a residual network of 8 layers on
9,000 images, see images.py (the paper's figures there are averages over CIFAR-10, Fashion-MNIST and MNIST); `texts`:
the student `bpe` of five teachers, see many_text.py (the paper's figures there are of its smallest student on twelve
classification sets, beside which ours are of three); `labelled` and `out-of-domain`: the student `bpe`, see
cross_tokenizer.py; `mixtures`: an upcycled teacher, see mixtures.py.

Of many teachers, "likelihood" is the default (`sound`): it clips coordinates at three
deviations, and trains its means as squared error would (beta-NLL with beta 1), so that what it adds are the deviations
that it predicts. "Plain likelihood" does neither, and is compared with squared error on unclipped vectors. All kernels
of images and molecules start from random weights and are 256 wide, as published, which is not the default.

Of `labelled`, every method has the learning rate that was best on validation data. EMO and DistillMoE have more than
that: what their defaults changed of the papers was chosen on validation data of Banking77 and STS-B, and of the sets of
TALAS's corpus without labels, for these methods alone. On the other sets they had no such advantage (see the table of
experiments/results/cross_tokenizer).

- **better**: mean over the sets (nine of texts, the columns of the molecule files) of the difference of the main metric
  in points, paired by set, averaged over the seeds that both rows have; 95 % Student interval over the sets. It holds
  where the whole interval is above 0.
  The column "over seeds" is the same difference with a 95 % Student interval over the seeds instead of the sets: what
  other start weights and orders would change, on these sets. Of **rank** it is the mean difference of the scores in
  points. It has no part in the verdict.
- **small**: the same difference; it holds where the whole interval lies within ±{SMALL} points.
- **cost**: ratio of processor time per step, median with least and greatest round (benchmarks/step.py,
  for methods that look inside the teacher token_steps.py). It holds where
  the greatest is at most the paper's ratio.
- **flatter**: how many times larger the largest eigenvalue is with the second optimiser, geometric mean over the
  checkpoints after the start and the seeds, 95 % Student interval of the logarithm over them. It holds where the whole
  interval is above 1. Checkpoints of one run are not independent, so the interval is somewhat too narrow.
- **rank**: how much better the average rank over the columns of the molecule files is, among teachers, main students
  and single-teacher students, with scores averaged over seeds first; 95 % bootstrap interval over the columns. It holds
  where the whole interval is above 0. "Best" is the best on these same columns, to the advantage of what is compared.
- **labelled**: difference of the test score (accuracy, or Spearman's rho of STS-B) in points, of students trained with
  labels across tokenizers (cross_tokenizer.py), paired by labelled set and seed; 95 % Student interval over these
  runs. Several seeds of a set are not independent, so it is somewhat too narrow. It holds where it lies above 0.
- **mixed**: difference of a group's mean score in points between two aggregations of a mixture (mixtures.py), paired by
  seed; 95 % Student interval over the seeds. It holds where the whole interval is above 0.
- **ahead**: difference of the average accuracy over the three data sets of images in points, paired by seed; 95 %
  Student interval over the seeds. It holds where the whole interval is above 0. "Best" is the best on these same test
  images (of single-teacher students: with seed 0), to the advantage of what is compared.
- **harmless**: the same difference; it holds where the whole interval is above -{HARM:g}, about what the test images
  can tell apart, and the opposite holds where it is below that.

"Does not hold here" says that the rule is not met in our setting: "not told apart" where the interval also leaves the
opposite open, "the opposite" where it does not. "Not tested" says that a row is not there yet. "Not comparable" says
that both figures are there but not of the same thing, for the reason given. With so many rows one in forty comparisons
of equals would "hold" by chance.
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
    neutral = {"flatter": 1.0, "harmless": -HARM}.get(kind, 0.0)
    if low > neutral:
        return HOLDS
    return f"{FAILS} ({'the opposite' if high < neutral else 'not told apart'})"


def task_scores(results: Path, student: str, row: str) -> Scores:
    """Seed -> task -> main metric; the seed is None for models that are not trained here."""
    if student == MOLECULES:
        return dict(molecule_tables.task_scores(results / "molecules", row))
    if student == TEXTS:
        return dict(many_text_table.task_scores(results / "many_text" / "talas", row))
    if student == OUT_OF_DOMAIN:
        return _trained(results / "cross_tokenizer" / OUT_OF_DOMAIN / "bpe", row)
    home = results / "talas_table"
    fixed = {"teacher": home / "teacher.json"}.get(row, home / student / "references.json")
    if fixed.exists():
        models = json.loads(fixed.read_text())["models"]
        if row in models:
            return {None: _values(models[row])}
    # Methods that look inside the teacher have their rows of the same comparison elsewhere.
    return _trained(home / student, row) or _trained(results / "cross_tokenizer" / "unsupervised" / student, row)


def _trained(folder: Path, row: str) -> Scores:
    files = folder.glob(f"{row.replace(' ', '_')}-[0-9]*.json")
    runs = [json.loads(file.read_text()) for file in sorted(files)]
    return {run["seed"]: _values(run) for run in runs if run["row"] == row}


def _values(run: dict[str, Any]) -> dict[str, float]:
    return {name: task["value"] for name, task in run["tasks"].items()}


def compare_scores(claim: Claim, results: Path, student: str) -> Finding:
    """The paired difference of two rows, in points."""
    other = claim.b
    if other == many_text_table.BEST_SINGLE:
        other = many_text_table.best_single(results / "many_text" / "talas") or other
    first, second = (task_scores(results, student, row) for row in (claim.a, other))
    missing = [row for row, found in ((claim.a, first), (other, second)) if not found]
    if missing:
        return Finding(None, None, f"no {' and no '.join(missing)}", UNTESTED)
    pairs = _pairs(first, second)
    if not pairs:
        return Finding(None, None, "no seed in common", UNTESTED)
    tasks = sorted(set.intersection(*(set(scores) for pair in pairs for scores in pair)))
    if claim.part:
        tasks = [task for task in tasks if task.startswith(PARTS[claim.part])]
    if len(tasks) < 2:
        return Finding(None, None, "fewer than two sets in common", UNTESTED)
    differences = [100 * float(np.mean([a[task] - b[task] for a, b in pairs])) for task in tasks]
    value, interval = student_interval(differences)
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    named = ("" if other == claim.b else f", {other}") + (f", {claim.part}" if claim.part else "")
    each = tuple(100 * float(np.mean([a[task] - b[task] for task in tasks])) for a, b in pairs)
    return Finding(value, interval, f"{len(tasks)} sets, {seeds}{named}", verdict(claim.kind, interval), each)


def _pairs(first: Scores, second: Scores) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Runs of one seed; a model that is not trained here goes with every seed."""
    return [(first[one], second[other]) for one in first for other in second if one == other or None in (one, other)]


def compare_ranks(claim: Claim, results: Path) -> Finding:
    """The difference of two average ranks over the columns of the molecule files."""
    found = molecule_tables.compare_ranks(results / "molecules", claim.a, claim.b)
    if found is None:
        return Finding(None, None, f"{claim.a} or {claim.b} is not whole", UNTESTED)
    first, other, value, interval, tasks = found
    named = "" if other == claim.b else f", {other}"
    ours, theirs = (dict(molecule_tables.task_scores(results / "molecules", row)) for row in (first, other))
    each = tuple(100 * float(np.mean([a[task] - b[task] for task in a.keys() & b])) for a, b in _pairs(ours, theirs))
    return Finding(value, interval, f"{tasks} columns{named}", verdict("rank", interval), each)


def compare_images(claim: Claim, results: Path) -> Finding:
    """The difference of two average accuracies, by seed."""
    other, found = image_tables.differences(results / "images", claim.a, claim.b)
    if len(found) < 2:
        return Finding(None, None, f"fewer than two seeds of {claim.a} and {other}", UNTESTED)
    value, interval = student_interval(found)
    named = "" if other == claim.b else f", {other}"
    return Finding(value, interval, f"3 sets, {len(found)} seeds{named}", verdict(claim.kind, interval))


def compare_labelled(claim: Claim, results: Path) -> Finding:
    """The difference of two rows' test scores in points, paired by labelled set and seed."""
    first, second = (cross_table.scores(results / "cross_tokenizer", row) for row in (claim.a, claim.b))
    pairs = [pair for pair in first if pair in second]
    if len(pairs) < 2:
        return Finding(None, None, f"fewer than two runs of {claim.a} and {claim.b} on one set", UNTESTED)
    value, interval = student_interval([first[pair] - second[pair] for pair in pairs])
    sets = len({name for name, _ in pairs})
    return Finding(value, interval, f"{sets} sets, {len(pairs)} runs", verdict(claim.kind, interval))


def compare_mixtures(claim: Claim, results: Path) -> Finding:
    """The difference of two aggregations on one group of tasks in points, by seed."""
    other, _, group = claim.b.partition(" ")
    found = mixture_table.differences(results / "mixtures", claim.a, other, group)
    if len(found) < 2:
        return Finding(None, None, f"fewer than two seeds of {claim.a} and {other}", UNTESTED)
    value, interval = student_interval(found)
    return Finding(value, interval, f"{group}, {len(found)} seeds", verdict(claim.kind, interval))


def compare_cost(claim: Claim, benchmarks: Path) -> Finding:
    """The ratio of two steps' processor time."""
    file = benchmarks / ("token_steps.json" if claim.a.endswith((" live", " store")) else "step.json")
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    if claim.a not in rows or claim.b not in rows:
        return Finding(None, None, f"no {file.name} with both rows", UNTESTED)
    found = rows[claim.a]["ratio_processor_time"]
    interval = (found["least"], found["greatest"])
    judged = f"{UNLIKE} ({claim.unlike})" if claim.unlike else verdict("cost", interval, claim.limit)
    return Finding(found["median"], interval, "student bpe, 1 thread", judged)


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
            elif claim.kind == "labelled":
                finding = compare_labelled(claim, results)
            elif claim.kind == "mixed":
                finding = compare_mixtures(claim, results)
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
        "| paper | claim | kind | the paper's figure | student | ours, with interval | over seeds | from | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for claim, student, finding in found:
        ours = ""
        if finding.value is not None and finding.interval is not None:
            sign = "" if claim.kind in ("cost", "flatter") else "+"
            low, high = finding.interval
            ours = f"{finding.value:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"
        lines.append(
            f"| {claim.paper}, {claim.where} | {claim.text} | {claim.kind} | {claim.figure} | {student} | {ours} "
            f"| {_over_seeds(finding)} | {finding.basis} | {finding.verdict} |"
        )
    return "\n".join(lines) + "\n"


def _over_seeds(finding: Finding) -> str:
    if len(finding.seeds) < 2:
        return ""
    value, (low, high) = student_interval(finding.seeds)
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def _counts(found: list[tuple[Claim, str, Finding]]) -> list[str]:
    """A line per paper: how many claims hold, do not hold, are not tested, and are not comparable."""
    lines: list[str] = []
    for paper in dict.fromkeys(claim.paper for claim, _, _ in found):
        verdicts = [finding.verdict for claim, _, finding in found if claim.paper == paper]
        counts = {word: sum(one.startswith(word) for one in verdicts) for word in (HOLDS, FAILS, UNTESTED, UNLIKE)}
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
