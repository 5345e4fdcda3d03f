"""How a step makes numbers of a method's terms, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.assembling import assemble

from distilvec.methods.base import Term
from distilvec.tasks.section import TaskSection
from distilvec.tasks.table import build_task
from distilvec.training import step as steps
from distilvec.training.step import mean_and_count, mean_of


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
    monkeypatch.setattr(steps, "world_size", lambda: 2)
    monkeypatch.setattr(steps, "sum_over_ranks", lambda value: totals)
    both = torch.stack([mean_of(term, local=True) for term in parts]).mean()  # what DistributedDataParallel does
    torch.testing.assert_close(both, whole)


def test_alpha_weighs_the_task_and_what_is_left_of_one_the_method(home: Path) -> None:
    made = assemble(home, "talas", rows=8, simcse_weight=0.5, tamd_weight=2.0, lasd_weight=0.0)
    step, batch, labels = made.distiller.eval(), next(made.batches(8)), torch.arange(8) % 3
    alone = step(**batch)
    torch.testing.assert_close(alone["loss"], 0.5 * alone["terms"]["simcse"] + 2 * alone["terms"]["tamd"])
    for alpha in (0.0, 0.3, 1.0):
        section = TaskSection(kind="classification", alpha=alpha)
        step.task = build_task(section, step.tap.info.width, labels.numpy())
        both = step(**batch, labels=labels)
        torch.testing.assert_close(both["loss"], alpha * both["terms"]["task"] + (1 - alpha) * alone["loss"])
        assert both["terms"]["task"] > 0.1


def test_labels_first_have_the_whole_weight_at_the_start(home: Path) -> None:
    made = assemble(home, "talas", rows=8, simcse_weight=0.5)
    step, batch, labels = made.distiller.eval(), next(made.batches(8)), torch.arange(8) % 3
    section = TaskSection(kind="classification", alpha=0.3, labels_first=0.25)
    step.task = build_task(section, step.tap.info.width, labels.numpy())
    step.at(0.0)
    early = step(**batch, labels=labels)
    torch.testing.assert_close(early["loss"], early["terms"]["task"])
    assert early["terms"]["simcse"] > 0  # still there for the log
    step.at(0.25)
    late = step(**batch, labels=labels)
    assert (late["loss"] - late["terms"]["task"]).abs() > 1e-3
    torch.testing.assert_close(late["terms"], early["terms"])


def test_mean_of_a_term_with_small_weights() -> None:
    for weights, expected in (([0.1, 0.1], 2.0), ([0.01, 0.03], 2.5), ([0.0, 0.0], 0.0), ([2.0, 6.0], 2.5)):
        term = Term(torch.tensor([1.0, 3.0]), torch.tensor(weights), 1.0)
        assert float(mean_and_count(term)[0]) == pytest.approx(expected)
