"""Parts that are damaged are named, set aside, and made again by the next teaching."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.rows import filled

from distilvec.errors import EnvironmentProblem
from distilvec.files import checksum_of
from distilvec.store import SignalStore, fill


def taught(folder: Path, filling: ModuleType) -> SignalStore:
    texts = filling.texts(600)
    store = SignalStore.create(folder, filling.CARD, filling.WIDTH)
    fill(store, filling.HashTeacher(), texts, filling.keys(texts), part_bytes=filling.PART_BYTES)
    assert len(store.parts) == 4
    return store


def edit_record(arrow: Path, **changes: object) -> None:
    """A record with its own checksum, of another file."""
    record = json.loads(arrow.with_suffix(".json").read_text()) | changes
    arrow.with_suffix(".json").write_text(json.dumps(record | {"record_checksum": checksum_of(record)}))


def flip_in_record(arrow: Path) -> None:
    record = json.loads(arrow.with_suffix(".json").read_text())
    record["moments"]["mean"][3] += 0.25
    arrow.with_suffix(".json").write_text(json.dumps(record))


def truncate(arrow: Path) -> None:
    os.truncate(arrow, arrow.stat().st_size // 2)


def overwrite_the_end(arrow: Path) -> None:
    content = bytearray(arrow.read_bytes())
    content[-200:] = bytes(200)
    arrow.write_bytes(content)


def other_columns(arrow: Path) -> None:
    table = pa.table({"key": [b"x"] * 3, "vector": [[1.0]] * 3})
    with pa.ipc.new_file(str(arrow), table.schema) as writer:
        writer.write_table(table)
    edit_record(arrow, bytes=arrow.stat().st_size, rows=3)


def record_of_another_file(arrow: Path) -> None:
    edit_record(arrow, last_key="00" * 16)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bytes, its record says": truncate,
    "the Arrow file is missing": lambda arrow: arrow.unlink(),
    "it cannot be read": overwrite_the_end,
    "the columns are not the store's": other_columns,
    "its record cannot be read": lambda arrow: arrow.with_suffix(".json").write_text('{"rows": 1'),
    "the checksum of its record does not": flip_in_record,
    "checksum of its record does not agree": lambda arrow: arrow.with_suffix(".json").write_text("[1]"),
    "of its record does not agree": lambda arrow: arrow.with_suffix(".json").write_text("{}"),
    "it is of the teacher 99": lambda arrow: edit_record(arrow, fingerprint="99"),
    "its key range is not the one": record_of_another_file,
    "rows, its record says": lambda arrow: edit_record(arrow, rows=7),
    "moments have the shapes": lambda arrow: edit_record(
        arrow, moments={"mean": [1.0], "m2": [1.0], "norms": 1, "squares": 1, "errors": 1, "count": 1}
    ),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_damage_is_seen_on_opening_and_mended(
    tmp_path: Path, filling: ModuleType, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = taught(tmp_path, filling).parts
    DAMAGE[reason](tmp_path / f"{names[1]}.arrow")
    store = SignalStore.open(tmp_path)
    assert list(store.bad) == [names[1]] and reason in store.bad[names[1]]
    assert names[1] in caplog.text and reason in caplog.text
    check_mended(store, filling, names[1], names)


@pytest.mark.parametrize("where", ["keys", "vectors"])
def test_a_flipped_bit_is_found_by_verification(tmp_path: Path, filling: ModuleType, where: str) -> None:
    names = taught(tmp_path, filling).parts
    file = tmp_path / f"{names[2]}.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if where == "vectors" else 900] ^= 16
    file.write_bytes(content)
    assert SignalStore.open(tmp_path).bad == {}  # sizes and columns are right
    store = SignalStore.open(tmp_path)
    assert store.verify() == [names[2]]
    assert "checksum" in store.bad[names[2]]
    assert names[2] not in store.parts and store.verify() == []
    check_mended(store, filling, names[2], names)


def test_opening_with_verify_finds_a_flipped_bit(tmp_path: Path, filling: ModuleType) -> None:
    names = taught(tmp_path, filling).parts
    file = tmp_path / f"{names[0]}.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert list(SignalStore.open(tmp_path, verify=True).bad) == [names[0]]


def test_teaching_reads_what_has_changed_and_nothing_else(
    tmp_path: Path, filling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def open_and_note(file: Path, *args: Any) -> Any:
        if Path(file).suffix == ".arrow":
            read.append(Path(file).stem)
        return open(file, *args)

    names = taught(tmp_path / "store", filling).parts
    monkeypatch.setattr("distilvec.corpus.files.open", open_and_note, raising=False)
    assert SignalStore.open(tmp_path / "store").verify(changed=True) == [] and not read
    copied = Path(shutil.copytree(tmp_path / "store", tmp_path / "copy", copy_function=shutil.copyfile))
    assert SignalStore.open(copied).verify(changed=True) == [] and read == names
    read.clear()
    assert SignalStore.open(copied).verify(changed=True) == [] and not read, "a copy is read once"
    file = copied / f"{names[1]}.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    store = SignalStore.open(copied)
    assert store.verify(changed=True) == read == [names[1]]
    monkeypatch.undo()
    check_mended(store, filling, names[1], names)


def check_mended(store: SignalStore, filling: ModuleType, bad: str, names: list[str]) -> None:
    """The bad part is renamed, its items are missing, teaching makes exactly those again."""
    folder, texts = store.path, filling.texts(600)
    keys = filling.keys(texts)
    assert store.parts == [name for name in names if name != bad]
    assert not (folder / f"{bad}.json").exists() and (folder / f"{bad}.json.bad").exists()
    assert not (folder / f"{bad}.arrow").exists()
    lost = len(set(texts)) - len(store)
    assert lost > 0
    teacher = filling.HashTeacher()
    report = fill(store, teacher, texts, keys)
    assert report.taught == teacher.encoded == lost and list(report.set_aside) == [bad]
    assert bad not in report.parts  # names are not used twice
    again = SignalStore.open(folder, verify=True)
    assert again.bad == {}
    np.testing.assert_array_equal(
        again.read(again.rows(keys)), filling.vectors(texts).astype(np.float16).astype(np.float32)
    )


def test_a_part_whose_record_is_missing_does_not_exist(tmp_path: Path, filling: ModuleType) -> None:
    names = taught(tmp_path, filling).parts
    (tmp_path / f"{names[3]}.json").unlink()
    store = SignalStore.open(tmp_path)
    assert store.parts == names[:3] and store.bad == {}
    texts = filling.texts(600)
    assert fill(store, filling.HashTeacher(), texts, filling.keys(texts)).taught == len(set(texts)) - store_rows(
        tmp_path, names[:3]
    )
    assert not store.missing(filling.keys(texts)).any()


def store_rows(folder: Path, names: list[str]) -> int:
    return sum(json.loads((folder / f"{name}.json").read_text())["rows"] for name in names)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_refuses_leaves_no_half_part(
    tmp_path: Path, filling: ModuleType, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    texts = filling.texts(100)
    keys = filling.keys(texts)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)

    def refuse(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(EnvironmentProblem, match=re.escape(f"({os.strerror(number)})")) as caught:
        fill(store, filling.HashTeacher(), texts, keys)
    assert str(tmp_path) in str(caught.value)
    assert not list(tmp_path.glob("sentence-*"))
    monkeypatch.undo()
    assert fill(store, filling.HashTeacher(), texts, keys).taught == 90


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("what", ["record", "file", "bytes"])
def test_part_that_cannot_be_read_now_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    store = filled(tmp_path)

    def refuse(*given: Any, **options: Any) -> Any:
        raise OSError(number, "no")

    with monkeypatch.context() as patch, pytest.raises(EnvironmentProblem, match=rf"{store.parts[0]}\.\w+: the store"):
        if what == "record":
            patch.setattr(Path, "read_bytes", refuse)
        elif what == "file":
            patch.setattr("pyarrow.memory_map", refuse)
        else:
            patch.setattr("distilvec.corpus.files.open", refuse, raising=False)
        if what == "bytes":
            store.verify()
        SignalStore.open(tmp_path)
    assert len(SignalStore.open(tmp_path, verify=True)) == 40 and not list(tmp_path.glob("*.bad"))
