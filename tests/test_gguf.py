"""Students as GGUF: read again from the file alone, and with llama.cpp where it is installed."""

from __future__ import annotations

import unicodedata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.cli.main import main
from distilvec.errors import DistilvecError
from distilvec.students import load_student, ship, shrink

pytest.importorskip("gguf", reason="the extra gguf is not installed")
needs_llama = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
#: Cases, accents, signs without a space, words that no piece covers.
STRANGE = ["Ünïcode CAFÉ", "a-b(c)$d", "the 漢字 cat", "שלום 🚀 cat", "naïve  café\tagain"]


@pytest.fixture(scope="module")
def students(
    tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Name -> folder of a student whose words llama.cpp splits as BERT does."""
    place = tmp_path_factory.mktemp("gguf")
    found = {name: tiny_model_folders[name] for name in ("bert", "electra", "distilbert")}
    bert = load_student(tiny_model_folders["bert"], device="cpu")
    narrow, _ = shrink(bert, layers=2, vocabulary=150, embedding=12, texts=sentences, positions=64)
    assert type(narrow[0].model).__name__ == "ElectraModel" and narrow[0].model.config.embedding_size == 12
    ship(narrow, place / "narrow")
    return {**found, "narrow": place / "narrow"}


def exported(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch | None = None, **options: Any) -> Any:
    """The report of an export that does not ask llama.cpp, if `monkeypatch` is given."""
    from distilvec.export import export_gguf, gguf

    if monkeypatch is not None:
        monkeypatch.setattr(gguf, "_compared", lambda *given: [])
    return export_gguf(folder, out, **options)


def short(texts: list[str], student: Any) -> list[str]:
    """Texts that the student reads as a whole."""
    fit = [
        text for text in texts if len(student.tokenizer(text, truncation=False)["input_ids"]) <= student.max_seq_length
    ]
    assert len(fit) > 10
    return fit


@pytest.mark.parametrize("name", ["bert", "electra", "distilbert", "narrow"])
def test_the_file_alone_gives_the_vectors_of_the_student(
    name: str, students: dict[str, Path], sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gguf_reading import BertFile

    report = exported(students[name], tmp_path / "out", monkeypatch)
    student, file = load_student(students[name], device="cpu"), BertFile(report.files[0].path)
    texts = short([*sentences[:80], *STRANGE], student)
    expected = student.encode(texts, normalize_embeddings=True)
    assert [file.ids(text) for text in texts] == student.tokenizer(texts)["input_ids"]
    np.testing.assert_allclose(file.encode(texts), expected, atol=1e-3)
    eight = BertFile(report.files[1].path).encode(texts)
    assert (eight * expected).sum(axis=1).min() > 0.99
    assert (file.keys["bert.block_count"] > student[0].model.config.num_hidden_layers) == (name == "narrow")
    assert any("one more block" in note for note in report.notes) == (name == "narrow")
    assert "Not compared" in report.text()


@needs_llama
@pytest.mark.parametrize("name", ["bert", "narrow", "xlmr"])
def test_llama_cpp_gives_the_vectors_of_the_student(
    name: str, students: dict[str, Path], tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    from distilvec.export.gguf import llama_vectors

    folder = students.get(name) or tiny_model_folders[name]
    report = exported(folder, tmp_path / "out")
    assert report.files[0].cosine_min > 0.9999 and report.files[0].difference < 1e-3 and report.texts > 10
    student = load_student(folder, device="cpu")
    texts = short([*sentences[:80], *STRANGE], student)
    if name == "xlmr":  # as the report says: without a table of characters (NFKC) llama.cpp changes none
        assert any("unusual forms" in note for note in report.notes)
        texts = [text for text in texts if unicodedata.normalize("NFKC", text) == text]
    expected = student.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(llama_vectors(report.files[0].path, texts), expected, atol=1e-3)


@needs_llama
def test_the_real_teacher(real_teacher_folder: Path, tmp_path: Path) -> None:
    report = exported(real_teacher_folder, tmp_path / "out", quantize=False)
    assert [each.path.name for each in report.files] == ["model-f16.gguf"]
    assert report.files[0].cosine_min > 0.9999 and report.files[0].difference < 1e-3


def test_poolings_positions_and_prompts_are_in_the_file_or_in_the_notes(
    students: dict[str, Path], sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from tests.gguf_reading import BertFile

    first = load_student(students["bert"], device="cpu")[0]
    first.max_seq_length = 20
    for mode, number in (("cls", 2), ("lasttoken", 3)):
        modules = [first, Pooling(first.get_embedding_dimension(), pooling_mode=mode)]
        student = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "find: ", "document": "text: "})
        student.default_prompt_name = "query"
        student.save(str(tmp_path / mode))
        report = exported(tmp_path / mode, tmp_path / f"{mode}-out", monkeypatch)
        file = BertFile(report.files[0].path)
        assert file.keys["bert.pooling_type"] == number and file.keys["bert.context_length"] == 512
        assert any("after 20 tokens" in note for note in report.notes)
        assert any("'find: ' (query, default), 'text: ' (document)" in note for note in report.notes)
        assert any("length 1" in note for note in report.notes)
        few = short(sentences, student)
        expected = student.encode(few, prompt="", normalize_embeddings=True)
        np.testing.assert_allclose(file.encode(few), expected, atol=1e-3)


def test_what_has_no_place_is_refused_and_nothing_is_written(
    students: dict[str, Path],
    tiny_model_folders: dict[str, Path],
    tiny_static: Path,
    sentences: list[str],
    tmp_path: Path,
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from tokenizers.normalizers import NFKC, Lowercase, Sequence

    bert = load_student(students["bert"], device="cpu")
    dense = Dense(bert.get_embedding_dimension(), 8)
    SentenceTransformer(modules=[bert[0], bert[1], dense], device="cpu").save(str(tmp_path / "dense"))
    SentenceTransformer(str(students["bert"]), device="cpu", truncate_dim=8).save(str(tmp_path / "short"))
    narrow, _ = shrink(bert, layers=1, embedding=12, inner=16, texts=sentences)
    ship(narrow, tmp_path / "too narrow")
    lower = load_student(tiny_model_folders["xlmr"], device="cpu")
    lower.tokenizer.backend_tokenizer.normalizer = Sequence([NFKC(), Lowercase()])
    ship(lower, tmp_path / "lower")
    refused = {
        tmp_path / "lower": "this Unigram tokenizer works otherwise",
        tmp_path / "dense": "a Dense behind the pooling.*student.space: own",
        tmp_path / "short": "a Dense behind the pooling.*truncate_dim",
        tmp_path / "too narrow": "24 units.*has 16.*embedding. of 8",
        tiny_model_folders["modernbert"]: "type modernbert.*ONNX",
        tiny_static: "a static table.*ONNX",
    }
    for folder, words in refused.items():
        with pytest.raises(DistilvecError, match=words):
            exported(folder, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_the_command(students: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["export", str(students["narrow"]), "-o", str(out), "--to", "gguf"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--no-quantize"])
    assert not ended.value.code and [each.name for each in out.glob("*.gguf")] == ["model-f16.gguf"]
    assert "model-f16.gguf: " in capsys.readouterr().out
    for wrong in ("--web", "--texts=a.txt"):
        with pytest.raises(SystemExit) as ended:
            main([*words, wrong])
        assert ended.value.code == 2 and "gguf" in capsys.readouterr().err
