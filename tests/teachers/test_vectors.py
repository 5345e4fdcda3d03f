"""Vectors from elsewhere as teachers."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError
from distilvec.teachers import load_teacher
from distilvec.teachers.describe import check_teacher
from distilvec.teachers.vector_files import read_vectors
from distilvec.teachers.vectors import VectorsTeacher


@pytest.fixture
def vectors(sentences: list[str]) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(len(sentences), 6)).astype(np.float32)


def test_npy_with_texts(vectors: np.ndarray, sentences: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "t.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences))
    for texts in (tmp_path / "t.txt", str(tmp_path / "t.jsonl"), sentences):
        teacher = VectorsTeacher(tmp_path / "v.npy", texts=texts)
        order = np.random.default_rng(0).permutation(len(sentences))
        assert np.array_equal(teacher.encode([sentences[row] for row in order]), vectors[order])
        assert (teacher.card.kind, teacher.card.width, teacher.card.normalized) == ("vectors", 6, False)
    rows = np.concatenate([part for part, _ in teacher.stream(sentences)])
    assert rows.tolist() == list(range(len(sentences)))


def test_lists_tensors_and_files_as_other_programs_write_them(
    vectors: np.ndarray, sentences: list[str], tmp_path: Path
) -> None:
    lines = "".join(json.dumps(text) + "\n" for text in sentences)
    (tmp_path / "t.jsonl").write_text("\ufeff" + lines + "\n\n", encoding="utf-8")
    for given in (vectors.tolist(), torch.from_numpy(vectors)):
        teacher = VectorsTeacher(given, texts=tmp_path / "t.jsonl")  # type: ignore[arg-type]
        assert np.array_equal(teacher.encode(sentences), vectors)
    with pytest.raises(DataError, match=r"^mine: no array of numbers can be made of a list"):
        VectorsTeacher([[1.0], [1.0, 2.0]], name="mine", texts=["a", "b"])  # type: ignore[arg-type]
    (tmp_path / "t.jsonl").write_text("\n" + lines)
    with pytest.raises(DataError, match=r"t\.jsonl:1: this line is empty"):
        VectorsTeacher(vectors, texts=tmp_path / "t.jsonl")


def test_missing_texts(vectors: np.ndarray, sentences: list[str]) -> None:
    teacher = VectorsTeacher(vectors[:150], texts=sentences[:150])
    assert teacher.has(sentences).tolist() == [True] * 150 + [False] * 50
    found = teacher.encode(sentences[140:160])
    assert np.array_equal(found[:10], vectors[140:150])
    assert np.isnan(found[10:]).all()
    signals = teacher.signals(sentences[140:160])
    assert signals.present.tolist() == [True] * 10 + [False] * 10
    assert signals.sentence is not None
    assert signals.sentence[10:].abs().sum() == 0
    assert "no vector for 50 of 200" in check_teacher(teacher, sentences).warnings[0]


def test_a_row_of_nan_is_a_missing_vector(vectors: np.ndarray, sentences: list[str]) -> None:
    holes = vectors.copy()
    holes[[3, 7]] = np.nan
    teacher = VectorsTeacher(holes, texts=sentences)
    assert np.flatnonzero(~teacher.has(sentences)).tolist() == [3, 7]
    assert teacher.signals(sentences[:10]).present.tolist() == [row not in (3, 7) for row in range(10)]
    holes[5, 1] = np.nan
    with pytest.raises(DataError, match=r"^array: .*row 5\b"):
        VectorsTeacher(holes, texts=sentences).encode(sentences)


def test_keys(vectors: np.ndarray, sentences: list[str], tmp_path: Path) -> None:
    keys = content_keys(sentences)
    np.save(tmp_path / "k.npy", keys)
    for given in (keys, tmp_path / "k.npy"):
        assert np.array_equal(VectorsTeacher(vectors, keys=given).encode(sentences), vectors)
    with pytest.raises(DataError, match=r"^keys: .*uint8 \[n, 16\].*int64 \[200, 16\]"):
        VectorsTeacher(vectors, keys=keys.astype(np.int64))


def test_first_of_equal_texts(sentences: list[str]) -> None:
    teacher = VectorsTeacher(np.arange(6, dtype=np.float32).reshape(3, 2), texts=["a", "b", "a"])
    assert teacher.encode(["a", "b"]).tolist() == [[0, 1], [2, 3]]


def test_parquet(vectors: np.ndarray, sentences: list[str], tmp_path: Path) -> None:
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 6)
    ragged = pa.array(vectors.astype(np.float64).tolist())
    for number, column in enumerate((fixed, ragged)):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"text": sentences, "title": sentences[::-1], "emb": column}), file, row_group_size=70)
        assert np.array_equal(load_teacher(vectors=file).encode(sentences), vectors)
        assert np.array_equal(load_teacher(vectors=f"{file}:emb", texts="title").encode(sentences[::-1]), vectors)
        assert np.array_equal(VectorsTeacher(file, texts=sentences).encode(sentences), vectors)
        assert np.array_equal(VectorsTeacher(file, keys=content_keys(sentences)).encode(sentences), vectors)
    with pytest.raises(DataError, match=r'"embb".*"emb"'):
        load_teacher(vectors=f"{file}:embb")


def test_a_damaged_column_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"text": ["a", "b"] * 500, "x": [[1.0, 2.0], [3.0, 4.0]] * 500}), file)
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56  # the first pages; the schema at the end stays
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"/damaged\.parquet: "):
        load_teacher(vectors=file)


def test_parquet_that_does_not_fit(tmp_path: Path) -> None:
    two = pa.table({"text": ["a"], "x": [[1.0]], "y": [[2.0]]})
    pq.write_table(two, tmp_path / "two.parquet")
    with pytest.raises(DataError, match=r"two\.parquet: 2 .*: x, y\..*two\.parquet:COLUMN"):
        load_teacher(vectors=tmp_path / "two.parquet")
    pq.write_table(pa.table({"body": ["a"], "x": [[1.0]]}), tmp_path / "body.parquet")
    with pytest.raises(DataError, match=r'body\.parquet: .*"text".*texts to one of: body'):
        load_teacher(vectors=tmp_path / "body.parquet")
    pq.write_table(pa.table({"text": ["a", "b"], "x": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(DataError, match=r'ragged\.parquet: .*"x"'):
        load_teacher(vectors=tmp_path / "ragged.parquet")
    (tmp_path / "fake.parquet").write_text("no")
    with pytest.raises(DataError, match=r"fake\.parquet: .*\b2 bytes"):
        load_teacher(vectors=tmp_path / "fake.parquet")


def test_what_does_not_fit(vectors: np.ndarray, sentences: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^array: 200 .*\b199\b"):
        VectorsTeacher(vectors, texts=sentences[1:])
    with pytest.raises(DistilvecError, match="^teacher: vectors .*texts: "):
        VectorsTeacher(vectors)
    with pytest.raises(DistilvecError, match="^teacher, prompt: .*when you make the vectors"):
        load_teacher(vectors="v.npy", texts="t.txt", prompt="query: ")
    with pytest.raises(DataError, match=r"^teacher: .*\[n, D\], found float64 \[3\]"):
        VectorsTeacher(np.ones(3), texts=["a", "b", "c"])
    with pytest.raises(DataError, match=r"/no\.npy: "):
        VectorsTeacher(tmp_path / "no.npy", texts=sentences)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY" + b"x" * 50)
    with pytest.raises(DataError, match=r"/bad\.npy: .*numpy\.save"):
        VectorsTeacher(tmp_path / "bad.npy", texts=sentences)
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"/pickled\.npy: .*numpy\.save"):
        VectorsTeacher(tmp_path / "pickled.npy", texts=["a"])


def test_values_that_are_not_finite(vectors: np.ndarray, sentences: list[str]) -> None:
    vectors[7, 2] = np.inf
    teacher = VectorsTeacher(vectors, texts=sentences)
    assert np.array_equal(teacher.encode(sentences[:7]), vectors[:7])
    with pytest.raises(DataError, match=r"^array: .*row 7\b"):
        teacher.encode(sentences)


def test_fingerprint(vectors: np.ndarray, sentences: list[str]) -> None:
    def fingerprint(rows: np.ndarray, texts: list[str]) -> str:
        return VectorsTeacher(rows, texts=texts).card.fingerprint

    changed = vectors.copy()
    changed[-1, -1] += 1e-3
    assert fingerprint(vectors, sentences) == fingerprint(vectors.copy(), list(sentences))
    assert (
        len({fingerprint(vectors, sentences), fingerprint(changed, sentences), fingerprint(vectors, sentences[::-1])})
        == 3
    )


def test_images_are_found_by_their_pixels(tmp_path: Path) -> None:
    from PIL import Image

    from distilvec.kinds.image.images import data_uri

    pictures = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text("0.png\ngone.png\n1.png\n")
    vectors = np.eye(3, dtype=np.float32)
    teacher = VectorsTeacher(vectors, texts=tmp_path / "list.txt", modality="image")
    items = [data_uri(pictures[1]), data_uri(pictures[2]), str(tmp_path / "0.png"), "gone.png"]
    assert teacher.has(items).tolist() == [True, False, True, False]
    assert np.array_equal(teacher.encode(items)[[0, 2]], vectors[[2, 0]])
    by_key = VectorsTeacher(
        vectors, keys=content_keys([data_uri(each) for each in pictures], modality="image"), modality="image"
    )
    assert np.array_equal(by_key.encode(items[:3]), vectors[[1, 2, 0]])


def test_molecules_are_found_however_they_are_written() -> None:
    pytest.importorskip("rdkit")
    vectors = np.eye(4, dtype=np.float32)
    texts = ["OCC", "[Na+].CC(=O)[O-]", "no molecule", "C1=CC=CC=C1"]
    teacher = VectorsTeacher(vectors, texts=texts, modality="molecule")
    assert np.array_equal(teacher.encode(["c1ccccc1", "CC(=O)[O-]", "CCO"]), vectors[[3, 1, 0]])
    assert teacher.has(["CC", "no molecule", "other words"]).tolist() == [False] * 3
    kept = VectorsTeacher(vectors, texts=texts, modality="molecule", components="keep")
    assert kept.has(["CC(=O)[O-]", "CC(=O)[O-].[Na+]"]).tolist() == [False, True]
    assert VectorsTeacher(vectors, texts=texts).has(["CCO", "OCC"]).tolist() == [False, True]


def test_vectors_file_in_a_folder_named_like_a_table(tmp_path: Path) -> None:
    (tmp_path / "index.parquet").mkdir()
    np.save(tmp_path / "index.parquet/vectors.npy", np.eye(3, dtype=np.float32))
    vectors, texts = read_vectors(tmp_path / "index.parquet/vectors.npy", ["a", "b", "c"])
    assert vectors.shape == (3, 3) and len(texts) == 3


def test_item_with_two_vectors_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    teacher = VectorsTeacher(np.eye(3, dtype=np.float32), texts=["shoes", "shoes", "hat"], name="index")
    assert "(row 1 is one; 1 in all)" in caplog.text
    assert teacher.encode(["shoes"]).tolist() == [[1, 0, 0]]
    caplog.clear()
    VectorsTeacher(np.ones((3, 3), np.float32), texts=["shoes", "shoes", "hat"], name="index")
    assert not caplog.text


class Text(str):
    """A text that can be referred to weakly."""


def test_texts_of_a_file_are_not_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Text] = weakref.WeakSet()
    most = 0

    def texts() -> Iterator[str]:
        nonlocal most
        for number in range(100):
            text = Text(f"text {number}")
            alive.add(text)
            most = max(most, len(alive))
            yield text

    monkeypatch.setattr("distilvec.teachers.vectors._CHUNK", 8)
    teacher = VectorsTeacher(np.eye(2, dtype=np.float32), texts=["a", "b"])
    keys = teacher._keys_of(texts())
    np.testing.assert_array_equal(keys, content_keys([f"text {number}" for number in range(100)]))
    assert most <= 24


def test_a_missing_vector_changes_nothing_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = [f"text {n}" for n in range(40)]
    empty = np.full((20, 8), np.nan, np.float32)
    # Each of the first twenty texts comes twice: without a vector and with one.
    teacher = VectorsTeacher(np.concatenate([empty, vectors]), texts=[*texts[:20], *texts])
    assert teacher.card.normalized and teacher.has(texts).all()
    np.testing.assert_array_equal(teacher.encode(texts), vectors)
    assert "twice" not in caplog.text
    assert not VectorsTeacher(empty, texts=texts[:20]).has(texts).any()


def test_a_text_twice_is_told_where_its_vectors_differ_by_more_than_noise(caplog: pytest.LogCaptureFixture) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    again = vectors[:1] + np.float32(7.5e-8)
    assert (again != vectors[:1]).any()
    VectorsTeacher(np.concatenate([vectors, again]), texts=["a", "b", "c", "a"])
    assert not caplog.text
    teacher = VectorsTeacher(np.concatenate([vectors, vectors[1:2]]), texts=["a", "b", "c", "a"])
    assert "twice with different vectors (row 3 is one; 1 in all)" in caplog.text
    np.testing.assert_array_equal(teacher.encode(["a"]), vectors[:1])


def test_texts_of_a_file_in_a_named_field(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"id": 1, "body": "a"}\n{"id": 2, "body": "b"}\n', encoding="utf-8")
    vectors = np.eye(2, dtype=np.float32)
    with pytest.raises(DataError, match=r"texts\.jsonl:1: .*\"id\", \"body\".*texts\.jsonl:body"):
        VectorsTeacher(vectors, texts=file)
    np.testing.assert_array_equal(VectorsTeacher(vectors, texts=f"{file}:body").encode(["b"]), vectors[1:])
    with pytest.raises(DataError, match='"title"'):
        VectorsTeacher(vectors, texts=f"{file}:title")
