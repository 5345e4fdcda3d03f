"""Probes: a small model fitted on frozen embeddings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import folded
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.judging.encoder import Encode
from distilvec.judging.metrics import measure
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import JudgingTask, distinct, known_items, same_length, sampled
from distilvec.tasks.labels import finite_numbers, plain_label

logger = logging.getLogger(__name__)
PROTOCOLS = ("talas", "tuned")
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
SHARES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the number of rows
#: Training rows that a strength is chosen on, where no validation split is given: in turns of a fifth each.
CHOSEN_ON = 500
TURNS = 5
Columns = tuple[Sequence[str], Sequence[Any]]
Rows = npt.NDArray[Any]
Split = tuple[Rows, Rows, Rows, Rows]
Predict = Callable[[Rows, Rows, Rows, float], Rows]
Quality = Callable[[Rows, Rows], float]


class _ProbeTask(JudgingTask):
    """Texts with a label or number each; train, test and perhaps validation."""

    def __init__(
        self,
        name: str,
        train: Columns,
        test: Columns,
        validation: Columns | None = None,
        *,
        protocol: str = "talas",
        max_train: int | None = None,
        domain: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, domain, seed)
        if protocol not in PROTOCOLS:
            raise DistilvecError(
                f'unknown protocol "{protocol}"', where=f"task {name}", remedy=nearest(protocol, PROTOCOLS)
            )
        for split, columns in (("train", train), ("test", test), ("validation", validation)):
            if columns is not None:
                same_length(name, **{f"{split} text": columns[0], f"{split} label": columns[1]})
        self.protocol = protocol
        rows = sampled(range(len(train[0])), max_train, np.random.default_rng(seed))
        self._train_texts, self._train_answers = ([column[row] for row in rows] for column in map(list, train))
        self._test_texts, self._test_answers = map(list, test)
        if protocol == "tuned" and validation is None and len(rows) < 2:
            raise DataError(f"{len(rows)} training rows cannot be split to choose a strength", where=f"task {name}")
        self.known = known_items(name, map(folded, self._train_texts), list(map(folded, self._test_texts)))
        if protocol != "tuned" and validation is not None:
            logger.warning(
                'task %s: nothing is chosen on its validation rows; `protocol: "tuned"` chooses the strength', name
            )
            validation = None
        self._held_texts, self._held_answers = map(list, validation or ((), ()))

    def texts(self) -> list[str]:
        return distinct(self._train_texts, self._test_texts, self._held_texts)

    def test_items(self) -> list[tuple[str, ...]]:
        return [(text,) for text in self._test_texts]

    def _details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"protocol": self.protocol, "train_rows": len(self._train_texts)}
        return details | ({"known": self.known} if self.known else {})

    def _parts(self, values: Any) -> list[Any]:
        """Return what stands for all texts or answers, as that of training, test and validation."""
        train, test = len(self._train_texts), len(self._train_texts) + len(self._test_texts)
        return [values[:train], values[train:test], values[test:]]

    def _vectors(self, encode: Encode) -> list[Rows]:
        return self._parts(encode(self._train_texts + self._test_texts + self._held_texts))

    def _turns(self) -> list[tuple[Rows, Rows]]:
        """(rows to fit, rows to score) of the folds that are scored; together these hold at least `CHOSEN_ON` rows."""
        order = np.random.default_rng(self.seed + 1).permutation(len(self._train_texts))
        fifths = [fifth for fifth in np.array_split(order, TURNS) if len(fifth)]
        count = -(-CHOSEN_ON // len(fifths[0]))
        return [(np.setdiff1d(order, fifth), fifth) for fifth in fifths[:count]]

    @staticmethod
    def _best(
        splits: Sequence[Split], tried: Sequence[float], predict: Predict, quality: Quality
    ) -> tuple[float, float]:
        """The setting by which what is judged of all splits is predicted best, and how well."""
        truth = np.concatenate([answers for *_, answers in splits])
        told = [np.concatenate([predict(x, y, left, each) for x, y, left, _ in splits]) for each in tried]
        values = [quality(truth, each) for each in told]
        best = int(np.argmax(values))
        return tried[best], values[best]

    def _splits(self, train: Rows, answers: Rows, held: Rows, truth: Rows) -> list[Split]:
        """Return what a strength is chosen on: features and answers to fit, features and answers to judge."""
        if len(held):
            return [(train, answers, held, truth)]
        return [(train[rest], answers[rest], train[part], answers[part]) for rest, part in self._turns()]


class ClassificationTask(_ProbeTask):
    """Logistic regression on frozen embeddings; macro-F1, with accuracy in the details.

    `protocol="talas"` is TALAS's evaluation: C = 1, lbfgs, at most 200 iterations, features as they are.
    `protocol="tuned"` standardises the features and takes the C of 0.01, 0.1, 1, 10, 100 with the best
    validation macro-F1. Where no validation split is given, five-fold cross-validation on the training rows stands in
    for it: one of the five folds is scored where there are 2,500 rows or more, otherwise as many folds as hold 500
    rows together. Then the probe is fitted again on all training rows.

    Args:
        train, test, validation: (texts, labels) each; labels are compared as text, so that 1 equals "1".
        protocol: "talas" or "tuned".
        max_train: cap on training rows, a seeded sample.
    """

    kind: ClassVar[str] = "classification"

    def __init__(self, name: str, train: Columns, test: Columns, validation: Columns | None = None, **options: Any):
        super().__init__(name, train, test, validation, **options)
        self.label_names, codes = class_codes(self._train_answers + self._test_answers + self._held_answers)
        self._train, self._test, self._held = self._parts(codes)
        if len(np.unique(self._train)) < 2:
            raise DataError(f'the training rows have only one class, "{self._train_answers[0]}"', where=f"task {name}")
        self.unknown = unknown_labels(name, (self._train, self._train_answers), (self._test, self._test_answers))

    def score(self, encode: Encode) -> Score:
        train, test, held = self._vectors(encode)
        details = self._details()
        if self.protocol == "tuned":
            predicted = self._tuned(train, test, held, details)
        else:
            probe = _logistic(1.0)
            predicted = _fit(probe, train, self._train).predict(test)
            details["converged"] = bool(np.max(probe.n_iter_) < probe.max_iter)
        predicted = predicted.astype(np.int32)
        details["accuracy"] = measure("accuracy", self._test, predicted)
        if self.unknown:
            details["unknown_labels"] = self.unknown
        return self._scored(Outputs("macro_f1", self._test, predicted), details)

    def _tuned(self, train: Rows, test: Rows, held: Rows, details: dict[str, Any]) -> Rows:
        # In float64: float32's noise decides when lbfgs stops, and so which strength looks best.
        train, test, held = _standardised(train, test, held)
        splits = [split for split in self._splits(train, self._train, held, self._held) if len(np.unique(split[1])) > 1]
        if not splits:
            raise DataError("too few training rows to choose C", where=f"task {self.name}")
        strength, score = self._best(splits, STRENGTHS, _classify, partial(measure, "macro_f1"))
        details |= {"C": strength, "validation_macro_f1": score}
        return _classify(train, self._train, test, strength)


class RegressionTask(_ProbeTask):
    """Ridge regression on frozen, standardised embeddings; R2, with Spearman in the details.

    The penalty is 0.01 times the number of rows; with `protocol="tuned"` the best on validation among 1e-4 to
    1 times that number.

    Args:
        train, test, validation: (texts, numbers) each.
    """

    kind: ClassVar[str] = "regression"

    def __init__(self, name: str, train: Columns, test: Columns, validation: Columns | None = None, **options: Any):
        super().__init__(name, train, test, validation, **options)
        columns = (self._train_answers, self._test_answers, self._held_answers)
        self._train, self._test, self._held = (finite_numbers(column, f"task {name}") for column in columns)
        if np.ptp(self._test) == 0:
            raise DataError("all test rows have one number, which nothing can be told apart by", where=f"task {name}")

    def score(self, encode: Encode) -> Score:
        train, test, held = _standardised(*self._vectors(encode))
        share = 1e-2
        details = self._details()
        if self.protocol == "tuned":
            splits = self._splits(train, self._train, held, self._held)
            share, _ = self._best(splits, SHARES, _ridge, lambda truth, told: -float(np.square(told - truth).mean()))
        predicted = _ridge(train, self._train, test, share)
        details |= {"penalty_per_row": share, "spearman": measure("spearman", self._test, predicted)}
        return self._scored(Outputs("r2", self._test, predicted), details)


def class_codes(labels: Sequence[Any]) -> tuple[Rows, Rows]:
    """The classes, each as it is spelt first, sorted; and the code of each label, int32 [n]."""
    plain = [plain_label(label) for label in labels]
    spelt = {key: str(label) for key, label in zip(reversed(plain), reversed(labels), strict=True)}
    names, codes = np.unique(np.array([spelt[key] for key in plain]), return_inverse=True)
    return names, codes.astype(np.int32)


def unknown_labels(name: str, train: tuple[Rows, Sequence[Any]], test: tuple[Rows, Sequence[Any]]) -> int:
    """Return how many test rows have a label that no training row has, and no probe can give.

    Args:
        train, test: codes, and the labels as they were given.

    Raises:
        DataError: all of them.
    """
    known = np.isin(test[0], train[0])
    if len(known) and not known.any():
        raise DataError(
            f'none of the test rows has a label of the training rows, but such as "{test[1][0]}"',
            where=f"task {name}",
            remedy=f'The training rows have such as "{train[1][0]}".',
        )
    return int((~known).sum())


def _standardised(train: Rows, *others: Rows) -> list[Rows]:
    """All by the means and deviations of the training rows, in float64."""
    train = train.astype(np.float64)
    shift, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 1e-8, scale, 1.0)
    return [(rows - shift) / scale for rows in (train, *others)]


def _logistic(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, solver="lbfgs", max_iter=200, random_state=42)


def _fit(probe: Any, features: Rows, labels: Rows) -> Any:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # 200 iterations are the protocol; whether they sufficed is in the details.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="The number of unique classes")  # few rows, for which it is no news
        return probe.fit(features, labels)


def _classify(features: Rows, labels: Rows, test: Rows, strength: float) -> Rows:
    return np.asarray(_fit(_logistic(strength), features, labels).predict(test))


def _ridge(features: Rows, answers: Rows, test: Rows, share: float) -> Rows:
    from sklearn.linear_model import Ridge

    return np.asarray(Ridge(alpha=share * len(features)).fit(features, answers).predict(test))
