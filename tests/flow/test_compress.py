"""The table of compressed forms, from real small models to its files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from distilvec.cli.main import main
from distilvec.corpus.docstrings import docstring_pairs
from distilvec.errors import DistilvecError
from distilvec.flow.compress import compress
from distilvec.judging import NeighbourTask, RetrievalTask
from distilvec.judging.agreement import likeness
from distilvec.report.sections.compressed import Compression
from distilvec.students import load_student, static

onnx = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="the extra onnx is not installed")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [pair[part] for pair in docstring_pairs(limit=80) for part in ("summary", "description")]


@pytest.fixture(scope="module")
def student(real_teacher_folder: Path, texts: list[str]) -> SentenceTransformer:
    return static(load_student(real_teacher_folder, device="cpu"), dimensions=64, vocabulary=1500, texts=texts)


@onnx
def test_a_static_student(student: SentenceTransformer, texts: list[str]) -> None:
    task = RetrievalTask.from_pairs("pairs", texts[::2], texts[1::2])
    weights = student[0].embedding.weight.clone()
    found = compress(student, texts[:80], texts[80:], [task])
    names = [(row.name, row.width) for row in found.rows]
    vectors = [(f"{kind} vectors", width) for width in (64, 32) for kind in ("float32", "int8", "binary")]
    assert names == [*vectors, ("float16 weights", 64), ("onnx float32", 64), ("onnx int8", 64)]
    rows = {(row.name, row.width): row for row in found.rows}
    whole, half = found.rows[0], rows["float16 weights", 64]
    assert (whole.neighbours, whole.bytes_per_million) == (1.0, 256_000_000)
    assert rows["int8 vectors", 64].bytes_per_million == 64_000_000
    assert rows["binary vectors", 32].bytes_per_million == 4_000_000
    assert rows["int8 vectors", 64].neighbours > 0.9 > rows["binary vectors", 32].neighbours
    assert half.size_bytes is not None and whole.size_bytes is not None
    assert half.size_bytes == pytest.approx(whole.size_bytes / 2, rel=0.01)
    assert half.neighbours > 0.98 and half.texts_per_second and whole.latency_p50_ms
    assert whole.scores["pairs"].value == pytest.approx(task.score(student.encode).value)
    assert rows["binary vectors", 32].scores["pairs"].value < whole.scores["pairs"].value
    assert rows["onnx float32", 64].neighbours == 1.0 and rows["onnx int8", 64].neighbours > 0.9
    assert (student[0].embedding.weight == weights).all()


@onnx
def test_a_transformer_also_as_onnx(exported_once: Path, texts: list[str]) -> None:
    model = load_student(exported_once, device="cpu")
    found = compress(model, texts[:40], texts[40:80], widths=[])
    assert [row.name for row in found.rows][3:] == ["float16 weights", "onnx float32", "onnx int8"]
    graph, small = found.rows[-2:]
    assert graph.neighbours > 0.95 and small.size_bytes is not None and graph.size_bytes is not None
    assert small.size_bytes < graph.size_bytes
    page = found.grid().markdown()
    assert "onnx int8" in page and "p50 / p95 ms" in page


def test_without_the_extra_the_table_says_so(
    tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "onnx" in name else real(name, *more))
    found = compress(load_student(tiny_bert, device="cpu"), texts[:20], texts[20:30], widths=[], with_speed=False)
    assert [row.name for row in found.rows][3:] == ["float16 weights"]
    assert "distilvec[onnx]" in found.grid().text()
    assert "texts/s" not in found.grid().header


def test_few_texts_say_nothing_about_ten_nearest(student: SentenceTransformer, texts: list[str]) -> None:
    with pytest.raises(DistilvecError, match=r"^19 texts are too few .*\b20\b"):
        compress(student, texts[:19], texts[19:60])


def test_a_task_without_its_teacher_is_refused_before_anything_is_encoded(
    student: SentenceTransformer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = NeighbourTask("search", texts)
    monkeypatch.setattr(student, "encode", lambda *_, **__: pytest.fail("texts are encoded"))
    with pytest.raises(DistilvecError, match=r"^task search: .*teacher: FOLDER"):
        compress(student, texts[:40], texts[40:80], [task])


def test_prefixes_are_compared_with_the_whole_vectors(student: SentenceTransformer, texts: list[str]) -> None:
    found = compress(student, texts[:20], texts[20:60], widths=[16], with_speed=False)
    assert [row.width for row in found.rows[:6]] == [64] * 3 + [16] * 3 and found.rows[0].texts_per_second is None
    vectors = student.encode(texts[:20])
    assert found.rows[3].neighbours == pytest.approx(likeness(vectors, vectors[:, :16])["neighbours"])


def test_the_command_writes_and_prints_the_table(
    student: SentenceTransformer, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student.save(str(tmp_path / "student"))
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in texts), encoding="utf-8")
    pairs = [{"a": left, "b": right} for left, right in zip(texts[::2], texts[1::2], strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    (tmp_path / "task.yaml").write_text(
        "{name: search, kind: retrieval, test: pairs.jsonl, query: a, document: b}", encoding="utf-8"
    )
    words = ["compress", str(tmp_path / "student"), "--data", str(tmp_path / "texts.txt"), "--width", "16"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--task", str(tmp_path / "task.yaml"), "--limit", "50", "--output", str(tmp_path / "out")])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "binary vectors" in printed and "search" in printed and "compression.md" in printed
    saved = Compression.model_validate_json((tmp_path / "out/compression.json").read_text())
    assert (saved.texts, saved.calibrated_on) == (50, 50)
    assert {row.width for row in saved.rows} == {64, 16}
    page = (tmp_path / "out/compression.md").read_text()
    assert page.startswith("# student, compressed\n") and saved.grid().markdown() in page
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["compression.json", "compression.md"]
    with pytest.raises(DistilvecError, match=r"/task\.yaml: "):
        saved.write(tmp_path / "task.yaml", "student")


def test_too_few_texts_are_refused(
    student: SentenceTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student.save(str(tmp_path / "student"))
    (tmp_path / "texts.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(SystemExit) as ended:
        main(
            ["compress", str(tmp_path / "student"), "--data", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out")]
        )
    assert ended.value.code == 2
    assert "too few" in capsys.readouterr().err
    assert np.isfinite(student.encode(["x"])).all()
