"""A teacher whose linear layers are held in 8 bits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

import distilvec
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.demo import demo_teacher
from distilvec.teachers import load_teacher
from distilvec.teachers.precision import settle_precision


def bytes_of(model: Any) -> int:
    """Of the weights as they lie in memory; torchao's hold parts."""
    parts = [
        part
        for weight in model.parameters()
        for part in (
            [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]
            if hasattr(weight, "__tensor_flatten__")
            else [weight]
        )
    ]
    return sum(part.numel() * part.element_size() for part in parts)


def test_a_real_model_is_smaller_and_nearly_says_the_same(sentences: list[str]) -> None:
    whole = load_teacher(name="whole", model=demo_teacher(), dtype="float32")
    small = load_teacher(name="small", model=demo_teacher(), dtype="float32", load="int8")
    one, other = whole.encode(sentences[:40]), small.encode(sentences[:40])
    cosines = (one * other).sum(1)  # both are unit vectors
    assert 0.99 < cosines.min() < 1 - 1e-6
    assert bytes_of(small.model) < 0.8 * bytes_of(whole.model)  # its word table, half of it, stays whole
    assert small.card.parameters == whole.card.parameters
    assert small.card.fingerprint != whole.card.fingerprint
    assert settle_precision(whole, sentences) == ""
    said = settle_precision(small, sentences)
    assert "small holds its weights in 8 bits: of 10 texts" in said and "mean cosine of 0.99" in said
    assert settle_precision(small, sentences, held="float32") == ""


def test_a_run_says_what_it_changes(tiny_bert: Path, tmp_path: Path, sentences: list[str], caplog: Any) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:60]), encoding="utf-8")
    caplog.set_level(logging.INFO, logger="distilvec")
    teacher = {"name": "small", "model": str(tiny_bert), "load": "int8"}
    store = distilvec.teach(teacher, str(tmp_path / "texts.txt"), tmp_path / "out")
    assert len(store) == len(set(sentences[:60]))
    assert "small holds its weights in 8 bits" in caplog.text


@pytest.mark.parametrize("load", ["int8", "split"])
def test_a_table_of_word_vectors_has_nothing_to_hold_otherwise(tiny_bert: Path, tmp_path: Path, load: str) -> None:
    pieces = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(pieces, embedding_dim=16)], device="cpu").save(str(tmp_path))
    with pytest.raises(DistilvecError, match=f"load: {load} has no effect on a model without layers. Leave it out"):
        load_teacher(model=str(tmp_path), load=load)


def test_adapters_and_a_missing_package_are_refused(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DistilvecError, match="merge them into the model first"):
        load_teacher(model=str(tiny_bert), load="int8", adapters=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"distilvec\[torchao\]"):
        load_teacher(model=str(tiny_bert), load="int8")


def test_a_gguf_file_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(DistilvecError, match=r"model-q4\.gguf is for llama\.cpp.*`api`"):
        load_teacher(model=str(tmp_path))
