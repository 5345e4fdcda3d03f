"""What the papers claim and what our results say: writes experiments/CLAIMS.md and OWN.md from the result files.

    python experiments/claims.py

Nobody writes a verdict: each follows from the files by the rules at the head of the page (verdicts.py). What is claimed
stands in claimed.csv, the words of the pages in claims_words.md. No data are needed.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import compared
import mixture_table
import numpy as np
import sharpness_table
from claimed import CLAIMS, FORMS, OWN, Claim
from layout import head, line
from records import RESULTS, committed
from verdicts import (
    HOLDS,
    OPEN,
    SEEDS,
    SMALL,
    UNTESTED,
    VERDICTS,
    Finding,
    figure,
    holm,
    student_interval,
    untested,
    verdict,
)

import alignment

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks" / "results"
#: Verdicts before these rules, and what became of them.
CHANGES = RESULTS / "claims"
#: What a rate may differ by from the published one, in points: both are counted.
NEAR = 1.0
#: A claim, the student, and the finding of each form.
Found = list[tuple[Claim, str, dict[str, Finding]]]
#: Kinds whose figure is no difference of scores.
PLAIN = ("cost", "memory", "flatter", "rate", "time", "geometry")


def findings(results: Path = RESULTS, benchmarks: Path = BENCHMARKS, claims: Sequence[Claim] = CLAIMS) -> Found:
    """Every claim with each student that it was tested with; p-values corrected over each paper's claims.

    A claim that no student can speak to has one line with the reason.
    """
    settings = functools.cache(functools.partial(compared.setting, results=results))
    found: Found = []
    for claim in claims:
        own: Found = []
        for student in claim.students:
            forms = {
                form: _finding(claim, rows, student, results, benchmarks, settings) if rows else NOT_RUN
                for form, rows in claim.forms.items()
            }
            own.append((claim, student, forms))
        run = [each for each in own if any(not _absent(form) for form in each[2].values())]
        found += run or own[:1]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        family = [(forms, form) for claim, _, forms in found if claim.paper == paper for form in forms]
        corrected = holm([forms[form] for forms, form in family])
        for (forms, form), finding in zip(family, corrected, strict=True):
            forms[form] = finding
    return found


NOT_RUN = untested("no run of this form")


def _absent(finding: Finding) -> bool:
    """Whether nothing of it was ever run."""
    return finding.verdict == UNTESTED and finding.value is None and finding.why.startswith(("no run", "not every"))


def _finding(
    claim: Claim,
    rows: tuple[str, str],
    student: str,
    results: Path,
    benchmarks: Path,
    settings: Callable[[str], compared.Setting],
) -> Finding:
    measured: dict[str, Callable[[], Finding]] = {
        "cost": lambda: _step(benchmarks, rows, "ratio_processor_time", claim.limit),
        "memory": lambda: _step(benchmarks, rows, "ratio_peak", claim.limit),
        "flatter": lambda: _curvature(results, rows, student),
        "rank": lambda: compared.compare_ranks(results, *rows),
        "rate": lambda: _rate(results, *rows),
        "time": lambda: _time(benchmarks, *rows, claim.limit),
        "geometry": lambda: _geometry(results, *rows),
    }
    make = measured.get(claim.kind)
    return make() if make else compared.compare(settings(student), *rows, claim.part, claim.kind)


def _step(benchmarks: Path, rows: tuple[str, str], key: str, limit: float) -> Finding:
    """The ratio of two steps' processor time, or of their peak memory, which has no spread."""
    file = benchmarks / "step.json"
    there = {row["name"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    if not set(rows) <= set(there):
        return untested(f"no run of both in {file.name}")
    first, second = (there[row][key] for row in rows)
    if isinstance(first, float):
        return Finding(verdict("cost", (first / second,) * 2, limit), first / second, None, "no spread; student bpe")
    value = first["median"] / second["median"]
    ends = [first[a] / second[b] for a, b in (("least", "greatest"), ("greatest", "least"))]
    interval = (min(ends), max(ends))
    return Finding(verdict("cost", interval, limit), value, interval, "least and greatest of rounds; student bpe")


def _curvature(results: Path, rows: tuple[str, str], student: str) -> Finding:
    """How many times larger the largest eigenvalue is with the second, over five checkpoints.

    Checkpoints of one run were not drawn, so only seeds make an interval.
    """
    found = sharpness_table.ratios(committed("sharpness", results), compared.EPOCHS[student], *rows)
    if not found:
        return untested("no run of both with one seed")
    logs = np.log(list(found.values()))
    value, basis = float(np.exp(logs.mean())), f"{len(found)} seed{'s'[: len(found) > 1]}"
    basis = "; ".join([basis, *compared.grouped(map(compared.setting(student, results).notes, rows))])
    over = student_interval(logs, float(logs.mean()))
    if len(found) < SEEDS or over is None:
        return Finding(UNTESTED, value, None, basis, "one seed" if len(found) == 1 else "two seeds")
    (low, high), p = over
    interval = (float(np.exp(low)), float(np.exp(high)))
    return Finding(verdict("better", (low, high)), value, interval, basis, seeds=interval, p=p)


def _rate(results: Path, name: str, side: str) -> Finding:
    """Our rate in the published mode; it is counted, so that no interval belongs to it."""
    found = committed(alignment.EXPERIMENT, results).get(name)
    if found is None:
        return untested(f"no run of {name}")
    rate, published = found["modes"]["strict"][side], alignment.PAPER[name][("teacher", "student").index(side)]
    judged = Finding(HOLDS, rate, None, f"{found['texts']:,} texts")
    gap = abs(rate - published)
    away = f"{gap:.1f} points {'above' if rate > published else 'below'}; theirs is of all splits, ours of the test set"
    return judged if gap <= NEAR else judged.not_tested(away)


def _time(benchmarks: Path, name: str, part: str, limit: float) -> Finding:
    """What is added to a step or to texts, in percent: the quartiles over rounds, or over counts of teachers."""
    file = benchmarks / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {"rows": []}
    if part == "share":
        each = [100 * row["per_teacher"] for row in found["rows"]]
        about = f"{found['threads']} threads, {found['device']}" if each else ""
        value, interval = (each[0], (min(each), max(each))) if each else (None, None)
    else:
        rows = [row["added"] for row in found["rows"] if f"{row['batch']}x{row['tokens']}" == part]
        value = 100 * rows[0]["median"] if rows else None
        interval = (100 * rows[0]["quartiles"][0], 100 * rows[0]["quartiles"][1]) if rows else None
        about = f"quartiles of {found['rounds']} rounds, {found['device']}; theirs an H200" if rows else ""
    if value is None or interval is None:
        return untested(f"no run of it in {file.name}")
    return Finding(verdict("time", interval, limit), value, interval, about)


def _geometry(results: Path, key: str, of: str) -> Finding:
    """A figure of all mixtures of a checkpoint together, the mean over checkpoints; in brackets the middle nine tenths
    of their tokens. Lengths are compared with the router's mass taken out, as weights that sum to 1 would have them.
    """
    rows = committed("mixtures", results)
    each = [row["mixtures"][0] for start in mixture_table.starts_of(rows) if (row := rows.get(f"{start}/geometry"))]
    if not each:
        return untested("no run of it")
    spreads = [whole[key][of] if of else whole[key] for whole in each]
    if key == "wide":
        value, interval = 100 * float(np.mean(spreads)), None
    else:
        value, low, high = (float(np.mean([spread[name] for spread in spreads])) for name in ("median", "low", "high"))
        interval = (low, high)
    count = {1: "one checkpoint", 2: "two checkpoints"}.get(len(each), f"{len(each)} checkpoints")
    why = "; ".join(each for each in (count, mixture_table.premise(rows)) if each)
    return Finding(UNTESTED, value, interval, f"{sum(whole['tokens'] for whole in each):,} tokens", why)


def cell(claim: Claim, finding: Finding) -> str:
    """A finding in words: the verdict, our figure, and what it is made of."""
    if finding is NOT_RUN:
        return ""
    shown = figure(finding.value, finding.interval, "" if claim.kind in PLAIN else "+")
    if finding.verdict == UNTESTED:
        seen = f"; seen {shown}" if shown else ""
        return f"**{UNTESTED}**: {finding.why}{seen}{f' ({finding.basis})' if finding.basis else ''}"
    reach = f" (±{finding.reach:.1f})" if finding.verdict == OPEN and finding.interval else ""
    chance = "" if finding.p is None else f", p {finding.p:.3f}, Holm {finding.holm:.3f}"
    return f"**{finding.verdict}**{reach}: {shown}{chance}; {finding.basis}"


def table(found: Found, *, places: bool = True) -> list[str]:
    """One line for each claim and student that something was run of; then those that nothing was run of."""
    run = [each for each in found if not _never(each[2])]
    there = [form for form in FORMS if any(not _absent(forms[form]) for _, _, forms in run)]
    lines = head("claim", "theirs", "student", *there) if there else []
    for claim, student, forms in run:
        text = f"{claim.text}; {claim.where}" if places else claim.text
        lines.append(line(text, claim.figures, student, *(cell(claim, forms[form]) for form in there)))
    never = [
        f"{c.text}{f'; {c.where}' if places else ''} ({c.figures}): {c.why or NO_ROWS}"
        for c, _, f in found
        if _never(f)
    ]
    return [*lines, *(["", "Not tested, as nothing was run:", "", *(f"- {each}" for each in never)] if never else [])]


NO_ROWS = "rows are missing"


def _never(forms: dict[str, Finding]) -> bool:
    return all(_absent(each) for each in forms.values())


def tally(found: Found) -> dict[str, Counter[str]]:
    """Form -> how many claims have which verdict, of those that something was run of in this form."""
    counts = {form: Counter(f[form].verdict for _, _, f in found if not _absent(f[form])) for form in FORMS}
    return {form: count for form, count in counts.items() if count}


def in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[each]} {each}" for each in VERDICTS)


def page(found: Found, results: Path = RESULTS) -> str:
    """CLAIMS.md."""
    lines = [_words("RULES"), "", "## Counts", "", *head("paper", *FORMS, "nothing run")]
    papers = [paper for paper in dict.fromkeys(claim.paper for claim in CLAIMS) if paper != OWN]
    for paper in papers:
        own = [each for each in found if each[0].paper == paper]
        counts, never = tally(own), sum(_never(forms) for _, _, forms in own)
        lines.append(line(paper, *(in_words(counts[form]) if form in counts else "" for form in FORMS), never))
    for paper in papers:
        lines += ["", f"## {paper}", "", *table([each for each in found if each[0].paper == paper])]
    return "\n".join([*lines, "", *withdrawn(results), "", _words("MISSING"), ""])


def own_page(found: Found) -> str:
    """OWN.md."""
    lines = [_words("OWN_HEAD")]
    for topic in dict.fromkeys(claim.where for claim in CLAIMS if claim.paper == OWN):
        own = [each for each in found if each[0].paper == OWN and each[0].where == topic]
        lines += ["", f"## {topic}", "", *table(own, places=False)]
    return "\n".join([*lines, ""])


#: Settings that have a student before training to compare with, and where their rows are.
WITH_A_START = {
    "bpe": ("talas_table", "bpe/"),
    "cut": ("talas_table", "cut/"),
    "embedder": ("talas_table", "embedder/"),
    "bpe, methods on tokens": ("cross_tokenizer", "unsupervised/bpe/"),
    "out-of-domain": ("cross_tokenizer", "out-of-domain/bpe/"),
    "texts": ("many_text", "talas/"),
    "similar/static": ("similar_teachers", "static/"),
    "molecules/long": ("molecules_long", ""),
    "images": ("images", ""),
    "images/pretrained": ("image_starts", ""),
}


def withdrawn(results: Path) -> list[str]:
    """The rows that ended below the student before training."""
    lines = ["## Withdrawn rows", "", _words("WITHDRAWN"), "", *head("student", "row", "why")]
    for name, (experiment, folder) in WITH_A_START.items():
        setting = compared.setting(name.partition(",")[0], results)
        rows = [
            row.removeprefix(folder).rpartition("-") for row in committed(experiment, results) if row.startswith(folder)
        ]
        for row in dict.fromkeys(row for row, _, seed in rows if seed.isdigit() and "/" not in row):
            if reason := setting.fallen(row):
                lines.append(line(name, f"`{row}`", "; ".join([reason, *compared.grouped([setting.notes(row)])])))
    return lines


def changes(found: Found) -> str:
    """The verdicts before these rules and after them: counts, and every claim that moved."""
    after: dict[tuple[str, ...], tuple[Claim, str, Finding]] = {}
    for claim, student, forms in found:
        for form, rows in claim.forms.items():
            if rows and not _absent(forms[form]):
                after.setdefault((student, *rows, claim.part), (claim, form, forms[form]))
    before, moved, ways = json.loads((CHANGES / "before.json").read_text()), [], Counter[tuple[str, str]]()
    for row in before:
        now = after.get((row["student"], row["a"], row["b"], row["part"]))
        was, place, text = _before(row["verdict"]), "no longer listed", "nothing was run with this student"
        if now:
            claim, form, finding = now
            place = finding.verdict + (", on the page of our own" if claim.paper == OWN else "")
            text = finding.why or finding.basis
        elif was != UNTESTED:
            text = "a figure of other sizes" if was == "not comparable" else "part of another claim"
        ways[was, place] += 1
        if (now or was != UNTESTED) and was != {OPEN: "not told apart", UNTESTED: was}.get(place, place):
            preset = " (`paper` preset)" if row["preset"] == "paper" else ""
            moved.append(line(row["paper"], row["claim"] + preset, row["student"], was, place, text))
    olds = {
        paper: Counter(_before(row["verdict"]) for row in before if row["paper"] == paper)
        for paper in {r["paper"] for r in before}
    }
    lines = [_words("CHANGED"), "", *head("paper", *OLD)]
    lines += [line(paper, *(counts[word] for word in OLD)) for paper, counts in sorted(olds.items())]
    lines += ["", "## After", "", *head("paper", "form", *VERDICTS, "nothing run")]
    for paper in dict.fromkeys(claim.paper for claim, _, _ in found):
        own = [each for each in found if each[0].paper == paper]
        never = sum(_never(forms) for _, _, forms in own)
        for form, counts in tally(own).items():
            lines.append(line(paper, form, *(counts[word] for word in VERDICTS), never))
    lines += ["", "## From which to which", "", *head("before", "after", "claims")]
    lines += [line(*way, count) for way, count in sorted(ways.items())]
    lines += ["", "## Each that moved", "", *head("paper", "claim", "student", "before", "after", "why"), *moved]
    return "\n".join(lines) + "\n"


OLD = ("holds", "not told apart", "opposite", "does not hold", "no verdict", "not comparable", "not tested")


def _before(verdict: str) -> str:
    """An earlier verdict in one of the words of `OLD`."""
    if verdict.endswith("no verdict"):
        return "no verdict"
    word = verdict.removeprefix("does not hold here (").removeprefix("the ").rstrip(")").removeprefix("the ")
    word = word.partition(":")[0]
    return word if word in OLD else "does not hold"


def _words(name: str) -> str:
    """A section of claims_words.md."""
    _, _, rest = (HERE / "claims_words.md").read_text().partition(f"<!-- {name} -->\n")
    students = (compared.__doc__ or "").partition("CLAIMS.md:")[2].strip()
    numbers = {"seeds": SEEDS, "small": SMALL, "enough": compared.ENOUGH, "near": NEAR}
    return rest.partition("<!--")[0].strip().format(students=students, **numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--benchmarks", type=Path, default=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    found = findings(options.results, options.benchmarks)
    (options.out / "CLAIMS.md").write_text(page(found))
    (options.out / "OWN.md").write_text(own_page(found))
    (options.out / CHANGES.relative_to(HERE) / "before-and-after.md").write_text(changes(found))
    print("\n".join(f"{paper}: {own}" for paper, own in Counter(c.paper for c, _, _ in found).items()))


if __name__ == "__main__":
    main()
