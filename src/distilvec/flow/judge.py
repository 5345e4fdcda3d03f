"""Measurements while training and at the end."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from distilvec.corpus import Corpus
from distilvec.errors import DataError
from distilvec.files import read_record
from distilvec.flow.teach import Taught
from distilvec.judging import (
    FREE,
    ON_INDEX,
    TRAINED,
    UNTRAINED,
    CachedEncoder,
    HeldOutTexts,
    Outputs,
    Score,
    Verdict,
    agreement,
    judge_run,
    linear_map,
)
from distilvec.judging.scores import SEARCHES
from distilvec.judging.tasks import JudgingTask
from distilvec.judging.verdict import too_few
from distilvec.methods.base import Method
from distilvec.modules.pipeline import default_prompt
from distilvec.recipe import Recipe, StudentSection, given
from distilvec.teachers import Teacher
from distilvec.training import Fitted

logger = logging.getLogger(__name__)
#: What the supervised task is called among scores.
TASK = "supervised task"
FEWEST_HELD_OUT = 20
#: Where `student: auto` keeps what it measured.
PLAN = "plan.json"

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.flow.lessons import Lessons
    from distilvec.modules.task_head import TaskHead
    from distilvec.tasks.base import Task
    from distilvec.tasks.examples import Examples
    from distilvec.tasks.predictor import Predictor

#: Held-out texts, and the first teacher's vectors of them; None without a teacher.
HeldOut = tuple[Sequence[str], np.ndarray | None]
Measure = Callable[["SentenceTransformer", Method], dict[str, float]]


def held_out_metrics(recipe: Recipe, held_out: HeldOut, task: Task | None) -> Measure | None:
    """Return what is measured while training: agreement on held-out texts, and the task on its validation file.

    Returns:
        None if there is no validation file, and no teacher or too few held-out texts.
    """
    texts, vectors = held_out
    file = recipe.task.validation if recipe.task is not None else None
    examples = task_examples(recipe, file) if file else None
    enough = len(texts) >= FEWEST_HELD_OUT

    def measure(student: SentenceTransformer, method: Method) -> dict[str, float]:
        metrics = {}
        if vectors is not None and enough:
            head = method.teacher_map()
            found = agreement(vectors, CachedEncoder(student)(texts), None if head is None else linear_map(head))
            metrics = {f"agreement_{name}": value for name, value in found.items() if isinstance(value, float)}
        if task is not None and task.head is not None and examples is not None:
            from distilvec.tasks.predictor import Predictor

            scores = Predictor(student, task.head).evaluate(examples)
            metrics |= {f"task_{name}": value for name, value in scores.items()}
        return metrics

    return measure if examples is not None or (vectors is not None and enough) else None


def task_examples(recipe: Recipe, file: str) -> Examples:
    """A labelled file of the recipe's task, with the corpus' column names."""
    task, corpus = given(recipe.task, "task"), given(recipe.corpus, "corpus")
    from distilvec.tasks.examples import read_examples

    return read_examples(file, corpus.text, task.label or corpus.label or "label")


def supervises(recipe: Recipe) -> bool:
    """Tell whether there is a supervised task with a test file."""
    return recipe.task is not None and bool(recipe.task.test) and not recipe.task.writes


def task_score(recipe: Recipe, predictor: Predictor) -> dict[str, Score]:
    """A model's score on the recipe's supervised task: accuracy or Spearman, with interval and per-item results."""
    assert recipe.task is not None and recipe.task.test is not None
    examples = task_examples(recipe, recipe.task.test)
    truth, logits = examples.targets(predictor.head), predictor.logits(examples.inputs)
    if predictor.head.labels is None:
        outputs = Outputs("spearman", np.asarray(truth, np.float32), logits[:, 0])
    else:
        # In one order for all heads, which may have met the classes in different ones.
        ranks = np.argsort(np.argsort(predictor.head.labels)).astype(np.int32)
        outputs = Outputs("accuracy", ranks[np.asarray(truth)], ranks[logits.argmax(-1)])
    details = predictor.evaluate(examples)
    from distilvec.judging.bootstrap import make_score

    return {TASK: make_score(task=TASK, kind="supervised", domain=None, outputs=outputs, details=details)}


def answers_alike(head: TaskHead, student: TaskHead, name: str) -> bool:
    """Tell whether a teacher's head answers the student's question; says so where it was fine-tuned on another task."""
    same = (
        set(head.labels or ()) == set(student.labels or ()) and (head.encoding, student.encoding).count("single") != 1
    )
    if not same:
        logger.warning("%s was fine-tuned on another task, and is not scored on this one", name)
    return same


def judge_task(recipe: Recipe, taught: Sequence[Taught], folder: Path) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Score the student in `folder` and the teachers on the task's test file.

    Returns:
        Scores by model, and notes on them; both are empty without a test file.
    """
    if not supervises(recipe):
        return {}, []
    examples = task_examples(recipe, given(given(recipe.task, "task").test, "task.test"))
    trusted = given(recipe.student, "student").trust_remote_code
    from distilvec.tasks.predictor import Predictor

    student = Predictor.load(folder, trust_remote_code=trusted)
    scores = {TRAINED: student.evaluate(examples)}
    for each in taught:
        head, name = each.teacher.head, each.teacher.card.name
        if head is not None and answers_alike(head, student.head, name):
            scores[name] = predictor_of(each.teacher).evaluate(examples)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in examples.left_out.items())
    return scores, [f"Rows of the task's test file that were left out: {reasons}."] if reasons else []


