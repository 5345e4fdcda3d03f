"""The page of `quarter`'s results."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, below
from experiments.harness.tables import head, line, spread, written

_COLUMNS = ("student", "parameters", "nine sets", "kept", "four unseen sets", "kept", "retrieval", "kept")
_ABOUT = (
    "Kept of the teacher's, in percent: the mean over seeds, with the least and the largest; before training, with the",
    "first seed's start. Minutes by the clock on one core, the median seed's, as some waited for other work: training",
    "alone; of an older row that was interrupted, the last call's. Of ten: the teacher's ten nearest neighbours that",
    "are found again.",
)
_TRAINED = (
    "Averages of main metrics in percent; kept: of the teacher's. Cosine: mean of the",
    "held-out texts' vectors with the teacher's; order: Spearman's correlation of all cosines with the",
    "teacher's; ten nearest: share of the teacher's that are found again.",
)
_LIKENESS = ("cosine", "order", "ten nearest")


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    whole = {name: row for name, row in rows.items() if "/" not in name}
    speeds, rivals = below(rows, "speed"), below(rows, "rival")
    lines = ["# Students of a quarter, an eighth and a twentieth", ""]
    lines += ["Made by `python -m experiments.quarter.run` (its README says what was trained and judged on what)."]
    if whole:
        lines += ["", "## Trained", "", *_TRAINED, ""]
        lines += [*head(*_COLUMNS, *_LIKENESS), *(_line(name, row) for name, row in sorted(whole.items()))]
        lines += ["", "## Over seeds", "", *_ABOUT, ""]
        lines += _over_seeds(whole, below(rows, "start"))
        if rivals:
            lines += ["", "### Tables of the same sizes", "", *_over_seeds(rivals, {})]
        for name, row in sorted(whole.items()):
            lines += ["", f"### {name}", "", *_sets(row)]
            for model, timed in speeds.get(name, {}).items():
                if model in ("teacher", "student"):
                    shown = f"{timed['texts_per_second']:.0f} texts/s, one text {timed['latency_p50_ms']:.1f} ms."
                    lines += ([""] if model == "teacher" else []) + [f"{model}: {shown}"]
    for part, title, column in (
        ("probe", "Shapes after 40,000 texts", "shape"),
        ("pieces", "Word pieces\n\nAfter half a reading of all texts.", "shape"),
        ("rate", "Learning rates, after 81,000 texts", "size and rate"),
    ):
        if found := below(rows, part):
            lines += ["", f"## {title}", "", *head(column, "parameters", *_LIKENESS)]
            lines += [line(name.rpartition("-")[0], _size(row), _likeness(row)) for name, row in found.items()]
    if costs := below(rows, "cost"):
        lines += ["", "## Quality against time", "", *_costs(costs, whole)]
    return written(folder, lines)


def _costs(costs: Rows, whole: Rows) -> list[str]:
    """Trainings of different lengths, each with its own schedule; one core, training alone, by the clock."""
    found = [
        (name.partition(",")[0] if "today" not in name else "two whole blocks", row) for name, row in costs.items()
    ]
    for longest in ("quarter, more texts", "quarter, all texts, Muon"):
        trained = sorted(_of(whole, longest), key=_minutes)
        found += [(longest, row) for row in trained[len(trained) // 2 :][:1]]  # the median seed's
    lines = ["One core, training alone, by the clock; every row is a training of its own with its whole schedule.", ""]
    lines += head("shape", "steps", "minutes", "nine sets kept", *_LIKENESS)
    for name, row in sorted(found, key=lambda pair: (pair[0][:3] == "two", pair[1]["steps"])):
        minutes = f"{_minutes(row):.1f}"
        lines.append(
            f"| {name} | {row['steps']:,} | {minutes} | {_kept(row, 'nine', 'all'):.1f} % | {_likeness(row)} |"
        )
    return lines


def _over_seeds(whole: Rows, starts: Rows) -> list[str]:
    names = {name.rpartition("-")[0] for name in whole}
    sizes = sorted(names, key=lambda size: (-_of(whole, size)[0]["parameters"], size))
    columns = ("size", "parameters", "seeds", "nine sets", "nine sets untrained", "four unseen sets", "retrieval")
    lines = head(*columns, "retrieval untrained", "of ten", "minutes")
    for size in sizes:
        found, start = _of(whole, size), next(iter(_of(starts, size)), None)
        cells = [size, _size(found[0]), str(len(found))]
        for group, average in (("nine", "all"), ("unseen", "all"), ("retrieval", "retrieval")):
            cells.append(spread([_kept(row, group, average) for row in found]))
            if group != "unseen":
                cells.append("" if start is None else f"{_kept(start, group, average):.1f}")
        cells.append(spread([100 * row["agreement"]["neighbours"] for row in found]))
        minutes = [_minutes(row) for row in found]
        cells.append(spread(minutes, 1, statistics.median(minutes)))
        lines.append(line(*cells))
    return lines


def _of(rows: Rows, size: str) -> list[dict[str, Any]]:
    return [row for name, row in sorted(rows.items()) if name.rpartition("-")[0] == size]


def _minutes(row: dict[str, Any]) -> float:
    """Of the training; rows of before a training's clock went on over interruptions have the last call's alone."""
    return float(row["training_seconds"] if "training_seconds" in row else row["training_seconds_of_last_call"]) / 60


def _kept(row: dict[str, Any], group: str, average: str) -> float:
    own, top = (row[group]["averages"][model][average] for model in ("student", "teacher"))
    return 100 * float(own) / float(top)


def _line(name: str, row: dict[str, Any]) -> str:
    cells = [name, _size(row)]
    for group, average in (("nine", "all"), ("unseen", "all"), ("retrieval", "retrieval")):
        own, top = (row[group]["averages"][model][average] for model in ("student", "teacher"))
        low, high = (100 * bound for bound in row[group]["difference"]["interval"])
        cells += [f"{100 * own:.2f} of {100 * top:.2f} ({low:+.2f} to {high:+.2f})", f"{100 * own / top:.1f} %"]
    return line(*cells, _likeness(row))


def _size(row: dict[str, Any]) -> str:
    return f"{row['parameters'] / 1e6:.2f} M"


def _likeness(row: dict[str, Any]) -> str:
    found, cosine = row["agreement"], row["cosine"]
    shown = "" if cosine is None else f"{cosine:.3f}"
    return " | ".join([shown, f"{found['similarity_spearman']:.3f}", f"{100 * found['neighbours']:.1f} %"])


def _sets(row: dict[str, Any]) -> list[str]:
    lines = ["| set | teacher | student | kept | BM25 |", "|---|---|---|---|---|"]
    for group in ("nine", "unseen", "retrieval"):
        found = row[group]
        for task, score in found["tasks"]["teacher"].items():
            own, lexical = found["tasks"]["student"][task], (found.get("bm25") or {}).get(task)
            shown = "" if lexical is None else f"{100 * lexical['ndcg@10']:.1f}"
            kept = f"{100 * own['value'] / score['value']:.1f} %"
            lines.append(f"| {task} | {100 * score['value']:.1f} | {100 * own['value']:.1f} | {kept} | {shown} |")
        clean = found.get("without_overlap")
        if clean:
            both = [clean[model]["all"] for model in ("teacher", "student")]
            kept = f"{100 * both[1] / both[0]:.1f} %"
            lines.append(
                f"| {group}, rows apart from the corpus | {100 * both[0]:.2f} | {100 * both[1]:.2f} | {kept} | |"
            )
    return lines
