"""Commands that write a folder: their own earlier files are replaced, others stay, and a kill costs neither."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.training.starting import Starter

import distilvec
from distilvec.cli.commands import shrink as smaller
from distilvec.cli.disk import ABOUT, clean
from distilvec.cli.measures import compress, geometry
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.export import export_model2vec, export_onnx, export_web
from distilvec.files import TEMPORARY
from distilvec.flow.finetune import finetune
from distilvec.students import load_student, ship


class Given:
    """What commands work on."""

    def __init__(self, bert: Path, static: Path, sentences: list[str], folder: Path) -> None:
        self.bert, self.static, self.texts = str(bert), str(static), sentences[:48]
        rows = [{"text": text, "label": str(row % 2)} for row, text in enumerate(self.texts)]
        self.rows = folder / "rows.jsonl"
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.pairs = [{"text1": one, "text2": other} for one, other in zip(self.texts[::2], self.texts[1::2])]

    def job(self, seed: int) -> dict[str, Any]:
        return {"training": {"max_steps": 2, "batch_size": 8, "seed": seed}, "judging": {"tasks": self.task()}}

    def task(self) -> list[dict[str, Any]]:
        return [{"name": "own", "kind": "classification", "train": str(self.rows), "test": str(self.rows)}]


@pytest.fixture
def given(tiny_bert: Path, tiny_static: Path, sentences: list[str], tmp_path: Path) -> Given:
    (tmp_path / "data").mkdir()
    return Given(tiny_bert, tiny_static, sentences, tmp_path / "data")


def cut(given: Given) -> dict[str, Any]:
    return {"shrink": {"of": given.bert, "layers": 1}}


#: Command -> (what is given, output, 0 or 1 for the first and the second call).
COMMANDS: dict[str, Callable[[Given, Path, int], Any]] = {
    "run": lambda g, out, n: distilvec.distill(g.bert, g.texts, out, student=cut(g), method="cosine", **g.job(n)),
    "train": lambda g, out, n: distilvec.train(g.bert, g.texts[n:], out, student=cut(g), method="cosine", **g.job(0)),
    "compare": lambda g, out, n: distilvec.compare(
        g.bert, cut(g), g.texts, ["cosine"], out, seeds=1 + n, **{**g.job(0), "judging": {"tasks": g.task()}}
    ),
    "teach": lambda g, out, n: distilvec.teach(g.bert, g.texts[: 40 + n], out),
    "mine": lambda g, out, n: distilvec.mine(
        g.bert, {"path": g.pairs, "text": ["text1", "text2"]}, out, documents=g.texts[:9], negatives=1 + n, random=True
    ),
    "finetune": lambda g, out, n: finetune(g.bert, g.rows, out, training={"max_steps": 1, "seed": n}),
    "ship": lambda g, out, n: ship(load_student(g.static, device="cpu"), out),
    "shrink": lambda g, out, n: smaller(g.bert, out, layers="1"),
    "adapt": lambda g, out, n: distilvec.adapt(
        g.static, np.random.default_rng(0).normal(size=(120, 8)), [f"text number {row}" for row in range(120)], out
    ),
    "export": lambda g, out, n: export_onnx(g.static, out, quantize=not n),
    "export --web": lambda g, out, n: export_web(g.static, out, quantize=not n),
    "export --model2vec": lambda g, out, n: export_model2vec(g.static, out),
    "compress": lambda g, out, n: compress(g.static, g.rows, out),
    "geometry": lambda g, out, n: geometry(g.static, g.rows, output=out),
    "evaluate": lambda g, out, n: distilvec.evaluate(g.static, g.task(), out / "scores.json"),
}
#: These never write over a model, whosever it is.
REFUSING = {"shrink", "adapt"}
#: Names of ours, or like them, that a person may use too.
LIKELY = ("notes.txt", "mine.json", "rows-mine.parquet", "index-mine.npy", "side-mine.npz", "README.txt")


def plant(out: Path) -> dict[str, str]:
    """A few files in every folder of an output, each with a content of its own: content -> where it was."""
    planted: dict[str, str] = {}
    folders = {out, *(folder for folder in out.rglob("*") if folder.is_dir())}
    folders |= {out / "mining", out / "mining" / "documents", out / "figures", out / ".partial-mine", out / "new"}
    for folder in sorted(folders):
        folder.mkdir(exist_ok=True)
        for name in LIKELY:
            content = f"mine {len(planted)}"
            (folder / name).write_text(content)
            planted[content] = str((folder / name).relative_to(out))
    return planted


def lost(planted: dict[str, str], root: Path) -> list[str]:
    small = (file for file in root.rglob("*") if file.is_file() and file.stat().st_size < 20)
    there = {file.read_text(errors="replace") for file in small}
    return sorted(where for content, where in planted.items() if content not in there)


@pytest.mark.parametrize("command", COMMANDS)
def test_files_next_to_ours_stay_and_ours_are_replaced(command: str, given: Given, tmp_path: Path) -> None:
    out = tmp_path / "place" / "out"
    out.parent.mkdir()
    COMMANDS[command](given, out, 0)
    assert not list(out.rglob(f"{TEMPORARY}*"))
    planted = plant(out)
    if command in REFUSING:
        with pytest.raises(DistilvecError, match=r"/out: .*holds a model"):
            COMMANDS[command](given, out, 1)
    else:
        COMMANDS[command](given, out, 1)
    assert lost(planted, out.parent) == []
    clean(out.parent, [kind for kind, (_, after) in ABOUT.items() if after is not None], dry_run=False)
    assert lost(planted, out.parent) == []
    assert not list(out.parent.rglob(f"{TEMPORARY}*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_takes_no_file_is_refused_before_a_model_is_opened(
    command: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "ship":
        pytest.skip("it is given an opened model")

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is opened")

    for place in ("distilvec.students.load_student", "distilvec.students.load.load_student", "distilvec.api.load"):
        monkeypatch.setattr(place, opened)
    monkeypatch.setattr("distilvec.indexes.adapting.load_student", opened)
    monkeypatch.setattr("distilvec.flow.prepare.open_teacher", opened)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DistilvecError, match=r"/file"):
        COMMANDS[command](given, tmp_path / "file" / "out", 0)

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, os.strerror(28), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        COMMANDS[command](given, tmp_path / "out", 0)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_fine_tuning_that_was_stopped_removes_its_own_files_alone(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distilvec.flow.finetune._scores", stopped)
    with pytest.raises(KeyboardInterrupt):
        COMMANDS["finetune"](given, tmp_path / "out", 0)
    monkeypatch.undo()
    planted = plant(tmp_path / ".out.finetune")
    COMMANDS["finetune"](given, tmp_path / "out", 1)
    left = [file.name for file in (tmp_path / ".out.finetune").rglob("*") if file.is_file()]
    assert lost(planted, tmp_path) == [] and set(left) == set(LIKELY)


KILLED = """
import os, signal, sys
from pathlib import Path
import distilvec.students
number = os.getpid()
def die(*_, **__):
    os.kill(number, signal.SIGKILL)
{where} = die
os.getpid = lambda: 1  # as every container counts its own processes
"""
SHIPPED = """
from distilvec.students import load_student, ship
ship(load_student({model!r}, device="cpu"), {out!r})
"""
EXPORTED = """
from distilvec.export import export_onnx
export_onnx({model!r}, {out!r}, quantize=False)
"""


@pytest.mark.parametrize("where", ["Path.rename", "sys.modules['distilvec.students.ship'].seal"])
def test_a_killed_shipping_leaves_the_old_student_and_nothing_ships_with_the_next(
    where: str, given: Given, tmp_path: Path, start: Starter
) -> None:
    out = tmp_path / "place" / "student"
    ship(load_student(given.bert, device="cpu"), out)
    died = KILLED.format(where=where)
    for _ in range(2):  # the second meets what the first left, under an equal process number
        code, output = start.code(died + SHIPPED.format(model=given.static, out=str(out))).wait()
        assert code == -signal.SIGKILL, output
        assert SentenceTransformer(str(out), device="cpu").encode(["a"]).shape == (1, 32)
        left = list(out.parent.glob(f"{TEMPORARY}*[0-9a-f]"))
        assert len(left) == 1 and left[0].is_dir()
        (left[0] / "stale.safetensors").write_bytes(b"stale")
    ship(load_student(given.static, device="cpu"), out)
    assert [place.name for place in out.parent.iterdir()] == ["student"]
    assert not list(out.rglob("stale*")) and SentenceTransformer(str(out), device="cpu").encode(["a"]).shape == (1, 16)


def test_a_killed_export_does_not_stay_for_ever(given: Given, tmp_path: Path, start: Starter) -> None:
    out = tmp_path / "out"
    exporting = EXPORTED.format(model=given.static, out=str(out))
    code, output = start.code(KILLED.format(where="os.replace") + exporting).wait()
    assert code == -signal.SIGKILL, output
    assert list(out.glob(f"{TEMPORARY}*")) and not (out / "model.onnx").exists()
    (out / "notes.txt").write_text("mine")
    export_onnx(given.static, out, quantize=False)
    assert not list(out.rglob(f"{TEMPORARY}*")) and (out / "notes.txt").read_text() == "mine"


def test_two_processes_on_one_output_are_refused_with_its_name(given: Given, tmp_path: Path) -> None:
    from distilvec.files import alone_in

    COMMANDS["teach"](given, tmp_path / "out", 0)
    with alone_in(tmp_path / "out"):
        for command in ("run", "train", "compare"):
            with pytest.raises(DistilvecError, match=r"/out: another run is at work here.*another output"):
                COMMANDS[command](given, tmp_path / "out", 0)
