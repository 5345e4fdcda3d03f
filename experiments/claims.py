"""What the papers claim and what our results say: writes experiments/CLAIMS.md from the result files.

    python experiments/claims.py

Nobody writes a verdict: each follows from the files by the rules at the head of the page (verdicts.py). What is claimed
stands in claimed.py. No data are needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cross_table
import image_starts_table
import image_tables
import many_text_table
import measured
import mixture_table
import molecule_tables
import molecules_long_table
import numpy as np
import sharpness_table
import similar_teachers_table
import writing_table
from claim import LABELLED, LONG, MOLECULES, OUT_OF_DOMAIN, OWN_RADIUS, PLAIN_KINDS, SIMILAR, STARTS, TEXTS, Claim
from claim_rules import MISSING, RULES, changes
from claimed import CLAIMS, PARTS
from cross_rows import ROWS
from layout import head, line
from records import RESULTS, Rows, below, committed, pairs_of_seeds, seeds
from verdicts import (
    ALIKE,
    FAILS,
    HOLDS,
    OPEN,
    OPPOSITE,
    SEEDS,
    UNLIKE,
    UNTESTED,
    Finding,
    figure,
    holm,
    judge,
    student_interval,
    untested,
    verdict,
)

HERE = Path(__file__).parent
#: Seed -> task -> main metric; the seed is None for models that are not trained here.
Scores = dict[int | None, dict[str, float]]
Found = list[tuple[Claim, str, Finding]]


def task_scores(results: Path, student: str, row: str) -> Scores:
    """Main metrics of a row, without the test rows that share a text with the training corpus.

    Of the runs of many text teachers only averages without them were kept, so the sets without any count there.
    """
    if student == MOLECULES:
        return dict(molecule_tables.task_scores(committed("molecules", results), row))
    if student == LONG:
        return molecules_long_table.scores(committed("molecules_long", results), row)
    if student == TEXTS:
        found = many_text_table.task_scores(below(committed("many_text", results), "talas"), row)
        return {seed: _chosen(each, many_text_table.CLEAN) for seed, each in found.items()}
    if student == STARTS:
        return image_starts_table.scores(committed("image_starts", results), row)
    if student in SIMILAR:
        return _trained(committed("similar_teachers", results), f"{student.partition('/')[2]}/{row}")
    if student in OWN_RADIUS:
        optimizer = sharpness_table.OPTIMIZER_OF.get(row, row)
        return _trained(committed("sharpness", results), f"{OWN_RADIUS[student]}/{optimizer}")
    crossed = committed("cross_tokenizer", results)
    if student == OUT_OF_DOMAIN:
        return _trained(crossed, f"{OUT_OF_DOMAIN}/bpe/{row}")
    home = committed("talas_table", results)
    fixed = home.get("teacher" if row == "teacher" else f"{student}/references", {"models": {}})["models"]
    if row in fixed:
        return {None: dict(fixed[row]["clean"])}
    # Methods that look inside the teacher have their rows of the same comparison elsewhere.
    return _trained(home, f"{student}/{row}") or _trained(crossed, f"unsupervised/{student}/{row}")


def _trained(rows: Rows, name: str) -> Scores:
    return {seed: dict(run["clean"]) for seed, run in seeds(rows, name).items()}


def _chosen(scores: dict[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if name in names}


def compare_scores(claim: Claim, results: Path, student: str) -> Finding:
    """The paired difference of two rows, in points. Columns of one molecule file are one set."""
    other = claim.b
    if other == many_text_table.BEST_SINGLE:
        other = many_text_table.best_single(below(committed("many_text", results), "talas")) or other
    if student in SIMILAR and other.endswith(similar_teachers_table.BEST_SINGLE):
        varied, rows = other.removesuffix(similar_teachers_table.BEST_SINGLE), committed("similar_teachers", results)
        other = similar_teachers_table.best_single(rows, student.partition("/")[2], varied) or other
    if other == molecules_long_table.BEST_SINGLE:
        other = next(iter(molecules_long_table.chosen(committed("molecules_long", results))), other)
    if other == image_starts_table.BEST_SINGLE:
        other = image_starts_table.best_single(committed("image_starts", results)) or other
    first, second = (task_scores(results, student, row) for row in (claim.a, other))
    missing = [row for row, found in ((claim.a, first), (other, second)) if not found]
    if missing:
        return untested(f"no {' and no '.join(missing)}")
    differences: dict[str, dict[int | None, float]] = {}
    for one, two in pairs_of_seeds(first, second):
        each: dict[str, list[float]] = {}
        for task in first[one].keys() & second[two].keys():
            if not claim.part or task.startswith(PARTS[claim.part]):
                each.setdefault(task.partition(" ")[0], []).append(100 * (first[one][task] - second[two][task]))
        for name, gaps in sorted(each.items()):
            differences.setdefault(name, {})[one if one is not None else two] = float(np.mean(gaps))
    named = [other] if other != claim.b else []
    return judge(claim.kind, differences, ", ".join([*named, *([claim.part] if claim.part else [])]))


def compare_ranks(claim: Claim, results: Path) -> Finding:
    """The difference of two average ranks over the columns of each molecule file."""
    other, differences = molecule_tables.paired_ranks(committed("molecules", results), claim.a, claim.b)
    if not differences:
        return untested(f"{claim.a} or {claim.b} is not whole")
    return judge("rank", differences, "" if other == claim.b else other)


def compare_images(claim: Claim, results: Path) -> Finding:
    """The difference of two accuracies, by data set and seed."""
    other, differences = image_tables.paired(committed("images", results), claim.a, claim.b)
    if not differences:
        return untested(f"no {claim.a} or no {other}")
    return judge(claim.kind, differences, "" if other == claim.b else other)


def compare_labelled(claim: Claim, results: Path, student: str) -> Finding:
    """The difference of two rows' test scores in points, paired by labelled set and seed."""
    setting = student.removeprefix(LABELLED).removeprefix("/")
    rows = committed("cross_tokenizer", results)
    missing = [row for row in (claim.a, claim.b) if row not in ROWS]
    first, second = ({} if missing else cross_table.scores(rows, row, setting) for row in (claim.a, claim.b))
    differences: dict[str, dict[int | None, float]] = {}
    for name, seed in first:
        if (name, seed) in second and name != cross_table.JOINT:
            differences.setdefault(name, {})[seed] = first[name, seed] - second[name, seed]
    if not differences:
        return untested(f"no run of {claim.a} and {claim.b} on one set")
    chance = {row: cross_table.untrained_sets(rows, row, setting) & set(differences) for row in (claim.a, claim.b)}
    left = {name: each for name, each in differences.items() if not any(name in sets for sets in chance.values())}
    outside = sorted({name for row in (claim.a, claim.b) for name in cross_table.edges(rows, row, setting)} & set(left))
    chosen = sorted(set(left) & set(cross_table.CHOOSING)) if _was_chosen(claim) else []
    notes = [f"chosen on {', '.join(chosen)}"] if chosen else []
    notes += [f"rate at the edge of the grid on {', '.join(outside)}"] if outside else []
    finding = judge("labelled", left, "; ".join(notes))
    for row, sets in chance.items():
        if sets:
            why = f"{UNLIKE}: {row} did not train on {', '.join(sorted(sets))}"
            finding = replace(finding, verdict=why, p=None)
    return finding


