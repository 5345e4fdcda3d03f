"""What ships opens in plain sentence-transformers, in a process where distilvec does not exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from tests.disk import full_beyond
from tests.students.shipped import TEXTS, read_elsewhere
from tests.training.starting import Starter
from torch import nn

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.modules.blocks import parameters
from distilvec.students import fresh, in_teacher_space, load_student, router, ship, shrink

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


def linear(width: int, to: int) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(width, to, bias=False)


def test_all_kinds_load_without_distilvec(
    start: Starter, tiny_model_folders: dict[str, Path], real_teacher_folder: Path, sentences: list[str], tmp_path: Path
) -> None:
    students = [load_student(tiny_model_folders[kind], device="cpu").eval() for kind in KINDS]
    students += [
        shrink(real_teacher_folder, layers=2, vocabulary=2500, texts=sentences)[0].to("cpu").eval(),
        fresh(layers=1, width=32, vocabulary=400, texts=sentences).to("cpu").eval(),
    ]
    folders, expected, counts = [], [], []
    for number, student in enumerate(students):
        folders.append(tmp_path / f"{number}-own")
        ship(student, folders[-1])
        expected.append((student.encode(TEXTS), student.encode(TEXTS)))
        counts.append(parameters(student))
    for number in (0, 1, 3, 6):
        teacher_map = linear(32, 48)
        mapped = in_teacher_space(students[number], teacher_map)
        folders.append(tmp_path / f"{number}-teacher")
        ship(students[number], folders[-1], teacher_map=teacher_map)
        expected.append((mapped.encode(TEXTS), mapped.encode(TEXTS)))
        counts.append(parameters(students[number]) + 32 * 48)
    student, teacher = in_teacher_space(students[0], linear(32, 32)), students[3]
    folders.append(tmp_path / "router")
    ship(router(student, teacher), folders[-1])
    expected.append((student.encode(TEXTS), teacher.encode_document(TEXTS)))
    counts.append(parameters(student) + parameters(teacher))
    found = read_elsewhere(start, folders, tmp_path)
    for number, (queries, documents) in enumerate(expected):
        np.testing.assert_allclose(found[f"{number}-query"], queries, rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[f"{number}-document"], documents, rtol=0, atol=1e-6)
        assert int(found[f"{number}-parameters"]) == counts[number]


def test_the_teachers_map_is_folded_into_the_student(tiny_model_folders: dict[str, Path], tmp_path: Path) -> None:
    student = load_student(tiny_model_folders["xlmr"], device="cpu").eval()  # ends in a Normalize of its own
    teacher_map = linear(32, 48)
    ship(student, tmp_path / "student", teacher_map=teacher_map)
    raw = SentenceTransformer(modules=[student[0], student[1]], device="cpu")
    with torch.no_grad():
        features = student.preprocess(TEXTS)
        mapped = teacher_map(raw(features)["sentence_embedding"])
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    torch.testing.assert_close(
        torch.from_numpy(shipped.encode(TEXTS)), nn.functional.normalize(mapped), rtol=0, atol=1e-6
    )
    modules = json.loads((tmp_path / "student" / "modules.json").read_text())
    assert [module["name"] for module in modules] == ["0", "1", "teacher_map", "normalize"]
    assert all(module["type"].startswith("sentence_transformers.") for module in modules)
    ship(student, tmp_path / "long", teacher_map=teacher_map, normalize=False)
    long = SentenceTransformer(str(tmp_path / "long"), device="cpu").encode(TEXTS)
    torch.testing.assert_close(torch.from_numpy(long), mapped, rtol=1e-5, atol=1e-5)
    assert len(student) == 3  # the student itself is as it was


def test_prompts_and_similarity_stay(tiny_model_folders: dict[str, Path], tmp_path: Path) -> None:
    student = load_student(tiny_model_folders["qwen3"], device="cpu").eval()
    ship(student, tmp_path / "student", teacher_map=linear(32, 48))
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert shipped.prompts == student.prompts
    assert shipped.max_seq_length == student.max_seq_length
    assert np.abs(shipped.encode_query(TEXTS) - shipped.encode_document(TEXTS)).max() > 1e-3


def test_a_router_asks_the_student_and_answers_with_the_teacher(tiny_model_folders: dict[str, Path]) -> None:
    teacher = load_student(tiny_model_folders["qwen3"], device="cpu").eval()
    student = load_student(tiny_model_folders["bert"], device="cpu").eval()
    student.prompts = {"query": "ask: "}
    pair = router(in_teacher_space(student, linear(32, 32)), teacher)
    expected = in_teacher_space(student, linear(32, 32)).encode(["ask: " + text for text in TEXTS])
    np.testing.assert_allclose(pair.encode_query(TEXTS), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(pair.encode_document(TEXTS), teacher.encode_document(TEXTS), rtol=0, atol=1e-6)
    with pytest.raises(DistilvecError, match=r"\b48\b.*\b32\b.*space: teacher"):
        router(in_teacher_space(student, linear(32, 48)), teacher)


def test_no_pooler_ships(real_teacher_folder: Path, tmp_path: Path) -> None:
    whole = SentenceTransformer(str(real_teacher_folder), device="cpu")
    assert whole[0].model.pooler is not None
    ship(whole, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert shipped[0].model.pooler is None
    assert parameters(shipped) == 22_565_376


def test_an_older_model_is_replaced_and_other_files_are_not(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu")
    ship(student, tmp_path / "student")
    (tmp_path / "student" / "left-over.txt").write_text("of the older model")
    ship(student, tmp_path / "student", teacher_map=linear(32, 8))
    assert SentenceTransformer(str(tmp_path / "student"), device="cpu").get_embedding_dimension() == 8
    assert not (tmp_path / "student" / "left-over.txt").exists()
    assert (tmp_path / "student.before-1" / "left-over.txt").read_text() == "of the older model"
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("years of work")
    with pytest.raises(DistilvecError, match=re.escape(f"{thesis}: ")):
        ship(student, thesis)
    with pytest.raises(DistilvecError, match=re.escape(f"{thesis / 'thesis.tex'}: ")):
        ship(student, thesis / "thesis.tex")
    assert (thesis / "thesis.tex").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["student", "student.before-1", "thesis"]


def test_a_full_disk_leaves_the_older_model(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu")
    ship(student, tmp_path / "student")
    before = student.encode(TEXTS)
    with torch.no_grad():
        next(student.parameters()).mul_(2)
    with (
        full_beyond(20_000),
        pytest.raises(EnvironmentProblem, match=re.escape(f"{tmp_path / 'student'}: ") + ".*File too large"),
    ):
        ship(student, tmp_path / "student")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["student"]
    assert (SentenceTransformer(str(tmp_path / "student"), device="cpu").encode(TEXTS) == before).all()


class Foreign(Module):
    """A module that only this process knows."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return features

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        return None


def test_students_that_would_not_load_again_are_not_shipped(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu")
    with pytest.raises(DistilvecError, match="31.*32"):
        ship(student, tmp_path / "student", teacher_map=linear(31, 8))
    student.append(Foreign())
    with pytest.raises(DistilvecError, match=r"module 2\b.*\bForeign\b"):
        ship(student, tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_shipping_over_a_student_keeps_other_files(
    tiny_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    student = load_student(tiny_bert, device="cpu")
    for _ in range(2):
        ship(student, tmp_path / "student")
        (tmp_path / "student/README.md").touch()
        assert [file.name for file in tmp_path.iterdir()] == ["student"], "nothing but a student: it is replaced"
    (tmp_path / "student/onnx").mkdir()
    (tmp_path / "student/onnx/model.onnx").write_text("mine")
    ship(student, tmp_path / "student")
    assert (tmp_path / "student.before-1/onnx/model.onnx").read_text() == "mine" and "before-1" in caplog.text
    SentenceTransformer(str(tmp_path / "student"), device="cpu")
