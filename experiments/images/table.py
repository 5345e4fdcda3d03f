"""What `images` found, as tables after the many-teachers paper's, and a picture after its Figures 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import fell, withdrawn
from experiments.harness.records import Rows, committed, seeds
from experiments.harness.setting import ONE_RATE, Scores, Setting
from experiments.harness.tables import head, line
from experiments.images.rows import ROWS, TEACHERS, single_rows

EXPERIMENT = "images"
SETS = ("CIFAR-10", "Fashion-MNIST", "MNIST")
#: Row -> what it is called in the paper's tables.
METHODS = {
    "untrained": "untrained",
    "labels": "no distillation: trained by labels",
    "multi_cosine": "cosine",
    "multi_mse": "squared error (L2)",
    "gaussian": "likelihood (NLL)",
    "gaussian beta 0.5": "likelihood, beta 0.5 instead of 1",
    "gaussian beta 0": "likelihood, beta 0 instead of 1",
    "gaussian unclipped": "likelihood, not clipped",
    "gaussian unclipped beta 0": "likelihood, not clipped, beta 0",
    "multi_mse unclipped": "squared error, not clipped",
    "gaussian default kernels": "likelihood, the method's default kernels",
    "multi_mse default kernels": "squared error, the method's default kernels",
    "gaussian wide kernels": "likelihood, kernels as wide as the default's",
    "gaussian ridge start": "likelihood, kernels that start at a ridge map, as the default's",
    "gaussian paper": "likelihood, paper's preset",
}
#: Names of rows that are found out.
BEST_SINGLE, BEST_TEACHER = "best single", "best teacher"
Runs = Mapping[int, dict[str, Any]]

HEADER = """# Many teachers of images, one small student

Made by `python -m experiments.images.run` (its README says what teachers, student, corpus and probes are). Accuracy in
percent of a perceptron on frozen vectors, mean of three probes. Of several students: mean ± standard deviation over
their seeds. Of one student, and of the teachers: with the 95 % bootstrap interval over test images in brackets.

**Read with care.** The CIFAR networks (resnet20 to resnet56, mlperf) were trained on all 50,000 labelled training
images of CIFAR-10: they have seen the corpus, and with its labels, so their students learn labels at second hand that
the row `labels` gets for 4,000 of the 9,000 images only. CIFAR-10's test images are new to every model. MNIST and
Fashion-MNIST are new to all teachers and students alike, and are not in the corpus.

**Cut against the paper.** 9,000 images of 32 x 32 from one data set as the corpus (there: the training parts of eight
data sets, at 225 x 225); 12 epochs (50); a student of 75,000 parameters from random weights (ResNet-18 of 11.7 M and
eight others, pretrained, it seems); eight small teachers, five of them of one family on one data set (nine of
Torchvision, in a second setting five vision transformers); three probed data sets, with 4,000, 6,000 and 900 training
images, instead of eight to ten with 5,000 to 160,000; probes of 50 epochs, Fashion-MNIST's of 200 (not given there);
the learning rate falls to 0. "No distillation" is a student trained by labels; in the paper it is the pretrained
network itself. Squared error and cosine have the same kernels, without the predicted deviation; squared
error the same standardised and clipped teachers as the likelihood, cosine the teachers' own vectors.
"""


def teachers_of(rows: Rows) -> dict[str, dict[str, Any]]:
    """Name -> result."""
    return {name: rows[f"teacher-{name}"] for name in TEACHERS if f"teacher-{name}" in rows}


def accuracies(run: dict[str, Any]) -> dict[str, float]:
    """Data set, and "average" -> percent."""
    values = {name: 100 * float(run["tasks"][name]["value"]) for name in SETS}
    return {**values, "average": float(np.mean(list(values.values())))}


def mean_accuracies(runs: Runs) -> dict[str, float]:
    """The same, over the seeds."""
    each = [accuracies(run) for run in runs.values()]
    return {name: float(np.mean([one[name] for one in each])) for name in (*SETS, "average")}


def best_single(rows: Rows) -> str | None:
    """The single-teacher student with the highest average over the data sets at seed 0, once all are there."""
    runs = {row: seeds(rows, row) for row in single_rows()}
    found = {row: accuracies(each[0])["average"] for row, each in runs.items() if 0 in each}
    return max(found, key=found.__getitem__) if len(found) == len(runs) else None


def best_teacher(rows: Rows) -> str | None:
    """The teacher with the highest average over the data sets, once all are there."""
    found = {name: accuracies(run)["average"] for name, run in teachers_of(rows).items()}
    return max(found, key=found.__getitem__) if len(found) == len(TEACHERS) else None


def write_page(rows: Rows, folder: Path) -> str:
    """Write table.md, and images.svg where there is enough for it; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    teachers = teachers_of(rows)
    runs = {row: found for row in ROWS if (found := seeds(rows, row))}
    down = _fallen(runs)
    runs = {row: found for row, found in runs.items() if row not in down}
    parts = [
        HEADER,
        _methods(teachers, runs),
        "\n".join([*withdrawn(down), ""]) if down else "",
        _singles(runs),
        _weak(runs),
    ]
    if "gaussian" in runs and any(row in runs for row in single_rows()):
        draw(folder / "images.svg", teachers, runs)
        parts.append(PICTURE)
    parts += [_explained(runs), _calibration(runs), _cost(runs)]
    page = "\n".join(part for part in parts if part)
    (folder / "table.md").write_text(page)
    return page


