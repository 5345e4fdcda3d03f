"""What a command writes with -o: nothing of somebody else's, and no older model, is lost by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.cli.commands import shrink
from distilvec.cli.measures import compress, geometry
from distilvec.errors import DistilvecError
from distilvec.export import export_onnx, load_onnx
from distilvec.flow.finetune import finetune
from distilvec.folders import MANIFEST, publish, seal


@pytest.fixture
def data(tmp_path: Path, sentences: list[str]) -> Path:
    file = tmp_path / "data.jsonl"
    rows = [{"text": text, "label": str(row % 2)} for row, text in enumerate(sentences[:48])]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scored(model: Path, data: Path, out: Path) -> Any:
    task = {"name": "own", "kind": "classification", "train": str(data), "test": str(data)}
    return distilvec.evaluate(str(model), task, out / "scores.json")


WRITING: dict[str, tuple[Callable[[Path, Path, Path], Any], str]] = {
    "evaluate": (scored, "scores.json"),
    "compress": (lambda model, data, out: compress(str(model), data, out), "compression.md"),
    "geometry": (lambda model, data, out: geometry(str(model), data, output=out), "geometry.json"),
    "geometry's pictures": (lambda model, data, out: geometry(str(model), data, output=out), "figures/a.svg"),
    "export": (lambda model, data, out: export_onnx(model, out), "model.onnx"),
    "export's tokenizer": (lambda model, data, out: export_onnx(model, out), "tokenizer.json"),
    "adapt": (lambda model, data, out: distilvec.adapt(model, np.eye(9), ["a"] * 9, out), "modules.json"),
    "shrink": (lambda model, data, out: shrink(str(model), out, layers="1"), "modules.json"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("command", WRITING)
def test_foreign_files_are_not_replaced(command: str, tiny_bert: Path, data: Path, tmp_path: Path) -> None:
    write, name = WRITING[command]
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('{"mine": true}')
    with pytest.raises(DistilvecError, match=r"out.*: .*(did not write|holds)"):
        write(tiny_bert, data, out)
    assert contents(out) == {name: b'{"mine": true}'}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DistilvecError):
        write(tiny_bert, data, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_is_replaced_and_repeated_after_a_kill(exported_once: Path, tmp_path: Path) -> None:
    out, half = tmp_path / "out", tmp_path / "half"
    out.mkdir()
    (out / "model.onnx.notes").write_text("mine")
    export_onnx(exported_once, out, quantize=False)
    names = set(contents(out))
    (out / "distilvec_onnx.json").unlink()  # a kill between two files
    export_onnx(exported_once, out, quantize=False)
    assert set(contents(out)) == names and (out / "model.onnx.notes").read_text() == "mine"
    assert load_onnx(out).encode(["a text"]).shape == (1, 32)
    with pytest.raises(DistilvecError, match=r"no model_int8\.onnx.*, without --no-quantize"):
        load_onnx(out, precision="int8")
    half.mkdir()
    (half / "model.onnx").write_bytes(b"half")
    publish(half, out, "export")
    assert not (out / "tokenizer.json").exists() and (out / MANIFEST).exists()


def test_an_export_replaces_exports_alone(one_layer_bert: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.mkdir()
    (checkpoint / "optimizer.pt").write_bytes(b"moments")
    (checkpoint / "tokenizer.json").write_bytes(b"{}")
    seal(checkpoint, "checkpoint")
    with pytest.raises(DistilvecError, match=r"checkpoint-4: .*did not write"):
        export_onnx(one_layer_bert, checkpoint)
    assert (checkpoint / "optimizer.pt").read_bytes() == b"moments"
    before = contents(one_layer_bert)
    with pytest.raises(DistilvecError, match="would replace the model that it is made of"):
        export_onnx(one_layer_bert, one_layer_bert / ".")
    assert contents(one_layer_bert) == before


def test_fine_tuning_that_was_stopped_at_its_end_may_be_called_with_other_arguments(
    tiny_bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distilvec.flow.finetune._scores", stopped)
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny_bert, data, tmp_path / "tuned", training={"max_steps": 1})
    monkeypatch.undo()
    finetune(tiny_bert, data, tmp_path / "tuned", training={"max_steps": 1, "seed": 1})
    assert sorted(place.name for place in tmp_path.glob("*tuned*")) == ["tuned"]


def test_an_older_model_is_set_aside_by_fine_tuning(tiny_bert: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    for seed in (0, 0, 1, 2):
        finetune(tiny_bert, data, out, training={"epochs": 1, "seed": seed})
    assert sorted(place.name for place in tmp_path.glob("tuned*")) == ["tuned", "tuned.before-1", "tuned.before-2"]
    assert all(
        SentenceTransformer(str(place), device="cpu").encode(["a text"]).shape == (1, 32)
        for place in tmp_path.glob("tuned*")
    )
