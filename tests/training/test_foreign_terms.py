"""What a method of one's own returns: weights of items for all views, and wrong returns in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.assembling import Assembled, assemble

from distilvec.errors import DistilvecError
from distilvec.methods.base import StudentOutput, Term, WantedOfStudent
from distilvec.training.step import mean_of


@pytest.fixture(scope="module")
def made(home: Path) -> Assembled:
    """A student that is read twice, and a method whose `forward` each test replaces."""
    made = assemble(home, "cosine", rows=8, init="random")
    made.distiller.needs = made.distiller.needs._replace(student=WantedOfStudent(views=2))
    return made


def stepped(made: Assembled, monkeypatch: pytest.MonkeyPatch, returns: Callable[[StudentOutput], Any]) -> Any:
    monkeypatch.setattr(made.distiller.method, "forward", lambda student, teachers, batch: returns(student))
    return made.distiller.eval()(**next(made.batches(8)))


def test_items_that_count_count_for_every_view(made: Assembled, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    for counted in (torch.tensor([True, False, True]), torch.tensor([0.5, 0.0, 1.5])):
        short, whole = Term(values, counted), Term(values, counted.expand(2, 3))
        assert short.weights.shape == (2, 3)
        torch.testing.assert_close(mean_of(short), mean_of(whole))
        torch.testing.assert_close(mean_of(short._replace(summed=True)), mean_of(whole._replace(summed=True)))
        assert mean_of(short) <= values.max(), "a mean lies among its values"
        assert short.items == 2

    def term(expanded: bool) -> Any:
        half = torch.linspace(0, 1, 8)
        return stepped(
            made,
            monkeypatch,
            lambda student: {"a": Term(student.embedding.sum(-1), half.expand(2, 8) if expanded else half)},
        )

    one, other = term(False), term(True)
    torch.testing.assert_close(one["loss"], other["loss"])
    torch.testing.assert_close(one["items"], other["items"])
    torch.testing.assert_close(one["counting"], other["counting"])


def shaped(*shape: int, counted: Any = None) -> Callable[[StudentOutput], Any]:
    return lambda student: {"mine": Term(torch.ones(shape), counted)}


@pytest.mark.parametrize(
    ("returns", "told"),
    [
        (lambda student: student.embedding.sum(), "^cosine: forward returns a dict of Term; this is a Tensor"),
        (lambda student: None, "^cosine: .*this is a NoneType"),
        (lambda student: {"mine": student.embedding.sum()}, r"^cosine: .*`mine` is a Tensor: wrap it, Term\(values\)"),
        (lambda student: {"mine": 0.5}, "^cosine: .*`mine` is a float"),
        (lambda student: {"mine": Term(0.5)}, "^cosine, term mine: values is a float"),
        (lambda student: {}, "^cosine: forward gives no term"),
        (shaped(7), r"^cosine, term mine: values are \[7\].*2 views of 8 items.*\[\], \[8\] or \[2, 8\]"),
        (shaped(8, 8), r"values are \[8, 8\]"),
        (shaped(2, 8, 3), r"values are \[2, 8, 3\]"),
        (shaped(2, 8, counted=torch.ones(2)), r"^cosine, term mine: counted is \[2\] .*values of \[2, 8\]"),
        (shaped(8, counted=torch.ones(2, 8)), r"counted is \[2, 8\] .*values of \[8\]"),
        (shaped(8, counted=[True] * 8), "counted is a list"),
    ],
)
def test_wrong_return_values_are_refused(
    made: Assembled, monkeypatch: pytest.MonkeyPatch, returns: Callable[[StudentOutput], Any], told: str
) -> None:
    with pytest.raises(DistilvecError, match=told):
        stepped(made, monkeypatch, returns)
