"""The one small world that methods are tested in: a student with dropout and padding, teachers, and a step.

Items are rows of random inputs of 4 to 24 content tokens between two special ones. Student and teachers are real
encoders with attention maps, each with inputs of its own; aligned positions lie between them. Sentence vectors and
class logits of the teachers are random and can be set (`vectors`, `logits`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from distilvec.corpus.batch import Batch
from distilvec.methods.base import Method, Needs, Options, Sample
from distilvec.methods.table import build_method, build_methods, resolve
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

CLASSES = 3


class Encoder(nn.Module):
    """Attention blocks over given inputs; padded positions change nothing."""

    def __init__(self, width: int, depth: int, causal: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.causal, self.dropout = causal, nn.Dropout(0.1)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor], Tensor]:
        """[..., B, S, d] -> states of layers 0..L, maps of layers 1..L, means of the states of each [..., L, B, d]."""
        states, tokens, attention = inputs, {0: inputs}, {}
        real, pooled = mask.unsqueeze(-1).to(inputs.dtype), []
        for layer, block in enumerate(self.blocks, 1):
            query, key, value = block(states).chunk(3, -1)
            seen = mask.unsqueeze(-2)
            if self.causal:
                seen = seen & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril()
            scores = (3 * query @ key.mT).masked_fill(~seen, -1e9)
            attention[layer] = scores.softmax(-1) * mask.unsqueeze(-1)
            states = states + self.dropout(torch.tanh(attention[layer] @ value))
            tokens[layer] = states
            pooled.append((states * real).sum(-2) / real.sum(-2))
        return tokens, attention, torch.stack(pooled, -3)


class World:
    """Items, a student and K teachers who read them.

    Args:
        teachers: K.
        same: whether the teacher is the student itself.
        causal: whether teachers see only what stands before.
        classes, regression: the task, where there is one.
        ranks: whether the student is a cross-encoder, whose number is the first of its vector.
        width, depth, items: of the student, and how many items there are.
    """

    def __init__(
        self,
        teachers: int = 1,
        *,
        same: bool = False,
        causal: bool = False,
        classes: int | None = None,
        regression: bool = False,
        ranks: bool = False,
        width: int = 12,
        depth: int = 4,
        items: int = 64,
    ) -> None:
        draw = torch.Generator().manual_seed(5)
        torch.manual_seed(5)
        self.width, self.depth, self.items, self.same, self.causal = width, depth, items, same, causal
        self.encoder, self.head = Encoder(width, depth), nn.Linear(width, CLASSES)
        self.student = StudentInfo("toy", width, depth, width, classes=classes, regression=regression, ranks=ranks)
        self.lengths = torch.randint(4, 25, (items,), generator=draw).tolist()
        self.inputs = [torch.randn(n + 2, width, generator=draw) for n in self.lengths]
        self.keys = torch.randint(0, 256, (items, 16), generator=draw, dtype=torch.uint8)
        self.labels = torch.randint(0, CLASSES, (items,), generator=draw)
        self.scores = 3 * torch.randn(items, generator=draw)
        self.weights = [1.0] * teachers
        self.readers: list[Encoder] = []
        self.theirs: list[list[Tensor]] = []
        self.vectors: list[Tensor] = []
        self.logits: list[Tensor] = []
        for k in range(teachers):
            wide, deep = (width, depth) if same else (width + 8 + 4 * k, 2 * depth + k)
            counts = [n if same else max(3, (3 * n) // 4) for n in self.lengths]
            self.readers.append(self.encoder if same else Encoder(wide, deep, causal).eval().requires_grad_(False))
            self.theirs.append(self.inputs if same else [torch.randn(n + 2, wide, generator=draw) for n in counts])
            self.vectors.append(torch.randn(items, wide, generator=draw))
            self.logits.append(torch.randn(items, CLASSES, generator=draw))

    @property
    def teachers(self) -> list[TeacherInfo]:
        return [
            TeacherInfo(
                f"teacher{k}",
                vectors.shape[1],
                len(reader.blocks),
                hidden=theirs[0].shape[1],
                causal=self.causal,
                classes=CLASSES,
                weight=weight,
            )
            for k, (vectors, reader, theirs, weight) in enumerate(
                zip(self.vectors, self.readers, self.theirs, self.weights, strict=True)
            )
        ]

    def doubled(self) -> World:
        """The same world with its teacher twice."""
        other = World(2, classes=self.student.classes, regression=self.student.regression, ranks=self.student.ranks)
        other.encoder.load_state_dict(self.encoder.state_dict())
        other.inputs, other.keys, other.labels = self.inputs, self.keys, self.labels
        for name in ("readers", "theirs", "vectors", "logits"):
            setattr(other, name, [getattr(self, name)[0]] * 2)
        return other

    def output(self, rows: Sequence[int], views: int = 1, pad: int = 0, left: bool = False) -> StudentOutput:
        inputs, mask, content = padded([self.inputs[row] for row in rows], pad, left)
        tokens, attention, pooled = self.encoder(inputs.expand(views, *inputs.shape), mask)
        embedding = pooled[..., -1, :, :]
        return StudentOutput(
            embedding,
            layers=pooled,
            tokens=tokens,
            attention=attention,
            mask=mask,
            content=content,
            logits=self.head(embedding),
        )

    def signals(
        self, rows: Sequence[int], pad: int = 0, left: bool = False, student_pad: int = 0, inside: bool = True
    ) -> list[TeacherSignals]:
        """`inside`: token states, maps and alignments too, not only vectors and logits."""
        training, found = self.encoder.training, []
        everyone = zip(self.readers, self.theirs, self.vectors, self.logits, strict=True)
        for reader, theirs, vectors, logits in everyone:
            present, sentence = torch.ones(len(rows), dtype=torch.bool), vectors[list(rows)].clone()
            if not inside:
                found.append(TeacherSignals(present, sentence=sentence, logits=logits[list(rows)].clone()))
                continue
            inputs, mask, content = padded([theirs[row] for row in rows], pad, left)
            with torch.no_grad():
                tokens, attention, _ = reader.eval()(inputs, mask)
            found.append(
                TeacherSignals(
                    present,
                    sentence=sentence,
                    tokens=tokens,
                    attention=attention,
                    logits=logits[list(rows)].clone(),
                    mask=mask,
                    content=content,
                    alignments=self._alignments(rows, theirs, mask.shape[1], left, student_pad),
                )
            )
        self.encoder.train(training)
        return found

    def _alignments(
        self, rows: Sequence[int], theirs: list[Tensor], longest: int, left: bool, student_pad: int
    ) -> dict[str, Tensor]:
        paths = [cells(len(self.inputs[row]) - 2, len(theirs[row]) - 2) for row in rows]
        widest = max(len(self.inputs[row]) for row in rows) + student_pad
        shifts = [(left * (widest - len(self.inputs[row])), left * (longest - len(theirs[row]))) for row in rows]
        alone = aligned([one_to_one(len(self.inputs[row]) - 2, len(theirs[row]) - 2) for row in rows], shifts)
        return {"full": aligned(paths, shifts), **dict.fromkeys(("strict", "path", "spans", "reciprocal"), alone)}

    def batch(self, rows: Sequence[int], pairs: bool = False, scores: bool = False) -> Batch:
        """`pairs`: the first half of the rows are anchors, the second half what belongs to them.

        `scores`: the first quarter are anchors, then their positives, then two negatives of each, with scores.
        """
        keys, parts = self.keys[list(rows)], 4 if scores else 2
        size = len(rows) // parts
        return Batch(
            keys,
            Batch.equal_items(keys),
            self.labels[list(rows)],
            group=torch.arange(size).repeat(parts) if pairs else None,
            role=torch.arange(parts).clamp_max(2).repeat_interleave(size) if pairs else None,
            scores=self.scores[list(rows)] if scores else None,
        )

    def method(
        self,
        name: str | Sequence[Mapping[str, Any]],
        dims: Sequence[int] | None = None,
        *,
        student: StudentInfo | None = None,
        **options: Any,
    ) -> Method:
        """Built on the untrained student in eval mode, as training does it; at prefixes too where there are dims.

        `name`: of one, with its options, or the entries of several.
        """
        method = unbuilt(name, options, dims) if isinstance(name, str) else build_methods(name)
        info = student or self.student
        needs = method.needs(info, self.teachers)
        self.encoder.eval()
        with torch.no_grad():
            whole = self.output(range(self.items))
            batches = [
                self._asked(self.output(rows), self.signals(rows), needs)
                for rows in (range(start, start + 8) for start in range(0, min(self.items, 24), 8))
                if needs.inside or needs.logits
            ]
            pairs = (
                [(self.output(range(self.items)), self.batch(range(self.items), True, True))] if needs.scores else []
            )
        torch.manual_seed(0)
        seen = StudentOutput(whole.embedding, layers=whole.layers)
        method.build(info, self.teachers, Sample(seen, self.signals(range(self.items), inside=False), batches, pairs))
        self.encoder.train()
        return method

    def given(
        self, method: Method, rows: Sequence[int] = range(8), seed: int = 1, absent: Sequence[int] = (), **padding: Any
    ) -> tuple[StudentOutput, list[TeacherSignals], Batch]:
        """What a step hands to a method, and nothing that it did not ask for; dropout from `seed`."""
        needs = method.needs(self.student, self.teachers)
        signals = self.signals(rows, student_pad=padding.get("pad", 0), inside=needs.inside, **padding)
        torch.manual_seed(seed)
        output = self.output(rows, needs.student.views, **padding)
        for one in signals:
            one.present[list(absent)] = False
        mixed(method, output)
        return *self._asked(output, signals, needs), self.batch(rows, needs.companions != 0, needs.scores)

    def step(self, method: Method, rows: Sequence[int] = range(8), **more: Any) -> dict[str, Any]:
        """The terms of one step."""
        return method(*self.given(method, rows, **more))

    def _asked(
        self, output: StudentOutput, signals: list[TeacherSignals], needs: Needs
    ) -> tuple[StudentOutput, list[TeacherSignals]]:
        return only_student(output, needs), [only_teacher(one, needs, k) for k, one in enumerate(signals)]

    def assert_at_the_minimum(self, method: Any) -> None:
        """No gradient reaches the student's vectors, and any disturbance of them costs."""
        student, signals, batch = self.output(range(8)), self.signals(range(8)), self.batch(range(8))
        embedding = student.embedding.detach().requires_grad_()
        value = total(method(replace(student, embedding=embedding), signals, batch))
        value.backward()
        assert embedding.grad is not None and embedding.grad.abs().max() < 1e-5
        for seed in range(5):
            torch.manual_seed(seed)
            disturbed = replace(student, embedding=embedding.detach() + 0.1 * torch.randn_like(embedding))
            assert total(method(disturbed, signals, batch)) > value


