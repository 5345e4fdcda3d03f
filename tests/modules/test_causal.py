"""A causal model in the pipeline of students and teachers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.writing import built

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.blocks import find_transformer, find_writer
from distilvec.modules.writing import open_writer
from distilvec.students.tap import StudentTap

PAIRS = [
    ("What is the time?", "Half past nine."),
    ("Say it", "no"),
    ("A much longer prompt than the others", "and so on"),
]


@pytest.fixture(scope="module", params=["gpt2", "opt", "qwen3"])
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_writer(built(request.param, tmp_path_factory.mktemp("writer")), device="cpu").eval()


def test_the_loss_is_that_of_transformers(pipeline: Any) -> None:
    """Labels are the answer's tokens and its end; all else is left out."""
    writer = find_writer(pipeline)
    assert writer is not None and writer is find_transformer(pipeline)
    for pair in PAIRS:
        features = writer.preprocess([pair])
        labels = features["input_ids"].masked_fill(features["answer_mask"] == 0, -100)
        with torch.no_grad():
            own = writer.model(input_ids=features["input_ids"], labels=labels).loss
            found = pipeline(features)
        torch.testing.assert_close(found["answer_loss"][0], own, rtol=1e-5, atol=1e-5)
        assert int(found["answer_tokens"]) == int((labels != -100).sum())


def test_padding_on_either_side_changes_nothing(pipeline: Any) -> None:
    writer = find_writer(pipeline)
    assert writer is not None
    before, found = writer.tokenizer.padding_side, {}
    tap = StudentTap(pipeline)
    for side in ("left", "right"):
        writer.tokenizer.padding_side = side
        with torch.no_grad():
            found[side] = tap(writer.preprocess(PAIRS), views=1)
    writer.tokenizer.padding_side = before
    for row, pair in enumerate(PAIRS):
        with torch.no_grad():
            alone = tap(writer.preprocess([pair]), views=1)
        for side in ("left", "right"):
            loss = found[side].extras["answer_loss"][0, row]
            torch.testing.assert_close(loss, alone.extras["answer_loss"][0, 0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found[side].embedding[0, row], alone.embedding[0, 0], rtol=1e-4, atol=1e-4)


def test_logits_stand_at_the_end_of_the_prompt_and_at_the_answers_tokens(pipeline: Any) -> None:
    writer = find_writer(pipeline)
    assert writer is not None
    writer.next_logits = True
    features = writer.preprocess([PAIRS[0]])
    with torch.no_grad():
        whole = writer.model(input_ids=features["input_ids"]).logits[0]
        found = writer(dict(features))
    writer.next_logits = False
    at = (features["answer_mask"][0] > 0).nonzero()[:, 0]
    torch.testing.assert_close(found["next_logits"][0], whole[at - 1], rtol=1e-4, atol=1e-4)
    assert found["next_ids"][0].tolist() == features["input_ids"][0][at].tolist()


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_the_vector_is_of_the_answers_tokens(tmp_path: Path, pooling: Any) -> None:
    pipeline = open_writer(built("gpt2", tmp_path), device="cpu", pooling=pooling).eval()
    features = pipeline.preprocess(PAIRS)
    with torch.no_grad():
        found = pipeline(dict(features))
    for row in range(len(PAIRS)):
        states = found["token_embeddings"][row][features["answer_mask"][row] == 1]
        expected = states.mean(0) if pooling == "mean" else states[-1]
        torch.testing.assert_close(found["sentence_embedding"][row], expected)


def test_content_is_the_answer_without_its_end(pipeline: Any) -> None:
    features = pipeline.preprocess(PAIRS)
    output = StudentTap(pipeline)(dict(features), views=2)
    assert output.embedding.shape[:2] == (2, len(PAIRS))
    assert torch.equal(output.content, features["answer_mask"] == 1)
    assert output.extras["answer_loss"].shape == (2, len(PAIRS))


def test_models_that_cannot_generate_are_refused(
    tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DistilvecError):
        open_writer(tmp_path / "nothing")
    folder = built("gpt2", tmp_path)
    with pytest.raises(DistilvecError, match="max_length is 1000, its positions allow 256"):
        open_writer(folder, max_length=1000)
    with pytest.raises(DistilvecError, match="^pooling: "):
        open_writer(folder, pooling="cls")
    from transformers import GPT2LMHeadModel

    forward = GPT2LMHeadModel.forward

    def capped(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        output.logits = torch.tanh(output.logits)
        return output

    monkeypatch.setattr(GPT2LMHeadModel, "forward", capped)
    with pytest.raises(DistilvecError, match="GPT2LMHeadModel .*linear"):
        open_writer(folder, device="cpu")
    monkeypatch.undo()
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises((DataError, DistilvecError)):
        open_writer(folder)
