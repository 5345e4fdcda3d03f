"""Checks for failures that can be seen before any teaching, and before anything of an earlier run is moved."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from distilvec.corpus.groups import rows_with_companions
from distilvec.corpus.keys import distinct_rows
from distilvec.errors import DistilvecError, nearest
from distilvec.flow.judge import FEWEST_HELD_OUT, task_examples
from distilvec.judging import agreement
from distilvec.judging.verdict import too_few
from distilvec.modules.invariance import warn_of_batches
from distilvec.modules.pipeline import default_prompt, side_prompt
from distilvec.modules.promised_tokens import ENDS_BARE, ends_bare
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.training.checks import check_training, companions_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.flow.prepare import Prepared
    from distilvec.judging.tasks import JudgingTask

logger = logging.getLogger(__name__)
#: Methods that learn nothing from a query with one document.
ORDERS = ("margin_mse", "score_kl")
#: Items to train on; by the defaults a student gains 3 points of neighbours with 40 and none with 20
#: (experiments/results/defaults).
FEWEST_TRAINED = 40


def check(prepared: Prepared, student: SentenceTransformer) -> None:
    """Check that a run can be done, as far as recipe, corpus, untrained student and teachers tell."""
    recipe, corpus, needs = prepared.recipe, prepared.corpus, prepared.needs
    if recipe.task is not None:
        corpus.kind.check_files(recipe, corpus)
    _check_prompts(prepared, student)
    measured = _measured(prepared)
    if recipe.training.best is not None:
        _check_best(recipe.training.best.removeprefix("eval_"), measured)
    _check_truth(recipe, prepared.tasks)
    _check_answers(recipe, corpus)
    if needs.scores:
        check_scorers(recipe, corpus)
        _check_negatives(recipe, corpus)
    if not needs.sentence and prepared.section.space == "teacher":
        raise DistilvecError(
            f"with these options {recipe.method.name} has no map into the teacher's space",
            where="student.space",
            remedy="Use space: own, or give the term of the sentence vectors a weight.",
        )
    blind = recipe.training.evaluate_every is not None and not measured
    rows, _ = rows_with_companions(corpus, corpus.train_rows, companions_of(needs, prepared.task(), corpus))
    live = prepared.teachers.combined is None and any(section.live for section in recipe.teachers)
    check_training(rows, corpus, recipe.training, recipe.optimizer, blind=blind, live=live)
    if corpus.kind.embeds:
        _warn(student, corpus)


def _warn(student: SentenceTransformer, corpus: Corpus) -> None:
    """Warn of a student that depends on its batch, pools a word piece, or has prompts that it is not trained with."""
    warn_of_batches(student, "student")
    if corpus.kind.tokenized and ends_bare(student):
        logger.warning("student: %s", ENDS_BARE)
    if corpus.prompts:
        return
    plain = default_prompt(student)
    others = {prompt for side in ("query", "document") if (prompt := side_prompt(student, side)) != plain}
    if others:
        logger.warning(
            "The student has prompts of its own for queries or documents (%s), with which it is judged and served, and "
            "is trained without. A student that is cut out of its teacher takes over `teachers.prompt`, if it is set. "
            "Otherwise empty `prompts` in its config_sentence_transformers.json if that is not meant.",
            ", ".join(repr(each) for each in sorted(others)),
        )


def _check_prompts(prepared: Prepared, student: SentenceTransformer) -> None:
    """Refuse prompts of a corpus with a task, and for a student that would leave them out."""
    if not prepared.corpus.prompts:
        return
    if prepared.recipe.task is not None:
        raise DistilvecError(
            "a task's head is asked about texts without prompts, and would learn from texts with them",
            where="corpus.parts",
            remedy="Leave the prompts out, or the task.",
        )
    if any(getattr(module, "include_prompt", True) is False for module in student):
        raise DistilvecError(
            "the student's pooling leaves prompts out, and those of the corpus are part of its texts",
            where="corpus.parts",
            remedy="Leave the prompts out, or set include_prompt of its pooling to true.",
        )


def _check_truth(recipe: Recipe, tasks: Sequence[JudgingTask]) -> None:
    """Check that there is a teacher to say what is right in tasks whose truth is a teacher's own search."""
    asked = [task.name for task in tasks if task.kind == "neighbours" and getattr(task, "teacher", None) is None]
    judges = recipe.teachers if recipe.combine != "separate" else recipe.teachers[:1]
    if not asked or (judges and all(each.knows_all for each in judges)):
        return
    what = "the teacher is a file of vectors" if recipe.teachers else "there is no teacher"
    raise DistilvecError(
        f"the teacher's nearest neighbours are what should be found here, and {what}",
        where=f"task {asked[0]}",
        remedy="Name a model in the task: teacher: FOLDER.",
    )


