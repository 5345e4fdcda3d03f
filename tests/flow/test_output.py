"""The output folder of a run: what is resumed, moved away, or left alone while another process uses it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.functions import CountingFunction
from tests.jobs import tiny_recipe

import distilvec
from distilvec import folders
from distilvec.errors import DistilvecError
from distilvec.export import export_onnx, load_onnx
from distilvec.files import alone_in
from distilvec.flow.output import output_folder
from distilvec.flow.run import run, train
from distilvec.students import load_student
from distilvec.training.checkpoint import newest_checkpoint


def test_checkpoint_of_another_recipe_is_not_resumed(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """The first run is finished; the second is stopped before its first step, and resumed."""
    train(tiny_recipe(tmp_path, tiny_bert, sentences[:60]))
    checkpoints = tmp_path / "out" / "checkpoints"
    assert newest_checkpoint(checkpoints) is not None
    other = tiny_recipe(tmp_path, tiny_bert, sentences[:60], optimizer={"lr": 0.5})
    output_folder(other, resume=False)
    assert newest_checkpoint(checkpoints) is None
    trained = load_student(train(other, resume=True)).state_dict()
    anew = tiny_recipe(tmp_path / "anew", tiny_bert, sentences[:60], optimizer={"lr": 0.5})
    expected = load_student(train(anew)).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in trained.items())


def test_killed_while_moving_a_finished_run_away_loses_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file was the last to be moved, nobody goes on from its checkpoints or writes over its report."""
    rename, moved, files = Path.rename, 0, ["student/modules.json", "report.json", "report.md", "run.jsonl"]
    for most in range(20):
        first = tiny_recipe(tmp_path / str(most), tmp_path, ["a"])
        other = tiny_recipe(tmp_path / str(most), tmp_path, ["a"], optimizer={"lr": 0.5})
        out = output_folder(first, resume=False)
        (out / "student").mkdir()
        for name in files:
            (out / name).write_text("{}")
        checkpoint = out / "checkpoints" / "checkpoint-3"
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer_state.json").write_text('{"global_step": 3, "log_history": []}')
        folders.update(out, finished=True)
        moved = 0

        def killed(place: Path, target: Path, most: int = most) -> Path:
            nonlocal moved
            if moved == most:
                raise KeyboardInterrupt
            moved += 1
            return rename(place, target)

        monkeypatch.setattr(Path, "rename", killed)
        with contextlib.suppress(KeyboardInterrupt):
            output_folder(other, resume=False)
        monkeypatch.undo()
        try:
            output_folder(other, resume=True)
        except DistilvecError as refused:
            assert "another recipe" in str(refused)
        else:
            assert newest_checkpoint(out / "checkpoints") is None
        output_folder(other, resume=False)
        assert newest_checkpoint(out / "checkpoints") is None and list(out.glob("checkpoints-before*/checkpoint-3"))
        for name in files:
            assert not (out / name).exists() and len(list(out.glob(f"before-*/{name}"))) == 1, (most, name)
        if moved < most:
            break
    assert 5 < moved < 15, "each was the last once"


def test_second_run_in_a_busy_folder_is_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = tiny_recipe(tmp_path, tiny_bert, sentences[:60])
    train(given)
    before = (tmp_path / "out" / "recipe.yaml").read_text()
    with alone_in(tmp_path / "out"):
        for start_it in (run, train):
            with pytest.raises(DistilvecError, match=r"/out: another run is at work here"):
                start_it(tiny_recipe(tmp_path, tiny_bert, sentences[:60], optimizer={"lr": 0.5}))
    assert (tmp_path / "out" / "recipe.yaml").read_text() == before
    assert newest_checkpoint(tmp_path / "out" / "checkpoints") is not None
    assert not (tmp_path / "out" / "run.lock").exists()