def _was_chosen(claim: Claim) -> bool:
    """Whether a row has defaults that were chosen on validation data of some of the sets."""
    return any(ROWS[row].method in ("emo", "distillmoe") for row in (claim.a, claim.b)) and claim.preset == "ours"


def compare_mixtures(claim: Claim, results: Path) -> Finding:
    """The difference of two aggregations on one group of tasks in points."""
    other, _, group = claim.b.partition(" ")
    differences = mixture_table.paired(committed("mixtures", results), claim.a, other, group)
    starts = {run // mixture_table.SEEDS for each in differences.values() for run in each if run is not None}
    count = f"{group}, {len(starts)} start{'s'[: len(starts) > 1]}"
    return judge("mixed", differences, count) if differences else untested(f"no {claim.a} or no {other}")


def compare_written(claim: Claim, results: Path) -> Finding:
    """The difference of two rows' ROUGE-L in points, paired by set and seed."""
    rows = committed("writing", results)
    differences = writing_table.paired(rows, claim.a, claim.b)
    if not differences:
        return untested(f"no {claim.a} or no {claim.b}")
    outside = [row for row in (claim.a, claim.b) if writing_table.at_the_edge(rows, row)]
    return judge("written", differences, f"rate at the edge of the grid of {', '.join(outside)}" if outside else "")


def compare_cost(claim: Claim, benchmarks: Path) -> Finding:
    """The ratio of two steps' processor time."""
    file = benchmarks / ("token_steps.json" if claim.a.endswith((" live", " store")) else "step.json")
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    if claim.a not in rows or claim.b not in rows:
        return untested(f"no {file.name} with both rows")
    found = rows[claim.a]["ratio_processor_time"]
    interval = (found["least"], found["greatest"])
    judged = f"{UNLIKE}: {claim.unlike}" if claim.unlike else verdict("cost", interval, claim.limit)
    return Finding(found["median"], interval, "student bpe, 1 thread", judged)


def compare_curvature(claim: Claim, results: Path, student: str) -> Finding:
    """How many times larger the largest eigenvalue is with b than with a, over five checkpoints.

    Checkpoints of one run were not drawn, so only seeds make an interval.
    """
    found = sharpness_table.ratios(committed("sharpness", results), OWN_RADIUS[student], claim.a, claim.b)
    if not found:
        return untested("no seed of both")
    logs = np.log(list(found.values()))
    value, count = float(np.exp(logs.mean())), f"{len(found)} seed{'s'[: len(found) > 1]}"
    if len(found) < SEEDS:
        return Finding(value, None, count, f"{'one seed' if len(found) == 1 else 'two seeds'}: {value:.2f}, {OPEN}")
    over = student_interval(logs, float(logs.mean()))
    assert over is not None
    (low, high), p = over
    interval = (float(np.exp(low)), float(np.exp(high)))
    said = HOLDS if low > 0 else OPPOSITE if high < 0 else ALIKE
    return Finding(value, interval, count, said, seeds=interval, p=p)


def findings(results: Path, benchmarks: Path) -> Found:
    """Every claim with the student it is tested on and what was found; p-values corrected over each paper's claims."""
    compare: dict[str, Callable[[Claim, str], Finding]] = {
        "cost": lambda claim, student: compare_cost(claim, benchmarks),
        "flatter": lambda claim, student: compare_curvature(claim, results, student),
        "rank": lambda claim, student: compare_ranks(claim, results),
        "labelled": lambda claim, student: compare_labelled(claim, results, student),
        "mixed": lambda claim, student: compare_mixtures(claim, results),
        "written": lambda claim, student: compare_written(claim, results),
        "ahead": lambda claim, student: compare_images(claim, results),
        "harmless": lambda claim, student: compare_images(claim, results),
        **{kind: _given(each, results, benchmarks) for kind, each in measured.COMPARE.items()},
    }
    found: Found = []
    for claim in CLAIMS:
        for student in claim.students:
            make = compare.get(claim.kind)
            finding = make(claim, student) if make else compare_scores(claim, results, student)
            found.append((claim, student, finding))
    for paper in dict.fromkeys(claim.paper for claim in CLAIMS):
        family = [number for number, (claim, _, _) in enumerate(found) if claim.paper == paper]
        for number, finding in zip(family, holm([found[number][2] for number in family]), strict=True):
            found[number] = (*found[number][:2], finding)
    return found


def _given(compare: measured.Compare, results: Path, benchmarks: Path) -> Callable[[Claim, str], Finding]:
    return lambda claim, student: compare(claim, results, benchmarks)


def page(found: Found) -> str:
    """CLAIMS.md."""
    columns = ("paper", "claim", "kind", "presets", "the paper's figure", "student", "ours, with interval")
    lines = [RULES, *_counts(found), ""]
    lines += head(*columns, "over sets", "over seeds", "p, Holm", "from", "verdict")
    for claim, student, finding in found:
        ours = figure(finding.value, finding.interval, "" if claim.kind in PLAIN_KINDS else "+")
        sides = [
            f"{low:+.2f} to {high:+.2f}" for low, high in (x or (np.nan,) * 2 for x in (finding.sets, finding.seeds))
        ]
        sides = ["" if "nan" in side else side for side in sides]
        chance = "" if finding.holm is None else f"{finding.p:.3f}, {finding.holm:.3f}"
        where = f"{claim.paper}, {claim.where}"
        cells = (where, claim.text, claim.kind, claim.preset, claim.figure, student, ours, *sides, chance)
        lines.append(line(*cells, finding.basis, finding.verdict))
    return "\n".join([*lines, "", changes(found), MISSING])


def _counts(found: Found) -> list[str]:
    """A line per paper: how many claims have which verdict."""
    lines: list[str] = []
    for paper in dict.fromkeys(claim.paper for claim, _, _ in found):
        verdicts = [finding.verdict for claim, _, finding in found if claim.paper == paper]
        counts = {word: sum(one.startswith(word) for one in verdicts) for word in (HOLDS, FAILS, UNTESTED, UNLIKE)}
        counts[OPEN] = sum(one.endswith(OPEN) for one in verdicts)
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