def _check_answers(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse pairs with several labels for a loss that pulls the texts of every pair together."""
    if corpus.labels is None or recipe.task is not None or len(np.unique(corpus.labels)) < 2:
        return
    if any(entry["name"] == "mnrl" and entry.get("weight") != 0 for entry in recipe.method.entries):
        raise DistilvecError(
            "mnrl takes every pair for an anchor and its positive, and the pairs have several labels",
            where="corpus.label",
            remedy="Leave out the pairs that are not alike, and the key label.",
        )


def check_scorers(recipe: Recipe, corpus: Corpus) -> None:
    """Check, before teachers are asked (and paid), that the scorers can be.

    A model is opened for a moment, off the teacher's device: its weights would lie beside the teacher's in memory.
    """
    if not recipe.scorers:
        return
    from distilvec.flow.score import STORAGE, QueryDocuments, without_scores
    from distilvec.scorers.load import open_scorer

    pairs, stores = QueryDocuments.of(corpus), recipe.place / "stores"
    for section in recipe.scorers:
        scorer = open_scorer(section, device="cpu")
        if len(pairs) and not scorer.knows(pairs.keys).any():
            raise without_scores(section, len(pairs))
        if (stores / section.name / "store.json").exists():
            SignalStore.create(stores / section.name, scorer.card, 1, STORAGE)
        del scorer
        gc.collect()  # a model is held by what reads with it


def _check_negatives(recipe: Recipe, corpus: Corpus) -> None:
    """Check that some query has two documents: of one alone there is no margin and no order to learn."""
    from distilvec.flow.score import QueryDocuments

    queries = QueryDocuments.of(corpus).queries
    named = [entry.name for entry in recipe.method.root if entry.name in ORDERS]
    if not named or len(np.unique(queries)) < len(queries):
        return
    raise DistilvecError(
        f"{named[0]} learns how the documents of one query differ, and no query of the corpus has two",
        where="corpus.text",
        remedy="Add a column of negatives: `distilvec mine` finds them.",
    )


def check_task_files(recipe: Recipe, corpus: Corpus) -> None:
    assert recipe.task is not None
    from distilvec.tasks.table import build_task

    head = build_task(recipe.task, 1, corpus.labels, corpus.label_names).head
    assert head is not None
    if recipe.task.validation and recipe.training.evaluate_every is None:
        logger.warning(
            "task.validation is given and never scored: set training.evaluate_every (steps), and training.best: "
            "task_%s to keep the best",
            "accuracy" if head.labels is not None else "spearman",
        )
    for file in (recipe.task.validation, recipe.task.test):
        if file:
            task_examples(recipe, file).targets(head)


def warn_of_few(prepared: Prepared) -> None:
    """Warn if too few items are held out to compare student and teacher, unless none are on purpose, or trained on."""
    trained = len(prepared.corpus.train_rows)
    if trained < FEWEST_TRAINED and prepared.recipe.teachers:
        told = "%d %s to train on are few: training adds little to the student's start; give more, without labels"
        logger.warning(told, trained, prepared.corpus.kind.noun)
    few, section = too_few_held_out(prepared), prepared.recipe.corpus
    if few and section is not None and section.holdout != 0:
        logger.warning("%s. Raise corpus.holdout.", few)


def compares(recipe: Recipe) -> bool:
    """Tell whether a run of this recipe is to compare student and teacher on held-out items."""
    return bool(recipe.teachers) and recipe.judging.agreement and recipe.kind.embeds


def too_few_held_out(prepared: Prepared) -> str | None:
    """Say why a run cannot compare student and teacher although it is to; None if it can."""
    held = _held_out_vectors(prepared) if compares(prepared.recipe) else FEWEST_HELD_OUT
    return too_few(held) if held < FEWEST_HELD_OUT else None


def _measured(prepared: Prepared) -> list[str]:
    """List what can be measured while training."""
    recipe = prepared.recipe
    known: list[str] = []
    if recipe.teachers and recipe.kind.embeds and _held_out_vectors(prepared) >= FEWEST_HELD_OUT:
        alone = len(prepared.teachers.met) == 1  # a student has no map into the spaces of several
        mapped = alone and recipe.method.build().has_map
        probe = np.eye(4)
        found = agreement(probe, probe, probe if mapped else None)
        known += [f"agreement_{name}" for name, value in found.items() if isinstance(value, float)]
    if recipe.task is not None and recipe.task.validation:
        known += [f"task_{name}" for name in recipe.kind.task_metrics(recipe.task.kind)]
    return known


def _held_out_vectors(prepared: Prepared) -> int:
    """Count the different held-out items that the first teacher has, or will have, a vector for."""
    corpus, teacher = prepared.corpus, prepared.teachers.first
    rows = np.asarray(corpus.holdout_rows)
    if teacher.can.made and prepared.teachers.combined is None:
        rows = rows[teacher.has(corpus.teacher_texts(rows))]
    return len(distinct_rows(corpus.keys, rows))


def _check_best(asked: str, known: list[str]) -> None:
    if asked not in known:
        raise DistilvecError(
            f'nothing that is measured while training is called "{asked}"',
            where="training.best",
            remedy=nearest(asked, known) if known else "Give task.validation, or more held-out texts (corpus.holdout).",
        )
