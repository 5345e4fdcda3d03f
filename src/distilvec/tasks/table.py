"""The table of tasks, and how one is made for a corpus. A task is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.task_head import Encoding, TaskHead
from distilvec.tasks.base import Task
from distilvec.tasks.classification import Classification, PairClassification
from distilvec.tasks.generation import Generation
from distilvec.tasks.section import TaskSection
from distilvec.tasks.similarity import SimilarityRegression

TABLE: dict[str, type[Task]] = {
    task.kind: task for task in (Classification, PairClassification, SimilarityRegression, Generation)
}


def build_task(
    section: TaskSection, width: int, labels: np.ndarray | None, label_names: Sequence[str] | None = None
) -> Task:
    """The task of a recipe, with a fresh head for a student of this width.

    Args:
        width: d of the student's sentence vectors.
        labels: [n], all labels of the corpus: class codes, whole numbers or scores; None where it has none.
        label_names: of the class codes; None where labels are numbers.

    Raises:
        DistilvecError: a task without a label column, or labels that are of another kind than the task.
        DataError: all labels are equal.
    """
    task = _task(section, width, labels, label_names)
    task.labels_first = section.labels_first
    return task


def _task(section: TaskSection, width: int, labels: np.ndarray | None, label_names: Sequence[str] | None) -> Task:
    if section.writes:
        return Generation(section.alpha)
    if labels is None:
        raise DistilvecError("a task needs labels", where="task.label", remedy="Name their column: corpus.label.")
    if not len(labels) or (labels == labels[0]).all():
        what = "there are 0 labels"
        if len(labels):
            only = str(labels[0]) if label_names is None else f'"{label_names[int(labels[0])]}"'
            what = f"all {len(labels)} labels are {only}"
        raise DataError(f"{what}, so there is nothing to learn", where="task.label")
    cls = TABLE[section.kind]
    encoding: Encoding = section.encoding or "single"
    if issubclass(cls, Classification):
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            raise DistilvecError(
                "the labels are scores, not classes", where="task.kind", remedy="Choose kind: similarity."
            )
        labels = labels.astype(np.int64)
        values = None if label_names is not None else np.unique(labels).tolist()
        names = [str(value) for value in values] if values is not None else list(label_names or ())
        return cls(TaskHead(width, "classification", names, encoding, dropout=section.dropout), section.alpha, values)
    if label_names is not None:
        shown = ", ".join(list(label_names)[:3])
        raise DistilvecError(
            f"the labels are names ({shown}), not scores", where="task.kind", remedy="Choose kind: pairs."
        )
    scores = labels.astype(np.float64)
    # Standardised for a linear head, the range for a cosine.
    shift, scale = (scores.min(), np.ptp(scores)) if encoding == "separate" else (scores.mean(), scores.std())
    head = TaskHead(
        width, "regression", None, encoding, shift=float(shift), scale=float(scale), dropout=section.dropout
    )
    return cls(head, section.alpha)
