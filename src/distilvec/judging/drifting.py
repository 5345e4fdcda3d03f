"""Drift between two corpora: whether they are the same kind of text to a model, and which texts are new."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distilvec.errors import DataError, DistilvecError
from distilvec.judging.bootstrap import all_alike
from distilvec.judging.encoder import CachedEncoder
from distilvec.judging.tasks import distinct, nearest_others, sampled, top_rows, unit

FEWEST = 20
#: From so many times the old texts' word pieces on, the model's vocabulary may be the difference.
MORE_PIECES = 1.1


@dataclass(frozen=True)
class Drift:
    """The distance of a corpus from another one.

    Attributes:
        old, new: different texts there are; a sample of each is compared.
        shared: texts that are in both.
        separability: area under the ROC curve of a linear classifier that tells the old texts from the new ones that
            are not among them, on texts it was not fitted on: 0.5 = they cannot be told apart, 1 = always.
        interval: 95 % interval of it over these texts (Hanley and McNeil 1982; of an area of 0 or 1 Clopper and
            Pearson's for the smaller side); 0 to 1 where fewer than 20 texts are new, as then nothing is fitted.
        novel: share of the new texts that are further from their nearest old text than 95 % of the old texts are from
            theirs. 0.05 where nothing changed.
        pieces: word pieces per 100 characters, of the old and of the new texts; None where the model has no tokenizer.
        examples: the most novel texts, each with its nearest old one and their cosine, worst first.
    """

    old: int
    new: int
    shared: int
    separability: float
    interval: tuple[float, float]
    novel: float
    pieces: tuple[float, float] | None = None
    examples: list[tuple[str, str, float]] = field(default_factory=list)

    def sentence(self) -> str:
        fresh = self.new - self.shared
        if not fresh:
            return "No drift: all new texts are among the old ones."
        if fresh < FEWEST:
            return f"Only {fresh} of {self.new:,} new texts are not among the old ones, too few to test. Look at them."
        if self.interval[0] <= 0.5:
            return f"No drift is shown: a classifier cannot tell {self._what()} from the old ones."
        size = "slightly" if self.separability < 0.65 else "clearly" if self.separability < 0.9 else "entirely"
        return (
            f"The corpora differ {size}: a classifier tells {self._what()} from the old ones with an area of "
            f"{self.separability:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f}; 0.5 = not at all), and "
            f"{100 * self.novel:.0f} % of all new texts are further from the old ones than all but 5 % of these are "
            f"from each other.{self._of_the_model()}"
        )

    def _what(self) -> str:
        if not self.shared:
            return "the new texts"
        return f"the {100 * (1 - self.shared / self.new):.0f} % of the new texts that are not among the old ones"

    def _of_the_model(self) -> str:
        """Tell whether the difference may be the model's own doing."""
        if self.pieces is None or self.pieces[1] < MORE_PIECES * self.pieces[0]:
            return ""
        more = 100 * (self.pieces[1] / self.pieces[0] - 1)
        return (
            f" But this model cuts the new texts into {more:.0f} % more word pieces than the old ones. If its "
            "vocabulary was cut to texts like the old ones, that alone can tell the two apart: ask its teacher."
        )


def drift(
    model: Any, old: Sequence[str], new: Sequence[str], *, sample: int = 5_000, count: int = 10, seed: int = 0
) -> Drift:
    """Compare two corpora in a model's space.

    The test is a classifier two-sample test (Lopez-Paz and Oquab 2017, arXiv:1610.06545) with a logistic regression on
    unit vectors, fitted on one half and asked about the other. A small classifier's area far from 0.5 says that the
    difference is one that the model sees; it does not say that a student trained on the old texts is worse on the new
    ones. `judge` it on both for that.

    Args:
        model: whatever `CachedEncoder` takes.
        old, new: texts; equal ones are one. New texts that are among the old ones are counted, and not compared.
        sample: a seeded sample of so many of each; 20 at least.

    Raises:
        DataError: fewer than 20 different texts on a side.
        DistilvecError: a sample of fewer.
    """
    if sample < FEWEST:
        raise DistilvecError(f"a sample of {sample} texts says nothing", where="sample", remedy=f"At least {FEWEST}.")
    before, after = _texts(old, "old"), _texts(new, "new")
    known = set(before)
    fresh = [text for text in after if text not in known]
    shared = len(after) - len(fresh)
    if len(before) < FEWEST or len(after) < FEWEST:
        raise DataError(f"{len(before)} and {len(after)} different texts are too few to compare, {FEWEST} are needed")
    if not fresh:
        return Drift(len(before), len(after), shared, 0.5, (0.0, 1.0), 0.0)
    generator, total = np.random.default_rng(seed), len(before)
    before, fresh = sampled(before, sample, generator), sampled(fresh, sample, generator)
    encode = CachedEncoder.of(model)
    left, right = unit(encode(before)), unit(encode(fresh))
    area, interval = 0.5, (0.0, 1.0)
    if len(fresh) >= FEWEST:
        area, interval = _area(left, right, seed)
    among = (left * left[nearest_others(left, left, 1)[:, 0]]).sum(1)
    rows = top_rows(right, left, 1)[:, 0]
    cosines = (right * left[rows]).sum(1)
    novel = float(((1 - cosines) > np.quantile(1 - among, 0.95)).mean())
    worst = np.argsort(cosines, kind="stable")[:count]
    examples = [(fresh[i], before[rows[i]], float(cosines[i])) for i in worst]
    # Texts in both are neither new nor different: they count as not novel.
    novel *= 1 - shared / len(after)
    return Drift(total, len(after), shared, area, interval, novel, _pieces(model, before, fresh), examples)


def _texts(given: Iterable[Any], name: str) -> list[str]:
    """Different texts, in order; read once, as a generator gives them once."""
    found = distinct(given)
    wrong = [given] if isinstance(given, str) else [each for each in found if not isinstance(each, str)]
    if wrong:
        raise DistilvecError(f"a list of texts is needed, not {str(wrong[0])[:60]!r}", where=name)
    return found


def _pieces(model: Any, *sides: Sequence[str]) -> tuple[float, float] | None:
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not hasattr(tokenizer, "backend_tokenizer"):
        return None
    rates = []
    for texts in sides:
        ids = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        rates.append(100 * sum(map(len, ids)) / max(1, sum(map(len, texts))))
    return rates[0], rates[1]


def _area(left: Any, right: Any, seed: int) -> tuple[float, tuple[float, float]]:
    """Area under the curve of texts that the classifier was not fitted on, and its interval.

    One half fits, the other is scored: scores of several folds would share what they were fitted on, and the formula of
    the interval is for independent ones.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    features = np.concatenate([left, right])
    labels = np.repeat([0, 1], [len(left), len(right)])
    fitted, scored, known, asked = train_test_split(features, labels, test_size=0.5, stratify=labels, random_state=seed)
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=1000).fit(fitted, known)
    area = float(roc_auc_score(asked, model.decision_function(scored)))
    new = int(asked.sum())
    return area, _interval(area, len(asked) - new, new)


def _interval(area: float, old: int, new: int) -> tuple[float, float]:
    """Return the interval by Hanley and McNeil's standard error of an area, which knows none where it is 0 or 1."""
    if area in (0.0, 1.0):
        return all_alike(area, min(old, new), 0.0, 1.0)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + (new - 1) * (q1 - area**2) + (old - 1) * (q2 - area**2)) / (old * new)
    half = 1.96 * float(np.sqrt(max(variance, 0.0)))
    return max(area - half, 0.0), min(area + half, 1.0)
