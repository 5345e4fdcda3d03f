"""Whose a folder is: manifests, temporary names, locks, and places that take no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distilvec import files
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.files import TEMPORARY, alone_in, is_locked, locked, whole, write_text
from distilvec.folders import (
    MANIFEST,
    check,
    check_file,
    check_model,
    claim,
    publish,
    read,
    remove,
    remove_all,
    seal,
    sealed,
    strangers,
    update,
)


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
    (place / MANIFEST).write_text(json.dumps({"made_by": "distilvec", "files": {"export": given}}))
    assert sealed(place) in (None, [place / MANIFEST])
    remove(place)
    assert mine.read_text() == "mine" and (place / "a.bin").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"files": {"export": ["a.bin"]}}',
        b'{"made_by": "distilvec", "files": ["a.bin"]}',
        b"[" * 100_000,
    ],
)
def test_an_unreadable_manifest_seals_nothing(tmp_path: Path, content: bytes) -> None:
    place = folder(tmp_path / "made")
    (place / MANIFEST).write_bytes(content)
    assert sealed(place) is None
    remove(place)
    assert (place / "a.bin").exists()


def test_kinds_of_output_share_a_folder_and_are_removed_apart(tmp_path: Path) -> None:
    for kind, name in (("export", "model.onnx"), ("model2vec", "model.safetensors")):
        made = tmp_path / kind
        made.mkdir()
        for each in (name, "tokenizer.json"):
            (made / each).write_text(kind)
        if kind == "model2vec":
            with pytest.raises(DistilvecError, match=r"/out: .*tokenizer\.json"):
                check(tmp_path / "out", kind, [name, "tokenizer.json"])
            (made / "tokenizer.json").unlink()
        publish(made, tmp_path / "out", kind, last=name)
    remove(tmp_path / "out", "export")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [MANIFEST, "model.safetensors"]
    remove(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way_that_is_not_listed_is_moved_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number, mine in enumerate(("model.onnx", "more/a.bin")):
        made = tmp_path / str(number)
        for name in ("model.onnx", "more/a.bin"):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(f"ours {number}")
        if number == 0:
            (out / mine).parent.mkdir(parents=True)
            (out / mine).write_text("mine")
        publish(made, out, "export")
        assert (out / "model.onnx").read_text() == (out / "more/a.bin").read_text() == f"ours {number}"
    assert [file.relative_to(out).as_posix() for file in strangers(out)] == ["model.onnx.before-1"]
    assert (out / "model.onnx.before-1").read_text() == "mine"


def test_all_that_manifests_below_a_folder_list_goes_and_nothing_else(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    folder(run / "start" / "0123")
    write_text(run / "report.md", "ours")
    update(run / "tokens", {"tokens": ["ids.bin"]})
    (run / "tokens" / "ids.bin").write_text("ours")
    (run / "tokens" / "notes.txt").write_text("mine")
    (run / "mine").mkdir()
    remove_all(run)
    left = sorted(file.relative_to(run).as_posix() for file in run.rglob("*"))
    assert left == ["mine", "tokens", "tokens/notes.txt"]
    (run / "tokens" / "notes.txt").unlink()


def test_an_output_is_new_or_empty_or_ours(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.log").touch()
    claim(tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").touch()
    claim(tmp_path / "out")
    assert read(tmp_path / "out")["alone"] and "student" in read(tmp_path / "out")["files"]["output"]
    (tmp_path / "other").mkdir()
    for name in ("thesis.tex", "report.md"):
        (tmp_path / "other" / name).touch()
        with pytest.raises(DistilvecError, match=rf"/other: .*{name}"):
            claim(tmp_path / "other")
    claim(tmp_path / "other", "compression", ["compression.md"])
    with pytest.raises(DistilvecError, match=r"/other: .*report\.md, thesis\.tex"):
        claim(tmp_path / "other")


def test_a_folder_in_which_a_killed_process_left_its_lock_holds_nothing(tmp_path: Path) -> None:
    """As where a signal comes while the lock of a temporary file is removed, and then all that was listed."""
    claim(tmp_path / "out")
    corpus = tmp_path / "out" / "corpus"
    corpus.mkdir()
    (corpus / f"{TEMPORARY}{7:016x}.lock").touch()
    remove_all(tmp_path / "out")
    claim(tmp_path / "out")
    remove_all(tmp_path / "out")
    (corpus / f"{TEMPORARY}{7:016x}.lock.txt").touch()
    with pytest.raises(DistilvecError, match="did not write: corpus"):
        claim(tmp_path / "out")


# what is not whole yet

WRITING = """
import os, sys
from pathlib import Path
from distilvec.files import temporary
os.getpid = lambda: 1  # as every container counts its own processes
with temporary(Path(sys.argv[1])) as made:
    made.mkdir()
    (made / "model.safetensors").write_text("half")
    print(made, flush=True)
    sys.stdin.read()