def _fallen(runs: dict[str, Runs]) -> dict[str, tuple[float, float, str]]:
    """The rows that ended below their untrained student: what they reached, what it has, their rate."""
    means = {row: mean_accuracies(found)["average"] for row, found in runs.items()}
    starts = {row: means.get("vit untrained" if row.startswith("vit ") else "untrained", 0.0) for row in runs}
    return {row: (means[row], starts[row], "1e-3, the only one") for row in runs if fell(means[row], starts[row])}


PICTURE = """## As Figures 2 and 3

![Size against accuracy, and single teachers against all](images.svg)

Left: parameters against the average of the three data sets; squares are teachers, circles students. Right: students of
one teacher each (circles) and of all eight (line).
"""


def _methods(teachers: dict[str, dict[str, Any]], runs: dict[str, Runs]) -> str:
    rows = [
        _line(name, {0: run}, "teacher", f"{run['parameters'] / 1e6:.2f} M, {run['width']}")
        for name, run in teachers.items()
    ]
    for row, label in METHODS.items():
        rows += [_line(label, runs[row], _seeds(runs[row]), _size(runs[row]))] if row in runs else []
    for row, found in runs.items():
        if row.startswith("vit "):
            rows.append(_line(f"vision transformer (4 layers of 192): {row[4:]}", found, _seeds(found), _size(found)))
    return _table("As Tables 1 and 20: methods", ("model", "students", "parameters, numbers", *SETS, "average"), rows)


def _singles(runs: dict[str, Runs]) -> str:
    rows = [_line("all eight", runs["gaussian"], _seeds(runs["gaussian"]))] if "gaussian" in runs else []
    for teacher, row in zip(TEACHERS, single_rows(), strict=True):
        rows += [_line(teacher, runs[row], _seeds(runs[row]))] if row in runs else []
    return _table("As Table 21: one teacher or all (likelihood)", ("teachers", "students", *SETS, "average"), rows)


def _weak(runs: dict[str, Runs]) -> str:
    pairs = (
        ("all eight", "gaussian"),
        ("the seven without vww", "gaussian without vww"),
        ("resnet56 and vww", "gaussian from resnet56+vww"),
        ("resnet56 and vww, by dimensions", "gaussian from resnet56+vww per_dim"),
        ("resnet56 and vww, squared error", "multi_mse from resnet56+vww"),
        ("resnet56", "gaussian from resnet56"),
    )
    rows = [_line(label, runs[row], _seeds(runs[row])) for label, row in pairs if row in runs]
    return _table("Does the weak teacher (vww) hurt?", ("teachers", "students", *SETS, "average"), rows)


def _explained(runs: dict[str, Runs]) -> str:
    text = """
Share of each teacher's variance that its kernel's mean explains on held-out images of the corpus, coordinates weighed
alike (1 = all; below 0 is worse than the mean). The rows of cosine are left out: it does not fit lengths.
"""
    rows = [
        _per_teacher(row, found, "explained", "{:.3f}") for row, found in runs.items() if not row.endswith("cosine")
    ]
    return _table("Explained variance per teacher", ("row", *TEACHERS), rows, text)


def _calibration(runs: dict[str, Runs]) -> str:
    text = "\nMean squared standardised residual on held-out images: 1 where the predicted deviations are right.\n"
    rows = [_per_teacher(row, found, "calibration", "{:.2f}") for row, found in runs.items()]
    return _table("Calibration per teacher", ("row", *TEACHERS), rows, text)


def _per_teacher(row: str, runs: Runs, term: str, form: str) -> str:
    """A line of the means over seeds; empty where no teacher has the term."""
    cells = []
    for teacher in TEACHERS:
        held = [run.get("held_out", {}).get(teacher, {}) for run in runs.values()]
        values = [each[term] for each in held if term in each]
        cells.append(form.format(np.mean(values)) if values else "")
    return line(row, *cells) if any(cells) else ""


