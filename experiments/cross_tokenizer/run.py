"""EMO, DistillMoE and their rivals across tokenizers, on real data: with labels, and without."""

from __future__ import annotations

import argparse
import functools
import gzip
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.cross_tokenizer.rows import ALPHA, GROUPS, ROWS, SETS, USUAL, LabelledSet
from experiments.cross_tokenizer.table import EXPERIMENT, best_rate, write_page
from experiments.cross_tokenizer.unsupervised import OutOfDomain, Unsupervised, joined, known
from experiments.embedder.run import embedder
from experiments.harness.records import WORK, Results, below
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.training import settled, trained
from experiments.talas import run as talas
from experiments.talas.spine import spine_student

from distilvec.errors import DistilvecError
from distilvec.flow.demo import demo_teacher
from distilvec.flow.finetune import finetune, finetune_scores
from distilvec.flow.prepare import Prepared, open_corpus
from distilvec.flow.teach import Taught, teach_one
from distilvec.recipe import ModelSection, Recipe, TeacherSection
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.predictor import Predictor
from distilvec.teachers import Reading, Teacher
from distilvec.teachers.signals import NOTHING
from distilvec.teachers.table import open_teacher
from distilvec.training import bfloat16_pays

GRID = (1e-4, 3e-4, 1e-3)
LARGER, SMALLER = (3e-3, 1e-2), (3e-5, 1e-5)  # tried in turn while the last one at that end is the best so far
EPOCHS = 3
BATCH = 16
TEACHER_LR = 5e-5
DTYPE = talas.DTYPE


@dataclass(frozen=True)
class Setting:
    """Who teaches whom.

    Attributes:
        teachers: names in `TEACHERS`.
        options: of a method, where the models are too shallow for its defaults.
    """

    teachers: tuple[str, ...] = ("minilm",)
    student_layers: int | None = None
    embedder: bool = False
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


_SHALLOW = {"distillmoe": {"layers": 2}}
SETTINGS = {
    "bpe": Setting(),
    "embedder": Setting(embedder=True),
    "another-teacher": Setting(("spine",), options=_SHALLOW),
    "smaller-student": Setting(student_layers=2, options=_SHALLOW),
    "two-teachers": Setting(("minilm", "spine"), options=_SHALLOW),
}


def teacher_model(name: str) -> str:
    """Folder of a teacher before it is fine-tuned."""
    return demo_teacher() if name == "minilm" else str(spine_student())


