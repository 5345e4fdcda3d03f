"""Making and opening a store, and what is refused."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.store import SignalStore

CARD = {"name": "one", "fingerprint": "1111aaaa", "licence": "mit"}
KEYS = np.arange(160, dtype=np.uint8).reshape(10, 16)
VECTORS = np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3)


@dataclass
class Card:
    name: str
    fingerprint: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def test_create_then_open(tmp_path: Path) -> None:
    made = SignalStore.create(tmp_path / "deep" / "store", Card("one", "1111aaaa"), 3, "int8")
    opened = SignalStore.open(tmp_path / "deep" / "store")
    assert (opened.width, opened.dtype, opened.card) == (
        3,
        "int8",
        {"name": "one", "fingerprint": "1111aaaa"},
    )
    assert len(SignalStore.create(made.path, Card("renamed", "1111aaaa"), 3, "int8")) == 0
    assert sorted(file.name for file in made.path.iterdir()) == ["store.json"]


def test_another_teacher_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    SignalStore.create(tmp_path, CARD, 3)
    before = (tmp_path / "store.json").read_bytes()
    with pytest.raises(DistilvecError) as caught:
        SignalStore.create(tmp_path, CARD | {"fingerprint": "2222bbbb"}, 3)
    assert "1111aaaa" in str(caught.value) and "2222bbbb" in str(caught.value)
    assert caught.value.exit_code == 2
    assert (tmp_path / "store.json").read_bytes() == before


@pytest.mark.parametrize(
    ("width", "dtype", "word"), [(4, "float16", r"width 3, .*\b4\b"), (3, "int8", r"dtype float16, .*\bint8\b")]
)
def test_another_shape_is_refused(tmp_path: Path, width: int, dtype: str, word: str) -> None:
    SignalStore.from_vectors(tmp_path, CARD, KEYS, VECTORS)
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + f".*{word}"):
        SignalStore.create(tmp_path, CARD, width, dtype)
    assert len(SignalStore.open(tmp_path)) == 10


def test_an_empty_store_is_replaced_by_one_of_another_shape(tmp_path: Path) -> None:
    SignalStore.create(tmp_path, CARD, 3)
    assert SignalStore.create(tmp_path, CARD, 3, "float32").dtype == "float32"
    assert SignalStore.open(tmp_path).dtype == "float32"


@pytest.mark.parametrize(
    ("card", "width", "dtype", "word"),
    [
        ({"name": "x"}, 3, "float16", 'key "fingerprint"'),
        ({"fingerprint": ""}, 3, "float16", 'key "fingerprint"'),
        ("card", 3, "float16", r"to_dict\(\), .*\bstr\b"),
        (CARD, 0, "float16", r"width .*\b1, .*\b0\b"),
        (CARD, 3, "float61", '"float61".*"float16"'),
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(
    tmp_path: Path, card: object, width: int, dtype: str, word: str
) -> None:
    with pytest.raises(DistilvecError, match=word):
        SignalStore.create(tmp_path / "new", card, width, dtype)
    assert not (tmp_path / "new").exists()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    SignalStore.create(tmp_path, CARD, 3)
    content = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(content | {"schema": 2, "signals": "something new"}))
    with pytest.raises(DataError, match=r"/store\.json: .*version 2, .*\b1\b"):
        SignalStore.open(tmp_path)


def test_other_signals_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    store = SignalStore.from_vectors(tmp_path, CARD, KEYS, VECTORS)
    content = json.loads((tmp_path / "store.json").read_text())
    content["signals"]["tokens-3"] = {"width": 9}
    (tmp_path / "store.json").write_text(json.dumps(content))
    (tmp_path / "unlisted-w-000000.arrow").write_bytes(b"x")
    (tmp_path / "unlisted-w-000000.json").write_text("{}")
    opened = SignalStore.open(tmp_path, verify=True)
    assert opened.bad == {} and opened.parts == store.parts
    with opened.writer("w"):
        pass
    assert (tmp_path / "unlisted-w-000000.arrow").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 1, "teacher": {}, "signals": {}}'])
def test_a_damaged_store_json_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(DataError, match=r"/store\.json: "):
        SignalStore.open(tmp_path)


def test_no_store_and_no_owner(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + r".*store\.json"):
        SignalStore.open(tmp_path)
    SignalStore.from_vectors(tmp_path, CARD, KEYS, VECTORS)
    (tmp_path / "store.json").unlink()
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + r".*Arrow.*store\.json"):
        SignalStore.create(tmp_path, CARD | {"fingerprint": "2222bbbb"}, 3)


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(DistilvecError, match=re.escape(f"{path}: ")):
            SignalStore.create(path, CARD, 3)
        with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'file'}") + r".*: .*store\.json"):
            SignalStore.open(path)

    def read_only(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(EnvironmentProblem, match=r"/new: .*Read-only file system"):
        SignalStore.create(tmp_path / "new", CARD, 3)


def test_from_vectors_adds_what_is_new(tmp_path: Path) -> None:
    SignalStore.from_vectors(tmp_path, CARD, KEYS[:6], VECTORS[:6], "float32")
    store = SignalStore.from_vectors(tmp_path, CARD, KEYS, VECTORS, "float32")
    assert len(store) == 10
    np.testing.assert_array_equal(store.read(store.rows(KEYS)), VECTORS)
    with pytest.raises(DistilvecError, match=r"\b9 keys and vectors \[10, 3\]"):
        SignalStore.from_vectors(tmp_path, CARD, KEYS[:9], VECTORS, "float32")
