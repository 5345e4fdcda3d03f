"""From a recipe to all that a run needs before it teaches: corpus, teachers, untrained student, method and tasks.

Each step takes values and returns a frozen one; what can be refused is refused here. Seeds are set in this order:
student (`make_start`), head of the task (`fresh_task`), heads of the method (training builds them).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError
from distilvec.files import locked
from distilvec.flow.start import Start
from distilvec.flow.teach import teacher_info
from distilvec.folders import claim
from distilvec.judging.tasks import JudgingTask
from distilvec.kinds.base import find_kind
from distilvec.methods.base import Method, Needs
from distilvec.methods.contract import check_needs
from distilvec.recipe import Recipe, StudentSection, given
from distilvec.store import SignalStore
from distilvec.students.output import StudentInfo
from distilvec.teachers import Reading, Teacher, TeacherInfo
from distilvec.teachers.signals import Wanted
from distilvec.teachers.table import open_teacher

if TYPE_CHECKING:
    from distilvec.tasks.base import Task

logger = logging.getLogger(__name__)
#: What each command must find in a recipe, "or" of two.
REQUIRED: dict[str, tuple[str, ...]] = {
    "run": ("corpus", "teachers or student"),
    "train": ("corpus", "teachers or student"),
    "compare": ("corpus", "teachers or student"),
    "dry-run": ("corpus", "teachers or student"),
    "teach": ("corpus", "teachers or scorers"),
    "mine": ("corpus", "teachers"),
    "plan": ("corpus", "teachers"),
    "scale": ("corpus", "teachers"),
}


def require(recipe: Recipe, command: str) -> None:
    """Check that the recipe names what a command needs, before anything is read."""
    given(recipe.corpus, "corpus")
    recipe.kind.check_recipe(recipe, command)  # first, as it may refuse what is asked for next
    for key in REQUIRED[command]:
        first, _, other = key.partition(" or ")
        given(getattr(recipe, first) or (getattr(recipe, other) if other else None) or None, key)
    if recipe.method.is_open:
        return
    trains = "teachers or student" in REQUIRED[command]
    if trains and fresh_method(recipe).needs_teacher and not recipe.teachers:
        raise DistilvecError(
            f'this key is missing, and method "{recipe.method.name}" learns from a teacher',
            where="teachers",
            remedy="Add one, or take a method without a teacher (simcse, mnrl, sft, margin_mse, score_kl).",
        )


# corpus


def open_corpus(recipe: Recipe) -> Corpus:
    """Read, audit and split the corpus, or open what an equal section left in the recipe's place."""
    section, task = given(recipe.corpus, "corpus"), recipe.task
    claim(recipe.place, "cache" if recipe.cache else "output")
    options = section.model_dump(exclude={"path", "parts"})
    if task is not None:
        options |= {"label": task.label or section.label, "joint": task.joint}
    # Of several processes the first prepares it, the others find it; and no other recipe's moves in meanwhile.
    with locked(recipe.place / "corpus.lock", wait=True):
        corpus = read_corpus(section.source, recipe.place / "corpus", **options)
    return corpus if recipe.items is None else corpus.taken_as(find_kind(recipe.items))


def named_tasks(recipe: Recipe) -> list[JudgingTask]:
    """Load what the recipe names to judge students by."""
    if not recipe.judging.tasks:
        return []
    from distilvec.judging import load_tasks

    return load_tasks(recipe.judging.tasks)


def judging_tasks(recipe: Recipe, corpus: Corpus, named: Sequence[JudgingTask]) -> list[JudgingTask]:
    """Choose what students are judged by: the named tasks, or those that the corpus' held-out items allow."""
    found: list[JudgingTask] = corpus.kind.tasks(recipe, corpus, list(named))
    return found


# teachers


@dataclass(frozen=True)
class Teachers:
    """The opened teachers of a recipe, in its order.

    Attributes:
        infos: what a method may know of each before it has taught.
        combined: what it may know of all as one; None unless they teach as one.
    """

    each: tuple[Teacher, ...] = ()
    infos: tuple[TeacherInfo, ...] = ()
    combined: TeacherInfo | None = None

    @property
    def met(self) -> list[TeacherInfo]:
        """The teachers as the student meets them: combined ones are one."""
        return list(self.infos) if self.combined is None else [self.combined]

    @property
    def first(self) -> Teacher:
        """The teacher that agreement is measured with."""
        return self.each[0]


def combines(recipe: Recipe) -> bool:
    """Tell whether several teachers teach as one."""
    return recipe.combine != "separate" and len(recipe.teachers) > 1


