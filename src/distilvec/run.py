"""The main job: corpus -> teachers -> store -> student -> training -> judging -> report.

This is the only file that knows the whole flow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError
from distilvec.judging import CachedEncoder, RidgeMapped, agreement, judge, linear_map, load_tasks
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.recipe import Recipe, StudentSection, TeacherSection
from distilvec.store import SignalStore, fill
from distilvec.students import fresh, load_student, router, ship, shrink
from distilvec.teachers import Teacher, TeacherInfo, check_teacher, load_teacher
from distilvec.training import Fitted, StoreSource, Ticker, fit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.report import Record

logger = logging.getLogger(__name__)
UNTRAINED, FREE, TRAINED = "untrained student", "free baseline", "student"


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
    """A teacher, its store, and what teaching cost."""

    teacher: Teacher
    store: SignalStore
    seconds: float
    encoded: int
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> TeacherInfo:
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
        resume: go on where an interrupted run stopped (teaching always does).

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    out = output_folder(recipe, resume)
    cache = Path(recipe.cache) if recipe.cache else out
    corpus = prepare_corpus(recipe, cache)
    taught = [teach_one(section, corpus, cache / "stores") for section in recipe.teachers]
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    method = build_method(recipe.method.name, recipe.method.options, recipe.method.matryoshka)
    fitted = train_student(recipe, student, method, corpus, taught, out, cache, resume)
    shipped = ship_student(recipe, student, fitted.method, taught, out)
    results = judge_all(recipe, shipped, corpus, taught, fitted)
    record = describe_run(recipe, corpus, taught, student, fitted, results, out)
    record.write(out)
    return Run(out, shipped, record)


def output_folder(recipe: Recipe, resume: bool) -> Path:
    """Make the output folder; refuse one that holds another recipe's run."""
    out = Path(recipe.output)
    saved = out / "recipe.yaml"
    wanted = recipe.to_yaml()
    if saved.exists() and saved.read_text(encoding="utf-8") != wanted and resume:
        raise DistilvecError(
            "this folder holds a run of another recipe",
            where=str(saved),
            remedy="Resume with the recipe that is saved there, or choose another output.",
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_text(saved, wanted)
    except OSError as error:
        raise DistilvecError(
            f"the output folder cannot be written ({error})", where=str(out), remedy="Choose another output."
        ) from error
    return out


def prepare_corpus(recipe: Recipe, cache: Path) -> Corpus:
    """Read, audit and split the corpus, or reuse what an equal recipe left."""
    section = recipe.corpus
    options = section.model_dump(exclude={"path"})
    return read_corpus(section.path, cache / "corpus", **options)


def open_teacher(section: TeacherSection) -> Teacher:
    options = section.model_dump(exclude={"storage"})
    return load_teacher(**options)


def teach_one(
    section: TeacherSection, corpus: Corpus, stores: Path, shard: tuple[int, int] | None = None
) -> Taught:
    """Fill the store of one teacher with what it lacks for this corpus."""
    teacher = open_teacher(section)
    notes = check_teacher(teacher, corpus.teacher_texts(corpus.train_rows[:256]))
    store = SignalStore.create(stores / section.name, teacher.card, teacher.card.width, section.storage)
    start = time.perf_counter()
    filled = fill(
        store,
        teacher,
        _TeacherTexts(corpus),
        corpus.teacher_keys,
        shard=shard,
        progress=Ticker(f"teaching with {section.name}"),
    )
    return Taught(teacher, store, time.perf_counter() - start, filled.taught, notes)


def make_student(
    section: StudentSection, teachers: Sequence[TeacherSection], corpus: Corpus, seed: int
) -> SentenceTransformer:
    """The untrained student; the same recipe always gives the same one."""
    named = {teacher.name: teacher.model for teacher in teachers if teacher.model}

    def source(name: str) -> str:
        return named.get(name) or name

    torch.manual_seed(seed)
    if section.model is not None:
        student = load_student(section.model, trust_remote_code=section.trust_remote_code)
    elif section.shrink is not None:
        cut = section.shrink
        texts = corpus.texts(corpus.train_rows) if cut.vocabulary else None
        student, _ = shrink(source(cut.of), layers=cut.layers, vocabulary=cut.vocabulary, texts=texts)
    else:
        size = section.fresh
        student = fresh(
            layers=size.layers,
            width=size.width,
            heads=size.heads,
            tokenizer=size.tokenizer,
            vocabulary=size.vocabulary,
            texts=corpus.texts(corpus.train_rows),
            init_from=load_student(source(size.embeddings_from)) if size.embeddings_from else None,
        )
    if section.max_length:
        student.max_seq_length = min(section.max_length, student.max_seq_length or section.max_length)
    return student


def train_student(
    recipe: Recipe,
    student: SentenceTransformer,
    method: Method,
    corpus: Corpus,
    taught: Sequence[Taught],
    out: Path,
    cache: Path,
    resume: bool,
) -> Fitted:
    """Train with signals from the stores; held-out agreement comes in as a callable."""
    rows = np.concatenate([corpus.train_rows, corpus.holdout_rows])
    return fit(
        student,
        method,
        [each.info for each in taught],
        corpus,
        [StoreSource(each.store, corpus, rows) for each in taught],
        training=recipe.training,
        optimizer=recipe.optimizer,
        folder=out,
        resume=resume,
        cache=cache,
        evaluate=held_out_agreement(corpus, taught[0].store),
        lookup=store_lookup([each.store for each in taught]),
        save_student=lambda folder, trained: ship_model(recipe, student, trained, taught, folder),
    )


def held_out_agreement(
    corpus: Corpus, store: SignalStore, limit: int = 1000
) -> Callable[[SentenceTransformer, Method], dict[str, float]] | None:
    """A callable that measures agreement with the first teacher on held-out texts; None without any."""
    held = corpus.holdout_rows[:limit]
    if len(held) < 20:
        return None
    numbers = store.rows(corpus.teacher_keys[held])
    held, numbers = held[numbers >= 0], numbers[numbers >= 0]
    texts, vectors = corpus.texts(held), store.read(numbers)

    def measure(student: SentenceTransformer, method: Method) -> dict[str, float]:
        head = method.teacher_map()
        found = agreement(vectors, CachedEncoder(student)(texts), None if head is None else linear_map(head))
        return {f"agreement_{name}": value for name, value in found.items() if isinstance(value, float)}

    return measure


def store_lookup(stores: Sequence[SignalStore]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """(teacher, keys) -> sentence vectors, for methods that keep keys."""

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        store = stores[teacher]
        return torch.from_numpy(store.read(store.rows(keys.cpu().numpy())))

    return lookup


def ship_student(
    recipe: Recipe, student: SentenceTransformer, method: Method, taught: Sequence[Taught], out: Path
) -> SentenceTransformer:
    """Save the student as people load it, and load it back the way they do."""
    ship_model(recipe, student, method, taught, out / "student")
    return load_student(str(out / "student"))


def ship_model(
    recipe: Recipe, student: SentenceTransformer, method: Method, taught: Sequence[Taught], folder: Path
) -> None:
    head = method.teacher_map() if recipe.student.space == "teacher" else None
    if recipe.student.space == "teacher" and head is None:
        raise DistilvecError(
            f'method "{recipe.method.name}" has no linear map into the teacher\'s space',
            where="student.space",
            remedy="Use space: own, or a method with a map (leaf, cosine, mse, talas).",
        )
    ship(student, folder, space=recipe.student.space, teacher_map=head, normalize=taught[0].teacher.card.normalized)
    if recipe.student.router:
        pair = router(load_student(str(folder)), load_student(str(recipe.teachers[0].model)))
        pair.save(str(folder.parent / "router"))


def judge_all(
    recipe: Recipe, shipped: SentenceTransformer, corpus: Corpus, taught: Sequence[Taught], fitted: Fitted
) -> Any:
    """Score teacher, untrained student, free baseline and student by the same code."""
    untrained = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    first = taught[0].teacher
    models: dict[str, Any] = {
        first.card.name: CachedEncoder(first.encode) if first.card.kind != "vectors" else None,
        UNTRAINED: CachedEncoder(untrained),
        FREE: RidgeMapped(CachedEncoder(untrained), fitted.free_map[0]) if fitted.free_map else None,
        TRAINED: CachedEncoder(shipped),
    }
    return judge({name: model for name, model in models.items() if model is not None}, tasks_for(recipe.judging.tasks, corpus))


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


def save_text(file: Path, text: str) -> None:
    """Write whole or not at all."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
