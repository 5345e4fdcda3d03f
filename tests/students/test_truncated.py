"""Models that truncate their vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.students import load_student
from distilvec.teachers import load_teacher

TEXTS = ["A cat sleeps.", "Water boils.", "Nobody knows why the committee met.", "Yes", "One more text of its own"]


def truncated(source: Path, folder: Path, size: int) -> Path:
    model = SentenceTransformer(str(source), device="cpu", truncate_dim=size)
    model.save_pretrained(str(folder))
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["truncate_dim"] == size
    return folder


def test_model_with_truncate_dim_gives_short_vectors(tiny_bert: Path, tmp_path: Path) -> None:
    folder = truncated(tiny_bert, tmp_path / "short", 8)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert expected.shape == (5, 8)
    teacher, whole = load_teacher(model=folder, device="cpu", dtype="float32"), load_teacher(model=tiny_bert)
    assert teacher.card.width == 8 and teacher.card.fingerprint != whole.card.fingerprint
    assert np.allclose(teacher.encode(TEXTS), expected, atol=1e-6)

    student = load_student(folder, device="cpu")
    assert np.allclose(student.encode(TEXTS), expected, atol=1e-6)
    student.save_pretrained(str(tmp_path / "again"))
    plain = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert plain.truncate_dim is None and np.allclose(plain.encode(TEXTS), expected, atol=1e-6)
    assert torch.equal(plain[-1].linear.weight, torch.eye(8, 32)), "the first numbers, as they are"


def test_model_with_truncate_dim_is_exported_and_distilled(tiny_bert: Path, tmp_path: Path) -> None:
    from distilvec.export import export_onnx, load_onnx

    folder = truncated(tiny_bert, tmp_path / "short", 8)
    export_onnx(folder, tmp_path / "onnx", quantize=False, texts=TEXTS)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.allclose(load_onnx(tmp_path / "onnx").encode(TEXTS), expected, atol=1e-4)
    made = distilvec.distill(
        str(tiny_bert),
        student=str(folder),
        corpus={"path": [f"{text} {number}" for number in range(8) for text in TEXTS], "holdout": 0.2},
        method="cosine",
        output=tmp_path / "out",
        training={"max_steps": 2, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    assert (made.folder / "report.html").exists()
