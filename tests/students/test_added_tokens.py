"""Tokenizers with more tokens than the model has vectors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from distilvec.errors import DistilvecError
from distilvec.students import load_student, ship
from distilvec.teachers import load_teacher


def with_one_more(tiny_bert: Path, folder: Path, **tokens: Any) -> Path:
    """A model whose tokenizer knows a token more than its table has rows."""
    shutil.copytree(tiny_bert, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_bert), **tokens)
    tokenizer.save_pretrained(str(folder))
    assert len(tokenizer) == 1 + len(AutoTokenizer.from_pretrained(str(tiny_bert)))
    return folder


def test_added_token_without_a_vector_is_read_as_letters(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    folder = with_one_more(tiny_bert, tmp_path / "gemma", extra_special_tokens={"image_token": "<image>"})
    student, plain = load_student(folder, device="cpu").eval(), load_student(tiny_bert, device="cpu").eval()
    texts = [*sentences[:10], "what <image> says"]
    np.testing.assert_allclose(student.encode(texts), plain.encode(texts), atol=1e-6)
    np.testing.assert_allclose(load_teacher(model=folder, device="cpu").encode(texts), plain.encode(texts), atol=1e-5)
    ship(student, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(shipped.encode(texts), plain.encode(texts), atol=1e-6)


def test_padding_token_without_a_vector_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    folder = with_one_more(tiny_bert, tmp_path / "padded", pad_token="<padding>")
    with pytest.raises(DistilvecError, match="its tokenizer gives ids up to 400, and there are vectors for 400"):
        load_student(folder, device="cpu")
