"""The page of what cross_tokenizer.py has found so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import talas_table
from common import RESULTS
from cross_rows import ROWS, SETS, LabelledSet

HERE = RESULTS / "cross_tokenizer"
#: Rows of talas_table.py that stand beside the unsupervised ones; the same student, corpus, grid and evaluation.
BESIDE = ("simcse", "talas", "talas+asam")
IN_DOMAIN = ("banking77", "tweeteval_sentiment", "mrpc", "wic", "sick", "stsb")  # of DistillMoE's protocol


def page(here: Path = HERE) -> str:
    """Markdown of everything that is there."""
    lines = [HEADER]
    for folder in sorted(here.glob("*")):
        name, _, setting = folder.name.partition("+")
        if folder.is_dir() and name in SETS:
            lines += ["", f"## {name}{f', {setting}' if setting else ''}", "", *_supervised(folder, SETS[name])]
    for name, title in (("unsupervised", "Without labels, TALAS's corpus"), ("out-of-domain", "Out of domain")):
        if (here / name / "bpe").is_dir():
            lines += ["", f"## {title}", "", *_unsupervised(here / name / "bpe", name)]
    return "\n".join(lines) + "\n"


def file_name(row: str) -> str:
    """How a row is called in the names of its files."""
    return row.replace(" ", "_")


def _supervised(folder: Path, labelled: LabelledSet) -> list[str]:
    names = ("spearman", "pearson") if labelled.kind == "similarity" else ("accuracy", "macro_f1")
    lines = [f"| row | task's weight | seeds | lr | {' | '.join(names)} | ms/step |", "|---|---|---|---|---|---|---|"]
    for file in sorted(folder.glob("teacher-*.json")):
        found = _read(file)
        lines.append(f"| {found['row']} | 1 | 1 | | {' | '.join(_cell([found['test'][n]]) for n in names)} | |")
    refused = []
    for name, row in ROWS.items():
        reason = folder / f"{file_name(name)}-refused.json"
        if reason.exists():
            refused += ["", f"Left out: {name}. {_read(reason)['refused']}"]
            continue
        lr = best_rate(folder, row.like or name, labelled.metric)
        runs = [_read(file) for file in sorted(folder.glob(f"{file_name(name)}-{lr:g}-[0-9]*.json"))] if lr else []
        if runs:
            cells = " | ".join(_cell([run["test"][n] for run in runs]) for n in names)
            weight = "1" if row.method == "sft" else f"{runs[0]['alpha']:g}"
            speed = np.mean([1e3 * run["training_seconds"] / run["steps"] for run in runs])
            lines.append(f"| {name} | {weight} | {len(runs)} | {lr:g} | {cells} | {speed:.0f} |")
    return lines + refused


def best_rate(folder: Path, row: str, metric: str) -> float | None:
    """The learning rate with the best validation score of seed 0; of equals the smallest, as in cross_tokenizer.py."""
    runs = [_read(file) for file in folder.glob(f"{file_name(row)}-*-0.json")]
    runs = sorted((run for run in runs if run["row"] == row), key=lambda run: run["lr"])
    return max(runs, key=lambda run: run["validation"][metric])["lr"] if runs else None


def scores(here: Path, row: str) -> dict[tuple[str, int], float]:
    """(labelled set, seed) -> test score of a row in points, at the learning rate that was chosen for it."""
    found = {}
    for name, labelled in SETS.items():
        lr = best_rate(here / name, ROWS[row].like or row, labelled.metric)
        for file in sorted((here / name).glob(f"{file_name(row)}-{lr:g}-[0-9]*.json")) if lr else ():
            run = _read(file)
            found[name, run["seed"]] = 100 * float(run["test"][labelled.metric])
    return found


def _unsupervised(folder: Path, part: str) -> list[str]:
    lines = ["| row | seeds | lr | Avg-In | Avg-Out | Avg | ms/step |", "|---|---|---|---|---|---|---|"]
    inside = IN_DOMAIN if part == "out-of-domain" else None
    beside = talas_table.HERE / folder.name
    references = {**_models(talas_table.HERE / "teacher.json"), **_models(beside / "references.json")}
    lines += [_averages(name, [scores], inside) for name, scores in references.items()]
    if inside:
        return lines + [line for row in ("simcse", *ROWS) for line in _rows(folder, row, inside)]
    lines += [line for row in BESIDE for line in _rows(beside, row, None)]
    return lines + [line for row in ROWS for line in _rows(folder, row, None)]


def _models(file: Path) -> dict[str, Any]:
    return dict(_read(file)["models"]) if file.exists() else {}


def _rows(folder: Path, row: str, inside: tuple[str, ...] | None) -> list[str]:
    runs = [_read(file) for file in sorted(folder.glob(f"{file_name(row)}-[0-9].json"))]
    return [_averages(row, runs, inside)] if runs else []


def _averages(name: str, runs: list[dict[str, Any]], inside: tuple[str, ...] | None) -> str:
    """A line; `inside` names the sets in the domain, where they are not those of TALAS."""

    def average(run: dict[str, Any], group: str) -> float:
        if inside is None:
            return float(run["averages"][group])
        taken = {"in": [n for n in run["tasks"] if n in inside], "out": [n for n in run["tasks"] if n not in inside]}
        return float(np.mean([run["tasks"][name]["value"] for name in taken.get(group, run["tasks"])]))

    cells = " | ".join(_cell([average(run, group) for run in runs]) for group in ("in", "out", "all"))
    if "steps" not in runs[0]:
        return f"| {name} | | | {cells} | |"
    speed = np.mean([1e3 * run["training_seconds"] / run["steps"] for run in runs])
    return f"| {name} | {len(runs)} | {runs[0]['lr']:g} | {cells} | {speed:.0f} |"


def _cell(values: list[float]) -> str:
    mean = 100 * float(np.mean(values))
    return f"{mean:.2f} ± {100 * float(np.std(values, ddof=1)):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


HEADER = """# Across tokenizers, on real data

Made by `python experiments/cross_tokenizer.py` (its header says who teaches whom, with which data and tuning). Scores
on test data in percent; ± is the standard deviation over seeds. Learning rates were chosen on validation data. Rows
without "paper" are the `sound` preset; "but X" is the sound preset with that option changed, most to what the paper
has. ms/step is wall clock, whatever else the machine did, pauses included; benchmarks/token_steps.py compares costs."""
