"""The contract of a supervised task: a head, its weight in the loss, and a loss per item."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from distilvec.modules.task_head import Encoding, TaskHead
from distilvec.students.output import StudentOutput


class Task(nn.Module):
    """A head on the student's vector, trained beside the method's terms and kept with the student.

    The total loss is alpha * task + (1 - alpha) * (sum of the method's terms); the Distiller applies that, nobody else.

    Attributes:
        kind: the word in recipes.
        metric: the score that chooses the best checkpoint, one of those in `tasks.scores`.
        head: what is trained, saved and loaded; None where the student needs none.
        alpha: weight of the task in [0, 1].
        labels_first: share of the training, from its start, in which it has the whole weight.
    """

    kind: ClassVar[str]
    metric: ClassVar[str]

    head: TaskHead | None

    def __init__(self, head: TaskHead | None, alpha: float) -> None:
        super().__init__()
        self.head, self.alpha, self.labels_first = head, alpha, 0.0

    @property
    def encoding(self) -> Encoding:
        """ "single", "joint" or "separate"."""
        return self.head.encoding if self.head is not None else "joint"

    def forward(self, embedding: Tensor, group: Tensor | None = None, role: Tensor | None = None) -> Tensor:
        """Sentence vectors [V, B, d] of a batch -> logits [V, B, C] ([V, B, 1] for a regression).

        With separate encoding the two texts of a pair are rows of one batch (`group` int64 [B] tells which belong
        together, `role` is 0 for the first); both then have the pair's logits. See `counted`.
        """
        assert self.head is not None
        if self.encoding != "separate":
            return self.head(embedding)
        assert group is not None and role is not None
        partner = _partners(group, role).long().argmax(-1)
        first = role.eq(0)[:, None]
        other = embedding[:, partner]
        return self.head(embedding.where(first, other), other.where(first, embedding))

    def read(self, output: StudentOutput, group: Tensor | None = None, role: Tensor | None = None) -> Tensor | None:
        """Return what the head makes of a student's output, as `forward`; None without a head."""
        return self(output.embedding, group, role)

    def losses(
        self, output: StudentOutput, labels: Tensor | None, group: Tensor | None = None, role: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The loss of each item [V, B], and how much each counts (None = alike), of an output with its logits."""
        assert output.logits is not None and labels is not None
        values, counted = self.loss(output.logits, labels), self.counted(group, role)
        return values, None if counted is None else counted.expand_as(values)

    def counted(self, group: Tensor | None = None, role: Tensor | None = None) -> Tensor | None:
        """bool [B], the rows that enter the task's mean: each pair once. None = all."""
        if self.encoding != "separate":
            return None
        assert group is not None and role is not None
        return _partners(group, role).any(-1) & role.eq(0)

    def codes(self, labels: Tensor) -> Tensor:
        """Labels [B] as the corpus has them -> class codes int64 [B] in the order of the head; scores stay scores."""
        return labels

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits [V, B, C] and labels [B] as the corpus has them -> loss per item [V, B]; of a task with a head."""
        raise NotImplementedError


def _partners(group: Tensor, role: Tensor) -> Tensor:
    """bool [B, B]: the other text of a row's pair."""
    return (group[:, None] == group[None, :]) & (role.eq(0)[:, None] != role.eq(0)[None, :])
