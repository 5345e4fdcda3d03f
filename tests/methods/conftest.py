"""A small encoder with real dropout and padding, teachers for its items, and what a step hands to a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distilvec.corpus.batch import Batch
from distilvec.methods.base import Method, Sample
from distilvec.methods.matryoshka import Matryoshka
from distilvec.methods.table import build_options, resolve
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

VOCABULARY, WIDTH, DEPTH, ITEMS = 60, 12, 4, 64


class Encoder(nn.Module):
    """Token embeddings, residual blocks with dropout, mean pooling over real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: Tensor, mask: Tensor, views: int) -> StudentOutput:
        real = mask[..., None].float()
        states = self.embedding(ids).expand(views, -1, -1, -1)
        first, pooled = states, []
        for block in self.blocks:
            states = states + self.dropout(torch.tanh(block(states)))
            pooled.append((states * real).sum(-2) / real.sum(-2))
        return StudentOutput(pooled[-1], layers=torch.stack(pooled, 1), tokens={0: first}, mask=mask, content=mask)


@dataclass
class World:
    """Items with ids and padding, and K teachers who know all of them."""

    encoder: Encoder
    ids: Tensor
    mask: Tensor
    keys: Tensor
    vectors: list[Tensor]

    @property
    def student(self) -> StudentInfo:
        return StudentInfo("toy", WIDTH, DEPTH, WIDTH)

    @property
    def teachers(self) -> list[TeacherInfo]:
        return [TeacherInfo(f"teacher{k}", vectors.shape[1]) for k, vectors in enumerate(self.vectors)]

    def output(self, rows: Sequence[int], views: int = 1) -> StudentOutput:
        return self.encoder(self.ids[list(rows)], self.mask[list(rows)], views)

    def signals(self, rows: Sequence[int]) -> list[TeacherSignals]:
        present = torch.ones(len(rows), dtype=torch.bool)
        return [TeacherSignals(present.clone(), sentence=vectors[list(rows)].clone()) for vectors in self.vectors]

    def batch(self, rows: Sequence[int]) -> Batch:
        keys = self.keys[list(rows)]
        return Batch(keys, Batch.equal_items(keys))

    def method(self, name: str, dims: list[int] | None = None, **options: Any) -> Method:
        """A method, built on the untrained student in eval mode."""
        create = lambda: resolve(name)(build_options(name, options))  # noqa: E731
        method: Method = create() if dims is None else Matryoshka(create, dims)
        self.encoder.eval()
        with torch.no_grad():
            sample = Sample(self.output(range(ITEMS)), self.signals(range(ITEMS)))
        method.needs(self.student, self.teachers)
        torch.manual_seed(0)
        method.build(self.student, self.teachers, sample)
        self.encoder.train()
        return method

    def step(self, method: Method, rows: Sequence[int] = range(8), seed: int = 1) -> dict[str, Any]:
        """The terms of one step, with dropout from `seed`."""
        torch.manual_seed(seed)
        views = method.needs(self.student, self.teachers).views
        return method(self.output(rows, views), self.signals(rows), self.batch(rows))

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


def reduced(term: Any) -> Tensor:
    """What the trainer makes of a term: its mean over what counts."""
    if term.counted is None:
        return term.values.mean()
    return (term.values * term.counted).sum() / term.counted.sum().clamp_min(1)


def total(terms: dict[str, Any]) -> Tensor:
    """The loss that is differentiated."""
    return sum((reduced(term) * term.weight for term in terms.values()), torch.zeros(()))


def make_world(teachers: int = 1) -> World:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (ITEMS, 6), generator=generator)
    lengths = torch.randint(2, 7, (ITEMS, 1), generator=generator)
    keys = torch.randint(0, 256, (ITEMS, 16), generator=generator, dtype=torch.uint8)
    vectors = [torch.randn(ITEMS, 20 + 4 * k, generator=generator) for k in range(teachers)]
    return World(Encoder(), ids, torch.arange(6) < lengths, keys, vectors)


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def two_teachers() -> World:
    return make_world(2)


@pytest.fixture
def loss() -> Callable[[dict[str, Any]], Tensor]:
    return total


@pytest.fixture
def mean() -> Callable[[Any], Tensor]:
    return reduced


@pytest.fixture
def swap() -> Callable[..., Any]:
    return replace
