"""The probe of images and molecules: a perceptron with one hidden layer on frozen embeddings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.judging.encoder import Encode
from distilvec.judging.metrics import measure
from distilvec.judging.perceptron_fit import Parts, PerceptronSettings, Target, fit_perceptrons
from distilvec.judging.probe_items import identity
from distilvec.judging.probes import Columns, class_codes, unknown_labels
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import JudgingTask, distinct, known_items, same_length
from distilvec.tasks.labels import finite_numbers

logger = logging.getLogger(__name__)
__all__ = ["IMAGES", "MOLECULES", "PerceptronSettings", "PerceptronTask", "disagreement"]

METRIC: dict[str, str] = {"classification": "accuracy", "binary": "auroc", "regression": "r2"}
_FEWEST = 10


MOLECULES = PerceptronSettings()
# The paper gives no number of epochs for this probe; its 50 are those of distillation.
IMAGES = PerceptronSettings(hidden=None, activation="leaky_relu", optimizer="sgd", weight_decay=1e-4, epochs=50)


def _check_arguments(name: str, target: str, seeds: Sequence[int]) -> None:
    if target not in METRIC:
        raise DistilvecError(f'unknown target "{target}"', where=f"task {name}", remedy=nearest(target, METRIC))
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise DistilvecError(f"seeds are different whole numbers from 0, not {list(seeds)}", where=f"task {name}")


class PerceptronTask(JudgingTask):
    """A perceptron on frozen embeddings, fitted with several seeds; the value is the mean over the seeds.

    The metric is accuracy for `classification`, the area under the ROC curve for `binary` and R2 for `regression`.
    Features (and numbers to be predicted) are standardised on the training items; the weights of the epoch with the
    lowest validation loss are kept. Without test items every seed draws its own split: 70 % training, 10 %
    validation, 20 % test, not stratified. With test items and no validation items every seed holds out a tenth of
    the training items. A seed whose training or test part has one class (or one number) is left out, and `skipped`
    says why.

    Args:
        train: (items, labels or numbers); all items where `test` is not given.
        test, validation: the same, for a split that is given.
        target: `classification` and `binary` compare labels as text, so that 1 equals "1"; of the two labels of
            `binary` the later one in alphabetical order is positive.
        log: regression on the natural logarithm of the numbers, which have to be positive; R2 is that of logarithms.
        seeds: of splits, start weights and orders, all different.
        settings: of the fit; `MOLECULES` or `IMAGES` are after the many-teachers paper.
        rejected: reason -> number of rows that were left out before, for the score's details.
        contents: digests of items that are names of files, whose content may change.
        identities: what equal items share where these can be written in several ways; none = the items as they are.
        seed: of the bootstrap's draws.

    Raises:
        DistilvecError: an argument is outside its range.
        DataError: a label or number cannot be used, or every seed is left out.

    Source: the many-teachers paper, probes of its experiments on images and molecules.
    """

    kind: ClassVar[str] = "classification"

    def __init__(
        self,
        name: str,
        train: Columns,
        test: Columns | None = None,
        validation: Columns | None = None,
        *,
        target: Target = "classification",
        log: bool = False,
        seeds: Sequence[int] = (0, 1, 2, 3, 4),
        settings: PerceptronSettings = MOLECULES,
        rejected: Mapping[str, int] | None = None,
        contents: Sequence[str] = (),
        identities: Sequence[str] = (),
        domain: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, domain, seed)
        _check_arguments(name, target, seeds)
        if validation is not None and test is None:
            raise DistilvecError("validation items need test items", where=f"task {name}")
        if target == "regression":
            self.kind = "regression"  # type: ignore[misc]  # of this task, not of the class
        self.target: Target = target
        self.log, self.settings, self.rejected = log, settings, dict(rejected or {})
        given = [columns for columns in (train, test, validation) if columns is not None]
        for part, columns in zip(("train", "test", "validation"), given, strict=False):
            same_length(name, **{f"{part} item": columns[0], f"{part} answer": columns[1]})
        self._contents = list(contents)  # read by `content_digest` alone
        self._items = [item for columns in given for item in columns[0]]
        self._answers, self.label_names = self._read([answer for columns in given for answer in columns[1]])
        sizes = [len(columns[0]) for columns in given]
        if sizes[0] < _FEWEST:
            raise DataError(f"{sizes[0]} items are too few for a probe", where=f"task {name}")
        self.unknown = 0
        if len(sizes) > 1 and target == "classification":
            codes = np.split(self._answers, np.cumsum(sizes)[:-1])
            self.unknown = unknown_labels(name, (codes[0], train[1]), (codes[1], given[1][1]))
        self._identities = list(identities) if len(identities) == len(self._items) else []
        named = self._identities or self._items
        self.known = known_items(name, named[: sizes[0]], named[sizes[0] :][: sizes[1]]) if len(sizes) > 1 else 0
        self.repeated = sizes[0] - len(set(named[: sizes[0]])) if len(sizes) == 1 else 0
        if self.repeated:
            logger.warning(
                "task %s: %d of %d items are there before; where one is trained on and the other tested, the score "
                "flatters. Remove them, or give a test file.",
                name,
                self.repeated,
                sizes[0],
            )
        splits = {one: _split(sizes, one) for one in seeds}
        reasons = {one: self._unusable(split) for one, split in splits.items()}
        self.skipped = {one: reason for one, reason in reasons.items() if reason}
        self.seeds = tuple(one for one in seeds if one not in self.skipped)
        if not self.seeds:
            raise DataError(f"no seed can be used: {self.skipped[seeds[0]]}", where=f"task {name}")
        self._parts = Parts(*(np.stack([splits[one][kind] for one in self.seeds]) for kind in range(3)))
        self._tested = np.unique(self._parts.test)

    def texts(self) -> list[str]:
        return distinct(self._items)

    def test_items(self) -> list[tuple[str, ...]]:
        """Those that are in the test part of at least one seed."""
        return [(self._items[row],) for row in self._tested]

    def keep(self, texts: Iterable[str]) -> npt.NDArray[np.bool_]:
        """As for every task; of images and molecules that were read as such, however the same one is written."""
        if not self._identities:
            return super().keep(texts)
        images = bool(self._contents)
        seen = {identity(text, Path(), images=images) for text in texts}
        return np.array([self._identities[row] not in seen for row in self._tested], dtype=bool)

    def score(self, encode: Encode) -> Score:
        """Its outputs hold for each seed class codes, logits or numbers, and NaN for items it was not tested on."""
        features = np.asarray(encode(self._items), dtype=np.float32)
        fitted = fit_perceptrons(
            features,
            self._answers,
            self._parts,
            self.seeds,
            target=self.target,
            width=len(self.label_names) if self.target == "classification" else 1,
            settings=self.settings,
        )
        on_test = fitted.outputs.argmax(-1) if self.target == "classification" else fitted.outputs[..., 0]
        predicted = np.full((len(self.seeds), len(self._items)), np.nan, dtype=np.float32)
        np.put_along_axis(predicted, self._parts.test, on_test.astype(np.float32), axis=1)
        outputs = Outputs(METRIC[self.target], self._answers[self._tested], predicted[:, self._tested])
        values = [measure(outputs.metric, outputs.truth, row[None]) for row in outputs.predicted]
        details: dict[str, Any] = {
            "seeds": list(self.seeds),
            "values": values,
            "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "epochs": self.settings.epochs_for(sum(part.shape[1] for part in self._parts)),
            "best_epochs": fitted.best_epoch,
            "train_rows": self._parts.train.shape[1],
            "skipped": {str(key): reason for key, reason in self.skipped.items()},
            "rejected": self.rejected,
            **({"repeated": self.repeated} if self.repeated else {}),
            **({"known": self.known} if self.known else {}),
            **({"unknown_labels": self.unknown} if self.unknown else {}),
        }
        return self._scored(outputs, details)

    def _read(self, answers: list[Any]) -> tuple[npt.NDArray[Any], list[str]]:
        """Class codes int32, 0 or 1 float32, or numbers float32; and the labels in the order of their codes."""
        if self.target == "regression":
            values = finite_numbers(answers, f"task {self.name}")
            if self.log and not (values > 0).all():
                raise DataError(f"{values.min():g} has no logarithm", where=f"task {self.name}")
            return (np.log(values) if self.log else values).astype(np.float32), []
        names, codes = class_codes(answers)
        if self.target == "classification":
            return codes, names.tolist()
        if len(names) != 2:
            shown = ", ".join(names[:5])
            raise DataError(f"two labels were expected, not {len(names)} ({shown})", where=f"task {self.name}")
        return codes.astype(np.float32), names.tolist()

    def _unusable(self, split: tuple[npt.NDArray[np.int64], ...]) -> str | None:
        for part, rows in (("training", split[0]), ("test", split[2])):
            # Accuracy is one of one class, too; what is left out is what has no value.
            if (part == "training" or self.target != "classification") and len(np.unique(self._answers[rows])) < 2:
                return f"all {part} items have the same answer"
        return None


def disagreement(a: Score, b: Score) -> float:
    """The share of test items on which the predictions of two probes differ, in [0, 1]; mean over the seeds.

    Probes of the same seed are compared: they were tested on the same items.

    Args:
        a, b: scores of one task, `classification` or `binary`, by two models.

    Raises:
        DataError: scores of different items, of a regression, or without per-item results.

    Source: the many-teachers paper, equation 1.
    """
    if a.outputs is None or b.outputs is None:
        raise DataError("this score has outputs=None, no per-item results", where=f"task {a.task}")
    if a.outputs.metric not in ("accuracy", "auroc") or a.outputs.metric != b.outputs.metric:
        metrics = f"{a.outputs.metric} and {b.outputs.metric}"
        raise DataError(f"only probes that choose a class can disagree, not {metrics}", where=f"task {a.task}")
    left, right = np.atleast_2d(a.outputs.predicted), np.atleast_2d(b.outputs.predicted)
    there = np.isfinite(left)
    same_items = left.shape == right.shape and np.array_equal(there, np.isfinite(right))
    if not same_items or not np.array_equal(a.outputs.truth, b.outputs.truth):
        shapes = f"{list(left.shape)} and {list(right.shape)}"
        raise DataError(f"the two scores are not about the same test items ({shapes})", where=f"task {a.task}")
    if a.outputs.metric == "auroc":  # logits: the positive class is above 0
        left, right = left > 0, right > 0
    different = (left != right) & there
    return float((different.sum(axis=1) / there.sum(axis=1)).mean())


def _split(sizes: Sequence[int], seed: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Rows for training, validation and test; the items lie one part behind the other where sizes has several."""
    order = np.random.default_rng([seed, 0]).permutation(sizes[0])
    if len(sizes) == 1:
        test, held = round(sizes[0] * 0.2), round(sizes[0] * 0.1)
        return order[test + held :], order[test : test + held], order[:test]
    test_rows = sizes[0] + np.arange(sizes[1])
    if len(sizes) == 2:
        held = max(1, sizes[0] // 10)
        return order[held:], order[:held], test_rows
    return order, sizes[0] + sizes[1] + np.arange(sizes[2]), test_rows
