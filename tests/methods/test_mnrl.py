"""Multiple-negatives ranking against sentence-transformers' loss, and what equal texts do to it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from distilvec.corpus.batch import Batch
from distilvec.errors import DistilvecError
from distilvec.functional import info_nce
from distilvec.methods.base import Sample
from distilvec.methods.mnrl import MNRL, MNRLOptions, ranking_loss
from distilvec.methods.table import build_methods
from distilvec.recipe import Recipe
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals
from distilvec.training.step import Distiller

ITEMS, WIDTH = 6, 10


def vectors(parts: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ITEMS, WIDTH, generator=generator) for _ in range(parts)]


def batch_of(parts: int, keys: Tensor | None = None) -> Batch:
    """Anchors, then positives, then negatives."""
    if keys is None:
        keys = torch.arange(ITEMS * parts, dtype=torch.uint8)[:, None].expand(-1, 16)
    group = torch.arange(ITEMS).repeat(parts)
    role = torch.arange(parts).clamp_max(2).repeat_interleave(ITEMS)
    return Batch(keys, Batch.equal_items(keys), group=group, role=role)


def loss(embedding: Tensor, batch: Batch, temperature: float = 0.05) -> Tensor:
    assert batch.group is not None and batch.role is not None
    return ranking_loss(embedding, batch.group, batch.role, batch.duplicate, temperature)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_pairs_triplets_and_several_negatives_as_in_sentence_transformers(parts: int) -> None:
    given = vectors(parts)
    theirs = MultipleNegativesRankingLoss(None, scale=20.0).compute_loss_from_embeddings(given, torch.empty(0))
    torch.testing.assert_close(loss(torch.cat(given), batch_of(parts)).mean(), theirs)


def test_the_method_counts_anchors_only() -> None:
    given = torch.cat(vectors(3)).requires_grad_()
    batch = batch_of(3)
    term = MNRL(MNRLOptions()).forward(StudentOutput(given[None]), [], batch)["ranking"]
    assert term.counted is not None and term.counted.tolist() == [True] * ITEMS + [False] * 2 * ITEMS
    torch.testing.assert_close(term.values[:ITEMS], loss(given, batch))
    assert not term.values[ITEMS:].any()
    term.values[term.counted].mean().backward()
    assert given.grad is not None and (given.grad.abs().sum(1) > 0).all()


def test_the_order_of_rows_does_not_matter() -> None:
    given, batch = torch.cat(vectors(3)), batch_of(3)
    order = torch.randperm(len(given), generator=torch.Generator().manual_seed(1))
    assert batch.group is not None and batch.role is not None
    shuffled = Batch(
        batch.keys[order], batch.duplicate[order][:, order], group=batch.group[order], role=batch.role[order]
    )
    found = loss(given[order], shuffled)
    anchors = batch.group[order][shuffled.role == 0]
    torch.testing.assert_close(found, loss(given, batch)[anchors])


def test_equal_texts_are_not_negatives() -> None:
    """Anchors 0 and 1 are the same text: each other's positives are answers to both, their negatives are not."""
    given, keys = vectors(3), torch.arange(ITEMS * 3, dtype=torch.uint8)[:, None].repeat(1, 16)
    keys[1], given[0][1] = keys[0], given[0][0]
    found = loss(torch.cat(given), batch_of(3, keys))
    candidates = torch.cat(given[1:])
    left = [c for c in range(2 * ITEMS) if c != 1]
    expected = info_nce(given[0][:1], candidates[left], 0.05, torch.tensor([0]))
    torch.testing.assert_close(found[:1], expected)
    torch.testing.assert_close(found[2:3], info_nce(given[0][2:3], candidates, 0.05, torch.tensor([2])))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [0, 2, 1, 3, 4, 5]])
def test_the_positive_of_an_equal_text_is_not_a_negative(order: list[int]) -> None:
    """Texts 0 and 2 are the same, and the positive of 2 is that of text 1, too: in either order text 0 has the loss
    that it has without it."""
    given, keys = vectors(2), torch.arange(ITEMS * 2, dtype=torch.uint8)[:, None].repeat(1, 16)
    keys[2], given[0][2] = keys[0], given[0][0]
    keys[ITEMS + 2], given[1][1:3] = keys[ITEMS + 1], given[0][0]  # as near as can be
    rows = torch.tensor([*order, *(ITEMS + place for place in order)])
    found = loss(torch.cat(given)[rows], batch_of(2, keys[rows]))
    expected = info_nce(given[0][:1], given[1][[0, 3, 4, 5]], 0.05)
    torch.testing.assert_close(found[:1], expected)


