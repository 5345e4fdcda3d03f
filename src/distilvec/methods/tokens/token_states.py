"""The student's last token states are held to the teacher's.

    L = sum_i ||h_i - t_i||² / sum_i ||t_i||²

The sums run over the tokens of the batch that are the same piece on both sides, special tokens included, so the student
has to cut texts as its teacher does and be as wide: it is cut out of it (`shrink`). Where its blocks are narrower, the
linear map behind its pooling takes its token states to the teacher's space. Where a smaller vocabulary cuts a
word into other pieces, these tokens are left out. A store that keeps token states on principal axes (`token_axes`)
gives the same term within these axes. A second term is its use: `[{name: cosine, map: false}, {name: token_states}]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.methods.base import Batch, Method, Needs, Sample, Term, WantedOfStudent
from distilvec.methods.tokens import pairs
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals, Wanted

_MODE = "strict"
_REMEDY = "Cut the student out of its teacher (shrink), or leave token_states out."


class TokenStates(Method):
    """Terms: `token_states` [V, B].

    Raises:
        DistilvecError: in `needs`, several teachers, or one whose token states cannot be seen or are of another width.
    """

    name = "token_states"
    summary = "the last token states follow the teacher's, as they are"
    paper = "as the hidden-state loss of TinyBERT (Jiao et al. 2020, arXiv:1909.10351), last layer, no projection"
    inside = True
    axes: Tensor

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if len(teachers) != 1:
            raise DistilvecError(
                f"token_states goes with one teacher, and there are {len(teachers)}", remedy="Leave token_states out."
            )
        pairs.check_layers(self.name, student, teachers, 1)
        teacher = teachers[0]
        own, last, told = pairs.depth(student), pairs.depth(teacher), teacher.hidden or 0
        width = _reach(student, teacher)
        on_axes = teacher.width == width > told
        if told != width and not on_axes:
            raise DistilvecError(
                f"token_states compares states as they are: the teacher's have {told} numbers, the student's {width}",
                where=student.name,
                remedy=_REMEDY,
            )
        wanted = Wanted(tokens=(last,), alignment=(_MODE,))
        return Needs(WantedOfStudent(tokens=(own,)), (wanted,), sentence=False, same_pieces=True)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.layers = pairs.depth(student), pairs.depth(teachers[0])
        self.mapped = _reach(student, teachers[0]) != student.hidden
        self.register_buffer("axes", _axes(student, teachers[0]), persistent=False)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        own, their = self.layers
        ours, theirs, real = _matched(student, teachers[0])
        rows = torch.arange(len(real), device=real.device)[:, None]
        told = teachers[0].tokens[their][rows, theirs].float()
        states = student.tokens[own][:, rows, ours]
        if self.mapped:
            states = self.head[0](states)
        states = states.float()
        if len(self.axes):
            states = states @ self.axes
        size = (told.square().sum(-1) * real).sum(-1)
        missed = ((states - told).square().sum(-1) * real).sum(-1)
        # Weighed by its size, an item's relative error adds up to that of the batch.
        weights = (size * teachers[0].present).expand_as(missed)
        return {self.name: Term(missed / size.clamp_min(1e-12), weights)}

    def attach(self, student: Any) -> None:
        # In a list, so that the student's parameters do not count as the method's too.
        self.head = [_map_behind_pooling(student)] if self.mapped else []


def _reach(student: StudentInfo, teacher: TeacherInfo) -> int:
    """Width of the student's token states where they are compared: as they are, or behind its map."""
    axes = teacher.axes.get(pairs.depth(teacher))  # as many as the student is wide are another space all the same
    whole = (teacher.hidden, teacher.width) if axes is None else (len(axes),)
    return student.hidden if student.hidden in whole else student.width


def _map_behind_pooling(student: Any) -> nn.Linear:
    """The linear map that takes a student's pooled vectors, and its token states alike, to another space."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = list(student.children())
    place = next((number for number, module in enumerate(modules) if isinstance(module, Pooling)), len(modules))
    head = modules[place + 1] if place + 1 < len(modules) else None
    plain = isinstance(head, Dense) and isinstance(head.activation_function, nn.Identity) and not head.use_residual
    if not plain:
        raise DistilvecError(
            "token_states compares states as they are, and the student's are of another width than the teacher's, "
            "without a linear map behind the pooling",
            where="token_states",
            remedy=_REMEDY,
        )
    linear: nn.Linear = head.linear  # type: ignore[union-attr]
    return linear


def _axes(student: StudentInfo, teacher: TeacherInfo) -> Tensor:
    """[d, k], or empty where the teacher's token states are whole."""
    axes, width = teacher.axes.get(pairs.depth(teacher)), _reach(student, teacher)
    whole = teacher.hidden if axes is None else len(axes)
    if whole != width:
        raise DistilvecError(
            f"the teacher's token states have {whole} numbers, the student's {width}",
            where=student.name,
            remedy=_REMEDY,
        )
    return torch.zeros(0) if axes is None else axes.float()


def _matched(student: StudentOutput, teacher: TeacherSignals) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of equal tokens, student's and teacher's int64 [B, P], and which are real bool [B, P].

    The pairs of the alignment, and special tokens one by one where both sides have as many.
    """
    cells = teacher.alignments[_MODE]
    sides = [cells[..., 0].long(), cells[..., 1].long()]
    real = cells[..., 0] >= 0
    special = [_special(side) for side in (student, teacher)]
    counts = [each.sum(1) for each in special]
    most = int(min(int(count.max()) for count in counts))
    places = [each.int().argsort(dim=1, descending=True, stable=True)[:, :most] for each in special]
    both = (torch.arange(most, device=real.device) < counts[0][:, None]) & (counts[0] == counts[1])[:, None]
    ours, theirs = (torch.cat([side.clamp_min(0), place], 1) for side, place in zip(sides, places, strict=True))
    return ours, theirs, torch.cat([real, both], 1)


def _special(side: StudentOutput | TeacherSignals) -> Tensor:
    """bool [B, S], tokens that are neither padding nor the text's own."""
    assert side.mask is not None and side.content is not None
    return side.mask & ~side.content