def predictor_of(teacher: Teacher) -> Predictor:
    """A fine-tuned teacher that reads as it taught."""
    teacher.wake()
    from distilvec.tasks.predictor import Predictor

    assert teacher.model is not None and teacher.head is not None
    return Predictor(teacher.model, teacher.head, prompt=teacher.prompt)


def judge_all(
    recipe: Recipe,
    corpus: Corpus,
    lessons: Lessons,
    tasks: Sequence[JudgingTask],
    held_out: HeldOut,
    students: tuple[SentenceTransformer, SentenceTransformer],
    fitted: Fitted,
) -> Verdict:
    """Judge teacher, untrained student, free baseline and student by the same code.

    Args:
        held_out: held-out texts, and the first teacher's vectors of them.
        students: before training, and as it ships.
    """
    untrained, shipped = students
    first = lessons.first
    models = {**compared_models(lessons.taught, corpus, tasks, untrained, fitted), TRAINED: shipped}
    shared = given(recipe.student, "student").space == "teacher"
    head = fitted.method.teacher_map()
    timed: dict[str, Any] = {}
    if first is not None and first.teacher.can.local:  # else its speed is that of a table or of a paid service
        first.teacher.wake()  # it is timed on its device
        timed[first.teacher.card.name] = _as_it_taught(first.teacher)
    texts, vectors = held_out
    compared = HeldOutTexts(
        texts,
        vectors,
        teacher=None if first is None else first.teacher.card.name,
        teacher_map=linear_map(head) if head is not None and not shared else None,
        shared_space=shared,
    )
    timed = {**timed, TRAINED: shipped} if recipe.judging.speed else {}
    verdict = judge_run(models, tasks, compared, with_agreement=recipe.judging.agreement, timed=timed)
    if shared and compared.teacher in models and verdict.judged is not None:
        asked = sum(score.kind in SEARCHES for score in verdict.judged.scores[TRAINED].values())
        verdict.judged.scores |= _on_index(CachedEncoder(shipped), models[compared.teacher], tasks, asked)
    if recipe.judging.agreement and not (tasks or verdict.agreement or supervises(recipe)):
        few = compared.teacher is not None and len(texts) < FEWEST_HELD_OUT
        why = too_few(len(texts)) if few else "there is nothing to measure it by"
        verdict.alarms.append(
            f"Nothing says how good the student is: {why}. Give more texts, a larger corpus.holdout, or judging.tasks."
        )
    return verdict


def compared_models(
    taught: Sequence[Taught], corpus: Corpus, tasks: Sequence[JudgingTask], untrained: Any, fitted: Fitted
) -> dict[str, Any]:
    """Name -> model, of what a student is compared with: teachers, itself before training, the free baseline."""
    start, encoders = CachedEncoder(untrained), [(each, each.encoder(corpus)) for each in taught]
    models: dict[str, Any] = {encoder.name: encoder for each, encoder in encoders if knows_tasks(each, encoder, tasks)}
    models[UNTRAINED] = start
    if fitted.free_map and corpus.kind.embeds:
        from distilvec.judging import RidgeMapped

        models[FREE] = RidgeMapped(start, fitted.free_map[0])
    return models


def _as_it_taught(teacher: Teacher) -> Any:
    """The teacher's model with the prompt that it taught with, which takes time to read, too."""
    if teacher.model is None or teacher.prompt == default_prompt(teacher.model):
        return teacher.model or teacher
    model = copy.copy(teacher.model)  # the same weights
    model.prompts, model.default_prompt_name = {"own": teacher.prompt}, "own"
    return model


