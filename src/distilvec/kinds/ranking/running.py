"""The parts of a job that differ if its student ranks: its tasks, its measures, and what is judged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.corpus.keys import join_pair
from distilvec.errors import DistilvecError
from distilvec.evenly import sampled_rows
from distilvec.flow.score import QueryDocuments
from distilvec.judging import TRAINED, UNTRAINED, HeldOutTexts, RetrievalTask, Verdict, judge_run
from distilvec.judging.automatic import FEWEST, answering, held_out_pairs
from distilvec.judging.reranking import RerankingTask, as_found
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.table import TABLE, resolve
from distilvec.progress import Ticker
from distilvec.recipe import Recipe, given
from distilvec.scorers.base import text_pair_keys
from distilvec.store import fill

if TYPE_CHECKING:
    from distilvec.corpus import Corpus
    from distilvec.flow.lessons import Lessons
    from distilvec.flow.score import ScoredCorpus

logger = logging.getLogger(__name__)
#: The task that is made of held-out queries; of these at most so many, among at most so many documents.
TASK, MOST_QUERIES, MOST_DOCUMENTS = "reranking", 200, 20_000


def check_ranking(recipe: Recipe, command: str) -> None:
    """Refuse what a cross-encoder cannot learn from, and commands that are about embedders."""
    if command == "mine":
        return
    corpus = given(recipe.corpus, "corpus")
    single, prompted = not isinstance(corpus.text, list), any(any(part.prompt) for part in corpus.parts)
    table = "Name one: a larger cross-encoder, a function, or a table of scores."
    columns = "Name the columns of query, document and negatives: text: [query, document, negative_1]."
    refused: list[tuple[object, str, str, str]] = [
        (command in ("plan", "scale"), "student.cross_encoder", f"{command} goes by vectors, and it has none", ""),
        (not recipe.scorers, "scorers", "it learns from scores, and there is no scorer", table),
        (recipe.teachers, "teachers", "it learns from scorers alone", ""),
        (recipe.task, "task", "it learns from scorers, without labels", ""),
        (single, "corpus.text", "it reads queries with documents, and the corpus has single texts", columns),
        (prompted, "corpus.parts", "it reads both texts at once, without prompts", "Leave the prompts out."),
        (recipe.training.evaluate_every, "training.evaluate_every", "it is judged at the end alone", ""),
        (recipe.judging.compression, "judging.compression", "it has no vectors to compress", ""),
    ]
    for wrong, key, why, remedy in refused:
        if wrong:
            raise DistilvecError(
                f"the student is a cross-encoder: {why}", where=key, remedy=remedy or f"Leave {key} out."
            )
    if not recipe.method.is_open and not recipe.method.build().ranks:
        able = ", ".join(name for name in TABLE if resolve(name).ranks)
        what = f'method "{recipe.method.name}" teaches embedders, and the student is a cross-encoder'
        raise DistilvecError(what, where="method.name", remedy=f"Choose one of {able}.")


def ranking_tasks(recipe: Recipe, corpus: Corpus, named: Sequence[JudgingTask]) -> list[JudgingTask]:
    """Return what a student is judged by: reranking of the named searches, else of held-out queries."""
    tasks: list[JudgingTask] = []
    for task in named:
        if not isinstance(task, RetrievalTask | RerankingTask) or task.kind == "neighbours":
            raise DistilvecError(
                f"it asks for vectors ({task.kind}), and the student is a cross-encoder",
                where=f"task {task.name}",
                remedy="Name tasks of kind retrieval, whose first documents are put into order.",
            )
        tasks.append(RerankingTask(task) if isinstance(task, RetrievalTask) else task)
    return tasks or [task for task in [held_out_task(corpus)] if task is not None]


def held_out_task(corpus: Corpus) -> RerankingTask | None:
    """The search for all positives of held-out queries among the corpus' documents; None if there are too few."""
    if corpus.groups is None or corpus.roles is None:
        return None
    anchors = held_out_pairs(corpus)[0]
    anchors = anchors[answering(corpus, anchors)]
    if len(anchors) < FEWEST:
        return None
    groups, roles, halves = np.asarray(corpus.groups), np.asarray(corpus.roles), corpus.keys.view("<u8")[:, 0]
    # A query may have further answers in other rows.
    asked = np.isin(halves, halves[sampled_rows(anchors, MOST_QUERIES)]) & (roles == 0)
    pairs = QueryDocuments.of(corpus, np.flatnonzero(np.isin(groups, groups[asked])))
    answers = roles[pairs.documents] == 1
    anchors, positives = pairs.queries[answers], pairs.documents[answers]
    right_ones = answering(corpus, anchors)
    anchors, positives = anchors[right_ones], positives[right_ones]
    others = np.setdiff1d(np.flatnonzero(roles != 0), positives)
    documents = np.concatenate([positives, sampled_rows(others, MOST_DOCUMENTS - len(positives))])
    right = {number: {number: 1.0} for number in range(len(anchors))}
    return RerankingTask(
        RetrievalTask(TASK, corpus.texts(anchors), corpus.texts(documents), right, domain="in")  # equal ones are one
    )


