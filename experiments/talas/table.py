"""The page of what `talas` found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, fell, shown, tuned, withdrawn
from experiments.harness.records import Rows, below, committed, folders, seeds
from experiments.harness.setting import UNTRAINED, Note, Setting, clean, end_note
from experiments.harness.tables import cell, head, line, written

EXPERIMENT = "talas"


IN_DOMAIN = ("emotion", "wic", "stsb")  # texts of their training splits are the corpus


OUT_OF_DOMAIN = ("banking77", "tweeteval_sentiment", "mrpc", "scitail", "sick", "sts12")


CLEAN_COLUMNS = ("Avg-In, clean", "Avg-Out, clean", "Avg without overlap")


ASAM = {"kind": "asam"}


ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "simcse": ("simcse", {}, None),
    "mse": ("mse", {}, None),
    "cosine": ("cosine", {}, None),
    "relational": ("relational", {}, None),
    "leaf": ("leaf", {}, None),
    "jasper_stella": ("jasper_stella", {}, None),
    "distilcse": ("distilcse", {}, None),
    "distillcse": ("distillcse", {}, None),
    "talas": ("talas", {}, None),
    "talas+asam": ("talas", {}, ASAM),
    "talas+asam rho 0.05": ("talas", {}, {**ASAM, "rho": 0.05}),
    "talas+asam rho 0.1": ("talas", {}, {**ASAM, "rho": 0.1}),
    "talas+asam rho 1.0": ("talas", {}, {**ASAM, "rho": 1.0}),
    "talas+sam": ("talas", {}, {"kind": "sam"}),
    "talas+disam": ("talas", {}, {"kind": "disam", "rho": 0.01}),
    "talas without simcse": ("talas", {"simcse_weight": 0}, None),
    "talas without tamd": ("talas", {"tamd_weight": 0}, None),
    "talas without lasd": ("talas", {"lasd_weight": 0}, None),
    "tamd only": ("talas", {"simcse_weight": 0, "lasd_weight": 0}, None),
    "tamd only+asam": ("talas", {"simcse_weight": 0, "lasd_weight": 0}, ASAM),
    "talas without simcse+asam": ("talas", {"simcse_weight": 0}, ASAM),
    "talas without lasd+asam": ("talas", {"lasd_weight": 0}, ASAM),
    "talas anchored 1": ("talas", {"anchored_layers": 1}, None),
    "talas anchored 3": ("talas", {"anchored_layers": 3}, None),
    "talas anchored 4": ("talas", {"anchored_layers": 4}, None),
    "talas lasd layers 2": ("talas", {"layers": 2}, None),
    "talas lasd layers 3": ("talas", {"layers": 3}, None),
    "talas detached guide": ("talas", {"guide": "detached"}, None),
    "talas random start": ("talas", {"init": "random"}, None),
    "talas code": (
        "talas",
        {"preset": "code"},
        {"kind": "asam", "rho": 0.05, "eta": 0.0, "bias": "abs", "fresh_dropout": True},
    ),
}


#: Rows that take the learning rate chosen for another row: they differ from it in one part only.
LIKE = {name: "talas" for name in ROWS if name.startswith(("talas", "tamd")) and name != "talas"}


#: Rows at a rate that validation data did not choose, but scarcely told from the best: not part of the comparison.
AT = {"talas at 0.0003": 3e-4}


ROWS |= dict.fromkeys(AT, ROWS["talas"])


#: Between the name of a student, or of the row of its teacher, and a teacher other than all-MiniLM-L6-v2.
FROM = " from "


def called(name: str, teacher: str) -> str:
    """A student, or the row of a teacher, with the teacher where it is not all-MiniLM-L6-v2.

    >>> called("bpe", "minilm"), called("bpe", "mpnet")
    ('bpe', 'bpe from mpnet')
    """
    return name if teacher == "minilm" else f"{name}{FROM}{teacher}"


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown tables of everything that is there, also written to `table.md`."""
    lines: list[str] = []
    for student in folders(rows):
        found, taught = below(rows, student), called("teacher", student.partition(FROM)[2] or "minilm")
        teacher = rows[taught]["models"] if taught in rows else {}
        top = teacher["teacher"]["averages"]["all"] if teacher else None
        columns = ("row", "seeds", "lr", "Avg-In", "Avg-Out", "Avg", "retention", *CLEAN_COLUMNS)
        lines += ["", f"### Student `{student}`", "", *head(*columns)]
        fixed = {**teacher, **found.get("references", {"models": {}})["models"]}
        lines += [_line(name, [scores], top, "") for name, scores in fixed.items()]
        start, down = fixed.get("untrained student"), dict[str, tuple[float, float, str]]()
        for row in ROWS:
            if runs := list(seeds(found, row).values()):
                lr = shown(runs[0]["lr"], tuned(found, LIKE.get(row, row)))
                reached, before = (clean_average(each) for each in (runs, [start or {"clean": {}}]))
                if fell(reached, before) or LIKE.get(row) in down:
                    down[row] = (reached, before, lr)
                else:
                    lines.append(_line(row, runs, top, lr))
        lines += withdrawn(down)
    return written(folder, [HEADER.removesuffix("\n"), *lines])