def _on_index(
    student: CachedEncoder, teacher: CachedEncoder, tasks: Sequence[JudgingTask], asked: int
) -> dict[str, Any]:
    """The scores of the student's queries among the teacher's documents, on the searches, of which there are `asked`.

    Empty without any, or if not all of them can be asked in this way (MTEB's): averages over different tasks cannot be
    compared.
    """
    from distilvec.judging import RetrievalTask, judge

    # The texts of a task with prompts of its own are asked for as such, so that sides cannot be told apart.
    searches = [task for task in tasks if isinstance(task, RetrievalTask) and task.begin is None]
    both = SimpleNamespace(encode=student, encode_query=student.query, encode_document=teacher.document)
    return judge({ON_INDEX: both}, searches).scores if searches and len(searches) == asked else {}


def knows_tasks(taught: Taught, encoder: CachedEncoder, tasks: Sequence[Any]) -> bool:
    """Tell whether a teacher can be asked about the tasks' items: one that lacks some of them cannot."""
    can = taught.teacher.can
    if can.made:
        return False
    lacks = bool(taught.filled.absent) and not can.gaps
    if can.gaps:
        try:
            from distilvec.judging import MtebTask

            encoder([text for task in tasks if not isinstance(task, MtebTask) for text in task.texts()])
        except DataError as problem:
            logger.debug("%s", problem)
            lacks = True
    if lacks and tasks:
        logger.warning("%s lacks items, so it is not judged on the tasks", encoder.name)
    return not lacks


def overlap_of(recipe: Recipe, corpus: Corpus, tasks: Sequence[JudgingTask]) -> dict[str, int]:
    """Count the training texts that are also in a task, or in a labelled file of the recipe's task.

    Overlaps with the files are logged.
    """
    files = _labelled_texts(recipe)
    found = corpus.overlaps({task.name: _judged_texts(task) for task in tasks} | files)
    for name in files:
        if found[name]:
            logger.warning("%d training texts are in %s too: scores on them may flatter", found[name], name)
    return found


def choice_notes(recipe: Recipe, output: Path, tasks: Sequence[JudgingTask]) -> list[str]:
    """Say what is measured on items that the student was chosen by, and what was not compared with the corpus."""
    notes, chosen = [], _chosen_by(recipe, output)
    if seen := sorted((chosen or set()) & {task.name for task in tasks}):
        notes.append(f"The student was chosen (student: auto) with the test items of {', '.join(seen)} in view.")
    elif chosen is not None and recipe.teachers:
        notes.append("The student was chosen (student: auto) by agreement on the held-out items that are measured.")
    if unread := [task.name for task in tasks if not task.texts()]:
        notes.append(f"Training texts were not looked for in {', '.join(unread)}: MTEB reads these itself.")
    return notes


def _labelled_texts(recipe: Recipe) -> dict[str, list[str]]:
    """Labelled file of the recipe's task -> its texts."""
    task, found = recipe.task, dict[str, list[str]]()
    if task is None or task.writes:
        return found
    for key in ("test", "validation"):
        file = getattr(task, key)
        if file:
            inputs = task_examples(recipe, file).inputs
            if task.joint:  # the whole pair: two pairs may share a text
                from distilvec.corpus.keys import join_pair

                inputs = [each if isinstance(each, str) else join_pair(*each) for each in inputs]
            found[f"task.{key}"] = [text for each in inputs for text in ((each,) if isinstance(each, str) else each)]
    return found


def chosen_section(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section of the student that was chosen, from what `student: auto` wrote; None if it has no such row."""
    return next((row.get("section") for row in plan.get("rows", ()) if row.get("name") == plan.get("chosen")), None)


def _chosen_by(recipe: Recipe, output: Path) -> set[str] | None:
    """Tasks that `student: auto` chose this student by, in this folder; None if it did not."""
    plan, student = read_record(output / PLAN), recipe.student
    section, written = chosen_section(plan), {"space", "revision"}  # by the method, and by a run
    if section is None or student is None:
        return None
    try:
        chosen = StudentSection.model_validate(section)
    except ValidationError:  # of another version: no reason to end a run that is trained
        return None
    alike = chosen.model_dump(exclude=written) == student.model_dump(exclude=written)
    return set(plan.get("tasks", ())) if alike else None


def _judged_texts(task: Any) -> list[str]:
    """The texts a score is about: of a probe those it is tested on, not those it is fitted on."""
    if task.kind in ("classification", "regression"):
        return [text for item in task.test_items() for text in item]
    return list(task.texts())
