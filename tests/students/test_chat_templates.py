"""Decoders whose tokenizer has a chat template."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from distilvec.errors import DistilvecError
from distilvec.students import load_student
from distilvec.teachers import load_teacher


@pytest.fixture
def chatty(tiny_model_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A bare decoder whose tokenizer has a chat template."""
    folder = tmp_path / "chatty"
    student = load_student(tiny_model_folders["qwen3"], device="cpu")
    student[0].model.save_pretrained(str(folder))
    tokenizer = student.tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(str(folder))
    return folder


def test_bare_decoder_with_a_chat_template_is_a_student_of_plain_texts(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    import distilvec

    student = load_student(chatty, device="cpu")
    ids = student.preprocess(["a text"])["input_ids"]
    assert ids.tolist() == [student.tokenizer("a text")["input_ids"]]
    distilvec.distill(
        str(chatty),
        student=str(chatty),
        corpus={"path": sentences, "holdout": 0.0},
        method="cosine",
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    shipped = SentenceTransformer(str(tmp_path / "out" / "student"), device="cpu")
    assert shipped.preprocess(["a text"])["input_ids"].tolist() == ids.tolist()


def test_bare_decoder_with_a_chat_template_is_a_teacher_of_plain_texts(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """Its vectors are those of the same folder without the template."""
    plain = tmp_path / "plain"
    shutil.copytree(chatty, plain)
    (plain / "chat_template.jinja").unlink()
    teacher, other = load_teacher(model=chatty, device="cpu"), load_teacher(model=plain, device="cpu")
    vectors = teacher.together(sentences[:4])
    assert np.array_equal(vectors, other.together(sentences[:4]))
    assert not np.allclose(vectors, SentenceTransformer(str(chatty), device="cpu").encode(sentences[:4]), atol=1e-3)
    assert teacher.tokens is not None


def test_student_with_a_chat_template_is_refused_before_teaching(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    import distilvec

    SentenceTransformer(str(chatty), device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    asked: list[str] = []

    def teacher(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    with pytest.raises(DistilvecError, match='every text into the chat template.*Take "message" out'):
        distilvec.distill(
            teacher,
            student=str(tmp_path / "saved"),
            corpus={"path": sentences},
            method="cosine",
            output=tmp_path / "out",
        )
    assert len(asked) < len(sentences) / 4  # a probe alone