def test_run_on_another_corpus_moves_the_first_run_away(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = CountingFunction()
    sections: dict[str, Any] = {"training": {"max_steps": 2, "batch_size": 8, "use_cpu": True}}
    first = distilvec.distill(
        own.embed, student=str(tiny_bert), corpus=sentences[:60], method="cosine", output=tmp_path / "out", **sections
    )
    student = (first.folder / "student" / "model.safetensors").read_bytes()
    export_onnx(first.folder / "student", tmp_path / "out" / "onnx", texts=sentences[:8])
    distilvec.train(
        own.embed,
        student=str(tiny_bert),
        corpus=sentences[60:140],
        method="cosine",
        output=tmp_path / "out",
        **sections,
    )
    before = tmp_path / "out" / "before-1"
    assert (before / "student" / "model.safetensors").read_bytes() == student and (before / "report.json").is_file()
    assert not (tmp_path / "out" / "report.json").exists()
    assert load_onnx(before / "onnx").encode(["a text"]).shape == (1, 32) and not (tmp_path / "out" / "onnx").exists()
    distilvec.train(
        own.embed,
        student=str(tiny_bert),
        corpus=sentences[60:140],
        method="cosine",
        output=tmp_path / "out",
        **sections,
    )
    assert not (tmp_path / "out" / "before-2").exists()


def test_output_in_the_home_folder(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    training = {"max_steps": 1, "batch_size": 8, "use_cpu": True}
    distilvec.train(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus=sentences[:40],
        method="cosine",
        output="~/out",
        training=training,
    )
    assert (tmp_path / "home/out/student").is_dir() and not list((tmp_path / "here").iterdir())


def test_given_texts_of_a_busy_run_are_not_replaced(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    out = tmp_path / "out"
    training = {"max_steps": 1, "batch_size": 8, "use_cpu": True}
    distilvec.train(
        str(tiny_bert), student=str(tiny_bert), corpus=sentences[:40], method="cosine", output=out, training=training
    )
    before = (out / "given" / "corpus.jsonl").read_text()
    with alone_in(out), pytest.raises(DistilvecError, match="another run is at work"):
        distilvec.train(
            str(tiny_bert),
            student=str(tiny_bert),
            corpus=sentences[:30],
            method="cosine",
            output=out,
            training=training,
        )
    assert (out / "given" / "corpus.jsonl").read_text() == before
    assert [file.name for file in (out / "given").glob("[!.]*")] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    "changes", [{"corpus": {"path": "texts.jsonl", "text": "txt"}}, {"training": {"best": "nothing", "max_steps": 2}}]
)
def test_recipe_refused_at_once_keeps_the_checkpoints(
    changes: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences[:60]))
    train(tiny_recipe(tmp_path, tiny_bert, "texts.jsonl"))
    saved = (tmp_path / "out/recipe.yaml").read_text()
    with pytest.raises(DistilvecError):
        train(tiny_recipe(tmp_path, tiny_bert, "texts.jsonl", **changes))
    assert newest_checkpoint(tmp_path / "out/checkpoints") is not None
    assert (tmp_path / "out/recipe.yaml").read_text() == saved


def test_resuming_a_finished_run_without_checkpoints_is_refused(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    done = tiny_recipe(tmp_path, tiny_bert, sentences[:60])
    run(done)
    student = (tmp_path / "out" / "student" / "model.safetensors").read_bytes()
    for checkpoint in (tmp_path / "out" / "checkpoints").glob("checkpoint-*"):
        folders.remove(checkpoint)
    with pytest.raises(DistilvecError, match=r"/out: this run is finished, .*distilvec evaluate .*student"):
        run(done, resume=True)
    assert (tmp_path / "out" / "student" / "model.safetensors").read_bytes() == student
    assert folders.is_finished(tmp_path / "out")


def test_resuming_on_a_changed_corpus_moves_the_student_away(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences[:60]))
    given = tiny_recipe(tmp_path, tiny_bert, str(texts))
    train(given)
    student = (tmp_path / "out" / "student" / "model.safetensors").read_bytes()
    for checkpoint in (tmp_path / "out" / "checkpoints").glob("checkpoint-*"):
        folders.remove(checkpoint)
    texts.write_text("\n".join(sentences[:80]))
    train(given, resume=True)
    assert (tmp_path / "out" / "before-1" / "student" / "model.safetensors").read_bytes() == student
