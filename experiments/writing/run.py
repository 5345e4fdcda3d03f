"""DistillMoE's Table 16 at home: students that write, taught across tokenizers by a causal language model."""

from __future__ import annotations

import functools
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of
from experiments.harness.texts import read_rows, write_rows
from experiments.harness.training import settled, trained
from experiments.writing.data import OUTSIDE, TASKS, files
from experiments.writing.models import pretrain
from experiments.writing.table import EXPERIMENT, ROWS, best_rate, write_page

from distilvec.flow.fit import Trained
from distilvec.flow.prepare import Prepared, open_corpus, reading_of
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import GenerationTask, Score, judge
from distilvec.kinds.writing.students import open_shipped
from distilvec.recipe import Recipe, TeacherSection
from distilvec.store import SignalStore
from distilvec.store.ragged import RaggedSignal
from distilvec.teachers import Teacher
from distilvec.teachers.signals import NEXT, NOTHING, Wanted
from distilvec.teachers.table import open_teacher
from distilvec.training import bfloat16_pays

HOME = WORK / EXPERIMENT
#: Rates, of which the middle three are tried first, and others until the best has a neighbour on both sides.
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
BATCH, ITEMS, TEACHER_ITEMS, CHOOSING = 16, 6_400, 32_000, 200
LONGEST, SAMPLES = 48, 1
TEACHER_LR = 5e-4
#: Of what a run keeps of a score.
KEPT = ("exact_match", "loss", "bits_per_byte", "sampled", "sampled_deviation", "tokens_per_second")


def part(name: str, count: int) -> Path:
    """The first items of the training or validation file, which are in a random order."""
    file = HOME / "data" / f"{name}-{count}.jsonl"
    if not file.exists():
        write_rows(file, islice(read_rows(files()[name]), count))
    return file


def task(name: str, file: Path, domain: str, samples: int = SAMPLES) -> GenerationTask:
    items = list(read_rows(file))
    prompts, answers = ([item[key] for item in items] for key in ("prompt", "answer"))
    return GenerationTask(name, prompts, answers, longest=LONGEST, samples=samples, domain=domain)


def tests() -> list[GenerationTask]:
    """The seven tests."""
    every = files()
    return [task(name, every[name], "out" if name in OUTSIDE else "in") for name in (*TASKS, *OUTSIDE)]


def recipe(row: str, lr: float, seed: int, items: int = ITEMS, **training: Any) -> Recipe:
    """The recipe of a row; "teacher" is the teacher's own fine-tuning."""
    own = row == "teacher"
    method, options = ("sft", {}) if own else ROWS[row]
    teachers = [] if own else [{"name": "teacher", "model": str(HOME / "teacher"), "storage": "float32"}]
    made = {
        "corpus": {"path": str(part("train", items)), "text": ["prompt", "answer"], "holdout": 0.0},
        "teachers": teachers,
        "student": {"model": str(pretrain("teacher" if own else "student")), "max_length": 160},
        "method": {"name": method, **options},
        "task": {"kind": "generation", "alpha": 0.5},
        "training": {
            "epochs": 1,
            "batch_size": BATCH,
            "seed": seed,
            "save_every": 100_000,
            "bf16": bfloat16_pays(),
            **training,
        },
        "optimizer": {"lr": lr, "heads_lr": 1e-3},
        "cache": str(HOME / "cache" if not own else HOME / "cache-teacher"),
    }
    folder = HOME / "runs" / f"{row.replace(' ', '_')}-{lr:g}-{seed}-{digest(made)}"
    return Recipe.build({**made, "output": str(folder)})


def finetuned_teacher() -> Path:
    """The folder of the teacher that knows the instructions; trained where it is not there."""
    folder = HOME / "teacher"
    if not (folder / "config.json").exists():
        made = recipe("teacher", TEACHER_LR, 0, TEACHER_ITEMS, save_every=500)
        prepared = settled(made)
        student, fitted, lessons = trained(prepared, resume=True)
        prepared.corpus.kind.ship(prepared, lessons, Trained(student, fitted), folder)
        shutil.rmtree(made.output, ignore_errors=True)
    return folder


def kept(scores: dict[str, Score]) -> dict[str, Any]:
    """What a row says of its scores."""
    return {
        name: {
            "value": score.value,
            "interval": score.interval,
            **{key: score.details[key] for key in KEPT if key in score.details},
        }
        for name, score in scores.items()
    }


def measured(model: Any) -> dict[str, Any]:
    """A model on the tests."""
    scores = judge({"model": model}, tests()).scores["model"]
    return {"tasks": kept(scores), "written": {name: score.details["written"] for name, score in scores.items()}}


def chosen_by(model: Any) -> dict[str, Any]:
    """A model on the items by which rates are chosen."""
    scores = judge({"model": model}, [task("validation", part("validation", CHOOSING), "in", samples=0)])
    return {"validation": kept(scores.scores["model"])["validation"]}


def facts_of(fitted: Any) -> dict[str, Any]:
    """Of a training: steps, seconds, and each term's mean over the last three entries of the log."""
    logged = [entry for entry in fitted.log if "loss" in entry]
    names = [name for name in (logged[-1] if logged else {}) if name.startswith(("term/", "loss"))]
    terms = {name: float(np.mean([entry[name] for entry in logged[-3:] if name in entry])) for name in names}
    return {
        "steps": fitted.steps,
        "training_seconds": round(fitted.seconds, 1),
        "terms": {name: round(value, 5) for name, value in terms.items()},
    }