def _cost(runs: dict[str, Runs]) -> str:
    rows = []
    for row, found in runs.items():
        first = next(iter(found.values()))
        if "steps" in first:
            seconds = np.mean([run["training_seconds"] for run in found.values()])
            probes = np.mean([run["encoding_seconds"] + run["probe_seconds"] for run in found.values()])
            kernels = f"{first['kernel_parameters'] / 1e6:.2f} M"
            rows.append(
                f"| {row} | {first['steps']} | {first['epochs']:g} | {kernels} | {seconds:.0f} | {probes:.0f} |"
            )
    columns = ("row", "steps", "epochs", "parameters of the kernels", "seconds of training", "seconds of probes")
    return _table("What it cost", columns, rows, "\nWall clock, whatever else the machine did.\n")


def _table(title: str, columns: Sequence[str], rows: Sequence[str], text: str = "") -> str:
    """A section; nothing without rows."""
    rows = [row for row in rows if row]
    if not rows:
        return ""
    return "\n".join([f"## {title}", text, *head(*columns), *rows, ""])


def _line(label: str, runs: Runs, *more: str) -> str:
    each = [accuracies(run) for run in runs.values()]
    cells = []
    for name in (*SETS, "average"):
        values = [one[name] for one in each]
        if len(values) > 1:
            cells.append(f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}")
        elif name == "average":
            cells.append(f"{values[0]:.2f}")
        else:
            low, high = next(iter(runs.values()))["tasks"][name]["interval"]
            cells.append(f"{values[0]:.2f} ({100 * low:.1f} to {100 * high:.1f})")
    return line(label, *more, *cells)


def _seeds(runs: Runs) -> str:
    return str(len(runs))


def _size(runs: Runs) -> str:
    return f"{next(iter(runs.values()))['parameters'] / 1e6:.2f} M"


def draw(file: Path, teachers: dict[str, dict[str, Any]], runs: dict[str, Runs]) -> None:
    """Figure 2 (size against average accuracy) and Figure 3 (single teachers against all)."""
    from matplotlib.figure import Figure

    from distilvec.report.plots import ROLE_COLOURS, style

    with style():
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        axes = figure.subplots(1, 1 + len(SETS), width_ratios=[3.4, *[1.0] * len(SETS)])
        left = axes[0]
        for name, run in teachers.items():
            x, y = run["parameters"], accuracies(run)["average"]
            left.plot(x, y, "s", color=ROLE_COLOURS["teacher"], markersize=4)
            left.annotate(name, (x, y), xytext=(5, -3), textcoords="offset points", fontsize=7)
        shown = {"labels": "labels", "multi_cosine": "cosine", "multi_mse": "L2", "gaussian": "NLL"}
        shown |= {"untrained": "untrained"}
        for row, label in shown.items():
            if row in runs:
                x, y = next(iter(runs[row].values()))["parameters"], mean_accuracies(runs[row])["average"]
                colour = ROLE_COLOURS["student" if row.endswith("gaussian") else "untrained"]
                left.plot(x, y, "o", color=colour, markersize=5)
                left.annotate(label, (x, y), xytext=(-5, -3), textcoords="offset points", fontsize=7, ha="right")
        left.set_xscale("log")
        left.set_xticks([1e5, 1e6], ["0.1 M", "1 M"])
        left.set(xlabel="parameters", ylabel="accuracy, %", title="Size and average accuracy")
        left.grid(True)
        left.margins(x=0.2)
        for axis, name in zip(axes[1:], SETS, strict=True):
            singles = [mean_accuracies(runs[row])[name] for row in single_rows() if row in runs]
            places = np.linspace(-0.2, 0.2, len(singles)) if len(singles) > 1 else np.zeros(1)
            axis.boxplot(singles, positions=[0], widths=0.7, showfliers=False, medianprops={"color": "#59636e"})
            axis.plot(places, singles, "o", color=ROLE_COLOURS["untrained"], markersize=4)
            axis.axhline(mean_accuracies(runs["gaussian"])[name], color=ROLE_COLOURS["student"])
            axis.set(title=name, xticks=[], xlim=(-0.6, 0.6))
            axis.grid(True, axis="y")
        figure.savefig(file, facecolor="white", metadata={"Date": None, "Creator": None})


def setting(student: str, results: Path) -> Setting:
    rows, start = committed(EXPERIMENT, results), "untrained"

    def resolve(row: str) -> str | None:
        best = {BEST_SINGLE: best_single, BEST_TEACHER: best_teacher}.get(row)
        return best(rows) if best else row

    def scores(row: str) -> Scores:
        found: dict[int | None, Mapping] = dict(seeds(rows, row))
        if f"teacher-{row}" in rows:
            found[None] = rows[f"teacher-{row}"]
        return {seed: {name: accuracies(run)[name] for name in SETS} for seed, run in found.items()}

    return Setting(
        scores, lambda row: ONE_RATE, lambda row: f"vit {start}" if row.startswith("vit ") else start, resolve=resolve
    )
