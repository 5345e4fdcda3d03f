"""Steps made by hand for values that are checked by hand: ragged lengths, special tokens, aligned positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tests.methods.world import options_of
from torch import Tensor
from torch.nn.functional import pad

from distilvec.corpus.batch import Batch
from distilvec.methods.base import Method, Sample, Term
from distilvec.methods.sft import SFT
from distilvec.methods.tokens.cdm import CDM
from distilvec.methods.tokens.dskd import DSKD
from distilvec.methods.tokens.mined import MinED
from distilvec.methods.tokens.multilevel_ot import MultiLevelOT
from distilvec.methods.tokens.uld import ULD
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

WIDTH, HIDDEN, TEACHER, TEACHER_HIDDEN, CLASSES, LAST, TEACHER_LAST = 5, 4, 8, 6, 3, 2, 3
METHODS: dict[str, type[Method]] = {
    "sft": SFT, "uld": ULD, "multilevel_ot": MultiLevelOT, "mined": MinED, "cdm": CDM, "dskd": DSKD
}  # fmt: skip

UNSUPERVISED = StudentInfo("student", WIDTH, LAST, HIDDEN)
CLASSIFYING = replace(UNSUPERVISED, classes=CLASSES)
REGRESSING = replace(UNSUPERVISED, regression=True)
KNOWN = TeacherInfo("teacher", TEACHER, TEACHER_LAST, hidden=TEACHER_HIDDEN, classes=CLASSES)


@dataclass
class Step:
    """What one step hands to a method."""

    student: StudentOutput
    signals: TeacherSignals
    batch: Batch

    def leaves(self) -> list[Tensor]:
        """The student's tensors, as leaves that collect gradients."""
        assert self.student.logits is not None
        return [self.student.embedding, self.student.tokens[LAST], self.student.logits]

    def only(self, row: int) -> Step:
        """The step with one of its items alone, and without the padding that the others caused."""
        student, signals = self.student, self.signals
        assert student.mask is not None and signals.mask is not None
        ours, theirs = int(student.mask[row].sum()), int(signals.mask[row].sum())
        left = signals.mask.shape[1] - theirs
        one = slice(row, row + 1)
        shift = torch.tensor([0, left])
        alignments = {
            mode: (found[one] - shift).where(found[one] >= 0, -1)[:, : int((found[row, :, 0] >= 0).sum())]
            for mode, found in signals.alignments.items()
        }
        return Step(
            replace(
                student,
                embedding=student.embedding[:, one],
                logits=student.logits[:, one],
                tokens={LAST: student.tokens[LAST][:, one, :ours]},
                mask=student.mask[one, :ours],
                content=student.content[one, :ours],
            ),
            TeacherSignals(
                signals.present[one],
                signals.sentence[one],
                {TEACHER_LAST: signals.tokens[TEACHER_LAST][one, left:]},
                logits=signals.logits[one],
                mask=signals.mask[one, left:],
                content=signals.content[one, left:],
                alignments=alignments,
            ),
            replace(
                self.batch,
                keys=self.batch.keys[one],
                duplicate=self.batch.duplicate[one, one],
                labels=self.batch.labels[one],
            ),
        )

    def padded(self, ours: int, theirs: int) -> Step:
        """More padding, filled with large numbers: the student's on the right, the teacher's on the left."""
        student, signals = self.student, self.signals
        return Step(
            replace(
                student,
                tokens={LAST: pad(student.tokens[LAST], (0, 0, 0, ours), value=50.0)},
                mask=pad(student.mask, (0, ours)),
                content=pad(student.content, (0, ours)),
            ),
            replace(
                signals,
                tokens={TEACHER_LAST: pad(signals.tokens[TEACHER_LAST], (0, 0, theirs, 0), value=50.0)},
                mask=pad(signals.mask, (theirs, 0)),
                content=pad(signals.content, (theirs, 0)),
                alignments={
                    mode: pad((found + torch.tensor([0, theirs])).where(found >= 0, -1), (0, 0, 0, 2), value=-1)
                    for mode, found in signals.alignments.items()
                },
            ),
            self.batch,
        )


