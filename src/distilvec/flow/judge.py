"""What is measured while training and at the end, and the record of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from distilvec.alignment.drawing import align_text
from distilvec.alignment.loading import unlimited
from distilvec.alignment.pieces import ENDS
from distilvec.corpus import Corpus
from distilvec.corpus.keys import join_pair, split_pair
from distilvec.errors import DataError
from distilvec.evenly import sampled_rows
from distilvec.files import read_object
from distilvec.flow.job import Job
from distilvec.flow.teach import Taught
from distilvec.flow.writing import judge_writing, writes, writing_metrics
from distilvec.judging import (
    FREE,
    TRAINED,
    UNTRAINED,
    CachedEncoder,
    MtebTask,
    Outputs,
    RidgeMapped,
    Score,
    Slice,
    Verdict,
    agreement,
    item_masks,
    judge_run,
    linear_map,
    slices,
)
from distilvec.judging.bootstrap import make_score
from distilvec.methods.base import Method
from distilvec.modules.task_head import TaskHead
from distilvec.recipe import Recipe, StudentSection, given
from distilvec.report.record_parts import AlignedText
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.predictor import Predictor
from distilvec.teachers.text import TextTeacher
from distilvec.training import Fitted

logger = logging.getLogger(__name__)
#: What the supervised task is called among scores.
TASK = "supervised task"
FEWEST_HELD_OUT = 20
#: Where `student: auto` keeps what it measured.
PLAN = "plan.json"

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.report import Record


def held_out_agreement(job: Job) -> Callable[[SentenceTransformer, Method], dict[str, float]] | None:
    """A callable that measures agreement with the first teacher on held-out texts.

    Returns:
        None without a teacher, or where too few texts are held out.
    """
    texts, vectors = job.held_out()
    if vectors is None or len(texts) < FEWEST_HELD_OUT:
        return None

    def measure(student: SentenceTransformer, method: Method) -> dict[str, float]:
        head = method.teacher_map()
        measured = agreement(vectors, CachedEncoder(student)(texts), None if head is None else linear_map(head))
        return {f"agreement_{name}": value for name, value in measured.items() if isinstance(value, float)}

    return measure


def held_out_metrics(job: Job) -> Callable[[SentenceTransformer, Method], dict[str, float]] | None:
    """What is measured while training: agreement on held-out texts, and the task on its validation file."""
    if writes(job.recipe):
        return writing_metrics(job.recipe)
    agrees, task = held_out_agreement(job), job.task
    examples = None
    if job.recipe.task is not None and job.recipe.task.validation:
        examples = task_examples(job.recipe, job.recipe.task.validation)

    def measure(student: SentenceTransformer, method: Method) -> dict[str, float]:
        metrics = {} if agrees is None else agrees(student, method)
        if task is not None and task.head is not None and examples is not None:
            scores = Predictor(student, task.head).evaluate(examples)
            metrics |= {f"task_{name}": value for name, value in scores.items()}
        return metrics

    return None if agrees is None and examples is None else measure


def task_examples(recipe: Recipe, file: str) -> Examples:
    """A labelled file of the recipe's task, with the corpus' column names."""
    task, corpus = given(recipe.task, "task"), given(recipe.corpus, "corpus")
    return read_examples(file, corpus.text, task.label or corpus.label or "label")


def supervises(recipe: Recipe) -> bool:
    """Whether there is a supervised task with a test file."""
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
    return {TASK: make_score(task=TASK, kind="supervised", domain=None, outputs=outputs, details=details)}


def answers_alike(head: TaskHead, student: TaskHead, name: str) -> bool:
    """Whether a teacher's head answers the student's question; says so where it was fine-tuned on another task."""
    same = (
        set(head.labels or ()) == set(student.labels or ()) and (head.encoding, student.encoding).count("single") != 1
    )
    if not same:
        logger.warning("%s was fine-tuned on another task, and is not scored on this one", name)
    return same


def judge_task(job: Job, folder: Path) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Scores of student and teachers on the task's test file, by model, and what to know of it; empty without one."""
    task = job.recipe.task
    if task is None or not task.test or task.writes:
        return {}, []
    examples = task_examples(job.recipe, task.test)
    student = Predictor.load(folder, trust_remote_code=job.student_section.trust_remote_code)
    scores = {TRAINED: student.evaluate(examples)}
    for each in job.taught:
        head = getattr(each.teacher, "head", None)
        if head is not None and answers_alike(head, student.head, each.teacher.card.name):
            scores[each.teacher.card.name] = predictor_of(each.teacher, head).evaluate(examples)
    told = ", ".join(f"{count:,} {reason}" for reason, count in examples.left_out.items())
    return scores, [f"Rows of the task's test file that were left out: {told}."] if told else []


