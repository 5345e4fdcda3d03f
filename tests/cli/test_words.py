"""The words of the command line: help in groups, switches as switches, and errors that name what was typed."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from distilvec.cli.main import every_command, main
from distilvec.errors import DataError, EnvironmentProblem
from distilvec.recipe import TrainingSection
from distilvec.training.distributed import check_precision

RECIPE = """\
corpus: {path: texts.jsonl}
teachers: [{name: tiny, model: tiny}]
method: {name: cosine}
training: {epochs: 1}
output: out
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n', encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path / "recipe.yaml"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main(list(words))
    return " ".join(capsys.readouterr().err.split())


def test_every_command_is_in_a_group() -> None:
    groups = {name: command.rich_help_panel for name, command in commands().items()}
    assert set(groups.values()) == {"Start", "Judge", "Ship", "Indexes", "Develop"}
    assert [name for name, group in groups.items() if group == "Indexes"] == ["check-index", "adapt"]


def commands() -> dict[str, Any]:
    found: Any = get_command(every_command())
    return dict(found.commands)


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_shows_switches_and_arguments_alike(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*([name] if name else []), "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "<bool>" not in shown and "BOOLEAN" not in shown
    for argument in re.findall(r"^│ \*? +([A-Za-z_]+) +<", shown, re.M):
        assert argument.isupper()


def test_a_bad_change_is_blamed_on_the_option(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "run", str(recipe), "--set", "training.epochs=none")
    assert "distilvec: --set training.epochs: " in message and "recipe.yaml" not in message
    message = refused(capsys, "run", str(recipe), "--set", "training={epochs: 1, epoch: 2}")
    assert '--set training.epoch: unknown key "epoch". Did you mean "epochs"?' in message
    # What the file says wrong is still blamed on the file.
    recipe.write_text(RECIPE.replace("epochs: 1", "epoch: 1"), encoding="utf-8")
    assert "recipe.yaml, line 4, training.epoch: " in refused(capsys, "run", str(recipe), "--set", "output=other")


def test_restarted_jobs_may_always_resume(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/distributed.md: under torchrun the first start may have --resume, too."""
    import distilvec.cli.main as module

    monkeypatch.setenv("RANK", "1")
    assert module._resumes(module._recipe(recipe, None, None), True)


@pytest.mark.parametrize(("answer", "resumed"), [("y", False), ("n", None)])
def test_a_person_is_asked(recipe: Path, monkeypatch: pytest.MonkeyPatch, answer: str, resumed: bool | None) -> None:
    import distilvec.cli.main as module

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    asked: list[str] = []

    def confirm(question: str, **options: Any) -> bool:
        asked.append(question)
        if answer == "n":
            raise module.typer.Abort
        return True

    monkeypatch.setattr(module.typer, "confirm", confirm)
    loaded = module._recipe(recipe, None, None)
    if resumed is None:
        with pytest.raises(module.typer.Abort):
            module._resumes(loaded, True)
    else:
        assert module._resumes(loaded, True) is resumed
    assert len(asked) == 1 and "out: this folder holds no run to resume. Start" in asked[0]


def test_half_precision_on_a_processor_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match=r"training\.fp16: fp16 needs a GPU, and training\.use_cpu asks.*bf16"):
        check_precision(TrainingSection(fp16=True, use_cpu=True))
    check_precision(TrainingSection(use_cpu=True))


def test_device_is_answered(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "run", str(recipe), "--set", "training.device=cuda:7")
    assert '--set training.device: unknown key "device"' in message and "CUDA_VISIBLE_DEVICES" in message


def test_a_missing_column_names_the_option(tmp_path: Path) -> None:
    from distilvec.corpus import read_corpus

    file = tmp_path / "texts.jsonl"
    file.write_text('{"body": "one"}\n{"body": "two"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r'there is no column "text"\. .*"body".* --set corpus\.text=body'):
        read_corpus(str(file), tmp_path / "made")


def test_students_can_be_read_by_those_whom_the_umask_lets(tmp_path: Path, tiny_bert: Path) -> None:
    from distilvec.students import load_student, ship

    before = os.umask(0o027)
    try:
        ship(load_student(tiny_bert, device="cpu"), tmp_path / "student")
    finally:
        os.umask(before)
    files = [file for file in (tmp_path / "student").rglob("*") if file.is_file()]
    assert any(file.suffix == ".safetensors" for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o640}
