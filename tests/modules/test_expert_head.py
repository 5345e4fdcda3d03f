"""The head that ships with a student: its arithmetic, and that it opens wherever sentence-transformers does."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from tests.elsewhere import opened_saved_and_opened

from distilvec.errors import DataError, DistilvecError
from distilvec.functional import spherical_aggregate
from distilvec.modules.expert_head import ExpertHead
from distilvec.modules.sphere import AGGREGATIONS
from distilvec.students.fold import fold_head

TEXTS = ["hello", "The train to Zürich leaves from platform 7 at 14:32.", "東京は今日も雨です。", ""]
OWN = {"expert_head.ExpertHead": ExpertHead}


def with_head(folder: Path, **settings) -> SentenceTransformer:
    student = SentenceTransformer(str(folder), device="cpu")
    torch.manual_seed(0)
    student.append(ExpertHead(student.get_embedding_dimension(), hidden=64, **settings))
    return student.eval()


def run(head: ExpertHead, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    return head({"sentence_embedding": vectors})


def test_parameter_count_of_the_paper() -> None:
    head = ExpertHead(768)
    gate = sum(p.numel() for p in head.router.parameters())
    assert gate == 2_307
    assert sum(p.numel() for p in head.parameters()) - gate == 4_723_968
    assert sum(p.numel() for p in ExpertHead(768, gate="mlp").router.parameters()) == 790_531


def test_batched_product_is_each_expert_by_itself() -> None:
    head = ExpertHead(6, experts=4, hidden=5, dropout=0.9).eval()
    vectors = torch.randn(7, 6)
    features = run(head, vectors)
    torch.testing.assert_close(features["gate"].sum(-1), torch.ones(7))
    assert features["sentence_vector"] is vectors
    expected = torch.zeros(7, 6)
    for k in range(4):
        first, bias = head.first.weight[5 * k : 5 * k + 5], head.first.bias[5 * k : 5 * k + 5]
        output = torch.relu(vectors @ first.mT + bias) @ head.second[k] + head.bias[k]
        torch.testing.assert_close(features["expert_outputs"][:, k], output)
        expected += features["gate"][:, k, None] * output
    torch.testing.assert_close(features["sentence_embedding"], expected)


def test_starts_like_linear_layers() -> None:
    head = ExpertHead(100, hidden=64)
    for tensor, inputs in ((head.first.weight, 100), (head.second, 64), (head.bias, 64)):
        assert 0.9 / math.sqrt(inputs) < tensor.abs().max() <= 1 / math.sqrt(inputs)


def test_dropout_in_training_only() -> None:
    head, vectors = ExpertHead(6, hidden=16, dropout=0.5), torch.randn(2, 6)
    assert not torch.equal(run(head, vectors)["sentence_embedding"], run(head, vectors)["sentence_embedding"])
    head.eval()
    assert torch.equal(run(head, vectors)["sentence_embedding"], run(head, vectors)["sentence_embedding"])


def test_dropout_of_the_vector_is_seen_by_experts_and_gate_alike(tmp_path: Path) -> None:
    head, vectors = ExpertHead(32, hidden=8, dropout=0.0, vector_dropout=0.5), torch.ones(3, 32)
    seen: list[torch.Tensor] = []
    for reader in (head.first, head.router):
        reader.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    features = run(head, vectors)
    assert features["sentence_vector"] is vectors
    assert torch.equal(seen[0], seen[1]) and set(seen[0].unique().tolist()) == {0.0, 2.0}
    run(head.eval(), vectors)
    assert torch.equal(seen[2], vectors)
    (tmp_path / "2_ExpertHead").mkdir()
    head.save(str(tmp_path / "2_ExpertHead"))
    assert ExpertHead.load(str(tmp_path / "2_ExpertHead")).vector_dropout == 0.5


@pytest.mark.parametrize("mode", AGGREGATIONS[1:])
@pytest.mark.parametrize("experts", [1, 2, 3, 6])
def test_spherical_aggregation_is_that_of_functional(experts: int, mode: str) -> None:
    torch.manual_seed(1)
    head = ExpertHead(8, experts=experts, hidden=32, aggregation=mode).eval()
    vectors = 3 * torch.randn(50, 8)
    features = run(head, vectors)
    expected = spherical_aggregate(features["expert_outputs"], features["gate"], mode)
    torch.testing.assert_close(features["sentence_embedding"], expected, rtol=1e-4, atol=1e-5)
    if mode != "unit":
        lengths = (features["gate"] * features["expert_outputs"].norm(dim=-1)).sum(-1)
        torch.testing.assert_close(features["sentence_embedding"].norm(dim=-1), lengths, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", AGGREGATIONS[1:])
@pytest.mark.parametrize("degrees", [170.0, 178.8, 179.9, 179.999])
def test_three_experts_near_opposite_directions(mode: str, degrees: float) -> None:
    """Two experts nearly opposed and a third between them: what the head gives is finite, and so is its gradient."""
    angle = math.radians(degrees)
    directions = torch.tensor([[1.0, 0, 0], [math.cos(angle), math.sin(angle), 0], [0, 0.6, 0.8]])
    head = ExpertHead(3, experts=3, hidden=2, aggregation=mode, dropout=0.0)
    with torch.no_grad():
        head.first.weight.zero_()
        head.second.zero_()
        head.bias.copy_(directions.unsqueeze(1))
        head.router.weight.zero_()
        head.router.bias.copy_(torch.tensor([0.5, 0.45, 0.05]).log())
    output = run(head, torch.zeros(1, 3))["sentence_embedding"]
    assert output.isfinite().all() and output.norm() > 0.5
    output[0, 0].backward()
    assert head.bias.grad is not None and head.bias.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["parallel", "opposed", "zero"])
def test_spherical_aggregation_has_finite_gradients_where_directions_coincide(kind: str) -> None:
    head = ExpertHead(4, experts=3, hidden=8, aggregation="sba").eval()
    with torch.no_grad():
        for tensor in (head.second, head.bias):
            tensor.copy_(tensor[:1].expand_as(tensor) * (0 if kind == "zero" else 1))
            if kind == "opposed":
                tensor[1] *= -1
        head.first.weight.copy_(head.first.weight[:8].repeat(3, 1))
        head.first.bias.copy_(head.first.bias[:8].repeat(3))
    output = run(head, torch.randn(5, 4))["sentence_embedding"]
    assert output.isfinite().all()
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (head.first.weight, head.second))


def test_half_precision_and_autocast_keep_the_vectors_type() -> None:
    for aggregation in ("linear", "sba"):
        head = ExpertHead(8, hidden=16, aggregation=aggregation).eval()
        exact = run(head, vectors := torch.randn(5, 8))["sentence_embedding"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loose = run(head, vectors)["sentence_embedding"]
        half = run(head.bfloat16(), vectors.bfloat16())["sentence_embedding"]
        assert (loose.dtype, half.dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(loose, exact, rtol=0.1, atol=0.05)
        torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("wrong", [{"gate": "deep"}, {"aggregation": "mean"}, {"experts": 0}])
def test_settings_that_do_not_exist_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"\b{} {}[,:]".format(*next(iter(wrong.items())))):
        ExpertHead(4, **wrong)


@pytest.mark.parametrize("settings", [{}, {"gate": "mlp", "aggregation": "norm_free", "experts": 6}])
def test_bit_identical_after_save_and_load_also_without_distilvec(start, tiny_bert, tmp_path, settings) -> None:
    student = with_head(tiny_bert, **settings)
    expected = student.encode(TEXTS)
    folder = tmp_path / "student"
    student.save_pretrained(str(folder), create_model_card=False)
    listed = json.loads((folder / "modules.json").read_text())
    assert listed[-1]["type"] == "expert_head.ExpertHead"
    assert (folder / "expert_head.py").is_file()
    with pytest.raises(ValueError, match=r"expert_head\.ExpertHead(.|\n)*trust_remote_code"):
        SentenceTransformer(str(folder), device="cpu")
    # What students/load.py does: our class for the name, and no code of the folder's.
    ours = SentenceTransformer._load_with_module_classes(str(folder), OWN, device="cpu")
    assert np.array_equal(ours.encode(TEXTS), expected)
    read = opened_saved_and_opened(start, folder, TEXTS, tmp_path)
    assert np.array_equal(read["first"], expected)
    assert np.array_equal(read["second"], expected)


def test_a_damaged_head_does_not_load(tiny_bert, tmp_path) -> None:
    student = with_head(tiny_bert)
    student.save_pretrained(str(tmp_path / "student"), create_model_card=False)
    config = next((tmp_path / "student").glob("*_ExpertHead")) / "config.json"
    config.write_text(config.read_text().replace('"experts": 3', '"experts": 4'))
    with pytest.raises(RuntimeError, match=r"second: .*\[3, 64, 32\].*\[4, 64, 32\]"):
        SentenceTransformer._load_with_module_classes(str(tmp_path / "student"), OWN, device="cpu")


def test_copies_and_pickles() -> None:
    head, vectors = ExpertHead(6, hidden=4).eval(), torch.randn(3, 6)
    expected = run(head, vectors)["sentence_embedding"]
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert other.second is not head.second
        assert torch.equal(run(other, vectors)["sentence_embedding"], expected)


def test_folding_gives_a_stock_model_and_says_what_it_costs(tiny_bert, tmp_path, sentences) -> None:
    student = with_head(tiny_bert)
    student.append(Normalize())
    expected = student.encode(sentences)
    agreement = fold_head(student, sentences)
    student.save_pretrained(str(tmp_path / "folded"), create_model_card=False)
    plain = SentenceTransformer(str(tmp_path / "folded"), device="cpu")
    assert [type(module).__name__ for module in plain] == ["Transformer", "Pooling", "Dense", "Normalize"]
    cosines = (plain.encode(sentences) * expected).sum(-1)
    assert 0.5 < agreement <= 1
    assert abs(cosines[::5].mean() - agreement) < 0.05


def test_folding_a_linear_head_loses_nothing(tiny_bert, sentences) -> None:
    student = with_head(tiny_bert)
    with torch.no_grad():  # every hidden unit is on and the gate is even: the head is linear
        student[-1].first.bias.fill_(1e3)
        student[-1].second.div_(1e2)
        student[-1].router.weight.zero_()
    assert fold_head(student, sentences) > 0.9999


def test_folding_needs_a_head_and_texts(tiny_bert) -> None:
    with pytest.raises(DistilvecError, match=r"\(Transformer, Pooling.*fold: true"):
        fold_head(SentenceTransformer(str(tiny_bert), device="cpu"), TEXTS * 5)
    with pytest.raises(DataError, match=r"\b10 texts.*\b4\b"):
        fold_head(with_head(tiny_bert), TEXTS)


def test_gate_weights_sum_to_one_under_autocast() -> None:
    torch.manual_seed(0)
    head = ExpertHead(16, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        gate = head({"sentence_embedding": torch.randn(64, 16)})["gate"]
    assert gate.dtype == torch.float32
    assert torch.allclose(gate.sum(-1), torch.ones(64), atol=1e-6)
