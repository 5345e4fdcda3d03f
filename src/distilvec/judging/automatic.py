"""Tasks made of the corpus itself, for a run whose recipe names none.

A label column gives a probe on the held-out texts, a domain column another; pairs give the search for the positive
by the anchor and, where they have scores, similarity. Everything is scored on held-out items; only the probes are
fitted on training texts.
"""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.corpus.keys import PAIR, content_keys, first_of_equal
from distilvec.corpus.lazy import LazyTexts
from distilvec.corpus.split import leaking
from distilvec.evenly import sampled_rows
from distilvec.judging.tasks import JudgingTask

if TYPE_CHECKING:
    from distilvec.corpus import Corpus

logger = logging.getLogger(__name__)

#: Fewer held-out items say nothing; more probe rows cost time and change little.
FEWEST, MOST_TRAIN, MOST_TEST = 20, 5_000, 5_000
#: What all of these tasks are asked about.
ITEMS = "held-out items"
#: A probe over nearly as many classes as texts says nothing either.
MOST_CLASSES = 200


def automatic_tasks(corpus: Corpus, task: str | None = None) -> list[JudgingTask]:
    """The tasks that a corpus allows; none where it has texts only, or fewer than 20 held-out items.

    Pairs with labels: whole numbers 0 and 1 say whether the two are alike (average precision), other numbers how
    much (Spearman). Retrieval then takes as right only the pairs in the upper quarter of the scale. Classes say nothing
    on how alike a pair is, whether they have names or codes: such pairs give no task from their label.

    Args:
        task: kind of the supervised task that learns these labels, if any: those of `pairs` are classes, those of
            `similarity` are not.
    """
    possible: list[JudgingTask | None] = []
    if corpus.groups is not None and corpus.roles is not None:
        possible += _pair_tasks(corpus, task)
    elif corpus.labels is not None:
        possible.append(_label_probe(corpus))
    if corpus.domains is not None and not corpus.parted:
        names = corpus.domain_names or []
        possible.append(_probe("domain", corpus, corpus.domains, names or None))
    tasks = [each for each in possible if each is not None]
    for each in tasks:
        each.items = ITEMS
    if tasks:
        logger.info("tasks made of the corpus: %s", ", ".join(f"{task.name} ({task.kind})" for task in tasks))
    else:
        logger.info("the corpus has no labels or pairs to make tasks of: evaluating agreement with the teacher only")
    return tasks


def named_or_automatic(recipe: Any, corpus: Corpus, named: list[JudgingTask]) -> list[JudgingTask]:
    return named or automatic_tasks(corpus, recipe.task.kind if recipe.task else None)