def no_metrics(recipe: Recipe, held_out: object, task: object) -> None:
    """Nothing is measured while training."""


def quality(corpus: Corpus, lessons: Lessons) -> Callable[[Any], float]:
    """Return what rates are chosen by: nDCG@10 on held-out queries."""
    task = held_out_task(corpus)
    if task is None:
        raise DistilvecError(
            f"rates are chosen by held-out queries, and there are fewer than {FEWEST}",
            where="corpus.holdout",
            remedy="Hold out a larger share.",
        )
    return lambda student: task.score(student).value


def judge_ranking(
    recipe: Recipe,
    corpus: Corpus,
    lessons: Lessons,
    tasks: Sequence[JudgingTask],
    held_out: object,
    students: tuple[Any, Any],
    fitted: object,
) -> Verdict:
    """Judge scorers, the order that is found first, untrained student and student by the same tasks."""
    untrained, shipped = students
    ranked = [task for task in tasks if isinstance(task, RerankingTask)]
    if not ranked:
        what = f"of held-out queries with an answer there are fewer than {FEWEST}. Raise corpus.holdout, or name a"
        return Verdict(alarms=[f"Nothing says how good the student is: {what} retrieval task under judging.tasks."])
    models: dict[str, Any] = {}
    for each in lessons.scored if recipe.judging.agreement else ():
        if not each.scorer.can.made and (known := _known(each, ranked)) is not None:
            models[each.scorer.card.name] = known
    before = f"{ranked[0].first} alone"
    models |= {before: as_found, UNTRAINED: untrained.eval(), TRAINED: shipped}
    verdict = judge_run(models, ranked, HeldOutTexts(), with_agreement=False)
    assert verdict.judged is not None
    for model in models:
        if model not in (before, UNTRAINED):
            verdict.alarms += verdict.judged.alarms(model, [before])
    return verdict


def _known(scored: ScoredCorpus, tasks: Sequence[RerankingTask]) -> Callable[[Sequence[tuple[str, str]]], Any] | None:
    """A scorer as a function of the tasks' pairs, whose scores are kept in its store; None if it lacks some."""
    pairs = list(dict.fromkeys(pair for task in tasks for pair in task.pairs))
    scorer, store, ticker = scored.scorer, scored.store, Ticker(f"scoring with {scored.scorer.card.name}", "pairs")
    fill(store, scorer, [join_pair(*pair) for pair in pairs], text_pair_keys(pairs), progress=ticker)

    def numbers(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.asarray(store.read(store.rows(text_pair_keys(pairs)))[:, 0])

    if (store.rows(text_pair_keys(pairs)) < 0).any():
        logger.warning("%s lacks scores of pairs that students are judged by, and is not judged", scorer.card.name)
        return None
    return numbers
