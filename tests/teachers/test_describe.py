"""What is shown of a teacher, and the batch-invariance probe."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tests.functions import lengths
from tests.teachers.serving import serving
from torch import nn

from distilvec.teachers import load_teacher
from distilvec.teachers.describe import batch_invariance, check_teacher, describe
from distilvec.teachers.families import family_of


@pytest.mark.parametrize("kind", ["bert", "xlmr", "modernbert", "qwen3", "mistral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sound_models_are_invariant(kind: str, dtype: str, tiny_model_folders: dict[str, Path]) -> None:
    report = batch_invariance(load_teacher(model=tiny_model_folders[kind], device="cpu", dtype=dtype))
    assert report.passed, report
    assert report.advice == ""


class _IgnoresItsMask(nn.Module):
    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.inner = transformer

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        mask = features["attention_mask"]
        found: dict[str, Any] = self.inner({**features, "attention_mask": torch.ones_like(mask)})
        return {**found, "attention_mask": mask}


class _TakesTheLastPosition(nn.Module):
    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "sentence_embedding": features["token_embeddings"][:, -1]}


@pytest.mark.parametrize("kind", ["bert", "qwen3", "modernbert"])
def test_a_model_that_ignores_its_mask_is_found(kind: str, tiny_model_folders: dict[str, Path]) -> None:
    teacher = load_teacher(model=tiny_model_folders[kind], device="cpu")
    teacher.model[0] = _IgnoresItsMask(teacher.model[0])
    report = batch_invariance(teacher)
    assert not report.passed
    assert report.worst > report.tolerance
    if kind != "qwen3":  # a causal model with the padding behind the text never sees it
        assert "ignores the attention mask" in report.advice
    else:
        assert '"padding_side" to "right"' in report.advice


def test_wrong_padding_side_is_found_and_explained(tiny_model_folders: dict[str, Path]) -> None:
    teacher = load_teacher(model=tiny_model_folders["qwen3"], device="cpu")
    teacher.model[1] = _TakesTheLastPosition()
    assert batch_invariance(teacher).passed
    assert teacher.tokens is not None
    teacher.tokens.side = "right"
    report = batch_invariance(teacher)
    assert not report.passed
    assert "Padding is on the right" in report.advice
    assert '"padding_side" to "left"' in report.advice
    assert any("another vector alone" in warning for warning in check_teacher(teacher, ["a text"]).warnings)


def test_report(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    teacher = load_teacher(model=tiny_model_folders["qwen3"], device="cpu", prompt="query", max_length=64)
    report = check_teacher(teacher, sentences)
    assert len(report.examples) == 3
    short, _, long = report.examples
    text = min(sentences, key=len)
    assert short.rendered == f"{teacher.card.prompt}{text}<|endoftext|>"
    assert short.tokens == len(teacher.model.tokenizer(teacher.prompt + text)["input_ids"])
    assert long.tokens == 64
    whole = [len(teacher.model.tokenizer(teacher.prompt + text)["input_ids"]) for text in sentences]
    assert report.truncated == pytest.approx(sum(length > 64 for length in whole) / len(sentences))
    assert report.longest == max(whole)
    assert not any("another vector" in warning for warning in report.warnings)
    shown = str(report)
    assert "lasttoken pooling" in shown
    assert f"of {len(sentences)} texts are cut" in shown


def test_bert_example_shows_special_tokens(tiny_bert: Path) -> None:
    example = describe(load_teacher(model=tiny_bert, device="cpu"), ["Yes."]).examples[0]
    assert example.rendered.startswith("[CLS]")
    assert example.rendered.endswith("[SEP]")


def test_empty_sample(tiny_bert: Path) -> None:
    report = describe(load_teacher(model=tiny_bert, device="cpu"), [])
    assert report.examples == []
    assert report.truncated is None


def test_prompt_warnings(tiny_model_folders: dict[str, Path], tmp_path: Path) -> None:
    named = tmp_path / "e5-small-v2"
    shutil.copytree(tiny_model_folders["bert"], named)
    [warning] = describe(load_teacher(model=named, device="cpu"), ["a"]).warnings
    assert 'E5 was trained with one for every text: "query: "' in warning
    assert describe(load_teacher(model=named, device="cpu", prompt="query: "), ["a"]).warnings == []
    assert describe(load_teacher(model=named, device="cpu", prompt=""), ["a"]).warnings == []
    [warning] = describe(load_teacher(model=tiny_model_folders["qwen3"], device="cpu"), ["a"]).warnings
    assert "brings prompts (query)" in warning
    assert describe(load_teacher(model=tiny_model_folders["bert"], device="cpu"), ["a"]).warnings == []


def test_other_warnings(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    (folder / "modules.json").unlink()
    warnings = describe(load_teacher(model=folder, device="cpu"), ["word " * 500, "a"]).warnings
    assert any("mean was assumed" in warning for warning in warnings)
    assert any("50% of the texts are longer than" in warning for warning in warnings)
    assert any("forbids commercial use" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("intfloat/e5-base-v2", "E5"),
        ("intfloat/multilingual-e5-large", "E5"),
        ("intfloat/multilingual-e5-large-instruct", "E5 instruct"),
        ("intfloat/e5-mistral-7b-instruct", "E5 instruct"),
        ("BAAI/bge-base-en-v1.5", "BGE English v1.5"),
        ("Alibaba-NLP/gte-Qwen2-1.5B-instruct", "gte-Qwen"),
        ("/models/Qwen3-Embedding-0.6B/", "Qwen3-Embedding"),
        ("nomic-ai/nomic-embed-text-v1.5", "nomic-embed"),
        ("hkunlp/instructor-large", "Instructor"),
        ("mixedbread-ai/mxbai-embed-large-v1", "mxbai-embed"),
        ("Snowflake/snowflake-arctic-embed-m", "Arctic Embed"),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "Arctic Embed 2"),
        ("~/.cache/hub/models--intfloat--e5-base-v2/snapshots/0123", "E5"),
    ],
)
def test_families_that_want_a_prompt(source: str, name: str) -> None:
    family = family_of(source)
    assert family is not None
    assert family.name == name


@pytest.mark.parametrize(
    "source",
    ["BAAI/bge-m3", "sentence-transformers/all-MiniLM-L6-v2", "thenlper/gte-base", "bert-base-uncased", "/tmp/model"],
)
def test_families_without_prompts(source: str) -> None:
    assert family_of(source) is None


def test_vectors_that_overflow_in_float16_are_not_laid_to_the_mask(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hot"
    shutil.copytree(tiny_bert, folder)
    weights = load_file(folder / "model.safetensors")
    hot = {
        key: value * (600 if "dense.weight" in key and "attention" not in key else 1) for key, value in weights.items()
    }
    save_file(hot, folder / "model.safetensors", {"format": "pt"})
    for dtype, finite in (("float32", True), ("bfloat16", True), ("float16", False)):
        report = batch_invariance(load_teacher(model=folder, device="cpu", dtype=dtype))
        assert (report.passed, report.finite) == (finite, finite)
    [warning] = check_teacher(load_teacher(model=folder, device="cpu", dtype="float16"), ["a text"]).warnings
    assert "NaN or infinity in float16" in warning
    assert "dtype to bfloat16 or float32" in warning
    assert "mask" not in warning


def test_size_of_a_teacher_is_the_size_of_its_files(tiny_bert: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu").to(torch.bfloat16)
    model.save_pretrained(str(tmp_path / "half"))
    files = sum(file.stat().st_size for file in (tmp_path / "half").rglob("*.safetensors"))
    card = load_teacher(model=tmp_path / "half", device="cpu").card
    assert card.size_bytes == files and card.parameters is not None and files < 3 * card.parameters


def test_invariance_check_keeps_the_batch_size(tmp_path: Path) -> None:
    sizes: list[int] = []

    def noted(texts: list[str]) -> np.ndarray:
        sizes.append(len(texts))
        return lengths(texts)

    assert batch_invariance(load_teacher(call=noted, batch_size=2)).passed and max(sizes) == 2
    with serving() as service:
        assert batch_invariance(load_teacher(api={"url": service.url, "model": "m"}, batch_size=2)).passed
        assert max(len(body["input"]) for body in service.bodies) == 2
