"""Several processes at one store, half-written files, and values that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.rows import CARD, KEYS, VECTORS, filled

from distilvec.errors import DataError, DistilvecError
from distilvec.store import RaggedSignal, SignalStore, files
from distilvec.store.files import write_json


def test_store_is_not_replaced_under_a_writer(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 8)
    with store.writer() as writer:
        writer.add(KEYS[:40], VECTORS[:40])
        with pytest.raises(DistilvecError, match=r"another process is filling .*float16 of width 8, and float32 of"):
            SignalStore.create(tmp_path, CARD, 8, "float32")
        SignalStore.create(tmp_path, {**CARD, "dtype": "bfloat16"}, 8)  # the same vectors from another machine
    store.refresh()
    assert len(store) == 40 == len(SignalStore.open(tmp_path))


def test_writing_to_a_replaced_store_is_refused(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 8)
    SignalStore.create(tmp_path, CARD, 8, "float32")
    with pytest.raises(DistilvecError, match=r"made anew .*float32 of width 8 instead of float16"):
        store.writer()
    assert not list(tmp_path.glob("*.lock"))


def test_two_processes_may_write_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = files.os.replace

    def after_another(*names: Any) -> None:
        monkeypatch.setattr(files.os, "replace", replace)
        write_json(tmp_path / "vocabulary.json", {"by": "another"})
        replace(*names)

    monkeypatch.setattr(files.os, "replace", after_another)
    write_json(tmp_path / "vocabulary.json", {"by": "one"})
    assert json.loads((tmp_path / "vocabulary.json").read_text()) == {"by": "one"}
    assert [file.name for file in tmp_path.iterdir()] == ["vocabulary.json"]


def test_half_written_records_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    half = tmp_path / ".distilvec-tmp-0123456789abcdef"
    half.touch()
    write_json(tmp_path / "more.json", {})
    assert not half.exists()
    (tmp_path / "more.json").unlink()
    with store.writer("host-0"):
        assert not list(tmp_path.glob(".distilvec*"))
    assert len(SignalStore.open(tmp_path)) == 40


def test_token_states_beyond_float16_are_refused(tmp_path: Path) -> None:
    signal = RaggedSignal.create(filled(tmp_path).path, "tokens-2", 4, "float16")
    writer = signal.writer("host-0", 1 << 20)
    with pytest.raises(DataError, match=r"tokens-2 has a value of 7e\+04, float16 ends at 65504.*live: true"):
        writer.add(KEYS[:1], [np.full((3, 4), -7e4, np.float32)])
    writer.add(KEYS[:1], [np.full((3, 4), 65504.0, np.float32)])
