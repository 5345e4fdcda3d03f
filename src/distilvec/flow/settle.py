"""Method, needs and tasks put to corpus, teachers and student; all that can be refused before teaching is refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError
from distilvec.flow.checks import check
from distilvec.flow.defaults import with_defaults
from distilvec.flow.prepare import (
    Prepared,
    Teachers,
    combines,
    fresh_method,
    fresh_task,
    judging_tasks,
    make_start,
    named_tasks,
    open_corpus,
    open_teachers,
)
from distilvec.flow.start import Start
from distilvec.flow.teach import class_order
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.base import Method, Needs, foreign_classes
from distilvec.methods.contract import check_needs, check_pieces
from distilvec.recipe import Recipe, StudentSection, given
from distilvec.students import StudentTap
from distilvec.students.output import StudentInfo
from distilvec.students.ship import refuse_foreign
from distilvec.teachers import TeacherInfo
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.training.items import check_items
from distilvec.training.step import check_caching, describe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.tasks.base import Task

logger = logging.getLogger(__name__)


def prepare(recipe: Recipe) -> Prepared:
    """Open and settle a recipe whose output folder is not compared with it: for scripts and probes."""
    tasks = named_tasks(recipe)
    corpus = open_corpus(recipe)
    recipe = with_defaults(recipe, corpus)
    teachers = open_teachers(recipe, corpus)
    return settle(recipe, corpus, teachers, make_start(recipe, corpus, teachers), tasks)


def settle(recipe: Recipe, corpus: Corpus, teachers: Teachers, start: Start, named: Sequence[JudgingTask]) -> Prepared:
    """Put method, needs and tasks to the rest, and refuse all that can be seen to fail.

    Args:
        named: the tasks that the recipe names to judge students by.
    """
    if combines(recipe) and fresh_method(recipe).inside:
        _refuse_combined(recipe, corpus, teachers, start)
    student = start.open()
    info = _look_at(student, given(recipe.student, "student"), corpus)
    method, task = fresh_method(recipe), fresh_task(recipe, corpus, info)
    needs = _needs(recipe, method, describe(info, task), teachers.met)
    _check_student(recipe, method, needs, student, teachers)
    code = None
    if foreign_classes(method):
        from distilvec.methods.code import code_of

        code = code_of(method)
    prepared = Prepared(
        recipe=recipe,
        corpus=corpus,
        teachers=teachers,
        start=start,
        info=info,
        needs=needs,
        wanted=_wanted(recipe, method, needs, teachers, task),
        tasks=tuple(judging_tasks(recipe, corpus, named)),
        code=code,
    )
    check(prepared, student)
    return prepared


def _needs(recipe: Recipe, method: Method, info: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
    needs = method.needs(info, teachers)
    check_needs(method, needs, info)
    if needs.scores and not recipe.scorers:
        raise DistilvecError(
            f'method "{recipe.method.name}" learns from scores, and there is no scorer',
            where="scorers",
            remedy="Name one: a model, a function, or a table of scores.",
        )
    if recipe.scorers and not needs.scores:
        logger.warning(
            "%s does not use scores, so the scorers are not asked; margin_mse and score_kl do", recipe.method.name
        )
    return needs


def _check_student(
    recipe: Recipe, method: Method, needs: Needs, student: SentenceTransformer, teachers: Teachers
) -> None:
    """Refuse token states of pieces that the teacher lacks, and gradient caching where it changes the loss."""
    if needs.same_pieces and teachers.each:
        first, pieces = teachers.first, list(student.tokenizer.get_vocab())
        check_pieces(method, pieces, first.vocabulary, first.card.name)
    cached = recipe.training.mini_batch_size
    check_caching(method, needs, cached, None if cached is None else student)


def _refuse_combined(recipe: Recipe, corpus: Corpus, teachers: Teachers, start: Start) -> None:
    """Refuse a method that looks inside the teachers where they are combined."""
    method = fresh_method(recipe)
    info = _look_at(start.open(), given(recipe.student, "student"), corpus)
    needs = method.needs(describe(info, fresh_task(recipe, corpus, info)), list(teachers.infos))
    if any(needs.of(number).signals for number in range(len(teachers.each))):
        raise DistilvecError(
            f"with these options {method.name} looks at the tokens or class predictions of each teacher, "
            "which cannot be combined",
            where="combine",
            remedy="Use combine: separate, or a method on sentence vectors (`distilvec methods`); distillmoe is "
            "one with moe_weight: 1.",
        )


def wants_of(recipe: Recipe, corpus: Corpus, teachers: Teachers) -> tuple[Wanted, ...]:
    """Return what the recipe's method wants of each teacher besides sentence vectors, for teaching alone.

    The untrained student is made only for a method that looks inside the teachers.
    """
    if not teachers.each or combines(recipe) or (not recipe.method.is_open and not fresh_method(recipe).inside):
        return tuple(NOTHING for _ in teachers.each)
    recipe = with_defaults(recipe, corpus)
    if not fresh_method(recipe).inside:
        return tuple(NOTHING for _ in teachers.each)
    return settle(recipe, corpus, teachers, make_start(recipe, corpus, teachers), named_tasks(recipe)).wanted


def _wanted(recipe: Recipe, method: Method, needs: Needs, teachers: Teachers, task: Task | None) -> tuple[Wanted, ...]:
    """Return what the method wants of each teacher besides sentence vectors."""
    if combines(recipe) or not method.inside:
        return tuple(NOTHING for _ in teachers.each)
    wants = [replace(needs.of(number), axes=each.token_axes) for number, each in enumerate(recipe.teachers)]
    for teacher, wanted in zip(teachers.each, wants, strict=True):
        teacher.refuse(wanted)
        class_order(teacher, wanted, task)
        if wanted.logits and recipe.task is not None and recipe.task.encoding == "separate":
            raise DistilvecError(
                f"{method.name} compares class probabilities, and with encoding: separate the teacher reads "
                "single texts, of which none has a class",
                where=teacher.card.name,
                remedy="Use encoding: joint, or fine-tune the teacher with --encoding separate and take a method "
                "on vectors or token states.",
            )
    return tuple(wants)


def _look_at(student: SentenceTransformer, section: StudentSection, corpus: Corpus) -> StudentInfo:
    """Return what a method may know of the student."""
    check_items(student, corpus.kind, "student")
    if corpus.kind.embeds:
        refuse_foreign(student)
    if section.lora is not None:
        from distilvec.modules.adapters import check_lora

        check_lora(student)
    if section.router_balance:
        from distilvec.modules.routing import hand_out_routing

        hand_out_routing(student).close()
    return StudentTap(student).info
