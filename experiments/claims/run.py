"""What the papers claim and what our results say: writes CLAIMS.md and OWN.md from the committed results.

    python -m experiments.claims.run

Nobody writes a verdict: each follows from the files by the rules at the head of the page (harness/verdicts.py). What is
claimed stands in claimed.csv, the words of the pages in words.md, and how to read a question's rows in its own
table.py. No data are needed.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.claims.claimed import CLAIMS, FORMS, OWN, Claim
from experiments.harness.records import RESULTS, committed
from experiments.harness.setting import ENOUGH, Setting, compare, grouped
from experiments.harness.tables import head, line
from experiments.harness.verdicts import (
    NEAR,
    OPEN,
    SEEDS,
    SMALL,
    UNTESTED,
    VERDICTS,
    Finding,
    figure,
    holm,
    untested,
    verdict,
)

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent.parent / "benchmarks" / "results"
#: A claim, the student, and the finding of each form.
Found = list[tuple[Claim, str, dict[str, Finding]]]
#: Student, or the start of its name before a slash -> whose table says how its rows are read.
QUESTIONS = {
    **dict.fromkeys(("bpe", "bpe from mpnet", "cut", "embedder"), "talas"),
    **dict.fromkeys(("embedder/own radius", "embedder/own radius, longer"), "sharpness"),
    **dict.fromkeys(("labelled", "out-of-domain"), "cross_tokenizer"),
    **{"texts": "many_text", "similar": "similar_teachers", "molecules/long": "molecules_long"},
    "images/pretrained": "image_starts",
    **{name: name for name in ("molecules", "images", "mixtures", "writing")},
}
#: Kinds whose figure is no difference of scores, and what measured it: a question, or benchmarks.
MEASURED = {"flatter": "sharpness", "rank": "molecules", "rate": "alignment", "geometry": "mixtures"}
TIMED = ("cost", "memory", "time")


def table_of(question: str) -> Any:
    return import_module(f"experiments.{question}.table")


def setting(student: str, results: Path = RESULTS) -> Setting:
    """How the rows of a student are compared, of the result files in a folder."""
    question = QUESTIONS.get(student) or QUESTIONS[student.partition("/")[0]]
    found: Setting = table_of(question).setting(student, results)
    return found


def findings(results: Path = RESULTS, benchmarks: Path = BENCHMARKS, claims: Sequence[Claim] = CLAIMS) -> Found:
    """Every claim with each student that it was tested with; p-values corrected over each paper's claims.

    A claim that no student can speak to has one line with the reason.
    """
    settings = functools.cache(functools.partial(setting, results=results))
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
    settings: Callable[[str], Setting],
) -> Finding:
    if claim.kind in MEASURED:
        found: Finding = table_of(MEASURED[claim.kind]).measured(results, *rows, student)
        return found
    if claim.kind == "time":
        return _time(benchmarks, *rows, claim.limit)
    if claim.kind in TIMED:
        return _step(benchmarks, rows, "ratio_peak" if claim.kind == "memory" else "ratio_processor_time", claim.limit)
    return compare(settings(student), *rows, claim.part, claim.kind)


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


def cell(claim: Claim, finding: Finding) -> str:
    """A finding in words: the verdict, our figure, and what it is made of."""
    if finding is NOT_RUN:
        return ""
    signed = claim.kind not in (*TIMED, "flatter", "rate", "geometry")
    shown = figure(finding.value, finding.interval, "+" if signed else "")
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
    "bpe": ("talas", "bpe/"),
    "bpe from mpnet": ("talas", "bpe from mpnet/"),
    "cut": ("talas", "cut/"),
    "embedder": ("talas", "embedder/"),
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
        compared = setting(name.partition(",")[0], results)
        rows = [
            row.removeprefix(folder).rpartition("-") for row in committed(experiment, results) if row.startswith(folder)
        ]
        for row in dict.fromkeys(row for row, _, seed in rows if seed.isdigit() and "/" not in row):
            if reason := compared.fallen(row):
                lines.append(line(name, f"`{row}`", "; ".join([reason, *grouped([compared.notes(row)])])))
    return lines


def _words(name: str) -> str:
    """A section of words.md."""
    _, _, rest = (HERE / "words.md").read_text().partition(f"<!-- {name} -->\n")
    numbers = {"seeds": SEEDS, "small": SMALL, "enough": ENOUGH, "near": NEAR}
    return rest.partition("<!--")[0].strip().format(**numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--benchmarks", type=Path, default=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    found = findings(options.results, options.benchmarks)
    (options.out / "CLAIMS.md").write_text(page(found))
    (options.out / "OWN.md").write_text(own_page(found))
    print("\n".join(f"{paper}: {own}" for paper, own in Counter(c.paper for c, _, _ in found).items()))


if __name__ == "__main__":
    main()
