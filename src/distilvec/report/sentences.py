"""The sentences of the report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from distilvec.judging.slices import OTHER_PIECES, RARE_PIECE
from distilvec.report.record import Record
from distilvec.report.record_parts import NEIGHBOURS, ModelRow, ScoreDifference, ScoreEntry, grouped
from distilvec.words import ABSENT, millions, milliseconds, number, percent, points, signed, size

GROUP_NAMES = {
    "in": "in-domain",
    "out": "out-of-domain",
    "all": "average",
    "retrieval": "retrieval",
    NEIGHBOURS: "neighbours",
}
METRIC_NAMES = {
    "macro_f1": "macro F1",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "r2": "R²",
    "average_precision": "average precision",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "v_measure": "V-measure",
    "ndcg@10": "nDCG@10",
    "rouge_l": "ROUGE-L",
}


def span(score: ScoreEntry | None) -> str:
    """The interval of a score, "77.2–79.0"; empty without one."""
    if score is None or score.low is None or score.high is None:
        return ""
    joint = "–" if score.low >= 0 else " to "
    return f"{points(score.low)}{joint}{points(score.high)}"


def latency(row: ModelRow) -> str:
    """Median and 95th percentile, "8.1 / 9.9"."""
    if row.latency_p50_ms is None:
        return ABSENT
    tail = ABSENT if row.latency_p95_ms is None else milliseconds(row.latency_p95_ms)
    return f"{milliseconds(row.latency_p50_ms)} / {tail}"


def headline_group(record: Record) -> str | None:
    """What the verdict speaks of: the average without retrieval, or retrieval, or neighbours where there is no task."""
    row = record.model("student")
    if row is None:
        return None
    return next((name for name in ("all", "retrieval", NEIGHBOURS) if name in row.averages), None)


def verdict(record: Record) -> str:
    """What was kept, at what size and speed; and what that is worth against the baselines, where it is worth less."""
    student, group = record.model("student"), headline_group(record)
    if student is None:
        return "No student was judged in this run."
    parts = []
    teacher = record.model("teacher")
    if group is not None:
        own = student.averages[group]
        kept = record.retention(student, group)
        named = f"{GROUP_NAMES[group]} score" if group != "all" else _average_of(student)
        interval = f", 95 % interval {span(own)}" if span(own) else ""
        if group == NEIGHBOURS:
            interval += f", {chance}" if (chance := by_chance(record.agreement)) else ""
            held = f" among held-out {record.items}"
            parts.append(f"finds {points(own.value)} % of the teacher's nearest neighbours{held}{_bracketed(interval)}")
        elif kept is not None and teacher is not None:
            parts.append(
                f"keeps {percent(kept)} of the teacher's {named} "
                f"({points(own.value)} of {points(teacher.averages[group].value)}{interval})"
            )
        else:
            article = "an" if named.startswith("average") else "a"
            parts.append(f"reaches {article} {named} of {points(own.value)}{_bracketed(interval)}")
    parts.extend(_sizes(student, teacher, record.items))
    sentence = "The student " + (_joined(parts) if parts else "was not scored") + "."
    doubts = [doubt for role in ("untrained", "free") if (doubt := _doubt(record, role, group))]
    return " ".join([sentence, *doubts, *_with_its_head(record)])


def by_chance(agreement: Mapping[str, Any]) -> str:
    """What a model that knows nothing finds of the ten nearest among so many items: much among few."""
    items = agreement.get("items")
    if not isinstance(items, int) or items < 2:
        return ""
    return f"by chance {points(min(10, items - 1) / (items - 1))} % among {items:,}"


def _bracketed(interval: str) -> str:
    return f" ({interval.removeprefix(', ')})" if interval else ""


def _with_its_head(record: Record) -> list[str]:
    """What a supervised student's own head answers, beside what fresh probes find in its vectors."""
    student, teacher = record.model("student"), record.model("teacher")
    scores = record.supervised.get(student.name) if student else None
    if not scores:
        return []
    metric = next(iter(scores))
    beside = record.supervised.get(teacher.name, {}).get(metric) if teacher else None
    than = "" if beside is None else f", the teacher's {points(beside)}"
    told = f"On the task's test file its own head has {_article(metric)} of {points(scores[metric])}{than}."
    return [told, "The scores before are of its vectors, without that head."] if record.tasks() else [told]


