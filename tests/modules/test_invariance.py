"""Models whose vectors depend on the batch are found before they are trained, judged, served or exported."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tests.jobs import Job, check_job

import distilvec
from distilvec.errors import EnvironmentProblem
from distilvec.export import export_onnx
from distilvec.modules.invariance import probe_model
from distilvec.modules.promised_tokens import ENDS_BARE
from distilvec.recipe import Recipe
from distilvec.serving.serve import serve
from distilvec.students import load_student

#: What helps: CLS pooling takes the first position, where padding on the left puts padding.
ADVICE = '"padding_side" to "right"'


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.fixture(scope="module")
def padded_left(tmp_path_factory: pytest.TempPathFactory, one_layer_bert: Path) -> Path:
    folder = tmp_path_factory.mktemp("left") / "padded-left"
    shutil.copytree(one_layer_bert, folder)
    change(folder / "tokenizer_config.json", padding_side="left")
    change(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    return folder


def recipe(student: Path, teacher: Path, texts: list[str], output: Path) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": texts, "holdout": 0.3},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"model": str(student)},
            "method": {"name": "cosine"},
            "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
            "output": str(output),
        }
    )


def test_padding_on_the_wrong_side_is_found_and_nothing_is_changed(padded_left: Path) -> None:
    model = load_student(padded_left, device="cpu").train()
    alone, batched = model.encode(["hello"]), model.encode(["hello", "a longer text about the weather"])
    assert np.abs(alone[0] - batched[0]).max() > 0.1
    model.train()
    report = probe_model(model)
    assert not report.passed
    assert report.worst > 100 * report.tolerance
    assert ADVICE in report.warning
    assert (model.training, model.tokenizer.padding_side) == (True, "left")
    model.tokenizer.padding_side = "right"
    assert probe_model(model).passed


@pytest.mark.parametrize("kind", ["bert", "xlmr", "modernbert", "qwen3", "mistral", "gpt2"])
def test_sound_students_pass(kind: str, tiny_model_folders: dict[str, Path]) -> None:
    report = probe_model(load_student(tiny_model_folders[kind], device="cpu"))
    assert (report.passed, report.warning) == (True, "")


def test_a_table_without_any_of_the_texts_passes() -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"слово": 0, "[UNK]": 1}, unk_token="[UNK]"))
    table = StaticEmbedding(tokenizer, embedding_weights=np.zeros((2, 4), np.float32))
    assert probe_model(SentenceTransformer(modules=[table], device="cpu")).passed


@pytest.mark.parametrize("route", ["query", "document"])
def test_each_route_of_a_router_is_tried(route: str, padded_left: Path, tiny_bert: Path) -> None:
    routes = {"query": tiny_bert, "document": tiny_bert, route: padded_left}
    modules = [list(load_student(folder, device="cpu").children()) for folder in routes.values()]
    model = SentenceTransformer(modules=[Router.for_query_document(*modules)], device="cpu")
    assert ADVICE in probe_model(model).warning


def test_a_run_warns_before_it_trains(
    padded_left: Path, tiny_bert: Path, sentences: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_job(Job(recipe(tiny_bert, tiny_bert, sentences, tmp_path / "sound")))
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]
    check_job(Job(recipe(padded_left, tiny_bert, sentences, tmp_path / "out")))
    assert "student" in caplog.text
    assert ADVICE in caplog.text


def test_a_run_warns_of_a_student_that_ends_in_a_word_piece(
    tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_job(Job(recipe(tiny_model_folders["gpt2"], tiny_model_folders["bert"], sentences, tmp_path / "out")))
    assert ENDS_BARE in caplog.text


def test_evaluate_serve_and_export_say_it(
    padded_left: Path, sentences: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"a": text, "b": text[::-1], "score": len(text)} for text in sentences[:20]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "p", "kind": "similarity", "test": str(tmp_path / "pairs.jsonl")}
    distilvec.evaluate(str(padded_left), task | {"text1": "a", "text2": "b", "score": "score"})
    assert f"{padded_left.name}: " in caplog.text
    assert ADVICE in caplog.text
    caplog.clear()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EnvironmentProblem):
        serve(str(padded_left), port=taken.getsockname()[1])
    assert ADVICE in caplog.text
    pytest.importorskip("onnxruntime")
    assert ADVICE in "".join(export_onnx(padded_left, tmp_path / "onnx", quantize=False, texts=sentences[:4]).notes)


def test_a_model_in_float16_that_overflows_is_called_so(tiny_bert: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    with torch.no_grad():
        model.get_parameter("0.model.encoder.layer.0.output.dense.weight").mul_(1e6)
    assert probe_model(model).finite
    report = probe_model(model.half())
    assert (report.passed, report.finite) == (False, False)
    assert "NaN or infinity in float16" in report.warning
    assert "bfloat16 or float32" in report.warning
    assert "mask" not in report.warning