def predictor_of(teacher: Any, head: TaskHead) -> Predictor:
    """A fine-tuned teacher that reads as it taught."""
    teacher.wake()
    return Predictor(teacher.model, head, prompt=teacher.prompt)


def example_text(corpus: Corpus) -> str:
    """A text of the corpus, held out where there is one: long enough to show something, short enough to be read."""
    rows = corpus.holdout_rows if len(corpus.holdout_rows) else corpus.train_rows
    return min(corpus.texts(np.asarray(rows)[:200]), key=lambda each: abs(len(each) - 90))


def aligned_text(job: Job, student: SentenceTransformer) -> AlignedText | None:
    """One text of the corpus as the method sees its tokens; None where it does not."""
    asked = next((each for each in job.taught if each.wanted.alignment), None)
    if asked is None:
        return None
    text = example_text(job.corpus)
    tokenizers = [model.tokenizer.backend_tokenizer for model in (student, asked.teacher.model)]  # type: ignore[attr-defined]
    mode = next((each for each in asked.wanted.alignment if each != ENDS), "strict")
    drawn = align_text(split_pair(text), unlimited(tokenizers[0]), unlimited(tokenizers[1]), mode)
    return AlignedText(name=asked.teacher.card.name, **asdict(drawn))


def judge_all(job: Job, shipped: SentenceTransformer, untrained: SentenceTransformer, fitted: Fitted) -> Verdict:
    """Teacher, untrained student, free baseline and student by the same code."""
    if writes(job.recipe):
        return judge_writing([each.teacher for each in job.taught], job.tasks, untrained, shipped)
    start, first = CachedEncoder(untrained), job.first
    encoders = [(each, each.encoder(job.corpus.modality)) for each in job.taught]
    models: dict[str, Any] = {
        encoder.name: encoder for each, encoder in encoders if knows_tasks(each, encoder, job.tasks)
    }
    models[UNTRAINED] = start
    if fitted.free_map:
        models[FREE] = RidgeMapped(start, fitted.free_map[0])
    models[TRAINED] = shipped
    texts, vectors = job.held_out()
    shared = job.student_section.space == "teacher"
    head = fitted.method.teacher_map()
    if first is not None and isinstance(first.teacher, TextTeacher):
        first.teacher.wake()  # it is timed where it works
    timed = (
        {}
        if first is None or not runs_here(first.teacher)
        else {first.teacher.card.name: getattr(first.teacher, "model", first.teacher)}
    )
    return judge_run(
        models,
        job.tasks,
        texts,
        vectors,
        teacher=None if first is None else first.teacher.card.name,
        teacher_map=linear_map(head) if head is not None and not shared else None,
        shared_space=shared,
        with_agreement=job.recipe.judging.agreement,
        with_speed=job.recipe.judging.speed,
        timed={**timed, TRAINED: shipped},
    )


def runs_here(teacher: Any) -> bool:
    """Whether its speed is this machine's: not that of a table, or of somebody's service, who is paid for each text."""
    parts = getattr(teacher, "teachers", [teacher])
    return all(each.card.kind in ("model", "molecule") for each in parts)


def knows_tasks(taught: Taught, encoder: CachedEncoder, tasks: Sequence[Any]) -> bool:
    """Whether a teacher can be asked about the tasks' items: not one that lacks some of them."""
    parts = getattr(taught.teacher, "teachers", [taught.teacher])
    if any(each.card.kind == "vectors" for each in parts):
        return False
    gaps = any(each.gaps for each in parts)
    lacks = bool(taught.filled.absent) and not gaps
    if gaps:
        try:
            encoder([text for task in tasks if not isinstance(task, MtebTask) for text in task.texts()])
        except DataError as problem:
            logger.debug("%s", problem)
            lacks = True
    if lacks and tasks:
        logger.warning("%s lacks items, so it is not judged on the tasks", encoder.name)
    return not lacks


def make_record(
    job: Job, students: tuple[SentenceTransformer, SentenceTransformer], fitted: Fitted, verdict: Verdict
) -> Record:
    """The record behind report, table and card; `students` are the untrained and the shipped one."""
    from distilvec.report.describe import describe_run

    tasks = job.tasks if verdict.judged is not None else []
    record = describe_run(
        recipe=job.recipe.model_dump(mode="json"),
        corpus=job.corpus,
        teachers=[(each.teacher.card, each.seen, each.store, each.filled) for each in job.taught],
        untrained=students[0],
        student=students[1],
        fitted=fitted,
        verdict=verdict,
        overlap=_overlap(job, tasks),
        held_out=job.held_out_rows(),
        folder=job.output,
        scorers=[(each.scorer.card, each.filled) for each in job.scored],
    )
    record.slices = _slices(job, students[1], verdict)
    record.notes += _what_choosing_saw(job, [task.name for task in tasks])
    if unread := [task.name for task in tasks if not task.texts()]:
        record.notes.append(f"Training texts were not looked for in {', '.join(unread)}: MTEB reads these itself.")
    return record


