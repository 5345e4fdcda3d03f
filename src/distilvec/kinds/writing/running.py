"""The parts of a job that differ if its student writes: its tasks, its measures in training, how it is judged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.corpus.keys import canonical, split_pair
from distilvec.errors import DistilvecError
from distilvec.evenly import sampled_rows
from distilvec.judging import TRAINED, UNTRAINED, GenerationTask, HeldOutTexts, Verdict, judge_run
from distilvec.judging.generation import asked, likelihood, writer_of
from distilvec.judging.tables import read_table
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.base import Method
from distilvec.methods.table import TABLE, resolve
from distilvec.recipe import Recipe, given

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.flow.lessons import Lessons

logger = logging.getLogger(__name__)
#: Of a task's test file, and of tasks made of held-out items.
TEST, HELD_OUT = "answers", "held-out answers"
#: Held-out items whose answers are written, at most, and those whose likelihood is measured while training.
WRITTEN, MEASURED, FEWEST = 200, 1000, 20
Items = list[tuple[str, str]]


def check_writing(recipe: Recipe, command: str) -> None:
    """Refuse a method that cannot teach a student to write, and a command that is about embedders."""
    if command in ("plan", "scale", "mine"):
        raise DistilvecError(
            f"{command} goes by vectors of texts, and the task is generation",
            where="task.kind",
            remedy="Leave the task out, or choose the student's size yourself.",
        )
    if not recipe.method.is_open and not recipe.method.build().writes:
        able = ", ".join(name for name in TABLE if resolve(name).writes)
        raise DistilvecError(
            f'method "{recipe.method.name}" teaches embedders, and the task is generation',
            where="method.name",
            remedy=f"Choose one of {able}.",
        )


def check_files(recipe: Recipe, corpus: Corpus) -> None:
    """Read the task's validation file, and raise what is wrong with it."""
    if validation := given(recipe.task, "task").validation:
        read_items(recipe, validation)


def metric_names(kind: str) -> list[str]:
    """Return what a student can be chosen by while it trains."""
    return ["likelihood"]


def quality(corpus: Corpus, lessons: Lessons) -> Callable[[Any], float]:
    """Return what rates are chosen by: the likelihood of held-out answers."""
    items = held_out_items(corpus, MEASURED)
    return lambda student: answer_metrics(student, items)["likelihood"]


def read_items(recipe: Recipe, file: str) -> Items:
    """Prompts with answers of a file with the corpus' columns, without white space around them as in the corpus.

    Raises:
        DataError: no such file or column, or an empty text, with its line.
    """
    prompt, answer = list(given(recipe.corpus, "corpus").text)
    table = read_table(Path(file))
    prompts, answers = ([canonical(text) for text in table.texts(column)] for column in (prompt, answer))
    return list(zip(prompts, answers, strict=True))


def writing_tasks(recipe: Recipe, corpus: Corpus, named: Sequence[JudgingTask]) -> list[JudgingTask]:
    """Return what a student that writes is judged by: the named tasks and the task's test file, else held-out items."""
    task = given(recipe.task, "task")
    other = next((each for each in named if not isinstance(each, GenerationTask)), None)
    if other is not None:
        raise DistilvecError(
            f"it asks for vectors ({other.kind}), and the student writes",
            where=f"task {other.name}",
            remedy="Name tasks of kind generation.",
        )
    options: dict[str, Any] = {"longest": task.longest, "samples": task.samples, "domain": "in"}
    tasks = list(named)
    if task.test:
        items = read_items(recipe, task.test)
        tasks = [GenerationTask(TEST, *_columns(items), **options), *tasks]
    elif not tasks and len(corpus.holdout_rows) >= FEWEST:
        tasks = [GenerationTask(HELD_OUT, *_columns(held_out_items(corpus, WRITTEN)), **options)]
    return tasks


def held_out_items(corpus: Corpus, limit: int) -> Items:
    """At most so many of the held-out items."""
    rows = sampled_rows(corpus.holdout_rows, limit)
    return [(str(item[0]), str(item[1])) for item in map(split_pair, corpus.texts(rows))]


def _columns(items: Items) -> tuple[list[str], list[str]]:
    return [prompt for prompt, _ in items], [answer for _, answer in items]


def answer_metrics(student: SentenceTransformer, items: Items) -> dict[str, float]:
    """`likelihood`, the negative loss in nats per token (more is better), and `bits_per_byte`."""
    writer = writer_of(student)
    with asked(writer):
        measured = likelihood(writer, items)
    return {"likelihood": -measured.loss, "bits_per_byte": measured.bits_per_byte}


def writing_metrics(
    recipe: Recipe, held_out: object, task: object
) -> Callable[[SentenceTransformer, Method], dict[str, float]] | None:
    """Return what is measured while training, on the task's validation file; None without one."""
    file = given(recipe.task, "task").validation
    if not file:
        return None
    items = read_items(recipe, file)

    def measure(student: SentenceTransformer, _: Method) -> dict[str, float]:
        return {f"task_{name}": value for name, value in answer_metrics(student, items).items()}

    return measure


def judge_writing(
    recipe: Recipe,
    corpus: Corpus,
    lessons: Lessons,
    tasks: Sequence[JudgingTask],
    held_out: object,
    students: tuple[SentenceTransformer, SentenceTransformer],
    fitted: object,
) -> Verdict:
    """Judge teachers, untrained student and student by the same tasks."""
    untrained, shipped = students
    models: dict[str, Any] = {each.teacher.card.name: each.teacher for each in lessons.taught}
    models |= {UNTRAINED: untrained.eval(), TRAINED: shipped}
    return judge_run(models, tasks, HeldOutTexts(), with_agreement=False)