def options_of(name: str, options: Mapping[str, Any]) -> Options:
    """Options of a method; a test may give constants, too, which only presets change."""
    schema = resolve(name).Options
    own = {key: value for key, value in options.items() if key in schema.constants}
    if own:
        presets = {preset: {**values, **own} for preset, values in schema.presets.items()}
        changed = {"constants": {**schema.constants, **own}, "presets": presets, "__module__": __name__}
        schema = type(schema.__name__, (schema,), changed)
    return schema(**{key: value for key, value in options.items() if key not in own})


def unbuilt(name: str, options: Mapping[str, Any], dims: Sequence[int] | None = None) -> Method:
    """A method with options of `options_of`; at several prefixes where `dims` names them."""
    if dims is not None:
        return build_method("matryoshka", {"dims": dims, "of": {"name": name, **options}})
    return resolve(name)(options_of(name, options))


def small_world(teachers: int = 1, **more: Any) -> World:
    """A smaller student: three blocks of 8 numbers."""
    return World(teachers, width=8, depth=3, items=24, **more)


def mixed(method: Method, output: StudentOutput) -> None:
    """Put the method's expert head, if it has one, behind the student, and its extras where the tap puts them."""
    head = getattr(method, "expert_head", None)
    if head is not None:
        features = head.train(method.training)({"sentence_embedding": output.embedding.flatten(0, 1)})
        views = {name: value.unflatten(0, output.embedding.shape[:2]) for name, value in features.items()}
        output.embedding = views.pop("sentence_embedding")
        output.extras = views


