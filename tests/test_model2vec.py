"""Static tables and the package model2vec: what it opens of ours, and what we open of its."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.layouts import is_model2vec
from distilvec.modules.model2vec import open_model2vec, unknown_piece
from distilvec.students import load_student, ship
from distilvec.teachers import load_teacher

model2vec = pytest.importorskip("model2vec", reason="the extra model2vec is not installed")
STRANGE = ["", "漢字", "the cat 漢字 sleeps", "שלום 🚀", "the cat sleeps " * 60]


@pytest.fixture(scope="module")
def saved(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that model2vec wrote, with random tables of the tiny BERT's pieces."""
    from tokenizers import Tokenizer

    place, rng = tmp_path_factory.mktemp("model2vec"), np.random.default_rng(0)
    tokenizer = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    table = rng.normal(size=(tokenizer.get_vocab_size(), 12)).astype(np.float32)
    mapping, weights = rng.integers(0, 40, len(table)), rng.random(len(table)).astype(np.float32)
    ways: dict[str, dict[str, Any]] = {
        "plain": {"normalize": True},
        "half": {"vectors": table.astype(np.float16), "normalize": True},
        "bytes": {"vectors": (20 * table).round().astype(np.int8), "normalize": True},
        "quantised": {"vectors": table[:40], "token_mapping": mapping, "weights": weights, "normalize": True},
        "short": {"normalize": True, "max_length": 9},
        "any length": {"normalize": False, "max_length": None},
    }
    for name, given in ways.items():
        model = model2vec.StaticModel(given.pop("vectors", table), tokenizer, **given)
        model.save_pretrained(place / name)
    shutil.copytree(place / "plain", place / "bare")
    (place / "bare" / "modules.json").unlink()
    return {name: place / name for name in (*ways, "bare")}


def test_its_folders_are_students_and_teachers(
    saved: dict[str, Path], sentences: list[str], subtests: pytest.Subtests
) -> None:
    texts = [*sentences[:40], *STRANGE]
    for name, folder in saved.items():
        with subtests.test(name):
            wanted = model2vec.StaticModel.from_pretrained(folder).encode(texts)
            student = load_student(folder, device="cpu")
            assert all(parameter.dtype.is_floating_point for parameter in student.parameters())
            found = student.encode(texts)
            if name == "any length":  # unknown pieces count in the mean here, and only the direction is the same
                known = [row for row, text in enumerate(texts) if not unknown(student, text)]
                assert 20 < len(known) < len(texts)
                np.testing.assert_allclose(found[known], wanted[known], atol=1e-6)
                found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
                wanted = wanted / np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-12)
            np.testing.assert_allclose(found, wanted, atol=1e-3 if name == "half" else 1e-6)
            taught = load_teacher(model=folder, device="cpu").encode(texts)
            np.testing.assert_allclose(taught, student.encode(texts), atol=1e-6)


def unknown(student: Any, text: str) -> bool:
    tokenizer = student[0].tokenizer
    return unknown_piece(tokenizer) in tokenizer.encode(text, add_special_tokens=False).ids


