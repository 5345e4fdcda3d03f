"""The main job: corpus -> teachers -> store -> student -> training -> judging -> report.

This is the only file that knows the whole flow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.judging import (
    FREE,
    TRAINED,
    UNTRAINED,
    CachedEncoder,
    RidgeMapped,
    Verdict,
    agreement,
    automatic_tasks,
    judge_run,
    linear_map,
    load_tasks,
)
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.recipe import Recipe, StudentSection, TeacherSection
from distilvec.report.card import write_card
from distilvec.store import FillReport, SignalStore, fill
from distilvec.students import fresh, load_student, router, ship, shrink
from distilvec.teachers import Teacher, TeacherInfo, TeacherReport, check_teacher, load_teacher
from distilvec.training import Fitted, StoreSource, Ticker, fit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.report import Record


@dataclass
class Run:
    """What a run leaves: the folder, the student as it ships, and the record behind the report."""

    folder: Path
    student: SentenceTransformer
    record: Record

    @property
    def report(self) -> str:
        """The table a person reads."""
        from distilvec.report import markdown_table

        return markdown_table(self.record)


@dataclass
class Taught:
    """A teacher, what was seen of it beforehand, its store, and what teaching cost."""

    teacher: Teacher
    seen: TeacherReport
    store: SignalStore
    filled: FillReport

    @property
    def info(self) -> TeacherInfo:
        """What a method may know of it."""
        statistics = self.store.statistics()
        return TeacherInfo(
            name=self.teacher.card.name,
            width=self.store.width,
            layers=self.teacher.card.layers,
            mean=torch.from_numpy(np.asarray(statistics.mean)).float(),
            std=torch.from_numpy(np.asarray(statistics.std)).float(),
        )


def run(recipe: Recipe, *, resume: bool = False) -> Run:
    """Distil as the recipe says.

    Args:
        recipe: see `distilvec.recipe`.
        resume: go on where an interrupted training stopped (teaching always does).

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    if processes() > 1:
        raise DistilvecError(
            f"the whole job in {processes()} processes would judge and report {processes()} times",
            remedy="Train with `torchrun ... -m distilvec.cli train RECIPE`, then `distilvec run RECIPE --resume`.",
        )
    out = output_folder(recipe, resume)
    tasks = load_tasks(recipe.judging.tasks)
    corpus = prepare_corpus(recipe)
    shutil.copyfile(corpus.folder / "rejected.jsonl", out / "rejected.jsonl")
    tasks = tasks or automatic_tasks(corpus)
    taught = teach(recipe, corpus)
    student, fitted = train_student(recipe, corpus, taught, out, resume)
    ship_model(recipe, student, fitted.method, taught, out / "student")
    shipped = load_student(str(out / "student"))
    untrained = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    verdict = judge_all(recipe, shipped, untrained, corpus, taught, fitted, tasks)
    record = make_record(recipe, corpus, taught, (untrained, shipped), fitted, verdict, tasks, out)
    record.write(out)
    write_card(record, out / "student")
    return Run(out, shipped, record)


def output_folder(recipe: Recipe, resume: bool) -> Path:
    """Make the output folder and save the resolved recipe; refuse to resume another recipe's run."""
    out = Path(recipe.output)
    saved, wanted = out / "recipe.yaml", recipe.to_yaml()
    try:
        if resume and saved.exists() and saved.read_text(encoding="utf-8") != wanted:
            raise DistilvecError(
                "this folder holds a run of another recipe",
                where=str(saved),
                remedy="Resume with the recipe that is saved there, or choose another output.",
            )
        out.mkdir(parents=True, exist_ok=True)
        partial = out / ".recipe.partial"
        partial.write_text(wanted, encoding="utf-8")
        partial.replace(saved)
    except OSError as error:
        raise EnvironmentProblem(
            f"the output folder cannot be written ({error.strerror or error})",
            where=str(out),
            remedy="Choose another output.",
        ) from error
    return out


def prepare_corpus(recipe: Recipe) -> Corpus:
    """Read, audit and split the corpus, or reuse what an equal section left."""
    section = recipe.corpus
    return read_corpus(section.path, recipe.place / "corpus", **section.model_dump(exclude={"path"}))