def only_student(output: StudentOutput, needs: Needs) -> StudentOutput:
    output.tokens = {layer: output.tokens[layer] for layer in needs.student.tokens}
    output.attention = {layer: output.attention[layer] for layer in needs.student.attention}
    output.layers = output.layers if needs.student.layers else None
    output.logits = output.logits if needs.logits else None
    return output


def only_teacher(signals: TeacherSignals, needs: Needs, index: int) -> TeacherSignals:
    wanted = needs.of(index)
    signals.tokens = {layer: signals.tokens[layer] for layer in wanted.tokens}
    signals.attention = {layer: signals.attention[layer] for layer in wanted.attention}
    signals.alignments = {mode: signals.alignments[mode] for mode in wanted.alignment}
    signals.sentence = signals.sentence if needs.sentence else None
    signals.logits = signals.logits if wanted.logits else None
    return signals


@functools.cache
def cells(ours: int, theirs: int) -> list[tuple[int, int]]:
    """A warping path over content tokens, without the special token before them."""
    longer = max(ours, theirs)
    return [(1 + k * ours // longer, 1 + k * theirs // longer) for k in range(longer)]


@functools.cache
def one_to_one(ours: int, theirs: int) -> list[tuple[int, int]]:
    """The cells of that path whose row and column have no other."""
    path = cells(ours, theirs)
    rows, columns = [i for i, _ in path], [j for _, j in path]
    return [(i, j) for i, j in path if rows.count(i) == 1 and columns.count(j) == 1]


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
    """What the trainer makes of a term: its mean over what counts."""
    if term.counted is None:
        return term.values.mean()
    result = (term.values * term.counted).sum() / term.counted.sum().clamp_min(1)
    return result * term.items if term.summed else result


def total(terms: dict[str, Any]) -> Tensor:
    """The loss that is differentiated."""
    return sum((mean(term) * term.weight for term in terms.values()), torch.zeros(()))