def test_a_candidate_that_stands_twice_counts_once() -> None:
    """An anchor with fewer negatives brings its positive again."""
    given, keys = vectors(3), torch.arange(ITEMS * 3, dtype=torch.uint8)[:, None].repeat(1, 16)
    keys[2 * ITEMS + 4], given[2][4] = keys[ITEMS + 4], given[1][4]
    found = loss(torch.cat(given), batch_of(3, keys))
    candidates = torch.cat(given[1:])[[c for c in range(2 * ITEMS) if c != ITEMS + 4]]
    torch.testing.assert_close(found, info_nce(given[0], candidates, 0.05))


def test_degenerate_batches_are_finite() -> None:
    for given in (torch.zeros(2, WIDTH), torch.ones(2, WIDTH), 1e4 * torch.ones(2, WIDTH)):
        embedding = given.clone().requires_grad_()
        one = Batch(torch.arange(2)[:, None], torch.eye(2).bool(), group=torch.zeros(2), role=torch.tensor([0, 1]))
        value = loss(embedding, one).sum()
        value.backward()
        assert value == 0 and embedding.grad is not None and torch.isfinite(embedding.grad).all()


def test_hard_negatives_are_an_option() -> None:
    info = StudentInfo("s", WIDTH, 2, WIDTH)
    assert MNRL(MNRLOptions()).needs(info, []).companions is None
    assert MNRL(MNRLOptions(preset="paper")).needs(info, []).companions == 1
    assert MNRL(MNRLOptions(hard_negatives=False)).needs(info, []).companions == 1


def test_autocast_and_a_second_pass() -> None:
    method, given, batch = MNRL(), torch.cat(vectors(3)), batch_of(3)
    first = method(StudentOutput(given[None]), [], batch)["ranking"].values
    torch.testing.assert_close(copy.deepcopy(method)(StudentOutput(given[None]), [], batch)["ranking"].values, first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(method(StudentOutput(given[None]), [], batch)["ranking"].values, first)


def recipe(folder: Path, teacher: Path, **changes: object) -> dict[str, object]:
    return {
        "corpus": {"path": str(folder / "pairs.jsonl"), "text": ["anchor", "positive"], "holdout": 0.3},
        "teachers": [{"model": str(teacher)}],
        "student": {"shrink": {"of": str(teacher), "layers": 1, "vocabulary": 2000}, "max_length": 24},
        "method": {"name": "mnrl"},
        "optimizer": {"lr": 6e-4},
        "training": {"epochs": 3, "batch_size": 32, "mini_batch_size": 16, "use_cpu": True},
        "judging": {"agreement": False, "speed": False},
        "output": str(folder / "out"),
        **changes,
    }


def test_single_texts_are_refused_before_anything_is_read(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match=r'^corpus\.text: .*"mnrl".*text: \[anchor, positive\]') as caught:
        Recipe.build(recipe(tmp_path, tiny_bert, corpus={"path": "missing.txt"}))
    assert caught.value.where == "corpus.text" and "anchor" in str(caught.value.remedy)


def test_a_student_learns_to_find_what_belongs_to_held_out_texts(tmp_path: Path, real_teacher_folder: Path) -> None:
    """Real pairs: the first sentence of a docstring, and what comes after it."""
    import json

    from distilvec.corpus import docstring_pairs
    from distilvec.flow.run import run

    rows = [{"anchor": each["summary"], "positive": each["description"][:80]} for each in docstring_pairs(240)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    done = run(Recipe.build(recipe(tmp_path, real_teacher_folder)))
    scores = {name: done.record["scores"].model(name).scores for name in ("student", "untrained")}
    name = next(name for name in scores["student"] if "retrieval" in name)
    assert scores["student"][name].value > scores["untrained"][name].value + 0.01
    terms = [line["term/ranking"] for line in done.record["training"].log if "term/ranking" in line]
    assert terms[-1] < 0.7 * terms[0] and 0 < done.record["reproduced"].terms["ranking"] < 6


def test_positive_in_place_of_a_missing_negative_counts_once() -> None:
    """Two anchors, the second of which has no negative: its positive stands in the batch twice."""
    keys = torch.tensor([1, 2, 3, 4, 5, 4], dtype=torch.uint8)[:, None].expand(-1, 16)
    group, role = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2, 1])
    vectors, targets = torch.randn(1, 6, 4), torch.randn(6, 4)
    vectors[0, 5], targets[5] = vectors[0, 3], targets[3]
    method = build_methods([{"name": "cosine", "map": False}, {"name": "mnrl"}])
    student, teacher = StudentInfo("s", 4, layers=None, hidden=4), TeacherInfo("t", 4)
    present = torch.ones(6, dtype=torch.bool)
    told = [TeacherSignals(present=present, sentence=targets)]
    method.build(student, [teacher], Sample(StudentOutput(vectors), told))
    batch = Batch(keys, Batch.equal_items(keys), group=group, role=role)
    term = method(StudentOutput(vectors), told, batch)["cosine"]
    once = term.values[0, :5].mean()
    result = Distiller._reduce(None, {"cosine": term}, None, local=True)  # type: ignore[arg-type]
    torch.testing.assert_close(result["loss"], once)