def _article(metric: str) -> str:
    name = metric.replace("_", " ")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _average_of(student: ModelRow) -> str:
    count = len(grouped(student.scores).get("all", []))
    return f"average over {count} tasks" if count > 1 else "score" if count == 1 else "average"


def _sizes(student: ModelRow, teacher: ModelRow | None, items: str) -> list[str]:
    parts = []
    if student.parameters is not None:
        of = f" instead of {millions(teacher.parameters)}" if teacher and teacher.parameters else ""
        disk = f" ({size(student.size_bytes)} on disk)" if student.size_bytes else ""
        parts.append(f"has {millions(student.parameters)} parameters{of}{disk}")
    if student.texts_per_second:
        times = ""
        if teacher and teacher.texts_per_second:
            times = f", {student.texts_per_second / teacher.texts_per_second:.1f} times the teacher's rate"
        parts.append(f"encodes {number(student.texts_per_second)} {items} per second{times}")
    return parts


def _doubt(record: Record, role: str, group: str | None) -> str | None:
    """A sentence where the student is not shown to be better than a baseline."""
    student = record.model("student")
    other = next((row for row in record.models if row.role == role), None)
    if student is None or other is None or group is None:
        return None
    comparison = record.compared(student.name, other.name, group)
    if comparison is None or comparison.verdict == "better":
        return None
    told = "is worse than" if comparison.verdict == "worse" else "is not shown to be better than"
    return f"It {told} the {other.name}: {difference(comparison)}."


def difference(found: ScoreDifference) -> str:
    """ "+3.2 points, 95 % interval +2.1 to +4.3"."""
    return f"{signed(found.value)} points, 95 % interval {signed(found.low)} to {signed(found.high)}"


def statement(found: ScoreDifference) -> str:
    """One comparison in words; a winner is named only where the interval supports it."""
    where = f"on the {GROUP_NAMES[found.group]}" if found.group in ("in", "out", "all") else f"on {found.group}"
    where = where.replace("on neighbours", "on the teacher's nearest neighbours")
    where = where.replace("in-domain", "in-domain average").replace("out-of-domain", "out-of-domain average")
    told = {"better": "is better than", "worse": "is worse than", "open": "cannot be told apart from"}[found.verdict]
    return f"{_upper(where)}, {found.a} {told} {found.b} ({difference(found)})."


def metric(score: ScoreEntry) -> str:
    """The metric's name as it is printed."""
    return METRIC_NAMES.get(score.metric, score.metric)


def about(items: str, sentence: str) -> str:
    """A sentence of ours about texts, said of images or molecules.

    >>> about("images", "A text's colour; two texts")
    "An image's colour; two images"
    """
    if items == "texts":
        return sentence
    one = items.removesuffix("s")
    sentence = re.sub(r"\btexts\b", items, sentence)
    if one[0] in "aeiou":
        sentence = re.sub(r"\b([Aa]) text\b", rf"\1n {one}", sentence)
    return re.sub(r"\btext\b", one, sentence)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + ", and " + parts[-1]


def slice_remedies(record: Record) -> list[str]:
    """What helps with the kinds of items that the student knows less well than the others."""
    behind = [each.name for each in record.slices if each.behind]
    found = []
    if any(name.startswith(OTHER_PIECES) for name in behind):
        made = record.recipe.get("student") or {}
        key = next((key for key in ("shrink", "static") if (made.get(key) or {}).get("vocabulary")), None)
        larger = "a student with a larger vocabulary" if key is None else f"a larger student.{key}.vocabulary"
        rank = ", at a lower rank of the table" if key == "shrink" and made["shrink"].get("embedding") else ""
        found.append(f"Other pieces than the teacher's: {larger}{rank}.")
    if any(name.startswith(RARE_PIECE) for name in behind):
        found.append("Rare words: more texts with such words in the corpus.")
    return found
