"""How a step makes numbers of a method's terms, in one process and in two."""

from __future__ import annotations

import pytest
import torch

from distilvec.methods.base import Term
from distilvec.training import distiller
from distilvec.training.distiller import mean_of


def draw(items: int, views: int, kind: str) -> Term:
    generator = torch.Generator().manual_seed(items)
    values = torch.rand(views, items, generator=generator)
    if kind == "all":
        return Term(values)
    counted = (10 * torch.rand(items, generator=generator)).floor() * (torch.arange(items) % 3 > 0)
    counted = counted if kind == "weighed" else counted > 0
    return Term(values.masked_fill(counted == 0, torch.nan), counted.expand_as(values))


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("kind", ["all", "some", "weighed"])
def test_two_processes_see_the_mean_of_one(monkeypatch: pytest.MonkeyPatch, kind: str, summed: bool) -> None:
    parts = [draw(5, 2, kind)._replace(summed=summed), draw(9, 2, kind)._replace(summed=summed)]
    values = torch.cat([term.values for term in parts], 1)
    counted = None if kind == "all" else torch.cat([term.counted for term in parts], 1)
    whole = mean_of(Term(values, counted, summed=summed))
    weights = torch.ones_like(values) if counted is None else counted.float()
    expected = (values.nan_to_num() * weights).sum() / weights.sum()
    if summed:
        expected = expected * (weights[0] > 0).sum()
    torch.testing.assert_close(whole, expected)

    totals = torch.stack([torch.stack([term.weights.sum(), term.items]) for term in parts]).sum(0)
    monkeypatch.setattr(distiller, "world_size", lambda: 2)
    monkeypatch.setattr(distiller, "sum_over_ranks", lambda value: totals)
    both = torch.stack([mean_of(term, local=True) for term in parts]).mean()  # what DistributedDataParallel does
    torch.testing.assert_close(both, whole)
