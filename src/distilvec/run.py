"""The main job: corpus -> teachers -> store -> student -> training -> judging -> report.

This is the only file that knows the whole flow.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import yaml

from distilvec import plain_yaml
from distilvec.choosing import settle
from distilvec.compressing import compress_run
from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.judging import (
    Verdict,
    automatic_tasks,
    load_tasks,
)
from distilvec.measuring import (
    aligned_text,
    check_measures,
    held_out_metrics,
    judge_all,
    judge_task,
    make_record,
    show_inside,
)
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.preparing import make_student, make_task, prepare_corpus
from distilvec.recipe import Recipe
from distilvec.report.card import write_card
from distilvec.store import SignalStore
from distilvec.students import check_place, fold_head, load_student, router, ship
from distilvec.tasks.answering import finished_student
from distilvec.tasks.base import Task
from distilvec.teaching import Taught, teach
from distilvec.training import Fitted, fit

#: Texts that an expert head is folded on.
FOLDING = 5000

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
    recipe = settle(recipe, resume=resume)
    out = output_folder(recipe, resume)
    tasks = load_tasks(recipe.judging.tasks)
    corpus = prepare_corpus(recipe)
    check_measures(recipe, corpus)
    shutil.copyfile(corpus.folder / "rejected.jsonl", out / "rejected.jsonl")
    tasks = tasks or automatic_tasks(corpus)
    taught = teach(recipe, corpus)
    student, fitted = train_student(recipe, corpus, taught, out, resume)
    kept = ship_model(recipe, student, fitted.method, taught, out / "student", fitted.task, folding_texts(corpus))
    shipped = finished_student(out / "student")
    untrained = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    verdict = judge_all(recipe, shipped, untrained, corpus, taught, fitted, tasks)
    record = make_record(recipe, corpus, taught, (untrained, shipped), fitted, verdict, tasks, out)
    if kept is not None:
        record.notes.append(
            f"The expert head was folded into a linear map; mean cosine to the head's vectors, on texts that the map "
            f"was not fitted to: {kept:.4f}."
        )
    record.alignment = aligned_text(shipped, corpus, taught)
    show_inside(record, untrained, student, corpus, taught, fitted)
    record.supervised = judge_task(recipe, out / "student", taught)
    record.compression = compress_run(recipe, shipped, corpus, tasks)
    record.write(out)
    write_card(record, out / "student")
    return Run(out, shipped, record)


def output_folder(recipe: Recipe, resume: bool) -> Path:
    """Make the output folder and save the resolved recipe; refuse another recipe's run, and what is no student."""
    out = Path(recipe.output)
    saved, wanted = out / "recipe.yaml", recipe.to_yaml()
    check_place(out / "student")  # now, not when hours of training are to be saved there
    try:
        if resume and saved.exists() and _resolved(saved) != wanted:
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


def _resolved(saved: Path) -> str | None:
    """A saved recipe as it reads today: keys that are newer than it have their defaults. None where it is none."""
    try:
        return Recipe.build(plain_yaml.read(saved.read_text(encoding="utf-8"))).to_yaml()
    except (DistilvecError, yaml.YAMLError, AttributeError, TypeError):
        return None


def processes() -> int:
    """Processes that torchrun started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def train_student(
    recipe: Recipe, corpus: Corpus, taught: Sequence[Taught], out: Path, resume: bool
) -> tuple[SentenceTransformer, Fitted]:
    """Train with signals from the stores; held-out agreement comes in as a callable."""
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    method = build_method(recipe.method.name, recipe.method.options, recipe.method.matryoshka)
    rows = np.concatenate([corpus.train_rows, corpus.holdout_rows])
    task = make_task(recipe, corpus, student)

    def save(folder: Path, trained: Method) -> None:
        ship_model(recipe, student, trained, taught, folder, task, folding_texts(corpus))

    fitted = fit(
        student,
        method,
        [each.info for each in taught],
        corpus,
        [each.source(corpus, rows, recipe.place, task) for each in taught],
        training=recipe.training,
        optimizer=recipe.optimizer,
        folder=out,
        resume=resume,
        cache=recipe.place,
        evaluate=held_out_metrics(recipe, corpus, taught[0].store, task),
        lookup=store_lookup([each.store for each in taught]),
        save_student=save,
        task=task,
        router_balance=recipe.student.router_balance,
        remember=recipe.student.remember,
    )
    return student, fitted


def store_lookup(stores: Sequence[SignalStore]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """(teacher, keys uint8 [n, 16]) -> sentence vectors [n, D], for methods that keep keys."""

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        store = stores[teacher]
        return torch.from_numpy(store.read(store.rows(keys.cpu().numpy())))

    return lookup


def ship_model(
    recipe: Recipe,
    student: SentenceTransformer,
    method: Method,
    taught: Sequence[Taught],
    folder: Path,
    task: Task | None = None,
    texts: Sequence[str] = (),
) -> float | None:
    """Save the student as people load it, with its task head, and the router where the recipe asks for one.

    Args:
        texts: what an expert head is folded on where the recipe says so.

    Returns:
        Where a head was folded, the mean cosine of the linear map's vectors to the head's; None otherwise.
    """
    kept = None
    if recipe.student.fold:
        student = copy.deepcopy(student)
        kept = fold_head(student, texts)
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
    method.keep(folder)
    if task is not None:
        task.head.save(folder)
    if recipe.student.router:
        first = recipe.teachers[0]
        pair = router(load_student(str(folder)), load_student(str(first.model), pooling=first.pooling))
        ship(pair, folder.parent / "router")
    return kept


def folding_texts(corpus: Corpus) -> list[str]:
    """Some thousand training texts."""
    return corpus.texts(np.asarray(corpus.train_rows)[:FOLDING])


def train(recipe: Recipe, *, resume: bool = False) -> Path:
    """Teach what is missing, train, save the student; no judging. Returns the student's folder."""
    if processes() > 1 and recipe.student.auto is not None:
        raise DistilvecError(
            f"{processes()} processes would each choose a student",
            where="student.auto",
            remedy="Run `distilvec plan RECIPE` first, and write the student that it names into the recipe.",
        )
    recipe = settle(recipe, resume=resume)
    out = output_folder(recipe, resume)
    corpus = prepare_corpus(recipe)
    check_measures(recipe, corpus)
    taught = teach(recipe, corpus)
    student, fitted = train_student(recipe, corpus, taught, out, resume)
    if int(os.environ.get("RANK", "0")):
        return out / "student"
    ship_model(recipe, student, fitted.method, taught, out / "student", fitted.task, folding_texts(corpus))
    untrained = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    record = make_record(recipe, corpus, taught, (untrained, student), fitted, Verdict(), [], out)
    write_card(record, out / "student")
    return out / "student"
