"""The page of `mpnet`'s results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, below
from experiments.harness.tables import head, line, written

_GROUPS = (("nine", "all", "nine sets"), ("others", "all", "four others"), ("retrieval", "retrieval", "retrieval"))
_ABOUT = (
    "Averages of main metrics in percent on parts of the sets, and what is kept of the teacher's. In brackets:",
    "the difference to all-MiniLM-L6-v2 with its 95 % interval. Active: parameters without the word table. Of ten: the",
    "teacher's ten nearest held-out texts that are found, the mean over seven fields; unseen: over the two fields that",
    "the corpus lacks. Minutes: of training, by the clock on a shared machine; processor minutes beside them.",
)
_CHOICE = (
    "Share of the ten nearest held-out texts that are found again, by field, in percent, and the mean of Spearman's",
    "correlation of all cosines with the teacher's. The corpus has no text of the fields with a star. Minutes: of",
    "training, by the clock on a shared machine; in brackets the processor's.",
)
_SEARCHES = (
    "The rest of a held-out text, searched among those of its field by the first sentence: mean reciprocal rank of",
    "ten, in percent. The corpus has no text of the fields with a star. Nobody's labels are needed, so that students",
    "may be chosen by it.",
)


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = [
        "# all-mpnet-base-v2, the ladder",
        "",
        "Made by `python -m experiments.mpnet.run` (its README says how).",
        "",
    ]
    # A student is judged after its training was kept: what that cost stands in the row of the training.
    cost = {name.removeprefix("trained/"): row for name, row in rows.items() if name.startswith("trained/")}
    whole = {name: {**row, **_cost(cost.get(name, {}))} for name, row in rows.items() if "nine" in row}
    if whole:
        lines += ["## Judged", "", *_ABOUT, "", *_judged(whole), "", "## Sets", "", *_sets(whole), ""]
    if found := below(rows, "search"):
        lines += ["## Searches without labels", "", *_SEARCHES, "", *_searched(found), ""]
    for part, title in (
        ("trained", "Trained"),
        ("probe", "Probes of the largest student"),
        ("shape", "Shapes before training"),
    ):
        if found := below(rows, part):
            lines += [f"## {title}", "", *_CHOICE, "", *_choices(found), ""]
    return written(folder, lines[:-1])


def _judged(whole: Rows) -> list[str]:
    columns = ["student", "parameters", "active", *(title for *_, title in _GROUPS), "of ten", "unseen"]
    lines = head(*columns, "texts", "epochs", "minutes")
    first = next(iter(whole.values()))
    sizes = whole.get("all-MiniLM-L6-v2-0", {}).get("teacher")
    top = [f"{100 * first[group]['averages']['teacher'][average]:.2f}" for group, average, _ in _GROUPS]
    lines.append(line("teacher", *(_sizes(sizes) if sizes else ("", "")), *top, "", "", "", "", ""))
    bm25 = [each["ndcg@10"] for each in first["retrieval"]["bm25"].values() if each]
    if bm25:
        lines.append(line("BM25", "", "", "", "", f"{100 * sum(bm25) / len(bm25):.2f}", "", "", "", "", ""))
    for name, row in sorted(whole.items(), key=lambda pair: (-pair[1]["parameters"], pair[0])):
        cells = [name, *_sizes(row)]
        for group, average, _ in _GROUPS:
            cells.append(_against(row[group], average, name))
        cells += [f"{100 * row[mean]['of_ten']:.1f}" for mean in ("mean", "unseen")]
        lines.append(line(*cells, *_read(row), _minutes(row)))
    return lines


def _searched(found: Rows) -> list[str]:
    fields = [name for name in next(iter(found.values()))["search"] if name != "mean"]
    lines = head("model", *(f"{field} *" if field != "docstrings" else field for field in fields), "mean")
    for name, row in found.items():
        lines.append(line(name, *(f"{100 * row['search'][field]:.1f}" for field in (*fields, "mean"))))
    return lines


def _cost(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("minutes", "processor_minutes") if name in row}


def _sizes(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['parameters'] / 1e6:.2f} M", f"{row['active'] / 1e6:.2f} M"


def _against(found: dict[str, Any], average: str, name: str) -> str:
    own, top = (100 * found["averages"][role][average] for role in ("student", "teacher"))
    shown = f"{own:.2f}, {100 * own / top:.1f} %"
    if name.startswith("all-MiniLM"):
        return shown
    gap = found["above_minilm"]
    low, high = (100 * each for each in gap["interval"])
    return f"{shown} ({100 * gap['value']:+.2f}, {low:+.2f} to {high:+.2f})"


def _read(row: dict[str, Any]) -> tuple[str, str]:
    """Texts and epochs of a training; empty if there was none."""
    return (f"{row['texts']:,}" if "texts" in row else "", f"{row['epochs']:g}" if "epochs" in row else "")


def _minutes(row: dict[str, Any]) -> str:
    if "minutes" not in row:
        return ""
    used = f" ({row['processor_minutes']:.1f})" if "processor_minutes" in row else ""
    return f"{row['minutes']:.1f}{used}"


def _sets(whole: Rows) -> list[str]:
    names = sorted(whole, key=lambda name: -whole[name]["parameters"])
    lines = head("set", "teacher", *names, "BM25")
    first = whole[names[0]]
    for group, *_ in _GROUPS:
        for task, score in first[group]["tasks"]["teacher"].items():
            own = [f"{100 * whole[name][group]['tasks']['student'][task]['value']:.1f}" for name in names]
            lexical = (first[group].get("bm25") or {}).get(task)
            shown = f"{100 * lexical['ndcg@10']:.1f}" if lexical else ""
            lines.append(line(task, f"{100 * score['value']:.1f}", *own, shown))
        if "without_overlap" in first[group]:
            clean = [whole[name][group]["without_overlap"] for name in names]
            own = [f"{100 * each['student']['all']:.2f}" for each in clean]
            lines.append(line(f"{group}, without overlap", f"{100 * clean[-1]['teacher']['all']:.2f}", *own, ""))
    return lines


def _choices(found: Rows) -> list[str]:
    fields = list(next(iter(found.values()))["of_ten"])
    unseen = {"brown", "other packages"}
    titles = [f"{field} *" if field in unseen else field for field in fields]
    lines = head("row", "parameters", *titles, "mean", "unseen", "order", "texts", "epochs", "minutes")
    for name, row in found.items():
        cells = [name.rpartition("-")[0], f"{row['parameters'] / 1e6:.2f} M"]
        cells += [f"{100 * row['of_ten'][field]:.1f}" for field in fields]
        cells += [f"{100 * row[mean]['of_ten']:.1f}" for mean in ("mean", "unseen")]
        lines.append(line(*cells, f"{row['mean']['order']:.3f}", *_read(row), _minutes(row)))
    return lines