def left_over(store: SignalStore) -> dict[str, Any]:
    """What the candidates of the store leave of the teacher's mass, over all places of all answers."""
    kept = RaggedSignal(store.path, NEXT[0])
    rest = np.exp(np.concatenate([logs[:, -1] for logs in kept.read(np.arange(len(kept)))]).astype(np.float64))
    shown = {"mean": rest.mean(), "p99": np.quantile(rest, 0.99)}
    counts = {"places": len(rest), "candidates": kept.width - 1}
    return {"rest": {**counts, **{name: round(float(value), 5) for name, value in shown.items()}}}


class Bench:
    """The teacher, its store, and what all runs share."""

    def __init__(self, results: Results) -> None:
        self.results = results
        _ = finetuned_teacher()
        first = recipe("sft", RATES[0], 0)
        self.corpus = open_corpus(first)
        self.section: TeacherSection = first.teachers[0]
        self.teacher: Teacher = open_teacher(self.section, reading_of(first, self.corpus))
        self.taught: list[Taught] = []

    def settled(self, made: Recipe) -> Prepared:
        """A recipe with the corpus and the teacher that all rows share."""
        return settled(made, self.corpus, [self.teacher])

    def references(self) -> None:
        """The teacher, and the student before."""
        fingerprint = self.teacher.card.fingerprint
        self.results.run("teacher", functools.partial(measured, self.teacher), teacher=fingerprint)
        untrained = self.settled(recipe("sft", RATES[0], 0)).start.open().eval()
        self.results.run("untrained student", functools.partial(measured, untrained), teacher=fingerprint)

    def teach(self, rows: list[str]) -> None:
        """One pass of the teacher for all that these rows need."""
        wanted = NOTHING
        for row in rows:
            asked = self.settled(recipe(row, RATES[0], 0)).wanted[0]
            wanted = Wanted(
                tokens=tuple(sorted({*wanted.tokens, *asked.tokens})),
                attention=tuple(sorted({*wanted.attention, *asked.attention})),
                alignment=tuple(sorted({*wanted.alignment, *asked.alignment})),
                next=wanted.next or asked.next,
            )
        self.taught = [
            teach_one(self.section, self.corpus, HOME / "cache" / "stores", teacher=self.teacher, wanted=wanted)
        ]
        if wanted.next:
            make = functools.partial(left_over, self.taught[0].store)
            self.results.run("store", make, teacher=self.teacher.card.fingerprint)

    def row(self, row: str, seed: int) -> None:
        """Rates with seed 0, and the best one with this seed."""
        lr = self._best(row)
        self._keep(f"{row}-{lr:g}-{seed}", self._tested, row, lr, seed)
        for each in RATES:
            shutil.rmtree(recipe(row, each, seed).output, ignore_errors=True)

    def _best(self, row: str) -> float:
        """The rate of a row, of those tried; more are tried where it is the smallest or the largest of them."""
        wanted = RATES[1:-1]
        while True:
            for lr in wanted:
                self._keep(f"{row}-{lr:g}-grid", self._tried, row, lr, 0)
            found = best_rate(self.results.rows(), row)
            assert found is not None
            place = RATES.index(found)
            tried = {run["lr"] for run in self.results.rows().values() if run.get("row") == row}
            wanted = tuple(lr for lr in RATES[max(0, place - 1) : place + 2] if lr not in tried)
            if not wanted:
                return found

    def _keep(self, name: str, make: Any, row: str, lr: float, seed: int) -> None:
        options = {**settings_of(recipe(row, lr, seed), "teachers"), "teacher": self.teacher.card.fingerprint}
        self.results.run(name, functools.partial(make, row, lr, seed), row=row, lr=lr, seed=seed, **options)

    def _tried(self, row: str, lr: float, seed: int) -> dict[str, Any]:
        model, facts = self._trained(row, lr, seed)
        return {**facts, **chosen_by(model)}

    def _tested(self, row: str, lr: float, seed: int) -> dict[str, Any]:
        model, facts = self._trained(row, lr, seed)
        return {**facts, **measured(model)}

    def _trained(self, row: str, lr: float, seed: int) -> tuple[Any, dict[str, Any]]:
        """A student as it ships, and what its training says; trained where it is not there."""
        made = recipe(row, lr, seed)
        out = Path(made.output)
        if not (out / "facts.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            prepared = self.settled(made)
            student, fitted, lessons = trained(prepared, [self._asking(prepared)])
            prepared.corpus.kind.ship(prepared, lessons, Trained(student, fitted), out / "student")
            (out / "facts.json").write_text(json.dumps({"row": row, "lr": lr, "seed": seed, **facts_of(fitted)}))
        return open_shipped(made, out / "student"), json.loads((out / "facts.json").read_text())

    def _asking(self, prepared: Prepared) -> Taught:
        """The taught teacher, asked for what this row wants."""
        one = self.taught[0]
        return Taught(one.teacher, one.seen, one.store, one.filled, one.live, prepared.wanted[0], one.weight)


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("what", nargs="?", choices=["teacher", "students"], default="students")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    bench = Bench(results)
    bench.references()
    if options.what == "students":
        bench.teach(options.rows)
        for seed in range(options.seeds):
            for row in options.rows:
                bench.row(row, seed)
                write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