class Bench:
    """One labelled set: its files, fine-tuned teachers, corpus and store, made once."""

    def __init__(
        self,
        name: str,
        setting: str,
        device: str | None,
        quick: bool,
        results: Results,
        rates: Sequence[float] = (),
    ) -> None:
        self.name, self.setting, self.quick, self.results = name, SETTINGS[setting], quick, results
        self.grid = GRID[:1] if quick else (*GRID, *rates)
        self.folder = name if setting == "bpe" else f"{name}+{setting}"
        self.set: LabelledSet = SETS[name]
        self.official = self.set.file or name
        self.work = results.work / name
        self.place = {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}
        self.files = {split: self._file(split) for split in ("train", "validation", "test")}
        self.examples = {split: self._examples(split) for split in ("validation", "test")}
        self.sections = [self._teacher(teacher) for teacher in self.setting.teachers]
        self.corpus = open_corpus(self.recipe("sft", GRID[0], 0))
        self.teachers: list[Teacher] = [open_teacher(section, Reading()) for section in self.sections]
        self.taught: list[Taught] = []

    def _file(self, split: str) -> Path:
        """The official file, or a part of it drawn with a seed."""
        official = shared() / "data" / f"{self.official}.{split}.jsonl.gz"
        train, validation = self.set.train, self.set.validation
        if self.quick:
            return self._drawn(split, official, 0, 96)
        if split == "train" and train:
            return self._drawn(split, official, 0, train)
        if split == "validation" and validation:
            return self._drawn(split, shared() / "data" / f"{self.official}.train.jsonl.gz", train or 0, validation)
        return official

    def _drawn(self, split: str, official: Path, start: int, count: int) -> Path:
        file = self.work / f"{split}.jsonl"
        if not file.exists():
            official = official if official.exists() else official.with_name(f"{self.official}.train.jsonl.gz")
            with gzip.open(official, "rt", encoding="utf-8") as lines:
                rows = list(lines)
            random.Random(0).shuffle(rows)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(rows[start : start + count]), encoding="utf-8")
        return file

    def _examples(self, split: str) -> Examples:
        return read_examples(str(self.files[split]), self.set.text, self.set.label)

    def _teacher(self, name: str) -> TeacherSection:
        """A teacher fine-tuned on the set, as the papers do."""
        folder = finetune(
            teacher_model(name),
            str(self.files["train"]),
            self.work / "teachers" / name,
            task=self.set.kind,
            text=self.set.text,
            label=self.set.label,
            encoding=self.set.encoding,
            validation=str(self.files["validation"]),
            test=str(self.files["test"]),
            training={"epochs": 1 if self.quick else EPOCHS, "batch_size": BATCH, "seed": 0, **self.place},
            optimizer={"lr": TEACHER_LR},
        )
        make = functools.partial(teacher_row, name, folder)
        self.results.run(f"{self.folder}/teacher-{name}", make, files=self.files, lr=TEACHER_LR)
        return ModelSection(name=name, model=str(folder), dtype=DTYPE)

    def recipe(self, row: str, lr: float, seed: int) -> Recipe:
        method = ROWS[row].method
        start = embedder() if self.setting.embedder else shared() / "models" / "student-bpe"
        student: dict[str, Any] = {"model": str(start)}
        if self.setting.student_layers:
            student = {"shrink": {"of": student["model"], "layers": self.setting.student_layers}}
        return Recipe.build(
            {
                "corpus": {
                    "path": str(self.files["train"]),
                    "text": self.set.text,
                    "label": self.set.label,
                    "holdout": 0.0,
                },
                "teachers": [section.model_dump() for section in self.sections],
                "student": {**student, "max_length": 128},
                "method": {"name": method, **self.setting.options.get(method, {}), **ROWS[row].options},
                "task": {
                    "kind": self.set.kind,
                    "alpha": ALPHA[self.name].get(method, 1.0),
                    **({"encoding": self.set.encoding} if self.set.encoding else {}),
                    **ROWS[row].task,
                },
                "training": {
                    "epochs": 1 if self.quick else EPOCHS,
                    "batch_size": BATCH,
                    "seed": seed,
                    "save_every": 100_000,
                    **self.place,
                },
                "optimizer": {"lr": lr, "heads_lr": 1e-3},
                "cache": str(self.work / "cache"),
                "output": str(self.work / "runs" / self.folder / f"{row.replace(' ', '_')}-{lr:g}-{seed}"),
            }
        )

    def settled(self, recipe: Recipe) -> Prepared:
        """The recipe with the corpus and the teachers that all rows share."""
        return settled(recipe, self.corpus, self.teachers)

    def teach(self, rows: Iterable[str]) -> list[str]:
        """One pass of each teacher for all that these rows need; returns the rows that do not refuse the set."""
        wanted, left = [NOTHING] * len(self.teachers), []
        for row in rows:
            try:
                asked = self.settled(self.recipe(row, GRID[0], 0)).wanted
            except DistilvecError as refusal:
                make = functools.partial(refused_row, row, str(refusal))
                self.results.run(f"{self.folder}/{row}-refused", make, method=ROWS[row].method)
                continue
            wanted = [joined(a, b) for a, b in zip(wanted, asked, strict=True)]
            left.append(row)
        self.taught = [
            teach_one(section, self.corpus, self.work / "stores", teacher=teacher, wanted=asked)
            for section, teacher, asked in zip(self.sections, self.teachers, wanted, strict=True)
        ]
        return left

    def row(self, row: str, seed: int) -> None:
        """The runs of the grid with seed 0, and the run of the best of them with this seed."""
        tuned = ROWS[row].like or row
        lr: float | None
        # Other teachers and smaller students take the rates that the usual ones were given on the same set.
        usual = self.folder == self.name or self.setting.embedder
        rates_of = self.set.rates_of or (None if usual else self.name)
        if self.set.rates_of and self.setting.embedder:
            rates_of = f"{self.set.rates_of}+embedder"
        if rates_of and not self.quick:
            lr = best_rate(below(known(EXPERIMENT), rates_of), tuned, self.set.metric)
            if lr is None:
                raise SystemExit(f"{self.folder} takes the learning rate of {tuned!r} on {rates_of}: run that first.")
        else:
            lr = self._tuned_rate(tuned)
        self.run(row, lr, seed)

    def _tuned_rate(self, row: str) -> float:
        def score(lr: float) -> float:
            return float(self.run(row, lr, 0)["validation"][self.set.metric])

        scores = {lr: score(lr) for lr in self.grid}
        for end, further in ((max, LARGER), (min, SMALLER)):
            for lr in () if self.quick else further:
                if max(scores, key=scores.__getitem__) != end(scores):
                    break
                scores[lr] = score(lr)
        return max(sorted(scores), key=scores.__getitem__)  # of equals the smallest, as cross_table.best_rate

    def run(self, row: str, lr: float, seed: int) -> dict[str, Any]:
        made = self.recipe(row, lr, seed)
        teachers = {
            name: each.card.fingerprint for name, each in zip(self.setting.teachers, self.teachers, strict=True)
        }
        options = {**settings_of(made, "teachers"), "teachers": teachers}
        make = functools.partial(self._run, row, lr, seed)
        return self.results.run(f"{self.folder}/{row}-{lr:g}-{seed}", make, row=row, lr=lr, seed=seed, **options)

    def _run(self, row: str, lr: float, seed: int) -> dict[str, Any]:
        recipe = self.recipe(row, lr, seed)
        out = Path(recipe.output)
        shutil.rmtree(out, ignore_errors=True)
        student, fitted, _ = trained(self.settled(recipe), self.taught)
        shutil.rmtree(out, ignore_errors=True)
        assert fitted.task is not None and recipe.task is not None
        predictor = Predictor(student, fitted.task.head.eval())
        last = [entry for entry in fitted.log if "loss" in entry]
        return {
            "row": row,
            "lr": lr,
            "seed": seed,
            "alpha": recipe.task.alpha,
            "teachers": {
                name: each.teacher.card.fingerprint
                for name, each in zip(self.setting.teachers, self.taught, strict=True)
            },
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "last_terms": {k: v for k, v in (last[-1] if last else {}).items() if k.startswith(("term/", "loss"))},
            **{split: predictor.evaluate(examples) for split, examples in self.examples.items()},
        }


