"""Reading equals plain numpy, for every dtype, order of parts and kind of key."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.errors import DataError, DistilvecError
from distilvec.store import SignalStore, index, keyed

CARD = {"fingerprint": "abc"}


def random_items(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 16), dtype=np.uint8), rng.standard_normal((count, width), dtype="f4")


def filled(folder: Path, keys: np.ndarray, vectors: np.ndarray, dtype: str, part_bytes: int) -> SignalStore:
    store = SignalStore.create(folder, CARD, vectors.shape[1], dtype)
    with store.writer("w", part_bytes=part_bytes) as writer:
        for start in range(0, len(keys), 70):
            writer.add(keys[start : start + 70], vectors[start : start + 70])
    store.refresh()
    return store


def reference(vectors: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float32":
        return vectors
    if dtype == "float16":
        return vectors.astype(np.float16).astype(np.float32)
    scale = np.abs(vectors).max(axis=1, keepdims=True) / np.float32(127)
    return np.rint(vectors / np.where(scale == 0, 1, scale)).astype(np.int8) * scale


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("part_bytes", [2_000, 1 << 20])
def test_reading_equals_numpy(tmp_path: Path, dtype: str, part_bytes: int) -> None:
    keys, vectors = random_items(500, 24)
    vectors[7] = 0
    vectors[8] *= 1e4
    store = filled(tmp_path, keys, vectors, dtype, part_bytes)
    assert len(store) == 500 and (len(store.parts) > 5) == (part_bytes == 2_000)
    asked = np.random.default_rng(1).integers(0, 500, 1_000)  # in any order, and repeated
    rows = store.rows(keys[asked])
    read = store.read(rows)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, reference(vectors, dtype)[asked])
    np.testing.assert_array_equal(store.keys(rows), keys[asked])
    assert store.read(np.empty(0, dtype=np.int64)).shape == (0, 24)


def test_float16_is_close_and_the_error_is_stated(tmp_path: Path) -> None:
    keys, vectors = random_items(400, 32)
    store = filled(tmp_path, keys, vectors, "float16", 4_000)
    read = store.read(store.rows(keys))
    normal = np.abs(vectors) > 2.0**-14
    assert (np.abs(read - vectors) / np.abs(vectors))[normal].max() <= 2.0**-11
    exact = np.linalg.norm((read - vectors).astype("f8")) / np.linalg.norm(vectors.astype("f8"))
    assert store.statistics().relative_error == pytest.approx(exact, rel=1e-9)
    assert 1e-5 < exact < 5e-4


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_statistics_equal_numpy_on_all_rows(tmp_path: Path, dtype: str) -> None:
    keys, vectors = random_items(700, 12)
    vectors = vectors * np.linspace(0.01, 3, 12, dtype="f4") + np.linspace(-5, 5, 12, dtype="f4")
    store = filled(tmp_path, keys, vectors, dtype, 2_500)
    assert len(store.parts) > 4
    exact, found = vectors.astype(np.float64), store.statistics()
    assert found.count == 700
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std, exact.std(axis=0), rtol=1e-11)
    assert found.mean_norm == pytest.approx(np.linalg.norm(exact, axis=1).mean(), rel=1e-12)


def test_an_empty_store_has_no_rows_and_no_statistics(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 4)
    assert len(store) == 0
    assert store.rows(random_items(3, 4)[0]).tolist() == [-1, -1, -1]
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + ".*[Tt]each"):
        store.statistics()


# Keys from a small alphabet, so that they repeat across parts and often agree in one word only.
small_keys = st.builds(
    lambda first, second: first.to_bytes(8, "little") + second.to_bytes(8, "little"),
    st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    st.integers(0, 5),
)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.lists(small_keys, min_size=1, max_size=12), min_size=1, max_size=4),
    asked=st.lists(small_keys, max_size=20),
    indexed=st.booleans(),
)
def test_rows_are_the_first_of_equal_keys(parts: list[list[bytes]], asked: list[bytes], indexed: bool) -> None:
    def array(keys: list[bytes]) -> np.ndarray:
        return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, 16)

    with tempfile.TemporaryDirectory() as folder:
        store = SignalStore.create(folder, CARD, 2, "float32")
        expected: dict[bytes, tuple[int, int]] = {}
        for number, keys in reversed(list(enumerate(parts))):  # written against the order of the names
            with store.writer(f"w{number}") as writer:
                writer.add(array(keys), np.array([(number, at) for at in range(len(keys))], dtype="f4"))
        for number, keys in enumerate(parts):
            for at, key in enumerate(keys):
                expected.setdefault(key, (number, at))
        if not indexed:
            for file in Path(folder, "derived").iterdir():
                file.unlink()
        store = SignalStore.open(folder)
        rows = store.rows(array(asked))
        assert store.missing(array(asked)).tolist() == [key not in expected for key in asked]
        for key, row in zip(asked, rows, strict=True):
            if key in expected:
                assert tuple(store.read(np.array([row]))[0]) == expected[key]


@pytest.mark.parametrize("row", [-1, 500, -3])
def test_rows_outside_are_errors(tmp_path: Path, row: int) -> None:
    keys, vectors = random_items(500, 4)
    store = filled(tmp_path, keys, vectors, "float16", 1 << 20)
    with pytest.raises(DataError, match=rf"row {row} at position 1\b.*\b500 rows") as caught:
        store.read(np.array([3, row]))
    assert ("Teach" in str(caught.value)) == (row == -1)
    with pytest.raises(DistilvecError, match=r"float64 \[1\]"):
        store.read(np.array([0.5]))


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 4)
    with pytest.raises(DistilvecError, match=r"uint8.*\[n, 16\].*int64.*\[2, 3\]"):
        store.rows(np.zeros((2, 3), dtype=np.int64))


def test_row_numbers_outlive_new_parts_and_pickling(tmp_path: Path) -> None:
    keys, vectors = random_items(300, 4)
    store = SignalStore.create(tmp_path, CARD, 4, "float32")
    for name, part in (("m", slice(0, 100)), ("z", slice(100, 200)), ("a", slice(200, 300))):
        with store.writer(name) as writer:
            writer.add(keys[part], vectors[part])
        before = store.rows(keys)
        copy = pickle.loads(pickle.dumps(store))  # sees what `store` sees, not the part added since
        np.testing.assert_array_equal(copy.rows(keys), before)
        store.refresh()
        kept = before >= 0
        np.testing.assert_array_equal(store.rows(keys)[kept], before[kept])
    assert store.parts == ["sentence-m-000000", "sentence-z-000000", "sentence-a-000000"]
    assert SignalStore.open(tmp_path).parts == sorted(store.parts)
    np.testing.assert_array_equal(store.read(store.rows(keys)), vectors)
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.rows(keys), store.rows(keys))
    np.testing.assert_array_equal(again.read(again.rows(keys)), vectors)


def test_the_table_of_keys_is_used_and_its_loss_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, vectors = random_items(5_000, 4)
    monkeypatch.setattr(index, "BUCKET_ROWS", 700)  # several buckets
    store = filled(tmp_path, keys, vectors, "float16", 9_000)
    tables = list((tmp_path / "derived").glob("index-*.npy"))
    assert len(tables) == 1 and np.load(tables[0]).shape == (2, 5_000)
    calls: list[int] = []
    searched = keyed.locate_in_part
    monkeypatch.setattr(keyed, "locate_in_part", lambda part, query: calls.append(1) or searched(part, query))
    rows = store.rows(keys)
    assert not calls
    tables[0].write_bytes(tables[0].read_bytes()[:-8])
    damaged = SignalStore.open(tmp_path)
    np.testing.assert_array_equal(damaged.rows(keys), rows)
    assert calls
    np.testing.assert_array_equal(store.read(rows), reference(vectors, "float16"))


def test_any_arrow_reader_opens_a_part(tmp_path: Path) -> None:
    keys, vectors = random_items(50, 6)
    store = filled(tmp_path, keys, vectors, "int8", 1 << 20)
    with pa.memory_map(str(tmp_path / f"{store.parts[0]}.arrow")) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    table.validate(full=True)
    assert [str(field.type) for field in table.schema] == [
        "fixed_size_binary[16]",
        "fixed_size_list<item: int8>[6]",
        "float",
    ]
    by_key = {key.tobytes(): row for key, row in zip(keys, vectors, strict=True)}
    for key, values, scale in zip(*(column.to_pylist() for column in table.columns), strict=True):
        np.testing.assert_allclose(np.array(values) * scale, by_key[key], atol=scale * 0.51)


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_rows_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    keys, vectors = random_items(300_000, 64)
    descriptors = len(os.listdir("/proc/self/fd"))
    SignalStore.from_vectors(tmp_path, CARD, keys, vectors)
    store = SignalStore.open(tmp_path)
    rows = np.random.default_rng(2).permutation(300_000)
    store.read(store.rows(keys[rows[:256]]))
    before = anonymous_bytes()
    for start in range(0, len(rows), 256):
        store.read(store.rows(keys[rows[start : start + 256]]))
    assert anonymous_bytes() - before < 4 << 20  # of 43 MB in the files
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
