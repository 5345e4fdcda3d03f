"""Row numbers as a column of a datasets.Dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError
from distilvec.store import SignalStore

TEXTS = ["one", "two", "three", "two"]


@pytest.fixture
def store(tmp_path: Path) -> SignalStore:
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)[[0, 1, 2, 1]]
    return SignalStore.from_vectors(tmp_path, {"fingerprint": "a"}, content_keys(TEXTS), vectors)


def test_rows_become_the_label_column(store: SignalStore) -> None:
    dataset = store.attach(Dataset.from_dict({"anchor": ["two", "one"], "n": [1, 2]}), text="anchor")
    assert dataset.column_names == ["anchor", "n", "label"]
    assert store.read(np.array(dataset["label"])).tolist() == [[3, 4, 5], [0, 1, 2]]


def test_the_first_missing_text_is_named(store: SignalStore) -> None:
    with pytest.raises(DataError, match=r"row 2\b.*'four'.*distilvec teach"):
        store.attach(Dataset.from_dict({"text": ["one", "two", "four", "five"]}))


def test_wrong_datasets_are_refused(store: SignalStore) -> None:
    with pytest.raises(DistilvecError, match='"texd".*"text"'):
        store.attach(Dataset.from_dict({"text": ["one"]}), text="texd")
    with pytest.raises(DistilvecError, match='"label"'):
        store.attach(Dataset.from_dict({"text": ["one"], "label": [0]}))
    with pytest.raises(DistilvecError, match=r"datasets\.Dataset .*\blist\b"):
        store.attach([{"text": "one"}])
    with pytest.raises(DistilvecError, match=r"datasets\.Dataset .*\bIterableDataset\b"):
        store.attach(Dataset.from_dict({"text": ["one"]}).to_iterable_dataset())


def test_dataset_with_a_missing_text_is_refused(tmp_path: Path) -> None:
    store = SignalStore.from_vectors(tmp_path, {"fingerprint": "1"}, content_keys(["a"]), np.ones((1, 3), np.float32))
    with pytest.raises(DataError, match="row 1 of the dataset"):
        store.attach(Dataset.from_dict({"text": ["a", None]}))
