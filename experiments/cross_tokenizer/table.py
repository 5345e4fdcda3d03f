"""The page of what `cross_tokenizer` has found so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.cross_tokenizer.rows import GROUPS, ROWS, SETS, LabelledSet
from experiments.harness.rates import ENDS, at_an_end, fell, shown, tuned, withdrawn
from experiments.harness.records import Rows, below, committed, folders, seeds
from experiments.harness.setting import END, UNTRAINED, Note, Scores, Setting, clean, listed
from experiments.harness.tables import cell, head, line, written
from experiments.talas import table as talas_table

EXPERIMENT = "cross_tokenizer"
#: Rows of `talas` that stand beside the unsupervised ones; the same student, corpus, grid and evaluation.
BESIDE = ("simcse", "talas", "talas+asam")
IN_DOMAIN = ("banking77", "tweeteval_sentiment", "mrpc", "wic", "sick", "stsb")  # of DistillMoE's protocol


def write_page(rows: Rows, folder: Path) -> str:
    """Markdown of everything that is there, also written to `table.md`; `choosing.md` says how defaults were chosen."""
    lines = [HEADER]
    for place in folders(rows):
        name, _, setting = place.partition("+")
        if name in SETS:
            lines += ["", f"## {name}{f', {setting}' if setting else ''}", ""]
            lines += _supervised(below(rows, place), SETS[name])
    for name, title in (("unsupervised", "Without labels, TALAS's corpus"), ("out-of-domain", "Out of domain")):
        for student, about in (("bpe", ""), ("embedder", ", from an embedder")):
            if found := below(rows, f"{name}/{student}"):
                lines += ["", f"## {title}{about}", "", *_unsupervised(found, name, student)]
    page = written(folder, lines)
    (folder / "choosing.md").write_text(choosing_page(rows), encoding="utf-8")
    return page


def _supervised(rows: Rows, labelled: LabelledSet) -> list[str]:
    names = ("spearman", "pearson") if labelled.kind == "similarity" else ("accuracy", "macro_f1")
    lines = [f"| row | task's weight | seeds | lr | {' | '.join(names)} | ms/step |", "|---|---|---|---|---|---|---|"]
    for _, found in sorted(item for item in rows.items() if item[0].startswith("teacher-")):
        lines.append(f"| {found['row']} | 1 | 1 | | {' | '.join(cell([found['test'][n]]) for n in names)} | |")
    refused = []
    for name, row in ROWS.items():
        if f"{name}-refused" in rows:
            refused += ["", f"Left out: {name}. {rows[f'{name}-refused']['refused']}"]
            continue
        lr = best_rate(rows, row.like or name, labelled.metric)
        runs = list(seeds(rows, f"{name}-{lr:g}").values()) if lr else []
        if runs:
            cells = " | ".join(cell([run["test"][n] for run in runs]) for n in names)
            weight = "1" if row.method == "sft" else f"{runs[0]['alpha']:g}"
            speed = np.mean([1e3 * run["training_seconds"] / run["steps"] for run in runs])
            validation = tried(rows, row.like or name, labelled.metric)
            rate = shown(lr, validation if len(validation) > 1 else {})  # MRPC has the rate of another set
            lines.append(f"| {name} | {weight} | {len(runs)} | {rate} | {cells} | {speed:.0f} |")
    return lines + refused


def best_rate(rows: Rows, row: str, metric: str) -> float | None:
    """The learning rate with the best validation score of seed 0; of equals the smallest, as in `cross_tokenizer`.

    Args:
        rows: of one labelled set.
    """
    found = tried(rows, row, metric)
    return max(sorted(found), key=found.__getitem__) if found else None


def tried(rows: Rows, row: str, metric: str) -> dict[float, float]:
    """Rate -> validation score of a row with seed 0, of the rows of one labelled set."""
    runs = [run for run in rows.values() if run.get("row") == row and run.get("seed") == 0 and "lr" in run]
    return {run["lr"]: run["validation"][metric] for run in runs}


#: Sets whose validation data chose what `sound` changed of EMO and DistillMoE.
CHOOSING = ("banking77", "stsb", "stsb_separate")
#: STS-B with both texts as one input: too few rows, and the same texts as `stsb_separate`.
JOINT = "stsb"
#: Where every answer is the same, the mean recall over the classes is one over their number.
CLASSES = {"banking77": 77, "sick": 3, "mrpc": 2, "sst2": 2, "emotion": 6, "ag_news": 4}


def at_chance(run: dict[str, Any], name: str) -> bool:
    """Whether a run answers the same to everything, within a point of the mean recall: it did not train."""
    return name in CLASSES and run["test"]["macro_recall"] < 1 / CLASSES[name] + 0.01


def of_set(rows: Rows, name: str, setting: str = "") -> Rows:
    """The rows of a labelled set, in a setting of `cross_tokenizer`; "" is the usual one."""
    return below(rows, f"{name}+{setting}" if setting else name)


def untrained_sets(rows: Rows, row: str, setting: str = "") -> set[str]:
    """The sets on which all runs of a row, with every rate, are at chance."""
    found = set()
    for name in CLASSES:
        runs = [run for run in of_set(rows, name, setting).values() if run.get("row") == row and "lr" in run]
        if runs and all(at_chance(run, name) for run in runs):
            found.add(name)
    return found


def edges(rows: Rows, row: str, setting: str = "") -> list[str]:
    """The sets whose best rate is the smallest or the largest that was tried: a better one may lie outside."""
    found = []
    for name, labelled in SETS.items():
        validation = tried(of_set(rows, name, setting), ROWS[row].like or row, labelled.metric)
        if len(validation) > 1 and at_an_end(validation):
            found.append(name)
    return found


def scores(rows: Rows, row: str, setting: str = "") -> dict[tuple[str, int], float]:
    """(labelled set, seed) -> test score of a row in points, at the learning rate that was chosen for it."""
    found = {}
    for name, labelled in SETS.items():
        own = of_set(rows, name, setting)
        lr = best_rate(own, ROWS[row].like or row, labelled.metric)
        for seed, run in seeds(own, f"{row}-{lr:g}").items() if lr else ():
            found[name, seed] = 100 * float(run["test"][labelled.metric])
    return found


def _unsupervised(rows: Rows, part: str, student: str) -> list[str]:
    columns = ("row", "seeds", "lr", "Avg-In", "Avg-Out", "Avg", "ms/step")
    lines = head(*columns, *talas_table.CLEAN_COLUMNS)
    inside = IN_DOMAIN if part == "out-of-domain" else None
    # The same student, corpus and evaluation: the other experiment's committed rows.
    other = committed(talas_table.EXPERIMENT)
    beside = below(other, student)
    references = {**other["teacher"]["models"], **beside["references"]["models"]}
    lines += [_averages(name, [scores], inside) for name, scores in references.items()]
    start, down = talas_table.clean_average([references["untrained student"]]), dict[str, tuple[float, float, str]]()
    rates = {**beside, **below(committed(EXPERIMENT), f"unsupervised/{student}"), **rows}  # out of domain has theirs
    for row in ("simcse", *ROWS) if inside else (*BESIDE, *ROWS):
        own = rows if inside or row not in BESIDE else beside
        if runs := list(seeds(own, row).values()):
            lr = shown(runs[0]["lr"], tuned(rates, talas_table.LIKE.get(row, row)))
            if fell(reached := talas_table.clean_average(runs), start):
                down[row] = (reached, start, lr)
            else:
                lines.append(_averages(row, runs, inside, lr))
    return lines + withdrawn(down)


def _averages(name: str, runs: list[dict[str, Any]], inside: tuple[str, ...] | None, lr: str = "") -> str:
    """A line; `inside` names the sets in the domain, where they are not those of TALAS."""

    def average(run: dict[str, Any], group: str) -> float:
        if inside is None:
            return float(run["averages"][group])
        taken = {"in": [n for n in run["tasks"] if n in inside], "out": [n for n in run["tasks"] if n not in inside]}
        return float(np.mean([run["tasks"][name]["value"] for name in taken.get(group, run["tasks"])]))

    cells = [cell([average(run, group) for run in runs]) for group in ("in", "out", "all")]
    cleaned = talas_table.clean_cells(runs, inside or talas_table.IN_DOMAIN)
    if "steps" not in runs[0]:
        return line(name, "", "", *cells, "", *cleaned)
    speed = np.mean([1e3 * run["training_seconds"] / run["steps"] for run in runs])
    return line(name, len(runs), lr, *cells, f"{speed:.0f}", *cleaned)


HEADER = (
    """# Across tokenizers, on real data