def reading_of(recipe: Recipe, corpus: Corpus) -> Reading:
    """Return what the recipe's teachers are opened for."""
    components = recipe.corpus.components if recipe.corpus else "largest"
    return Reading(corpus.modality, components, recipe.task.separator if recipe.task else None)


def open_teachers(recipe: Recipe, corpus: Corpus) -> Teachers:
    """Open the teachers of a recipe."""
    _check_joint(recipe)
    reading = reading_of(recipe, corpus)
    opened = [open_teacher(section, reading) for section in recipe.teachers]
    for section, teacher in zip(recipe.teachers, opened, strict=True):
        store = recipe.place / "stores" / section.name
        if (store / "store.json").exists():
            SignalStore.create(store, teacher.card, teacher.card.width, section.storage)
    prompted = next((each.card.name for each in opened if each.card.prompt), None)
    if corpus.prompts and prompted is not None:
        raise DistilvecError(
            "teacher and corpus both put a prompt before the texts, so that it would read two",
            where=f"teacher {prompted}",
            remedy='Set prompt: "" of the teacher, and write what it is to read into the prompts of corpus.parts.',
        )
    return teachers_of(recipe, opened)


def teachers_of(recipe: Recipe, opened: Sequence[Teacher]) -> Teachers:
    """The teachers of a recipe, opened already, in its order."""
    infos = [teacher_info(each, section.token_axes) for each, section in zip(opened, recipe.teachers, strict=True)]
    combined = None
    if combines(recipe):
        weights = [section.weight for section in recipe.teachers]
        from distilvec.flow.combine import CombinedTeacher

        combined = teacher_info(CombinedTeacher(opened, weights, recipe.combine))  # type: ignore[arg-type]
    return Teachers(tuple(opened), tuple(infos), combined)


def _check_joint(recipe: Recipe) -> None:
    task, corpus = recipe.task, recipe.corpus
    if task is None or task.writes or not task.joint or corpus is None or isinstance(corpus.text, str):
        return
    for section in recipe.teachers:
        if not section.reads_pairs:
            raise DistilvecError(
                f"{section.name} is given texts, and pairs are read as one item each",
                where="task.encoding",
                remedy="Use encoding: separate, or a teacher that is a model.",
            )


# the untrained student


def make_start(recipe: Recipe, corpus: Corpus, teachers: Teachers) -> Start:
    """Make the untrained student in the output folder, or find it there."""
    _refuse_table(recipe, teachers)
    claim(recipe.output)  # teaching may come first, and a run takes no folder with files of unknown origin
    start: Start = corpus.kind.start(recipe, corpus)
    return start


def _refuse_table(recipe: Recipe, teachers: Teachers) -> None:
    """Refuse a method on layers for a table of word vectors before the table is made, which takes a while."""
    if given(recipe.student, "student").static is None or not teachers.infos or recipe.task is not None:
        return
    width = teachers.infos[0].width
    table, method = StudentInfo("a static student", width, layers=None, hidden=width), fresh_method(recipe)
    check_needs(method, method.needs(table, teachers.met), table)


# all of it


@dataclass(frozen=True)
class Prepared:
    """All that a run needs before it teaches.

    Attributes:
        start: the untrained student; `start.open()` gives a fresh copy each time.
        info: what a method may know of it.
        needs: what the method wants to find in a step; `wanted` of each teacher besides sentence vectors.
        tasks: what students are judged by.
        code: what the text of a method that is not ours is known by.
    """

    recipe: Recipe
    corpus: Corpus
    teachers: Teachers
    start: Start
    info: StudentInfo
    needs: Needs
    wanted: tuple[Wanted, ...]
    tasks: tuple[JudgingTask, ...] = ()
    code: str | None = None

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.recipe.output)

    @property
    def place(self) -> Path:
        """The folder of the prepared corpus, token ids and stores."""
        return self.recipe.place

    @property
    def section(self) -> StudentSection:
        """The student's section of the recipe."""
        return given(self.recipe.student, "student")

    def task(self) -> Task | None:
        """The supervised task with a fresh head, the same each time; None without one."""
        return fresh_task(self.recipe, self.corpus, self.info)


def fresh_method(recipe: Recipe) -> Method:
    """The recipe's method, without heads yet."""
    return recipe.method.build()  # type: ignore[no-any-return]


def fresh_task(recipe: Recipe, corpus: Corpus, info: StudentInfo) -> Task | None:
    """The supervised task with a fresh head, the same each time; None without one."""
    if recipe.task is None:
        return None
    torch.manual_seed(recipe.training.seed)
    from distilvec.tasks.table import build_task

    return build_task(recipe.task, info.width, corpus.labels, corpus.label_names)