def test_it_ships_as_stock_modules(saved: dict[str, Path], sentences: list[str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    student = load_student(saved["quantised"], device="cpu")
    ship(student, tmp_path / "student")
    assert not is_model2vec(tmp_path / "student")
    again = SentenceTransformer(str(tmp_path / "student"), device="cpu").encode(sentences[:10])
    np.testing.assert_allclose(again, student.encode(sentences[:10]), atol=1e-6)


def test_a_static_student_opens_in_model2vec(tiny_static: Path, sentences: list[str], tmp_path: Path) -> None:
    from distilvec.export import export_model2vec

    report = export_model2vec(tiny_static, tmp_path / "out")
    assert report.cosine_min > 0.99999 and not report.folded and report.width == 16
    texts = [*sentences, *STRANGE]
    wanted = load_student(tiny_static, device="cpu").encode(texts)
    found = model2vec.StaticModel.from_pretrained(tmp_path / "out").encode(texts)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(load_student(tmp_path / "out", device="cpu").encode(texts), wanted, atol=1e-6)
    assert export_model2vec(tiny_static, tmp_path / "out").folder == tmp_path / "out"  # over its own


def with_behind(static: Path, folder: Path, *modules: Any) -> Path:
    from sentence_transformers import SentenceTransformer

    table = load_student(static, device="cpu")[0]
    ship(SentenceTransformer(modules=[table, *modules], device="cpu"), folder)
    return folder


def test_a_linear_map_goes_into_the_table(tiny_static: Path, sentences: list[str], tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense, Normalize

    from distilvec.export import export_model2vec

    mapped = with_behind(
        tiny_static, tmp_path / "mapped", Dense(16, 24, bias=False, activation_function=None), Normalize()
    )
    report = export_model2vec(mapped, tmp_path / "out")
    assert report.folded and report.width == 24
    with pytest.raises(DistilvecError, match="would replace the model that it is made of"):
        export_model2vec(tmp_path / "out", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
    found = model2vec.StaticModel.from_pretrained(tmp_path / "out").encode(sentences)
    np.testing.assert_allclose(found, load_student(mapped, device="cpu").encode(sentences), atol=1e-6)


def test_what_it_has_no_place_for_is_refused(
    tiny_static: Path, tiny_bert: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    import torch
    from sentence_transformers.base.modules import Dense, Normalize

    from distilvec.export import export_model2vec

    asked = load_student(tiny_static, device="cpu")
    asked.prompts = {"query": "find: "}
    ship(asked, tmp_path / "prompts")
    moved = load_student(tiny_static, device="cpu")
    with torch.no_grad():
        moved[0].embedding.weight[unknown_piece(moved[0].tokenizer)] = 0.1
    ship(moved, tmp_path / "moved")
    bias, tanh = Dense(16, 8, activation_function=None), Dense(16, 8, bias=False)
    cases = {
        tiny_bert: r"\bTransformer\b",
        tmp_path / "prompts": "prompts, .*query",
        tmp_path / "moved": r'"\[UNK\]" is not zero',
        with_behind(tiny_static, tmp_path / "bias", bias, Normalize()): "Dense.*linear map",
        with_behind(tiny_static, tmp_path / "tanh", tanh, Normalize()): "Dense.*linear map",
    }
    for folder, words in cases.items():
        with subtests.test(words), pytest.raises(DistilvecError, match=words):
            export_model2vec(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_folders_say_what_is_wrong(saved: dict[str, Path], tmp_path: Path, subtests: pytest.Subtests) -> None:
    from safetensors.numpy import load_file, save_file

    parts = load_file(saved["quantised"] / "model.safetensors")
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "mapping": ({"mapping": parts["mapping"] + 1000}, r"model\.safetensors: .*mapping"),
        "weights": ({"weights": parts["weights"][:5]}, r"model\.safetensors: .*weights"),
        "table": ({"embeddings": parts["embeddings"][0]}, r"model\.safetensors: .*embeddings.*\[12\]"),
        "numbers": ({"embeddings": parts["embeddings"] * np.float32("nan")}, "not finite"),
        "too few": ({"mapping": parts["mapping"][:9], "weights": parts["weights"][:9]}, "9 pieces"),
    }
    for name, (given, words) in wrong.items():
        folder = Path(shutil.copytree(saved["quantised"], tmp_path / name))
        save_file(parts | given, folder / "model.safetensors")
        with subtests.test(name), pytest.raises(DataError, match=words):
            open_model2vec(folder, name=str(folder))
    (tmp_path / "table" / "config.json").write_text(json.dumps([1]))
    with pytest.raises(DataError, match=r"/table/config\.json"):
        open_model2vec(tmp_path / "table", name=str(tmp_path / "table"))
