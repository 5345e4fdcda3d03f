"""Sentences with token states and attention on both sides, made by small real encoders, padded as a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distilvec.corpus.batch import Batch
from distilvec.methods.base import Method, Needs, Sample
from distilvec.methods.table import build_method
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

ITEMS, WIDTH, DEPTH = 24, 8, 3


class Encoder(nn.Module):
    """Attention blocks over given inputs; padded positions change nothing."""

    def __init__(self, width: int, depth: int, causal: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.causal, self.dropout = causal, nn.Dropout(0.1)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor], Tensor]:
        """[..., B, S, d] -> states of layers 0..L, maps of layers 1..L, the mean of the last states."""
        states, tokens, attention = inputs, {0: inputs}, {}
        for layer, block in enumerate(self.blocks, 1):
            query, key, value = block(states).chunk(3, -1)
            seen = mask.unsqueeze(-2)
            if self.causal:
                seen = seen & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril()
            scores = (3 * query @ key.mT).masked_fill(~seen, -1e9)
            attention[layer] = scores.softmax(-1) * mask.unsqueeze(-1)
            states = states + self.dropout(torch.tanh(attention[layer] @ value))
            tokens[layer] = states
        real = mask.unsqueeze(-1).float()
        return tokens, attention, (states * real).sum(-2) / real.sum(-2)


def cells(ours: int, theirs: int) -> list[tuple[int, int]]:
    """A warping path over content tokens, without the special token before them."""
    longer = max(ours, theirs)
    return [(1 + k * ours // longer, 1 + k * theirs // longer) for k in range(longer)]


def one_to_one(path: list[tuple[int, int]]) -> list[tuple[int, int]]:
    rows, columns = [i for i, _ in path], [j for _, j in path]
    return [(i, j) for i, j in path if rows.count(i) == 1 and columns.count(j) == 1]


class TokenWorld:
    """Items of 4 to 24 content tokens between two special ones, a student and K teachers who read them."""

    def __init__(self, teachers: int = 1, *, same: bool = False, causal: bool = False) -> None:
        draw = torch.Generator().manual_seed(5)
        torch.manual_seed(5)
        self.encoder = Encoder(WIDTH, DEPTH)
        self.lengths = torch.randint(4, 25, (ITEMS,), generator=draw).tolist()
        self.inputs = [torch.randn(n + 2, WIDTH, generator=draw) for n in self.lengths]
        self.keys = torch.randint(0, 256, (ITEMS, 16), generator=draw, dtype=torch.uint8)
        self.infos, self.readers, self.theirs = [], [], []
        for k in range(teachers):
            width, depth = (WIDTH, DEPTH) if same else (WIDTH + 4 + 2 * k, 2 * DEPTH + k)
            self.infos.append(TeacherInfo(f"teacher{k}", width, depth, hidden=width, causal=causal))
            self.readers.append(self.encoder if same else Encoder(width, depth, causal).eval().requires_grad_(False))
            counts = [n if same else max(3, (3 * n) // 4) for n in self.lengths]
            self.theirs.append(self.inputs if same else [torch.randn(n + 2, width, generator=draw) for n in counts])

    @property
    def student(self) -> StudentInfo:
        return StudentInfo("toy", WIDTH, DEPTH, WIDTH)

    def output(self, rows: Sequence[int], views: int = 1, pad: int = 0, left: bool = False) -> StudentOutput:
        inputs, mask, content = padded([self.inputs[row] for row in rows], pad, left)
        tokens, attention, embedding = self.encoder(inputs.expand(views, *inputs.shape), mask)
        return StudentOutput(embedding, tokens=tokens, attention=attention, mask=mask, content=content)

    def signals(
        self, rows: Sequence[int], pad: int = 0, left: bool = False, student_pad: int = 0
    ) -> list[TeacherSignals]:
        found = []
        for reader, theirs in zip(self.readers, self.theirs, strict=True):
            inputs, mask, content = padded([theirs[row] for row in rows], pad, left)
            with torch.no_grad():
                tokens, attention, embedding = reader.eval()(inputs, mask)
            paths = [cells(len(self.inputs[row]) - 2, len(theirs[row]) - 2) for row in rows]
            widest = max(len(self.inputs[row]) for row in rows) + student_pad
            shifts = [
                (left * (widest - len(self.inputs[row])), left * (mask.shape[1] - len(theirs[row]))) for row in rows
            ]
            found.append(
                TeacherSignals(
                    torch.ones(len(rows), dtype=torch.bool),
                    sentence=embedding,
                    tokens=tokens,
                    attention=attention,
                    mask=mask,
                    content=content,
                    alignments={
                        "full": aligned(paths, shifts),
                        **{
                            mode: aligned([one_to_one(path) for path in paths], shifts)
                            for mode in ("strict", "path", "spans", "reciprocal")
                        },
                    },
                )
            )
        self.encoder.train()
        return found

    def batch(self, rows: Sequence[int]) -> Batch:
        keys = self.keys[list(rows)]
        return Batch(keys, Batch.equal_items(keys))

    def method(
        self, name: str, student: StudentInfo | None = None, dims: Sequence[int] | None = None, **options: Any
    ) -> Method:
        """Built on the untrained student in eval mode, as training does it; at prefixes too where there are dims."""
        method = build_method(name, options, dims)
        info = student or self.student
        needs = method.needs(info, self.infos)
        self.encoder.eval()
        with torch.no_grad():
            whole, signals = self.output(range(ITEMS)), self.signals(range(ITEMS))
            self.encoder.eval()
            batches = []
            for start in range(0, ITEMS, 8):
                rows = range(start, start + 8)
                given = self.signals(rows)
                self.encoder.eval()
                batches.append(
                    (only_student(self.output(rows), needs), [only_teacher(g, needs, k) for k, g in enumerate(given)])
                )
        torch.manual_seed(0)
        method.build(info, self.infos, Sample(StudentOutput(whole.embedding), signals, batches))
        self.encoder.train()
        return method

    def step(
        self, method: Method, rows: Sequence[int] = range(8), seed: int = 1, absent: Sequence[int] = (), **padding: Any
    ) -> dict[str, Any]:
        """The terms of one step, given nothing that the method did not ask for."""
        needs = method.needs(self.student, self.infos)
        training = self.encoder.training
        signals = self.signals(rows, student_pad=padding.get("pad", 0), **padding)
        self.encoder.train(training)
        torch.manual_seed(seed)
        output = self.output(rows, needs.views, **padding)
        for one in signals:
            one.present[list(absent)] = False
        mixed(method, output)
        return method(
            only_student(output, needs),
            [only_teacher(one, needs, k) for k, one in enumerate(signals)],
            self.batch(rows),
        )


def mixed(method: Method, output: StudentOutput) -> None:
    """Put the method's expert head, if it has one, behind the student, and its extras where the tap puts them."""
    head = getattr(method, "expert_head", None)
    if head is not None:
        features = head.train(method.training)({"sentence_embedding": output.embedding.flatten(0, 1)})
        views = {name: value.unflatten(0, output.embedding.shape[:2]) for name, value in features.items()}
        output.embedding = views.pop("sentence_embedding")
        output.extras = views