def _what_choosing_saw(job: Job, tasks: Sequence[str]) -> list[str]:
    """What of the report is measured where the student, or its checkpoint, was chosen."""
    notes, chosen = [], _chosen_by(job)
    if seen := sorted((chosen or set()) & set(tasks)):
        notes.append(f"The student was chosen (student: auto) with the test items of {', '.join(seen)} in view.")
    elif chosen is not None and job.recipe.teachers:
        notes.append("The student was chosen (student: auto) by agreement on the held-out items that are measured.")
    if (job.recipe.training.best or "").removeprefix("eval_").startswith("agreement_"):
        notes.append("The checkpoint was chosen by agreement on the held-out items that are measured.")
    return notes


def _overlap(job: Job, tasks: Sequence[Any]) -> dict[str, int]:
    """Task, or labelled file of the recipe's task -> training texts that are in it too; of files said at once."""
    files = _labelled_texts(job)
    found = job.corpus.overlaps({task.name: _judged_texts(task) for task in tasks} | files)
    for name in files:
        if found[name]:
            logger.warning("%d training texts are in %s too: scores on them may flatter", found[name], name)
    return found


def _labelled_texts(job: Job) -> dict[str, list[str]]:
    """Labelled file of the recipe's task -> its texts."""
    task, found = job.recipe.task, dict[str, list[str]]()
    if task is None or task.writes:
        return found
    for key in ("test", "validation"):
        file = getattr(task, key)
        if file:
            inputs = task_examples(job.recipe, file).inputs
            if task.joint:  # the whole pair: that two pairs share a text is as it should be
                inputs = [each if isinstance(each, str) else join_pair(*each) for each in inputs]
            found[f"task.{key}"] = [text for each in inputs for text in ((each,) if isinstance(each, str) else each)]
    return found


def _slices(job: Job, student: SentenceTransformer, verdict: Verdict) -> list[Slice]:
    """How much the student shares of the teacher's view on each kind of held-out item."""
    first = job.first
    if first is None or not {first.teacher.card.name, TRAINED} <= verdict.vectors.keys():
        return []
    tokenizers = [getattr(model, "tokenizer", None) for model in (student, getattr(first.teacher, "model", None))]
    masks = item_masks(job.corpus, job.held_out_rows(), *tokenizers)
    vectors = (verdict.vectors[name] for name in (first.teacher.card.name, TRAINED))
    return slices(masks, *vectors)


def chosen_section(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section of the student that was chosen, of what `student: auto` wrote; None where it tells none."""
    return next((row.get("section") for row in plan.get("rows", ()) if row.get("name") == plan.get("chosen")), None)


def _chosen_by(job: Job) -> set[str] | None:
    """Tasks that `student: auto` chose this student by, in this folder; None where it did not."""
    plan = read_object(job.output / PLAN)
    section = chosen_section(plan)
    try:
        chosen = None if section is None else StudentSection.model_validate(section)
    except ValidationError:  # of another version: no reason to end a run that is trained
        return None
    return set(plan.get("tasks", ())) if _alike(chosen, job.recipe.student) else None


def _alike(one: StudentSection | None, other: StudentSection | None) -> bool:
    """Whether two sections are equal but for the space, which the method settles, and the hub's commit, which a run
    writes into its recipe.
    """
    if one is None or other is None:
        return False
    return one.model_dump(exclude={"space", "revision"}) == other.model_dump(exclude={"space", "revision"})


def _judged_texts(task: Any) -> list[str]:
    """The texts a score is about: of a probe those it is tested on, not those it is fitted on."""
    if task.kind in ("classification", "regression"):
        return [text for item in task.test_items() for text in item]
    return list(task.texts())


def show_inside(
    record: Record, job: Job, untrained: SentenceTransformer, student: SentenceTransformer, fitted: Fitted
) -> None:
    """Put the inside of models into the record: where the method looks there, and of mixtures of experts.

    Args:
        student: trained, with the head that it may have (a folded one is no mixture any more).
    """
    from distilvec.flow.internals import expert_map, mixture_facts, token_maps

    record.mixtures = mixture_facts(job, student)
    first = next((each for each in job.taught if each.wanted.attention or each.wanted.tokens), None)
    if first is not None:
        record.token_maps = token_maps(example_text(job.corpus), first, untrained, student)
    losses = getattr(fitted.method, "expert_losses", None)
    if losses:
        texts = job.corpus.texts(sampled_rows(job.corpus.holdout_rows, 1000))
        record.experts = expert_map(student, texts, losses[0].names)
