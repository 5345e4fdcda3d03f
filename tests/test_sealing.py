"""The list of what distilvec wrote into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distilvec.sealing import SEAL, remove, seal, sealed


def folder(place: Path) -> Path:
    for name in ("a.bin", "1_Pooling/config.json"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("ours")
    seal(place, "export")
    return place


def test_only_what_is_listed_goes(tmp_path: Path) -> None:
    place = folder(tmp_path / "made")
    (place / "1_Pooling/notes.txt").write_text("mine")
    (place / "more").mkdir()
    remove(place)
    assert sorted(each.relative_to(place).as_posix() for each in place.rglob("*")) == [
        "1_Pooling",
        "1_Pooling/notes.txt",
        "more",
    ]
    whole = folder(tmp_path / "whole")
    remove(whole)
    assert not whole.exists()


@pytest.mark.parametrize(
    "names",
    [["../mine.txt"], ["{root}/mine.txt"], [""], ["linked/mine.txt"], ["link.txt"], [7], "a.bin", ["a\0b"], None],
)
def test_a_list_that_names_other_places(tmp_path: Path, names: Any) -> None:
    place, mine = folder(tmp_path / "made"), tmp_path / "mine.txt"
    mine.write_text("mine")
    (place / "linked").symlink_to(tmp_path)
    (place / "link.txt").symlink_to(mine)
    given = [str(name).format(root=tmp_path) for name in names] if isinstance(names, list) and names != [7] else names
    (place / SEAL).write_text(json.dumps({"made_by": "distilvec", "files": given}))
    assert sealed(place) in (None, [place / SEAL])
    remove(place)
    assert mine.read_text() == "mine" and (place / "a.bin").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"files": ["a.bin"]}', b"[" * 100_000])
def test_what_is_no_list(tmp_path: Path, content: bytes) -> None:
    place = folder(tmp_path / "made")
    (place / SEAL).write_bytes(content)
    assert sealed(place) is None
    remove(place)
    assert (place / "a.bin").exists()
