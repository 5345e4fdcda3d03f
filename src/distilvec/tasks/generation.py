"""Writing the answer to a prompt."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.students.output import StudentOutput
from distilvec.tasks.base import Task


class Generation(Task):
    """Cross-entropy of the answer's tokens and of its end, given the prompt; the student's own head predicts them.

    Every token counts the same, so that an item weighs as much as its answer is long.
    """

    kind: ClassVar[str] = "generation"
    metric: ClassVar[str] = "likelihood"

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__(None, alpha)

    def read(self, output: StudentOutput, group: Tensor | None = None, role: Tensor | None = None) -> None:
        """Nothing: what the student says of the next token is among its extras."""

    def losses(
        self, output: StudentOutput, labels: Tensor | None, group: Tensor | None = None, role: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Mean loss of each item's tokens [V, B], which counts as often as there are tokens."""
        if "answer_loss" not in output.extras:
            raise DistilvecError("this student gives no answer_loss: it is no causal language model", where="task")
        return output.extras["answer_loss"], output.extras["answer_tokens"]