def processes() -> int:
    """Processes that torchrun started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def teach(recipe: Recipe, corpus: Corpus | None = None, *, shard: tuple[int, int] | None = None) -> list[Taught]:
    """Fill the stores of all teachers with what they lack; only a share of it with `shard` = (i, n)."""
    corpus = prepare_corpus(recipe) if corpus is None else corpus
    return [teach_one(section, corpus, recipe.place / "stores", shard) for section in recipe.teachers]


def teach_one(section: TeacherSection, corpus: Corpus, stores: Path, shard: tuple[int, int] | None = None) -> Taught:
    """Fill the store of one teacher with what it lacks for this corpus."""
    teacher = open_teacher(section)
    seen = check_teacher(teacher, corpus.teacher_texts(np.asarray(corpus.train_rows)[:256]))
    store = SignalStore.create(stores / section.name, teacher.card, teacher.card.width, section.storage)
    filled = fill(
        store,
        teacher,
        _TeacherTexts(corpus),
        corpus.teacher_keys,
        shard=shard,
        progress=Ticker(f"teaching with {section.name}"),
    )
    return Taught(teacher, seen, store, filled)


def open_teacher(section: TeacherSection) -> Teacher:
    return load_teacher(**section.model_dump(exclude={"storage"}))


def make_student(
    section: StudentSection, teachers: Sequence[TeacherSection], corpus: Corpus, seed: int
) -> SentenceTransformer:
    """The untrained student; the same recipe always gives the same one."""
    named = {teacher.name: teacher.model for teacher in teachers if teacher.model}

    def source(name: str) -> SentenceTransformer:
        return load_student(named.get(name) or name)

    torch.manual_seed(seed)
    if section.model is not None:
        student = load_student(section.model, trust_remote_code=section.trust_remote_code)
    elif section.shrink is not None:
        cut = section.shrink
        texts = corpus.texts(corpus.train_rows) if cut.vocabulary else None
        student, _ = shrink(source(cut.of), layers=cut.layers, vocabulary=cut.vocabulary, texts=texts)
    elif section.fresh is not None:
        size = section.fresh
        student = fresh(
            layers=size.layers,
            width=size.width,
            heads=size.heads,
            tokenizer=size.tokenizer,
            vocabulary=size.vocabulary,
            texts=corpus.texts(corpus.train_rows),
            init_from=source(size.embeddings_from) if size.embeddings_from else None,
        )
    if section.max_length:
        student.max_seq_length = min(section.max_length, student.max_seq_length or section.max_length)
    return student


def train_student(
    recipe: Recipe, corpus: Corpus, taught: Sequence[Taught], out: Path, resume: bool
) -> tuple[SentenceTransformer, Fitted]:
    """Train with signals from the stores; held-out agreement comes in as a callable."""
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    method = build_method(recipe.method.name, recipe.method.options, recipe.method.matryoshka)
    rows = np.concatenate([corpus.train_rows, corpus.holdout_rows])
    fitted = fit(
        student,
        method,
        [each.info for each in taught],
        corpus,
        [StoreSource(each.store, corpus, rows) for each in taught],
        training=recipe.training,
        optimizer=recipe.optimizer,
        folder=out,
        resume=resume,
        cache=recipe.place,
        evaluate=held_out_agreement(corpus, taught[0].store),
        lookup=store_lookup([each.store for each in taught], corpus),
        save_student=lambda folder, trained: ship_model(recipe, student, trained, taught, folder),
    )
    return student, fitted


def held_out(corpus: Corpus, store: SignalStore, limit: int = 1000) -> tuple[list[str], np.ndarray]:
    """Held-out texts, and the first teacher's vectors [n, D] for them."""
    rows = np.asarray(corpus.holdout_rows)[:limit]
    numbers = store.rows(corpus.teacher_keys[rows])
    rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
    return corpus.texts(rows), store.read(numbers)


def held_out_agreement(
    corpus: Corpus, store: SignalStore
) -> Callable[[SentenceTransformer, Method], dict[str, float]] | None:
    """A callable that measures agreement with the first teacher on held-out texts; None where there are too few."""
    texts, vectors = held_out(corpus, store)
    if len(texts) < 20:
        return None

    def measure(student: SentenceTransformer, method: Method) -> dict[str, float]:
        head = method.teacher_map()
        found = agreement(vectors, CachedEncoder(student)(texts), None if head is None else linear_map(head))
        return {f"agreement_{name}": value for name, value in found.items() if isinstance(value, float)}

    return measure