Made by `python -m experiments.cross_tokenizer.run` (its README says who teaches whom, with which data and tuning).
Scores on test data in percent; ± is the standard deviation over seeds. Learning rates were chosen on validation data.
Rows without "paper" are the `sound` preset; "but X" is the sound preset with that option changed, most to what the
paper has. ms/step is wall clock, whatever else the machine did, pauses included; benchmarks/token_steps.py compares
costs. "Clean" leaves out test rows that share a text with the training corpus, and counts STS12 as in-domain: STS-B,
whose texts are in the corpus, contains it. Validation data of Banking77 and STS-B, and of the sets of TALAS's corpus,
chose what `sound` changed of EMO and DistillMoE (choosing.md); on the other sets they had no such advantage.
"""
    + ENDS
)


#: What `sound` has in place of what a row has.
CHOSEN = ("emo", "distillmoe")
CHOOSING_HEADER = """# How the defaults of EMO and DistillMoE were chosen

Made by `python -m experiments.cross_tokenizer.run --table`. Validation scores in points (accuracy; of STS-B Spearman's
rho), seed 0, at the best rate of each row: `sound`, and `sound` with one choice as it was before. Above 0: `sound` is
better. Validation data of Banking77 and STS-B were used for choosing; the other sets were run afterwards.
"""
MISSING = """
## What is missing

