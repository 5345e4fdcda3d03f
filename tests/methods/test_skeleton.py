"""`distilvec new-method`: the files it writes work, in a package of one's own and in a checkout."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from tests.training.starting import Starter

from distilvec.cli.main import main
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.methods import table
from distilvec.methods.skeleton import new_method

ROOT = Path(__file__).resolve().parents[2]


def load(file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> object:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_written_method_passes_its_written_test_and_trains(
    tmp_path: Path,
    tiny_bert: Path,
    sentences: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import distilvec

    with pytest.raises(SystemExit) as done:
        main(["new-method", "my_idea", "--folder", str(tmp_path)])
    assert done.value.code == 0
    load(tmp_path / "my_idea.py", "my_idea", monkeypatch)
    tests = load(tmp_path / "tests" / "test_my_idea.py", "test_my_idea", monkeypatch)
    names = [name for name in vars(tests) if name.startswith("test_")]
    assert len(names) == 2
    for name in names:
        getattr(tests, name)()
    (named,) = re.findall(r"name: (\S+)}", capsys.readouterr().out)
    training = {"max_steps": 2, "batch_size": 8, "use_cpu": True}
    distilvec.train(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus=sentences[:40],
        method=named,
        output=tmp_path / "out",
        training=training,
    )
    assert '"term/my_idea"' in (tmp_path / "out" / "run.jsonl").read_text()


def test_a_new_method_in_its_own_folder_can_be_installed(tmp_path: Path, start: Starter) -> None:
    pytest.importorskip("setuptools", minversion="64")
    own = tmp_path / "own"
    said = new_method("my_idea", own)
    written = {str(file.relative_to(own)) for file in own.rglob("*") if file.is_file()}
    assert written == {"my_idea.py", "tests/test_my_idea.py", "pyproject.toml"}
    assert any("pip install -e ." in line for line in said)
    code = f"""
        from setuptools import build_meta
        build_meta.build_editable({str(tmp_path)!r})
        built = build_meta.build_wheel({str(tmp_path)!r})
    """
    code, told = start.code(code, folder=str(own)).wait()
    assert code == 0, told
    (wheel,) = tmp_path.glob("my_idea-0.1.0-py3-*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {
            name for name in files.namelist() if not name.endswith(("RECORD", "METADATA", "WHEEL", "top_level.txt"))
        }
        assert names == {"my_idea.py", "my_idea-0.1.0.dist-info/entry_points.txt"}
        assert files.read("my_idea-0.1.0.dist-info/entry_points.txt").decode().split("\n")[:2] == [
            "[distilvec.methods]",
            "my_idea = my_idea:MyIdea",
        ]


def test_a_pyproject_that_is_there_is_left_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    said = "\n".join(new_method("my_idea", tmp_path))
    assert (tmp_path / "pyproject.toml").read_text() == "[project]\n"
    assert 'my_idea = "my_idea:MyIdea"' in said and 'py-modules = ["my_idea"]' in said


def test_in_a_checkout_the_files_go_to_their_rooms(tmp_path: Path) -> None:
    methods = tmp_path / "src" / "distilvec" / "methods"
    methods.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "distilvec" / "methods" / "table.py", methods)
    said = new_method("my_idea", tmp_path)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*my_idea*")}
    assert written == {
        "src/distilvec/methods/my_idea.py",
        "tests/methods/test_my_idea.py",
        "docs/methods/my_idea.md",
    }
    content: dict[str, object] = {}
    exec((methods / "table.py").read_text(), content)
    assert content["TABLE"] == {**table.TABLE, "my_idea": "distilvec.methods.my_idea:MyIdea"}
    assert any("table.py" in line for line in said)


@pytest.mark.parametrize("name", ["talas", "My", "a-b", "class", "", "1st", "../x"])
def test_names_that_cannot_be_are_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError):
        new_method(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "my_idea.py").write_text("mine")
    with pytest.raises(DistilvecError, match=r"/my_idea\.py: "):
        new_method("my_idea", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["my_idea.py"]
    assert (tmp_path / "my_idea.py").read_text() == "mine"


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text("a file where a folder would be")
    with pytest.raises(EnvironmentProblem, match=r"test_my_idea\.py: "):
        new_method("my_idea", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["tests"]
