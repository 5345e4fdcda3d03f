"""What the system says of a file reaches a person with the file's name and what to do, from every command."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distilvec.cli.main import main
from distilvec.errors import EnvironmentProblem
from distilvec.files import is_locked, locked
from distilvec.system_errors import REMEDIES, disk_problems, number_of, of_the_system, system_problem

PARTS = {
    errno.EIO: "system's log",
    errno.ENOSPC: "Make room",
    errno.EROFS: "read-only",
    errno.ESTALE: "does not answer",
}


@pytest.mark.parametrize("number", sorted(REMEDIES))
def test_each_number_has_its_own_words_and_a_remedy(number: int, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem) as caught, disk_problems("it cannot be written", tmp_path, "Then go on."):
        raise OSError(number, os.strerror(number))
    said = str(caught.value)
    assert said == f"{tmp_path}: it cannot be written ({os.strerror(number)}). {REMEDIES[number]} Then go on."
    assert PARTS.get(number, "") in said and (number == errno.ENOSPC) == ("Make room there, or" in said)


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone"), BlockingIOError(errno.EAGAIN, "held")])
def test_errors_that_mean_something_to_the_caller_pass(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)), disk_problems("it cannot be written", tmp_path):
        raise error


def test_the_number_is_found_in_errors_of_other_libraries() -> None:
    import pyarrow as pa
    from safetensors import SafetensorError

    assert number_of(SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")) == 5
    assert number_of(OSError("Failed to open local file 'a'. Detail: [errno 13] Permission denied")) == 13
    with pytest.raises(OSError) as caught:
        pa.OSFile("/proc/self/mem", "r").read(10)  # no page lies at its beginning
    assert number_of(caught.value) == errno.EIO
    assert number_of(ValueError("7")) is None and not of_the_system(ValueError("7"))
    assert not of_the_system(EnvironmentProblem("it said (os error 5)"))


def test_the_file_that_the_system_names_is_said_where_it_is_another(tmp_path: Path) -> None:
    def said(name: Path) -> str:
        return str(system_problem(OSError(errno.EIO, "x", str(name)), "no", tmp_path / "out"))

    assert f"(Input/output error: {tmp_path}/out/figures/a.svg)" in said(tmp_path / "out/figures/a.svg")
    assert "(Input/output error: /elsewhere/a)" in said(Path("/elsewhere/a"))
    for name in ("out", ".out.partial-1/config.json", "out/.a.tmp"):
        assert "(Input/output error)" in said(tmp_path / name), name


def test_a_lock_that_cannot_be_removed_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "run.lock"

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", unlink)
        with locked(file, wait=False) as got:
            assert got and is_locked(file)
    assert f"{file}: " in caplog.text and file.exists() and not is_locked(file)
    with locked(file, wait=False) as got:
        assert got, "it holds nobody up"
    assert not file.exists()


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> Path:
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences[:40]))
    content = {
        "corpus": {"path": str(tmp_path / "texts.txt")},
        "teachers": [{"name": "mine", "model": str(tiny_bert)}],
        "student": {"model": str(tiny_bert)},
        "method": {"name": "cosine"},
        "training": {"max_steps": 2, "save_every": 1, "batch_size": 8, "use_cpu": True},
        "output": str(tmp_path / "out"),
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"


class Failing:
    """Calls of the system below a folder that end in EIO from the n-th on: what a disk that dies looks like."""

    def __init__(self, folder: Path, start: int) -> None:
        self.folder, self.start, self.count, self.names = str(folder), start, 0, set[str]()

    def wrap(self, module: Any, name: str, path_of: Any) -> Any:
        real = getattr(module, name)

        def call(*given: Any, **options: Any) -> Any:
            path = path_of(*given)
            if path.startswith(self.folder):
                self.count += 1
                if self.count >= self.start:
                    self.names.add(path)
                    raise OSError(errno.EIO, os.strerror(errno.EIO), *([] if name == "fsync" else [path]))
            return real(*given, **options)

        return call


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make the disk of `out` die at a call; returns what fails then."""

    def die(start: int) -> Failing:
        failing = Failing(tmp_path / "out", start)
        for name in ("replace", "rename", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, failing.wrap(os, name, lambda path, *_, **__: os.path.abspath(path)))
        monkeypatch.setattr(
            os, "fsync", failing.wrap(os, "fsync", lambda handle: os.readlink(f"/proc/self/fd/{handle}"))
        )
        return failing

    with monkeypatch.context():
        yield die


@pytest.mark.parametrize("command", ["teach", "train"])
@pytest.mark.parametrize("start", [1, 4, 9, 14, 19])
def test_a_disk_that_dies_is_said_with_a_file(
    recipe: Path, dying: Any, command: str, start: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failing = dying(start)
    with pytest.raises(SystemExit) as ended:
        main([command, str(recipe)])
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert failing.names, "fewer calls than that"
    assert ended.value.code == 4 and "unexpected" not in said and "Free " not in said, said
    assert re.search(rf"^distilvec: {re.escape(str(tmp_path / 'out'))}\S*: .*\(Input/output error.*system's log", said)


def test_a_file_that_cannot_be_read_now_is_not_called_damaged(recipe: Path, tmp_path: Path) -> None:
    """Whoever followed that advice removed stores that were paid for."""
    from distilvec.corpus import Corpus
    from distilvec.flow.ray import teach_alone
    from distilvec.modules.settings import read_json
    from distilvec.recipe import Recipe
    from distilvec.store import SignalStore

    teach_alone(Recipe.load(recipe))
    out = tmp_path / "out"
    unreadable = {
        out / "stores/mine/store.json": lambda: SignalStore.open(out / "stores/mine"),
        out / "corpus/corpus.json": lambda: Corpus.open(out / "corpus"),
        out / "config.json": lambda: read_json(out / "config.json"),
    }
    for file, work in unreadable.items():
        file.unlink(missing_ok=True)
        file.symlink_to("/proc/self/mem")  # reading at its beginning ends in EIO
        with pytest.raises(EnvironmentProblem, match=rf"^{re.escape(str(file))}: .*Input/output error.*system's log"):
            work()