def store_lookup(stores: Sequence[SignalStore], corpus: Corpus) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """(teacher, keys uint8 [n, 16]) -> sentence vectors [n, D], for methods that keep keys.

    The keys are those of the student's texts; where the teacher reads other texts, they lead to those first.
    """

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        store, wanted = stores[teacher], keys.cpu().numpy()
        if corpus.teacher_keys is not corpus.keys:
            row = {key.tobytes(): number for number, key in enumerate(corpus.keys)}
            wanted = corpus.teacher_keys[[row[key.tobytes()] for key in wanted]]
        return torch.from_numpy(store.read(store.rows(wanted)))

    return lookup


def ship_model(
    recipe: Recipe, student: SentenceTransformer, method: Method, taught: Sequence[Taught], folder: Path
) -> None:
    """Save the student as people load it, and the router of student and teacher where the recipe asks for one."""
    head = None
    if recipe.student.space == "teacher":
        head = method.teacher_map()
        if head is None:
            raise DistilvecError(
                f'method "{recipe.method.name}" has no linear map into one teacher\'s space',
                where="student.space",
                remedy="Use space: own, or a method with a map (leaf, cosine, mse, talas) and one teacher.",
            )
    ship(
        student,
        folder,
        space=recipe.student.space or "own",
        teacher_map=head,
        normalize=bool(taught[0].teacher.card.normalized),
    )
    if recipe.student.router:
        pair = router(load_student(str(folder)), load_student(str(recipe.teachers[0].model)))
        pair.save(str(folder.parent / "router"))


def judge_all(
    recipe: Recipe,
    shipped: SentenceTransformer,
    untrained: SentenceTransformer,
    corpus: Corpus,
    taught: Sequence[Taught],
    fitted: Fitted,
    tasks: Sequence[Any],
) -> Verdict:
    """Teacher, untrained student, free baseline and student by the same code."""
    start = CachedEncoder(untrained)
    first = taught[0].teacher
    models: dict[str, Any] = {} if first.card.kind == "vectors" else {first.card.name: first}
    models[UNTRAINED] = start
    if fitted.free_map:
        models[FREE] = RidgeMapped(start, fitted.free_map[0])
    models[TRAINED] = shipped
    texts, vectors = held_out(corpus, taught[0].store)
    shared = recipe.student.space == "teacher"
    head = fitted.method.teacher_map()
    return judge_run(
        models,
        tasks,
        texts,
        vectors,
        teacher=first.card.name,
        teacher_map=linear_map(head) if head is not None and not shared else None,
        shared_space=shared,
        with_agreement=recipe.judging.agreement,
        with_speed=recipe.judging.speed,
        timed={first.card.name: getattr(first, "model", first), TRAINED: shipped},
    )


def make_record(
    recipe: Recipe,
    corpus: Corpus,
    taught: Sequence[Taught],
    students: tuple[SentenceTransformer, SentenceTransformer],
    fitted: Fitted,
    verdict: Verdict,
    tasks: Sequence[Any],
    out: Path,
) -> Record:
    """The record behind report, table and card; `students` are the untrained and the shipped one."""
    from distilvec.report.describe import describe_run

    return describe_run(
        recipe=recipe.model_dump(mode="json"),
        corpus=corpus,
        teachers=[(each.teacher.card, each.seen, each.store, each.filled) for each in taught],
        untrained=students[0],
        student=students[1],
        fitted=fitted,
        verdict=verdict,
        overlap={task.name: corpus.overlap(_judged_texts(task)) for task in tasks},
        texts=held_out(corpus, taught[0].store)[0],
        folder=out,
    )


def _judged_texts(task: Any) -> list[str]:
    """The texts a score is about: of a probe those it is tested on, not those it is fitted on."""
    if task.kind in ("classification", "regression"):
        return [text for item in task.test_items() for text in item]
    return list(task.texts())


class _TeacherTexts(Sequence[str]):
    """What the teacher reads, fetched a row at a time from the mapped corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._corpus.teacher_texts(np.arange(len(self))[row])
        return self._corpus.teacher_texts(np.array([row]))[0]


def train(recipe: Recipe, *, resume: bool = False) -> Path:
    """Teach what is missing, train, save the student; no judging. Returns the student's folder."""
    out = output_folder(recipe, resume)
    corpus = prepare_corpus(recipe)
    taught = teach(recipe, corpus)
    student, fitted = train_student(recipe, corpus, taught, out, resume)
    if int(os.environ.get("RANK", "0")):
        return out / "student"
    ship_model(recipe, student, fitted.method, taught, out / "student")
    untrained = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    record = make_record(recipe, corpus, taught, (untrained, student), fitted, Verdict(), [], out)
    write_card(record, out / "student")
    return out / "student"
