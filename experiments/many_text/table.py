"""The rows of `many_text`, and the page of what it has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, fell, shown, tuned, withdrawn
from experiments.harness.records import Rows, below, committed, folders, seeds
from experiments.harness.setting import Setting, end_note, points
from experiments.harness.tables import cell, written

EXPERIMENT = "many_text"
Found = dict[str, Any]
TEACHERS = ("minilm", "words", "lsa", "chars", "bpe")
#: The nine sets by their metric: macro-F1, average precision, Spearman's rho.
KINDS = {
    "classification": ("emotion", "banking77", "tweeteval_sentiment"),
    "pairs": ("mrpc", "scitail", "wic"),
    "similarity": ("stsb", "sick", "sts12"),
}
#: The sets without a test row whose text is in TALAS's corpus.
CLEAN = ("banking77", "tweeteval_sentiment", "scitail", "sick")
#: Name of a row that is found out.
BEST_SINGLE = "best single"


@dataclass(frozen=True)
class Row:
    """A method with its options.

    Attributes:
        only: the one teacher; all where None.
        together: all teachers' vectors side by side, as one teacher's.
        like: the row whose learning rate it takes.
        shrink: of the student.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    together: bool = False
    like: str | None = None
    shrink: dict[str, Any] | None = None


#: The published code's settings of kernels and units, for the squared error that its likelihood should amount to.
AS_CODE = {"vectors": "raw", "teacher_weight": "sum", "width_factor": 1.4, "init": "random"}
ROWS: dict[str, Row] = {
    "gaussian": Row("gaussian"),
    "multi_mse": Row("multi_mse"),
    "multi_cosine": Row("multi_cosine"),
    **{f"gaussian from {name}": Row("gaussian", only=name, like="gaussian") for name in TEACHERS},
    # Without what `sound` adds to the likelihood on standardised vectors.
    "gaussian unclipped beta 0": Row("gaussian", {"clip": None, "beta_nll": 0}, like="gaussian"),
    "multi_mse unclipped": Row("multi_mse", {"clip": None}, like="multi_mse"),
    "gaussian random start": Row("gaussian", {"init": "random"}),
    "multi_mse random start": Row("multi_mse", {"init": "random"}),
    "multi_cosine random start": Row("multi_cosine", {"init": "random"}),
    "gaussian paper": Row("gaussian", {"preset": "paper"}),
    "gaussian code": Row("gaussian", {"preset": "code"}),
    "multi_mse as gaussian code": Row("multi_mse", AS_CODE),
    "cosine side by side": Row("cosine", together=True),
    "talas": Row("talas"),
    "gaussian depth 2": Row("gaussian", {"depth": 2}, like="gaussian"),
    "gaussian depth 5": Row("gaussian", {"depth": 5}, like="gaussian"),
    "gaussian, two layers": Row("gaussian", like="gaussian", shrink={"layers": 2}),
    "gaussian, two layers, 4000 pieces": Row("gaussian", like="gaussian", shrink={"layers": 2, "vocabulary": 4000}),
}
SETS = {
    "main": ("gaussian", "multi_mse", "multi_cosine"),
    "single": tuple(name for name, row in ROWS.items() if row.only),
    "robust": ("gaussian unclipped beta 0", "multi_mse unclipped"),
    "starts": ("gaussian random start", "multi_mse random start", "multi_cosine random start"),
    "presets": ("gaussian paper", "gaussian code", "multi_mse as gaussian code"),
    "others": ("cosine side by side", "talas"),
    "depth": ("gaussian depth 2", "gaussian depth 5"),
    "sizes": ("gaussian, two layers", "gaussian, two layers, 4000 pieces"),
}
SETS["all"] = tuple(row for rows in SETS.values() for row in rows)


def task_scores(corpus: Rows, row: str) -> dict[int, dict[str, float]]:
    """Seed -> set -> main metric of a row, of the rows of one corpus."""
    found = seeds(corpus, row)
    return {seed: {name: task["value"] for name, task in run["tasks"].items()} for seed, run in found.items()}


def like(row: str) -> str:
    """The row whose learning rate a row takes."""
    return ROWS[row].like or row if row in ROWS else row


def best_single(corpus: Rows) -> str | None:
    """The single-teacher student with the highest average over the sets at seed 0, once all teachers' are there."""
    rows = [f"gaussian from {name}" for name in corpus.get("setup", {}).get("teachers", ())]
    found = {row: scores[0] for row in rows if 0 in (scores := task_scores(corpus, row))}
    means = {row: float(np.mean(list(scores.values()))) for row, scores in found.items()}
    return max(means, key=means.__getitem__) if rows and len(means) == len(rows) else None


def write_page(rows: Rows, folder: Path) -> str:
    """The tables of everything that is there, also written to `table.md`."""
    lines = [HEADER]
    for name in folders(rows):
        corpus = below(rows, name)
        teachers, given = corpus["setup"]["teachers"], below(corpus, "references")
        references = {model: given[model] for model in [*teachers, "untrained"] if model in given}
        trained = {row: list(runs.values()) for row in ROWS if (runs := seeds(corpus, row))}
        lr = {row: shown(runs[0]["lr"], tuned(corpus, like(row))) for row, runs in trained.items()}
        down = _fallen(references, trained, lr)
        trained = {row: runs for row, runs in trained.items() if row not in down}
        lines += ["", f"## Corpus `{name}`", "", *_scores(references, trained, lr), *withdrawn(down)]
        lines += ["", "### What is left of each teacher", "", *_per_teacher(teachers, references, trained)]
        lines += _bound(trained)
    return written(folder, lines)


