"""The task head: what it computes, that it comes back from its files, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.layouts import has_head
from distilvec.modules.task_head import TaskHead, sentence_vectors


def test_a_classifier_is_linear_in_the_vector() -> None:
    head = TaskHead(5, labels=["no", "yes", "maybe"])
    vectors = torch.randn(2, 7, 5, requires_grad=True)
    logits = head(vectors)
    assert head.linear is not None and head.classes == 3
    torch.testing.assert_close(logits, vectors @ head.linear.weight.T + head.linear.bias)
    logits.sum().backward()
    assert vectors.grad is not None and vectors.grad.abs().sum() > 0
    assert head.meaning(torch.tensor([[0.0, 2, 1], [3, 2, 1]])) == ["yes", "no"]


def test_a_separate_pair_is_four_features_and_a_similarity_their_cosine() -> None:
    u, v = torch.randn(4, 3), torch.randn(4, 3)
    head = TaskHead(3, labels=["0", "1"], encoding="separate")
    assert head.linear is not None and head.linear.in_features == 12
    expected = head.linear(torch.cat([u, v, (u - v).abs(), u * v], -1))
    torch.testing.assert_close(head(u, v), expected)
    cosine = TaskHead(3, "regression", encoding="separate", shift=1.0, scale=4.0)
    assert not list(cosine.parameters())
    torch.testing.assert_close(cosine(u, v)[:, 0], torch.cosine_similarity(u, v))
    assert cosine.meaning(cosine(u, u)) == pytest.approx([5.0] * 4)
    zero = torch.zeros(1, 3, requires_grad=True)
    cosine(zero, v[:1]).sum().backward()
    assert zero.grad is not None and zero.grad.isfinite().all()


def test_dropout_stands_before_the_classifier_in_training_only(tmp_path: Path) -> None:
    head, vectors = TaskHead(64, labels=["a", "b"], dropout=0.25), torch.ones(400, 64)
    with torch.no_grad():
        head.linear.weight.fill_(1.0)  # type: ignore[union-attr]
    logits = head(vectors)
    # Each logit counts the coordinates that are left, each 4/3 as large.
    assert torch.isclose(logits.mean(), torch.tensor(64.0), atol=0.5) and logits.std() > 1
    torch.testing.assert_close(logits * 0.75, (logits * 0.75).round())
    torch.testing.assert_close(head.eval()(vectors), torch.full((400, 2), 64.0))
    head.save(tmp_path)
    loaded, state = TaskHead.load(tmp_path).train(), torch.get_rng_state()
    torch.testing.assert_close(loaded(vectors), torch.full((400, 2), 64.0))
    # Without it nothing is drawn, so trainings stay what they were.
    assert torch.equal(torch.get_rng_state(), state)


def test_logits_are_float32_under_autocast_too() -> None:
    head = TaskHead(8, labels=["a", "b"])
    vectors = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head(vectors.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(vectors.bfloat16().float()))


@pytest.mark.parametrize(
    "head",
    [
        TaskHead(4, labels=["früh", "spät"]),
        TaskHead(4, labels=["x", "y", "z"], encoding="separate"),
        TaskHead(4, "regression", encoding="joint", shift=2.5, scale=0.7),
        TaskHead(4, "regression", encoding="separate", shift=0.0, scale=5.0),
    ],
    ids=["labels", "pair", "joint", "cosine"],
)
def test_a_saved_head_is_the_same_head(head: TaskHead, tmp_path: Path) -> None:
    assert not has_head(tmp_path)
    head.save(tmp_path)
    again = TaskHead.load(tmp_path)
    assert has_head(tmp_path) and again.config() == head.config()
    vectors = [torch.randn(3, 4) for _ in range(2 if head.encoding == "separate" else 1)]
    assert torch.equal(again(*vectors), head(*vectors))


def test_damaged_and_missing_heads_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + ".*`distilvec finetune`"):
        TaskHead.load(tmp_path)
    TaskHead(4, labels=["a", "b"]).save(tmp_path)
    (tmp_path / "task" / "head.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(DataError, match=r"/task: .*header"):
        TaskHead.load(tmp_path)
    TaskHead(4, labels=["a", "b"]).save(tmp_path)
    (tmp_path / "task" / "task.json").write_text('{"width": 4, "labels": ["a", "b"], "colour": "red"}')
    with pytest.raises(DataError, match="/task: .*colour"):
        TaskHead.load(tmp_path)


def test_impossible_task_heads_are_refused() -> None:
    with pytest.raises(DistilvecError, match=r"\['only'\]"):
        TaskHead(4, labels=["only"])
    with pytest.raises(DistilvecError, match=r"\['a', 'a'\]"):
        TaskHead(4, labels=["a", "a"])
    with pytest.raises(DistilvecError, match=r"^task head: .*regression has \['a', 'b'\]"):
        TaskHead(4, "regression", labels=["a", "b"])
    with pytest.raises(DistilvecError, match=r"^task head: .*scale .*0\.0"):
        TaskHead(4, "regression", scale=0.0)
    with pytest.raises(DistilvecError, match="^task head: .*encoding separate"):
        TaskHead(4, labels=["a", "b"], encoding="separate")(torch.zeros(1, 4))
    with pytest.raises(DistilvecError, match="^task head: .*encoding single"):
        TaskHead(4, labels=["a", "b"])(torch.zeros(1, 4), torch.zeros(1, 4))


def test_the_head_reads_what_comes_before_a_final_normalize(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    model = SentenceTransformer(str(tiny_model_folders["xlmr"]), device="cpu")
    features = model.preprocess(sentences[:4])
    with torch.no_grad():
        vectors = sentence_vectors(model, features)
    norms = vectors.norm(dim=-1)
    assert (norms - 1).abs().max() > 0.05
    own = torch.from_numpy(model.encode(sentences[:4]))
    torch.testing.assert_close(vectors / norms[:, None], own, atol=1e-5, rtol=1e-5)
    assert "sentence_embedding" not in features
