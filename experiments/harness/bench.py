"""Rows of students that several stored teachers teach, trained one after the other and judged by probes."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.records import Results, Rows
from experiments.harness.script import settings_of
from experiments.harness.training import settled, trained

from distilvec.corpus import Corpus
from distilvec.flow.prepare import Teachers, make_start, open_corpus
from distilvec.flow.teach import Taught, teach_one
from distilvec.recipe import Recipe, TeacherSection
from distilvec.training import Fitted


class Bench:
    """Teachers, stores and corpora, made once and shared by all rows.

    Attributes:
        rows: name -> its description, with `method` (None: not trained) and `teachers`.
    """

    rows: Mapping[str, Any]

    def __init__(self, results: Results, device: str | None) -> None:
        self.results, self.work = results, results.work
        self.place: dict[str, Any] = {"use_cpu": True} if device == "cpu" else {}

    def section(self, teacher: str) -> TeacherSection:
        raise NotImplementedError

    def recipe(self, name: str, seed: int) -> Recipe:
        """The run of a row."""
        raise NotImplementedError

    def facts(self, row: Any, corpus: Corpus, fitted: Fitted) -> dict[str, Any]:
        """What to keep of a training, beside what all rows keep."""
        raise NotImplementedError

    def judged(self, label: str, student: Any) -> dict[str, Any]:
        """What a student reaches."""
        raise NotImplementedError

    @functools.cache  # noqa: B019  # one bench a process
    def taught(self, teacher: str) -> Taught:
        """The teacher with its vectors of the whole corpus stored."""
        recipe = self.recipe("gaussian", 0)
        return teach_one(self.section(teacher), open_corpus(recipe), recipe.place / "stores")

    def row(self, name: str, seed: int) -> None:
        make = functools.partial(self.trained_row, name, seed)
        self.results.run(f"{name}-{seed}", make, row=name, **settings_of(self.recipe(name, seed)))

    def trained_row(self, name: str, seed: int) -> dict[str, Any]:
        row, recipe = self.rows[name], self.recipe(name, seed)
        shutil.rmtree(recipe.output, ignore_errors=True)
        corpus, result = open_corpus(recipe), {"row": name, "seed": seed}
        if row.method is None:
            student = make_start(recipe, corpus, Teachers()).open()
        else:
            taught = [self.taught(teacher) for teacher in row.teachers]
            student, fitted, _ = trained(settled(recipe, corpus, [each.teacher for each in taught]), taught)
            shutil.rmtree(recipe.output, ignore_errors=True)
            result |= {
                "steps": fitted.steps,
                "epochs": recipe.training.epochs,
                "training_seconds": round(fitted.seconds, 1),
                "held_out": _per_teacher(fitted.held_out, row.teachers),
                **self.facts(row, corpus, fitted),
            }
        return result | self.judged(f"{name}-{seed}", student)

    def work_off(self, jobs: Iterable[tuple[str, Callable[[], Any]]], page: Callable[[Rows, Path], str]) -> None:
        """Do one job after the other, and write the page anew after each."""
        for label, job in jobs:
            start = time.perf_counter()
            job()
            print(f"{label}: {time.perf_counter() - start:.0f} s", flush=True)
            page(self.results.rows(), self.results.home)


def _per_teacher(terms: dict[str, float], teachers: Sequence[str]) -> dict[str, dict[str, float]]:
    """`explained:birds` -> birds, explained; with one teacher the terms have no suffix."""
    found: dict[str, dict[str, float]] = {}
    for term, value in terms.items():
        name, _, teacher = term.partition(":")
        found.setdefault(teacher or teachers[0], {})[name] = value
    return found


def named_rows(words: str, groups: Mapping[str, Mapping[str, Any]], left_out: str) -> list[str]:
    """Row names of groups, of `default` (all groups but those whose names begin so) and of single rows."""
    named: dict[str, Iterable[str]] = {**groups}
    named["default"] = [row for group, rows in groups.items() if not group.startswith(left_out) for row in rows]
    found = [row for word in words.split(",") for row in named.get(word, [word])]
    unknown = [row for row in found if not any(row in rows for rows in groups.values())]
    if unknown:
        raise SystemExit(f"There is no row or group {unknown[0]!r}; groups: default, {', '.join(groups)}.")
    return list(dict.fromkeys(found))
