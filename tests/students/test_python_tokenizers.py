"""Tokenizers written in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distilvec.errors import DistilvecError
from distilvec.modules.text_ids import TextIds
from distilvec.students import StudentTap, describe_student, load_student
from distilvec.students.vocabulary import plain_backend
from distilvec.teachers import load_teacher


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with the tokenizer of protein models, which is written in Python."""
    from transformers import BertConfig, BertModel, EsmTokenizer

    folder = tmp_path_factory.mktemp("slow") / "model"
    config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(folder)
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"ABCDEFGHIKLMNPQRSTVWY", "<mask>"]
    (folder / "pieces.txt").write_text("\n".join(pieces))
    made: Any = EsmTokenizer
    made(str(folder / "pieces.txt")).save_pretrained(folder)
    return folder


def test_student_with_a_python_tokenizer_is_refused(slow: Path) -> None:
    model = load_student(slow, device="cpu")
    told = r"EsmTokenizer, is written in Python.*tokenizer\.json"
    with pytest.raises(DistilvecError, match=f"^model: .*{told}"):
        StudentTap(model)  # what a run looks at first
    for refused in (lambda: plain_backend(model.tokenizer), lambda: TextIds(model.tokenizer, 10)):
        with pytest.raises(DistilvecError, match=told):
            refused()


def test_model_with_a_python_tokenizer_teaches_and_is_described(slow: Path) -> None:
    described = describe_student(load_student(slow, device="cpu"))
    assert described["vocabulary"] == 26
    assert load_teacher(name="slow", model=slow, device="cpu").encode(["A C D", "W"]).shape == (2, 16)