def make_step(items: int = 6, views: int = 2, seed: int = 0) -> Step:
    """Items of 3 to 6 student and 3 to 8 teacher tokens between two special ones; item 1 has no strict pair."""
    generator, draw = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    lengths = [(int(draw.integers(3, 7)), int(draw.integers(3, 9))) for _ in range(items)]
    if items > 1:
        lengths[1] = (2, 4)
    longest, longest_theirs = (max(side) + 2 for side in zip(*lengths, strict=True))
    mask, theirs = torch.zeros(items, longest).bool(), torch.zeros(items, longest_theirs).bool()
    content, theirs_content = mask.clone(), theirs.clone()
    paths, strict = [], []
    for row, (n, m) in enumerate(lengths):
        left = longest_theirs - m - 2
        mask[row, : n + 2], content[row, 1 : n + 1] = True, True
        theirs[row, left:], theirs_content[row, left + 1 : left + 1 + m] = True, True
        path = [(0, 0), (0, 1), (1, 2), (1, 3)] if row == 1 and items > 1 else _path(n, m, draw)
        paths.append([(i + 1, j + left + 1) for i, j in path])
        alone = [cell for cell in paths[-1] if sum(cell[0] == i or cell[1] == j for i, j in paths[-1]) == 1]
        strict.append(alone)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    keys = torch.randint(0, 256, (items, 16), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (items,), generator=generator)
    student = StudentOutput(
        normal(views, items, WIDTH).requires_grad_(),
        tokens={LAST: normal(views, items, longest, HIDDEN).requires_grad_()},
        mask=mask,
        content=content,
        logits=normal(views, items, CLASSES).requires_grad_(),
    )
    signals = TeacherSignals(
        torch.ones(items).bool(),
        normal(items, TEACHER),
        {TEACHER_LAST: normal(items, longest_theirs, TEACHER_HIDDEN)},
        logits=normal(items, CLASSES),
        mask=theirs,
        content=theirs_content,
        alignments={"full": _stack(paths), "strict": _stack(strict)},
    )
    return Step(student, signals, Batch(keys, Batch.equal_items(keys), labels))


def _path(n: int, m: int, draw: np.random.Generator) -> list[tuple[int, int]]:
    """A random monotone path from (0, 0) to (n - 1, m - 1), diagonal more often than not."""
    cells = [(0, 0)]
    while cells[-1] != (n - 1, m - 1):
        i, j = cells[-1]
        steps = [(i + 1, j + 1)] * 4 + [(i + 1, j), (i, j + 1)]
        allowed = [step for step in steps if step[0] < n and step[1] < m]
        cells.append(allowed[int(draw.integers(0, len(allowed)))])
    return cells


def _stack(pairs: list[list[tuple[int, int]]]) -> Tensor:
    longest = max(1, *(len(one) for one in pairs)) if pairs else 1
    return torch.tensor([[*one, *[(-1, -1)] * (longest - len(one))] for one in pairs])


def make_sample(teachers: int = 1, batches: int = 8) -> Sample:
    steps = [make_step(views=1, seed=100 + index) for index in range(batches)]
    seen = [_detached(step.student) for step in steps]
    vectors = torch.cat([step.signals.sentence for step in steps])
    whole = TeacherSignals(torch.ones(len(vectors)).bool(), vectors)
    return Sample(
        StudentOutput(torch.cat([one.embedding for one in seen], 1)),
        [whole] * teachers,
        [(one, [step.signals] * teachers) for one, step in zip(seen, steps, strict=True)],
    )


def _detached(student: StudentOutput) -> StudentOutput:
    return replace(
        student,
        embedding=student.embedding.detach(),
        tokens={layer: states.detach() for layer, states in student.tokens.items()},
        logits=student.logits.detach(),
    )


def make_method(
    name: str, info: StudentInfo, teachers: int = 1, weights: Sequence[float] = (1.0, 1.0), **options: Any
) -> Method:
    """A method, built on a sample of its own; `weights` are those of two teachers."""
    method = METHODS[name](options_of(name, options))
    known = [replace(KNOWN, name=f"teacher{index}", weight=weight) for index, weight in enumerate(weights)]
    known = [KNOWN] if teachers == 1 else known
    method.needs(info, known)
    torch.manual_seed(0)
    method.build(info, known, make_sample(teachers))
    return method


def mean(term: Term) -> Tensor:
    """What the trainer makes of a term."""
    if term.counted is None:
        return term.values.mean()
    return (term.values * term.counted).sum() / term.counted.sum().clamp_min(1)


def total(terms: dict[str, Term]) -> Tensor:
    return sum((mean(term) * term.weight for term in terms.values()), torch.zeros(()))