def teacher_row(name: str, folder: Path) -> dict[str, Any]:
    return {"row": f"teacher {name}", **finetune_scores(folder)}


def refused_row(row: str, reason: str) -> dict[str, Any]:
    return {"row": row, "refused": reason}


def supervised(options: argparse.Namespace, results: Results) -> None:
    for name in options.sets.split(","):
        bench = Bench(name, options.setting, options.device, options.quick, results, options.rates)
        rows = bench.teach(named_rows(options.rows, SETS[name].kind))
        for seed in range(options.seeds or SETS[name].seeds):
            for row in rows:
                bench.row(row, seed)
                write_page(results.rows(), results.home)


def named_rows(words: str, kind: str) -> list[str]:
    """Rows of groups and single rows; a set of scores has the rows on token states beside the main ones."""
    found: list[str] = []
    for word in words.split(","):
        if word == "main" and kind == "similarity":
            found += GROUPS["states"]
        found += list(ROWS) if word == "all" else list(GROUPS.get(word, {word: None}))
    unknown = [row for row in found if row not in ROWS]
    if unknown:
        raise SystemExit(f"There is no row or group {unknown[0]!r}; groups: all, {', '.join(GROUPS)}.")
    return list(dict.fromkeys(found))


def unsupervised(bench: talas.Bench, rows: Sequence[str], options: argparse.Namespace) -> None:
    for seed in range(options.seeds or 1):
        for row in rows:
            bench.row(row, seed, options.device)
            write_page(bench.results.rows(), bench.results.home)


def main() -> None:
    parser = arguments(__file__, quick="a few steps on a few rows (not Banking77), kept apart")
    parser.add_argument("--part", choices=["supervised", "unsupervised", "out-of-domain"], default="supervised")
    parser.add_argument(
        "--sets",
        default=",".join(USUAL),
        help="of the supervised part, separated by commas",
    )
    parser.add_argument("--setting", choices=list(SETTINGS), default="bpe", help="who teaches whom (supervised)")
    parser.add_argument("--student", choices=["bpe", "embedder"], default="bpe", help="without labels")
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="learning rates beside the grid's")
    parser.add_argument("--rows", default="main", help=f"all, {', '.join(GROUPS)}, or names, separated by commas")
    parser.add_argument("--seeds", type=int, default=None, help="default: 1 for MRPC and SST-2, else 3")
    options = parser.parse_args()
    results = Results(EXPERIMENT, work=WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}")
    if finished(options, results, write_page):
        return
    if options.part == "supervised":
        supervised(options, results)
    else:
        bench = {"unsupervised": Unsupervised, "out-of-domain": OutOfDomain}[options.part](options.student, results)
        rows = list(bench.rows) if options.rows in ("main", "all") else options.rows.split(",")
        unsupervised(bench, rows, options)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
