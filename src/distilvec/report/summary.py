"""The head of a report: what was kept in a sentence, the alarms, and a few large numbers."""

from __future__ import annotations

from distilvec.judging.scores import grouped
from distilvec.report.blocks import Block, Text, Tiles, Warnings
from distilvec.report.record import Record
from distilvec.report.rows import GROUP_NAMES, NEIGHBOURS, ModelRow, span
from distilvec.report.sections.agreement import by_chance
from distilvec.report.sections.scores import Scores
from distilvec.words import millions, number, percent, points, share, size


def summary(record: Record) -> list[Block]:
    """Return what stands above the first chapter."""
    blocks: list[Block] = [Text(verdict(record), "verdict")]
    blocks += [Warnings("Alarm", record.alarms)] if record.alarms else []
    tiles = _tiles(record.find(Scores) or Scores())
    return [*blocks, tiles] if tiles.tiles else blocks


def verdict(record: Record) -> str:
    """Return what was kept; and what the student's own head answers, if it has one."""
    scores = record.find(Scores) or Scores()
    student, teacher = scores.model("student"), scores.model("teacher")
    if student is None:
        return "No student was judged in this run."
    supervised = record["supervised"]
    own = {} if supervised is None else supervised.scores.get(student.name, {})
    sentences = []
    if not own or headline_group(student) is not None:
        sentences.append(f"The student {_quality(scores, student, teacher)}.")
    if own:
        metric = next(iter(own))
        other = supervised.scores.get(teacher.name, {}).get(metric) if teacher else None
        than = "" if other is None else f", the teacher's {points(other)}"
        name = metric.replace("_", " ")
        article = "an" if name[0] in "aeiou" else "a"
        sentences.append(f"On the task's test file its own head has {article} {name} of {points(own[metric])}{than}.")
        if scores.tasks():
            sentences.append("The scores before are of its vectors, without that head.")
    return " ".join(sentences)


def headline_group(student: ModelRow) -> str | None:
    """Return the group that the verdict is about: the average without retrieval, else retrieval, else neighbours."""
    return next((name for name in ("all", "retrieval", NEIGHBOURS) if name in student.averages), None)


def _quality(scores: Scores, student: ModelRow, teacher: ModelRow | None) -> str:
    group = headline_group(student)
    if group is None:
        return "was not scored"
    own, kept = student.averages[group], scores.retention(student, group)
    name = f"{GROUP_NAMES[group]} score"
    if group == "all":
        count = len(grouped(student.scores.values()).get("all", []))
        name = f"average over {count} tasks" if count > 1 else "score" if count == 1 else "average"
    interval = f"95 % interval {span(own)}" if span(own) else ""
    if group == NEIGHBOURS:
        found = f"finds {points(own.value)} % of the teacher's nearest neighbours among held-out {scores.items}"
        return found + _bracket(interval, by_chance(scores.compared_on))
    if kept is None or teacher is None or scores.is_the_measure(group):
        article = "an" if name.startswith("average") else "a"
        return f"reaches {article} {name} of {points(own.value)}" + _bracket(interval)
    of = f"{points(own.value)} of {points(teacher.averages[group].value)}"
    interval = f"95 % interval of the {points(own.value)}: {span(own)}" if span(own) else ""
    return f"keeps {percent(kept)} of the teacher's {name}" + _bracket(of, interval)


def _bracket(*parts: str) -> str:
    inside = ", ".join(part for part in parts if part)
    return f" ({inside})" if inside else ""


def _tiles(scores: Scores) -> Tiles:
    student, top = scores.model("student"), scores.model("teacher") or ModelRow(name="")
    if student is None:
        return Tiles([])
    first, tiles = headline_group(student), []
    for group in dict.fromkeys((first, "retrieval")):
        if group is not None and (kept := scores.retention(student, group)) is not None:
            remark = f"{points(student.averages[group].value)} of {points(top.averages[group].value)}"
            remark = "the teacher's own search has 100" if scores.is_the_measure(group) else remark
            remark = "ten nearest, held out" if group == NEIGHBOURS else remark
            tiles.append((f"of the teacher's {GROUP_NAMES[group]}", percent(kept), remark))
    said = int(first is not None and scores.retention(student, first) is not None)
    if student.parameters is not None:
        of = _share_of(student.parameters, top.parameters, millions(top.parameters))
        tiles.append(("parameters", millions(student.parameters), of))
    if student.size_bytes is not None:
        of = _share_of(student.size_bytes, top.size_bytes, size(top.size_bytes))
        tiles.append(("on disk", size(student.size_bytes), of))
    if student.texts_per_second:
        rate, delay = top.texts_per_second, student.latency_p50_ms
        times = f"{student.texts_per_second / rate:.1f} × the teacher" if rate else ""
        one = f"one {scores.items.removesuffix('s')}: {number(delay)} ms" if delay else ""
        remark = " · ".join(part for part in (times, one) if part)
        tiles.append((f"{scores.items} per second", number(student.texts_per_second), remark))
    return Tiles(tiles, said)


def _share_of(own: int, other: int | None, shown: str) -> str:
    if not other:
        return ""
    part = share(own / other) if own < 0.01 * other else f"{100 * own / other:.0f} %"
    return f"{part} of the teacher's {shown}"