def only_student(output: StudentOutput, needs: Needs) -> StudentOutput:
    output.tokens = {layer: output.tokens[layer] for layer in needs.tokens.student}
    output.attention = {layer: output.attention[layer] for layer in needs.attention.student}
    return output


def only_teacher(signals: TeacherSignals, needs: Needs, index: int) -> TeacherSignals:
    wanted = needs.tokens.teachers[index] if needs.tokens.teachers else ()
    signals.tokens = {layer: signals.tokens[layer] for layer in wanted}
    wanted = needs.attention.teachers[index] if needs.attention.teachers else ()
    signals.attention = {layer: signals.attention[layer] for layer in wanted}
    modes = (needs.alignment[index] or "").split("+") if needs.alignment else []
    signals.alignments = {mode: signals.alignments[mode] for mode in modes if mode}
    signals.sentence = signals.sentence if needs.sentence else None
    return signals


def padded(items: list[Tensor], pad: int, left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """[B, S, d] with garbage where nothing is, bool [B, S] not padding, bool [B, S] content."""
    length = max(map(len, items)) + pad
    inputs = torch.full((len(items), length, items[0].shape[-1]), 7.0)
    mask = torch.zeros(len(items), length, dtype=torch.bool)
    content = mask.clone()
    for row, item in enumerate(items):
        start = length - len(item) if left else 0
        inputs[row, start : start + len(item)] = item
        mask[row, start : start + len(item)] = True
        content[row, start + 1 : start + len(item) - 1] = True
    return inputs, mask, content


def aligned(paths: list[list[tuple[int, int]]], shifts: list[tuple[int, int]]) -> Tensor:
    table = torch.full((len(paths), max(map(len, paths)), 2), -1)
    for row, (path, shift) in enumerate(zip(paths, shifts, strict=True)):
        if path:
            table[row, : len(path)] = torch.tensor(path) + torch.tensor(shift)
    return table


def mean(term: Any) -> Tensor:
    if term.counted is None:
        return term.values.mean()
    result = (term.values * term.counted).sum() / term.counted.sum().clamp_min(1)
    return result * term.items if term.summed else result


def total(terms: dict[str, Any]) -> Tensor:
    return sum((mean(term) * term.weight for term in terms.values()), torch.zeros(()))