Only the two ends of each choice are there. The values between them were tried, and their scores were not kept: the
weight of EMO's first term and the entropy of its plan, the strength of the term on DistillMoE's gate. A new sweep would
run rows with these values, and `cross_tokenizer --rows former,scope,repairs`, on Banking77 and STS-B.
"""


def choosing_page(rows: Rows) -> str:
    """How the `sound` defaults were chosen: a line for each former choice and labelled set."""
    lines = [
        CHOOSING_HEADER,
        *head("set", "row", "rate", "validation", "sound", "rate", "validation", "sound ahead by"),
    ]
    groups = [name for group in ("former", "scope", "repairs") for name in GROUPS[group]]
    for name, labelled in SETS.items():
        own = below(rows, name)
        for row in [*(f"{method} paper" for method in CHOSEN), *groups]:
            sound = ROWS[row].method
            both = [_validation(own, each, labelled.metric) for each in (row, sound)]
            if ROWS[row].options.get("aggregation") is None and both[0] and both[1]:
                (rate, value), (best, other) = both[0], both[1]
                cells = (f"{rate:g}", f"{value:.2f}", sound, f"{best:g}", f"{other:.2f}", f"{other - value:+.2f}")
                lines.append(line(name, row, *cells))
    found = below(rows, "unsupervised/bpe/tuning")
    lines += ["", "Without labels (validation average of emotion, STS-B and WiC after one epoch, in points):", ""]
    lines += head("row", "rate", "validation")
    for run in sorted(found.values(), key=lambda run: (run["row"], run["lr"])):
        if ROWS[run["row"]].method in CHOSEN:
            lines.append(line(run["row"], f"{run['lr']:g}", f"{100 * run['validation']:.2f}"))
    return "\n".join(lines) + "\n" + MISSING


def _validation(rows: Rows, row: str, metric: str) -> tuple[float, float] | None:
    """Rate and validation score in points of a row at its best rate."""
    rate = best_rate(rows, row, metric)
    found = rows.get(f"{row}-{rate:g}-0") if rate else None
    return (rate, 100 * float(found["validation"][metric])) if rate and found else None


def setting(student: str, results: Path) -> Setting:
    if student == "out-of-domain":
        return _out_of_domain(results)
    return _labelled(committed(EXPERIMENT, results), student.partition("/")[2])


def _out_of_domain(results: Path) -> Setting:
    without = talas_table.setting("bpe", results)
    rows = below(committed(EXPERIMENT, results), "out-of-domain/bpe")
    return Setting(
        scores=lambda row: clean(seeds(rows, row)) or (without.scores(row) if row == UNTRAINED else {}),
        notes=without.notes,  # its rates are those of that comparison
        start=without.start,
    )


def _labelled(rows: Rows, detail: str) -> Setting:
    """`row` may have a setting of its own before a slash."""

    def split(row: str) -> tuple[str, str]:
        own, slash, rest = row.partition("/")
        return (rest, own) if slash else (row, detail)

    def of(row: str) -> Scores:
        found: dict[int | None, dict[str, float]] = {}
        if split(row)[0] in ROWS:
            for (name, seed), value in scores(rows, *split(row)).items():
                if name != JOINT:
                    found.setdefault(seed, {})[name] = value
        return found

    def notes(row: str) -> list[Note]:
        name, own = split(row)
        at = [each for each in edges(rows, name, own) if each != JOINT]
        whose = ROWS[name].like or row  # the row whose rate it takes
        runs = (run for each in SETS for run in of_set(rows, each, own).values())
        return [*([(END, f"{whose} ({listed(at)})")] if at else []), *talas_table.one_expert(runs, name)]

    def chosen(row: str) -> tuple[str, ...]:
        about = ROWS[split(row)[0]]
        return CHOOSING if about.method in ("emo", "distillmoe") and "preset" not in about.options else ()

    return Setting(of, notes, chosen=chosen, stuck=lambda row: untrained_sets(rows, *split(row)))