def _line(name: str, runs: list[dict[str, Any]], top: float | None, lr: str) -> str:
    averages = [cell([run["averages"][group] for run in runs]) for group in ("in", "out", "all")]
    kept = f"{100 * np.mean([run['averages']['all'] for run in runs]) / top:.1f} %" if top else ""
    return line(name, len(runs), lr, *averages, kept, *clean_cells(runs, IN_DOMAIN))


def clean_average(runs: list[dict[str, Any]]) -> float:
    """In percent, over the runs and all sets, without test rows that are in the corpus; of nothing not a number."""
    every = [value for run in runs for value in run["clean"].values()]
    return 100 * float(np.mean(every)) if every else float("nan")


def clean_cells(runs: list[dict[str, Any]], inside: tuple[str, ...]) -> list[str]:
    """Averages over the sets in and out of the domain and over all, without test rows that are in the corpus.

    STS12 counts as in-domain: its texts are part of STS-B, and texts of STS-B are in the corpora of all these runs.
    """
    groups: list[list[float]] = [[], [], []]
    for run in runs:
        of = {name: value for name, value in run["clean"].items() if name in (*inside, "sts12")}
        out = [value for name, value in run["clean"].items() if name not in of]
        for group, values in zip(groups, (list(of.values()), out, list(run["clean"].values())), strict=True):
            group.append(float(np.mean(values)))
    return [cell(group) for group in groups]


HEADER = (
    """# TALAS's comparison, on real data

Made by `python -m experiments.talas.run` (see its README for teacher, students, corpus and tuning). Two epochs
(`embedder`, and all students of all-mpnet-base-v2: five), batch 32 with texts of similar length, probes trained on at
most 10,000 seeded rows. ± is the standard deviation over seeds. "Clean" and "without overlap" leave out the test rows
whose texts are in the training corpus; "clean" also counts STS12 as in-domain, because STS-B, whose texts are in the
corpus, contains it. Averages are plain means of the nine sets' main metrics (macro-F1, average precision, Spearman) in
percent.
"""
    + ENDS
    + "\n"
)


#: What a run logs of DistillMoE's gate, and the share of one expert that leaves the others next to no training.
GATES, MOST = ("term/gate_cosine", "term/gate_contrast", "term/gate_margin"), 0.7


def one_expert(rows: Iterable[Mapping[str, Any]], row: str) -> list[Note]:
    """That one expert has nearly all of a row's gate, with its least and greatest share over the runs; else nothing."""
    runs = [run for run in rows if run.get("row") == row and "last_terms" in run]
    gates = [{k: v for k, v in run["last_terms"].items() if k in GATES} for run in runs]
    largest = [max(gate.values()) for gate in gates if gate]
    if not largest or min(largest) < MOST:
        return []
    return [("one expert has the gate", f"{row} ({min(largest):.2f} to {max(largest):.2f})")]


def setting(student: str, results: Path) -> Setting:
    home, crossed = committed(EXPERIMENT, results), committed("cross_tokenizer", results)
    own, others = below(home, student), below(crossed, f"unsupervised/{student}")
    fixed = {**home.get("teacher", {}).get("models", {}), **own.get("references", {}).get("models", {})}
    return Setting(
        scores=lambda row: clean({None: fixed[row]} if row in fixed else seeds(own, row) or seeds(others, row)),
        notes=lambda row: end_note({**own, **others}, LIKE.get(row, row), "tuning/") + one_expert(others.values(), row),
        start=lambda row: UNTRAINED,
        like=lambda row: LIKE.get(row, row),
        chosen=lambda row: IN_DOMAIN if row in ("emo", "distillmoe") else (),
        parts={"in the domain": IN_DOMAIN, "out of domain": OUT_OF_DOMAIN},
    )
