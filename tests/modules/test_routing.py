"""Watching routers, the loss for their balance, and switching aggregation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.modules import nomic_moe
from tests.modules.nomic_moe import TEXTS

from distilvec.errors import DistilvecError
from distilvec.functional.gating import load_balance
from distilvec.modules.aggregation import set_aggregation
from distilvec.modules.expert_head import ExpertHead
from distilvec.modules.moe_folder import open_moe
from distilvec.modules.routing import hand_out_routing, mixtures, router_balance, routing
from distilvec.modules.sphere import AGGREGATIONS
from distilvec.students import StudentTap


@pytest.fixture
def student(tmp_path: Path) -> SentenceTransformer:
    return open_moe(nomic_moe.write(tmp_path / "published"), device="cpu").eval()


def test_what_each_router_did(student: SentenceTransformer) -> None:
    features = student.preprocess(TEXTS)
    with torch.no_grad(), routing(student) as seen:
        student(dict(features))
    with torch.no_grad():
        student(dict(features))  # no longer watched
    assert [each.layer for each in seen] == [2, 4] == list(mixtures(student[0].model))
    real = features["attention_mask"].bool()
    assert not real.all()
    for each in seen:
        assert torch.equal(each.real, real)
        assert torch.equal(each.selected.sum(-1), 2 * real)
        best = each.probabilities[real].topk(2)
        assert torch.equal(each.weights[real], best.values) and torch.equal(each.chosen[real], best.indices)
        assert torch.equal(each.selected.sum((0, 1)), torch.bincount(best.indices.flatten(), minlength=4))
        assert each.outputs().shape == (*real.shape, 2, nomic_moe.WIDTH)


def test_the_sums_give_the_balance_of_all_tokens(student: SentenceTransformer) -> None:
    features = student.preprocess(TEXTS)
    handed = hand_out_routing(student)
    with routing(student) as seen:
        output = StudentTap(student)(features, views=2)
    load, mass = (output.extras[name].flatten(0, 1) for name in ("router_load", "router_probability"))
    assert load.shape == (2 * len(TEXTS), 2, 4)
    found = router_balance(load, mass)
    each = [load_balance(one.probabilities.flatten(0, 1), one.selected.flatten(0, 1)) for one in seen]
    expected = sum(each) / 2
    torch.testing.assert_close(found, expected)
    routers = [module.router.layer.weight for module in mixtures(student[0].model).values()]
    gradients = [torch.autograd.grad(value, routers, retain_graph=True) for value in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients[0])
    handed.close()
    assert not any(module.watchers for module in mixtures(student[0].model).values())
    assert "router_load" not in StudentTap(student)(features, views=1).extras


def test_balance_at_its_ends() -> None:
    even, one = torch.full((3, 2, 4), 2.0), torch.zeros(3, 2, 4)
    one[..., 0] = 8
    assert router_balance(even, even / 2).item() == pytest.approx(1)
    assert router_balance(one, one / 2).item() == pytest.approx(4)
    assert router_balance(torch.zeros(3, 2, 4), torch.zeros(3, 2, 4)).item() == 0


def test_switching_the_aggregation(student: SentenceTransformer) -> None:
    original = student.encode(TEXTS)
    vectors = {}
    for mode in AGGREGATIONS:
        set_aggregation(student, mode)
        vectors[mode] = student.encode(TEXTS)
    for i, mode in enumerate(AGGREGATIONS):
        for other in AGGREGATIONS[:i]:
            assert np.abs(vectors[mode] - vectors[other]).max() > 1e-4, (mode, other)
    set_aggregation(student, "linear")
    assert np.array_equal(student.encode(TEXTS), original)
    set_aggregation(student, "linear", normalize_weights=True)
    assert np.abs(student.encode(TEXTS) - original).max() > 1e-4
    set_aggregation(student, "linear")  # says nothing of the weights
    assert student[0].model.config.normalize_weights
    set_aggregation(student, "linear", normalize_weights=False)
    assert np.array_equal(student.encode(TEXTS), original)


def test_a_head_switches_with_the_encoder(student: SentenceTransformer, tiny_bert: Path) -> None:
    dense = SentenceTransformer(str(tiny_bert), device="cpu")
    with pytest.raises(DistilvecError, match=r"\(Transformer, Pooling.*distilvec\.students\.upcycle"):
        set_aggregation(dense, "sba")
    with pytest.raises(DistilvecError, match=r"\(Transformer, Pooling.*distilvec\.students\.upcycle"), routing(dense):
        pass
    head = ExpertHead(dense.get_embedding_dimension(), hidden=8)
    dense.append(head)
    set_aggregation(dense, "sba")
    assert head.aggregation == "sba"
    student.append(ExpertHead(nomic_moe.WIDTH, hidden=8))
    set_aggregation(student, "nlerp")
    assert (student[0].model.config.aggregation, student[-1].aggregation) == ("nlerp", "nlerp")
    with pytest.raises(DistilvecError, match='"liner".*"linear"'):
        set_aggregation(student, "liner")
    assert (student[0].model.config.aggregation, student[-1].aggregation) == ("nlerp", "nlerp")