def _fallen(
    references: dict[str, Found], trained: dict[str, list[Found]], lr: dict[str, str]
) -> dict[str, tuple[float, float, str]]:
    """The rows of several teachers that ended below the untrained student: what they reached, what it has, their rate.

    A student of one teacher may end there because its teacher is there.
    """
    if "untrained" not in references:
        return {}
    start = 100 * references["untrained"]["clean_averages"]["all"]
    means = {row: 100 * float(np.mean([run["clean_averages"]["all"] for run in runs])) for row, runs in trained.items()}
    return {row: (mean, start, lr[row]) for row, mean in means.items() if not ROWS[row].only and fell(mean, start)}


def _scores(references: dict[str, Found], trained: dict[str, list[Found]], lr: dict[str, str]) -> list[str]:
    lines = [
        "| row | seeds | lr | parameters | classification | pairs | similarity | all | all without overlap | clusters "
        "| ms/step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in references.items():
        title = "untrained student" if name == "untrained" else f"teacher `{name}`, {found['width']} numbers"
        lines.append(_line(title, [found], "", "", ""))
    for name, runs in trained.items():
        speed = np.mean([1e3 * run["training_seconds"] / run["steps"] for run in runs])
        lines.append(_line(name, runs, str(len(runs)), lr[name], f"{speed:.0f}"))
    return lines


def _line(name: str, runs: list[Found], seeds: str, lr: str, speed: str) -> str:
    cells = [cell([measured(run, kind) for run in runs]) for kind in (*KINDS, "all")]
    cells.append(cell([run["clean_averages"]["all"] for run in runs]))
    cells.append(cell([measured(run, "clusters") for run in runs]))
    size = f"{runs[0]['parameters'] / 1e6:.2f} M"
    return f"| {name} | {seeds} | {lr} | {size} | {' | '.join(cells)} | {speed} |"


def measured(run: Found, what: str) -> float:
    """The mean of a kind's main metrics (`KINDS`), of the nine sets ("all"), or the V-measure of the clusters."""
    if what == "all":
        return float(run["averages"]["all"])
    if what == "clusters":
        return float(run["clustering"]["value"])
    return float(np.mean([run["tasks"][name]["value"] for name in KINDS[what]]))


def _per_teacher(teachers: list[str], references: dict[str, Found], trained: dict[str, list[Found]]) -> list[str]:
    head = [f"{name}: {what}" for name in teachers for what in ("linear", "kernel", "calibration")]
    lines = [f"| row | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    rows = {("untrained student" if n == "untrained" else f"teacher `{n}`"): [run] for n, run in references.items()}
    for name, runs in {**rows, **trained}.items():
        cells = []
        for teacher in teachers:
            cells.append(cell([run["per_teacher"][teacher]["linear_explained"] for run in runs], 1))
            held = [run.get("held_out", {}) for run in runs]
            cells += [
                cell([each.get(f"{term}:{teacher}") for each in held], 1) for term in ("explained", "calibration")
            ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _bound(trained: dict[str, list[Found]]) -> list[str]:
    """Whether the published bound makes the likelihood a squared error."""
    runs = [run for run in trained.get("gaussian code", []) if "bound" in run]
    if not runs:
        return []
    lines = ["", "### The published bound of the deviations (`gaussian code`)", ""]
    lines += [
        "| teacher | inverse deviation / its bound | correlation of -log-likelihood and squared error |",
        "|---|---|---|",
    ]
    for name in runs[0]["bound"]:
        cells = [cell([run["bound"][name][key] for run in runs], 1, 3) for key in ("share_of_bound", "correlation")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


HEADER = (
    """# Many text teachers, one student

Made by `python -m experiments.many_text.run` (its README says who the teachers are, and how learning rates were
chosen). Plain means of main metrics in percent, as in the paper by kind: classification (macro-F1 on emotion, Banking77
and TweetEval), pairs (average precision on MRPC, SciTail and WiC), similarity (Spearman's rho on STS-B, SICK and
STS12), and of all nine; clusters: V-measure on Banking77's test texts, mean of five starts; ± is the standard deviation
over seeds, where there are several. "Without overlap" leaves out test rows whose texts are in the corpus. On held-out
texts of the corpus, per teacher: `linear` and `kernel`, the share of its variance (mean over coordinates) that a ridge
map of the vectors and the trained kernel explain; `calibration`, the mean squared standardised residual, which is 1
where the predicted deviations are right. Cosine methods do not fit lengths, so that their kernels' share says little.

What was cut, against the paper: five teachers of which two are transformers (and one of these comes from the other)
instead of four large ones, 13,561 texts instead of 6.3 million, two epochs, batch 32, one student instead of three
sizes (and two cuts of it), probes on at most 10,000 seeded rows, one seed but for the main rows, one clustering set.
"""
    + ENDS
)


def setting(student: str, results: Path) -> Setting:
    """Of these runs only averages without test rows that are in the corpus were kept, so the sets without any count."""
    rows = below(committed(EXPERIMENT, results), "talas")
    before = {"untrained": {None: rows["references/untrained"]}} if "references/untrained" in rows else {}

    def runs(row: str) -> Mapping[int | None, Found]:
        return before.get(row) or dict(seeds(rows, row))

    return Setting(
        lambda row: points({s: {name: run["tasks"][name]["value"] for name in CLEAN} for s, run in runs(row).items()}),
        notes=lambda row: end_note(rows, like(row), "tuning/"),
        # A student of one teacher may end below its start because the teacher is there itself.
        start=lambda row: "" if " from " in row else "untrained",
        like=like,
        whole=lambda row: points({s: {"all": run["clean_averages"]["all"]} for s, run in runs(row).items()}),
        resolve=lambda row: best_single(rows) if row == BEST_SINGLE else row,
        parts={"classification": KINDS["classification"]},
    )
