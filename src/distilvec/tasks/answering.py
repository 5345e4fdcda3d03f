"""A student of a supervised run that answers in label names or scores itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.modules.layouts import has_head, has_kernels
from distilvec.modules.opening import locate
from distilvec.modules.task_head import TaskHead
from distilvec.students import load_student
from distilvec.students.explain import ExplainingStudent, with_kernels
from distilvec.tasks.examples import Input
from distilvec.tasks.predictor import Predictor


class AnsweringStudent(SentenceTransformer):
    """A `SentenceTransformer` with the task head beside it; what `distilvec.load` gives for such a folder."""

    head: TaskHead

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes; None for a regression."""
        return self.head.labels

    def predict(self, inputs: Sequence[Input]) -> list[str] | list[float]:
        """The label name of each text or pair, or its score in the units of the training data.

        Raises:
            DistilvecError: texts where pairs are needed, or the reverse.
            DataError: the head reads vectors of another width.
        """
        return Predictor(self, self.head.to(self.device)).predict(inputs)


class AnsweringExplainingStudent(AnsweringStudent, ExplainingStudent):
    """One that kept its kernels too."""


def finished_student(model: str | Path, *, trust_remote_code: bool = False) -> SentenceTransformer:
    """A student as it ships, with what lies beside it: `explain` where it kept its kernels, `predict` with a task head.

    See `distilvec.load`.
    """
    folder = locate(model, trust_remote_code)
    student = load_student(str(model), trust_remote_code=trust_remote_code)
    if has_kernels(folder):
        student = with_kernels(student, folder)
    if has_head(folder):
        student.__class__ = AnsweringExplainingStudent if isinstance(student, ExplainingStudent) else AnsweringStudent
        # Not a submodule: it is no part of what the student computes or saves.
        student.__dict__["head"] = TaskHead.load(folder).eval()
    return student