"""


def writer(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_leftovers_of_a_killed_process_go_and_files_of_a_living_one_stay(tmp_path: Path) -> None:
    killed, half = writer(tmp_path)
    living, held = writer(tmp_path)
    assert half != held and half.is_dir() and held.is_dir(), "equal process numbers, other names"
    killed.kill()
    assert killed.wait() == -signal.SIGKILL and half.is_dir()
    write_text(tmp_path / "next.txt", "next")
    assert not half.exists() and (held / "model.safetensors").read_text() == "half"
    living.communicate()
    assert [file.name for file in tmp_path.iterdir()] == ["next.txt"]


def test_a_name_that_only_looks_temporary_stays(tmp_path: Path) -> None:
    for name in (f"{TEMPORARY}mine", f"{TEMPORARY}0123456789ABCDEF", f"{TEMPORARY}0123456789abcdef.txt"):
        (tmp_path / name).write_text("mine")
    write_text(tmp_path / "a.txt", "a")
    assert len(list(tmp_path.glob(f"{TEMPORARY}*"))) == 3


def test_an_error_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(KeyError), whole(tmp_path / "a.txt") as partial:
        partial.write_text("ne")
        raise KeyError
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]
    with pytest.raises(EnvironmentProblem, match=r"/a\.txt/b\.txt: the file cannot be written .*Choose another place"):
        write_text(tmp_path / "a.txt" / "b.txt", "new")


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "a")
    (tmp_path / "b.txt").write_text("b")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_a_lock_is_held_once_and_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    with locked(file, wait=False) as got:
        assert got and is_locked(file)
        with locked(file, wait=False) as again:
            assert not again
        with alone_in(tmp_path), pytest.raises(DistilvecError, match="another run is at work"), alone_in(tmp_path):
            pass
    assert not is_locked(file) and not list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_removed_costs_no_finished_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error", str(path))

    with locked(tmp_path / "a.lock", wait=False) as got:
        assert got
        monkeypatch.setattr(Path, "unlink", broken)
    monkeypatch.undo()
    with locked(tmp_path / "a.lock", wait=False) as got:
        assert got, "and the next takes it"


# places that take no file


@pytest.mark.parametrize("number", [28, 30, 5])
def test_a_place_that_takes_no_file_is_refused_before_any_work(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    looks: list[Any] = [
        lambda place: check(place, "export", ["model.onnx"]),
        lambda place: check_file(place / "scores.json", bool),
        check_model,
        claim,
    ]
    for look in looks:
        for place in (tmp_path / "new" / "below", tmp_path / "there"):
            (tmp_path / "there").mkdir(exist_ok=True)
            with pytest.raises(EnvironmentProblem, match=os.strerror(number)):
                look(place)
            assert [file.name for file in tmp_path.rglob("*")] == ["there"]
    assert files.TEMPORARY not in "".join(os.listdir(tmp_path))


def test_export_replaces_only_the_files_it_wrote(tmp_path: Path) -> None:
    place = tmp_path / "export"
    place.mkdir()
    (place / "model.onnx").touch()
    seal(place, "export")
    check(place, "export", ["model.onnx", "README.md"])
    (place / "README.md").write_text("mine")
    with pytest.raises(DistilvecError, match="README.md"):
        check(place, "export", ["model.onnx", "README.md"])


@pytest.mark.parametrize("look", [check_model, lambda place: check(place, "export", ["a"])])
def test_output_folder_without_read_permission_is_refused(
    look: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **options: Any) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(EnvironmentProblem, match=r"/closed: .*Permission denied.*choose another place"):
        look(tmp_path / "closed")
