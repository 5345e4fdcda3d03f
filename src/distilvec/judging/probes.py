"""Probes: a small model fitted on frozen embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.judging.encoder import Encode
from distilvec.judging.metrics import measure
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import Task, distinct, same_length

PROTOCOLS = ("talas", "tuned")
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
Columns = tuple[Sequence[str], Sequence[Any]]


class _Probe(Task):
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
        texts, answers = list(train[0]), list(train[1])
        self.train_rows = len(texts)
        if max_train is not None and max_train < len(texts):
            rows = np.sort(np.random.default_rng(seed).choice(len(texts), max_train, replace=False))
            texts, answers = [texts[row] for row in rows], [answers[row] for row in rows]
        self._train_texts, self._train_answers = texts, answers
        self._test_texts, self._test_answers = list(test[0]), list(test[1])
        self._validation = None
        if protocol == "tuned":
            self._validation = (list(validation[0]), list(validation[1])) if validation else None

    def texts(self) -> list[str]:
        return distinct(self._train_texts, self._test_texts, self._validation[0] if self._validation else [])

    def test_items(self) -> list[tuple[str, ...]]:
        return [(text,) for text in self._test_texts]

    def _vectors(self, encode: Encode) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
        held = self._validation[0] if self._validation else []
        vectors = encode(self._train_texts + self._test_texts + held)
        train, test = len(self._train_texts), len(self._train_texts) + len(self._test_texts)
        return vectors[:train], vectors[train:test], vectors[test:] if held else None

    def _split(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """A seeded tenth of the training rows for choosing, and the rest."""
        order = np.random.default_rng(self.seed + 1).permutation(len(self._train_texts))
        held = max(1, len(order) // 10)
        return order[held:], order[:held]


class ClassificationTask(_Probe):
    """Logistic regression on frozen embeddings; macro-F1, with accuracy in the details.

    `protocol="talas"` is TALAS's evaluation: C = 1, lbfgs, at most 200 iterations, features as they are.
    `protocol="tuned"` standardises the features and takes the C of 0.01, 0.1, 1, 10, 100 with the best
    validation macro-F1 (a seeded tenth of the training rows where no validation split is given; then it is
    fitted again on all of them).

    Args:
        name: unique name.
        train, test, validation: (texts, labels) each; labels are compared as text, so that 1 equals "1".
        protocol: "talas" or "tuned".
        max_train: cap on training rows, a seeded sample.
    """

    kind: ClassVar[str] = "classification"

    def __init__(self, name: str, train: Columns, test: Columns, validation: Columns | None = None, **options: Any):
        super().__init__(name, train, test, validation, **options)
        held = self._validation[1] if self._validation else []
        names = [str(answer) for answer in self._train_answers + self._test_answers + held]
        self.label_names, codes = np.unique(np.array(names), return_inverse=True)
        cut = np.cumsum([len(self._train_answers), len(self._test_answers)])
        self._train, self._test, self._held = np.split(codes.astype(np.int32), cut)
        if len(np.unique(self._train)) < 2:
            raise DataError("the training rows have only one class", where=f"task {name}")

    def score(self, encode: Encode) -> Score:
        train, test, held = self._vectors(encode)
        details: dict[str, Any] = {"protocol": self.protocol, "train_rows": len(train)}
        if self.protocol == "tuned":
            predicted = self._tuned(train, test, held, details)
        else:
            probe = _logistic(1.0)
            predicted = _fit(probe, train, self._train).predict(test)
            details["converged"] = bool(np.max(probe.n_iter_) < probe.max_iter)
        predicted = predicted.astype(np.int32)
        details["accuracy"] = measure("accuracy", self._test, predicted)
        return self._scored(Outputs("macro_f1", self._test, predicted), details)

    def _tuned(
        self,
        train: npt.NDArray[Any],
        test: npt.NDArray[Any],
        held: npt.NDArray[Any] | None,
        details: dict[str, Any],
    ) -> npt.NDArray[Any]:
        shift, scale = train.mean(axis=0), train.std(axis=0)
        scale = np.where(scale > 1e-8, scale, 1.0)
        train, test = (train - shift) / scale, (test - shift) / scale
        labels, held_labels, fitted = self._train, self._held, train
        if held is None:
            rest, chosen = self._split()
            fitted, labels = train[rest], self._train[rest]
            held, held_labels = train[chosen], self._train[chosen]
            if len(np.unique(labels)) < 2:
                raise DataError("too few training rows to choose C", where=f"task {self.name}")
        else:
            held = (held - shift) / scale
        probe = _logistic(STRENGTHS[0], warm_start=True)
        found: list[float] = []
        for strength in STRENGTHS:
            _fit(probe.set_params(C=strength), fitted, labels)
            found.append(measure("macro_f1", held_labels, probe.predict(held)))
        best = int(np.argmax(found))
        details |= {"C": STRENGTHS[best], "validation_macro_f1": found[best]}
        return np.asarray(_fit(_logistic(STRENGTHS[best]), train, self._train).predict(test))


class RegressionTask(_Probe):
    """Ridge regression on frozen, standardised embeddings; R2, with Spearman in the details.

    The penalty is 0.01 times the number of rows; with `protocol="tuned"` the best on validation among 1e-4 to
    1 times that number.

    Args:
        name: unique name.
        train, test, validation: (texts, numbers) each.
    """

    kind: ClassVar[str] = "regression"

    def __init__(self, name: str, train: Columns, test: Columns, validation: Columns | None = None, **options: Any):
        super().__init__(name, train, test, validation, **options)
        self._train = numbers(name, self._train_answers)
        self._test = numbers(name, self._test_answers)
        self._held = numbers(name, self._validation[1]) if self._validation else None

    def score(self, encode: Encode) -> Score:
        train, test, held = self._vectors(encode)
        shift, scale = train.mean(axis=0), train.std(axis=0)
        scale = np.where(scale > 1e-8, scale, 1.0)
        train, test = (train - shift) / scale, (test - shift) / scale
        share = 1e-2
        details: dict[str, Any] = {"protocol": self.protocol, "train_rows": len(train)}
        if self.protocol == "tuned":
            fitted, answers, truth = train, self._train, self._held
            if held is None:
                rest, chosen = self._split()
                fitted, answers = train[rest], self._train[rest]
                held, truth = train[chosen], self._train[chosen]
            else:
                held = (held - shift) / scale
            shares = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
            errors = [float(np.square(_ridge(fitted, answers, held, s) - truth).mean()) for s in shares]
            share = shares[int(np.argmin(errors))]
        predicted = _ridge(train, self._train, test, share).astype(np.float32)
        details |= {"penalty_per_row": share, "spearman": measure("spearman", self._test, predicted)}
        return self._scored(Outputs("r2", self._test, predicted), details)


def numbers(name: str, answers: Sequence[Any]) -> npt.NDArray[np.float32]:
    """A column of finite numbers.

    Raises:
        DataError: one is none.
    """
    try:
        found = np.asarray([float(answer) for answer in answers], dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"a target is not a number ({error})", where=f"task {name}") from error
    if not np.isfinite(found).all():
        raise DataError("a target is not a finite number", where=f"task {name}")
    return found


def _logistic(strength: float, warm_start: bool = False) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, solver="lbfgs", max_iter=200, random_state=42, warm_start=warm_start)


def _fit(probe: Any, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # 200 iterations are the protocol; whether they sufficed is in the details.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return probe.fit(features, labels)


def _ridge(
    features: npt.NDArray[Any], answers: npt.NDArray[Any], test: npt.NDArray[Any], share: float
) -> npt.NDArray[Any]:
    from sklearn.linear_model import Ridge

    return np.asarray(Ridge(alpha=share * len(features)).fit(features, answers).predict(test))