def halves(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """The corpus twice, each with another half of the held-out items.

    A pair's texts stay together, and all pairs of one first text. What then is on both sides leaves the first one.
    """
    rows = np.asarray(corpus.holdout_rows)
    whole = rows if corpus.groups is None else np.asarray(corpus.groups)[rows]
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    keys = _text_keys(corpus, rows)
    same = first_of_equal(keys, first)
    known, numbers = np.unique(same[place], return_inverse=True)
    second = np.random.default_rng(0).permutation(len(known))[numbers] % 2 == 1
    one, other = copy.copy(corpus), copy.copy(corpus)
    left, right = np.flatnonzero(~second), np.flatnonzero(second)
    one.holdout_rows, other.holdout_rows = rows[left[~leaking(keys, right, left)]], rows[right]
    return one, other


def _text_keys(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Keys uint8 [n, 16] by which items are equal whatever their prompt, role or, of joint pairs, second text is."""
    roles = corpus.roles is not None and corpus.groups is None
    if not corpus.kind.folded and not roles:  # their keys say the same, and images would be read again
        return np.asarray(corpus.keys[rows])
    texts = LazyTexts(corpus.bare, rows)
    return content_keys((text.partition(PAIR)[0] for text in texts), modality=corpus.modality)


def _label_probe(corpus: Corpus) -> JudgingTask | None:
    labels = corpus.labels
    assert labels is not None
    # A gap among whole numbers makes frames and files spell them with a fraction: they are classes all the same.
    few = bool((labels == np.round(labels)).all()) and len(np.unique(labels)) <= MOST_CLASSES
    if corpus.label_names is not None or few:
        return _probe("label", corpus, labels.astype(np.int64), corpus.label_names)
    train, test = sampled_rows(corpus.train_rows, MOST_TRAIN), sampled_rows(corpus.holdout_rows, MOST_TEST)
    if len(test) < FEWEST or float(np.ptp(labels[test])) == 0:
        return None
    from distilvec.judging.probes import RegressionTask

    fitted, scored = ((corpus.texts(rows), labels[rows].tolist()) for rows in (train, test))
    return RegressionTask("label", fitted, scored, protocol="tuned", domain="in")


def _probe(name: str, corpus: Corpus, codes: np.ndarray, names: list[str] | None) -> JudgingTask | None:
    held_out = np.asarray(corpus.holdout_rows)
    if corpus.roles is not None:  # what answers an anchor says much the same: it is no item of its own
        held_out = held_out[np.asarray(corpus.roles)[held_out] == 0]
    train, test = sampled_rows(corpus.train_rows, MOST_TRAIN), sampled_rows(held_out, MOST_TEST)
    classes = np.unique(codes[train])
    test = test[np.isin(codes[test], classes)]  # a class that was never seen in training cannot be told
    if len(test) < FEWEST or not 2 <= len(classes) <= MOST_CLASSES or len(np.unique(codes[test])) < 2:
        return None
    from distilvec.judging.probes import ClassificationTask

    def columns(rows: np.ndarray) -> tuple[list[str], list[Any]]:
        return corpus.texts(rows), [names[code] if names else int(code) for code in codes[rows]]

    return ClassificationTask(name, columns(train), columns(test), protocol="tuned", domain="in")


def _pair_tasks(corpus: Corpus, task: str | None) -> list[JudgingTask | None]:
    from distilvec.judging.retrieval import RetrievalTask
    from distilvec.judging.similarity import PairTask, SimilarityTask

    anchors, positives = held_out_pairs(corpus)
    if len(anchors) < FEWEST:
        return []
    left, right = corpus.texts(anchors), corpus.texts(positives)
    begin = (corpus.prompts["query"], corpus.prompts["document"]) if corpus.prompts else None
    tasks: list[JudgingTask | None] = []
    if corpus.labels is not None:
        if corpus.label_names is not None or _codes(corpus.labels, task):
            return []
        scores = corpus.labels[anchors].astype(np.float64)
        if set(np.unique(scores)) == {0.0, 1.0}:
            tasks.append(PairTask("pairs", left, right, (scores == 1).tolist(), domain="in"))
        elif np.ptp(scores):
            tasks.append(SimilarityTask("similarity", left, right, scores.tolist(), domain="in"))
    right_ones = np.flatnonzero(answering(corpus, anchors)).tolist()
    if len(right_ones) >= FEWEST:
        chosen = [left[row] for row in right_ones], [right[row] for row in right_ones]
        tasks.append(RetrievalTask.from_pairs("retrieval", *chosen, domain="in", begin=begin))
    return tasks


def answering(corpus: Corpus, anchors: np.ndarray) -> np.ndarray:
    """Tell which pairs are an anchor and its answer: all without labels, else those in the upper quarter of the scale.

    Args:
        anchors: rows of the pairs' first texts.
    """
    if corpus.labels is None or corpus.label_names is not None or not len(anchors):
        return np.full(len(anchors), corpus.labels is None)
    scores = corpus.labels[anchors].astype(np.float64)
    low, high = float(scores.min()), float(scores.max())
    if low == high < corpus.labels.max():  # none of these pairs is alike
        return np.zeros(len(anchors), bool)
    return np.asarray(scores >= low + 0.75 * (high - low))


def _codes(labels: np.ndarray, task: str | None) -> bool:
    """Tell whether numbers on pairs are class codes, as the 0, 1 and 2 of entailment, and not degrees of similarity."""
    values = np.unique(labels).tolist()
    if task == "similarity" or values == [0, 1]:
        return False
    # Of an unknown scale: so few steps, or one below nothing, are likely codes, by which a better model looks worse.
    few = all(value == round(value) for value in values) and (len(values) <= 3 or values[0] < 0)
    if few and task is None:
        shown = ", ".join(f"{value:g}" for value in values[:5])
        logger.warning(
            "the labels of the pairs (%s) may be classes, so nothing is judged by them; where a larger one means more "
            "alike, name a task of kind similarity under judging.tasks",
            shown,
        )
    return few or task == "pairs"


def held_out_pairs(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the anchors and of their (first) positives among the held-out groups."""
    rows = np.asarray(corpus.holdout_rows)
    assert corpus.groups is not None and corpus.roles is not None
    groups, roles = np.asarray(corpus.groups)[rows], np.asarray(corpus.roles)[rows]
    anchor_groups, first_anchor = np.unique(groups[roles == 0], return_index=True)
    positive_groups, first_positive = np.unique(groups[roles == 1], return_index=True)
    _, left, right = np.intersect1d(anchor_groups, positive_groups, assume_unique=True, return_indices=True)
    anchors = rows[roles == 0][first_anchor[left]]
    positives = rows[roles == 1][first_positive[right]]
    chosen = sampled_rows(np.arange(len(anchors)), MOST_TEST)
    return anchors[chosen], positives[chosen]
