"""A joint item is read as the tokenizer's own encoding of the pair, by student and teacher alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from distilvec.corpus import join_pair
from distilvec.students import load_student
from distilvec.students.tap import StudentTap
from distilvec.teachers import load_teacher
from distilvec.teachers.padding import quick_tokens
from distilvec.training import TokenizedCorpus

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]
PAIRS = [
    ("A plane is taking off.", "An air plane is taking off."),
    ("short", "a much longer second text that has to be cut because there is no room for all of it " * 3),
    ("a much longer first text that has to be cut because there is no room for all of it " * 3, "short"),
    ("Ünïcödé 你好", "\u200d🙂 x"),
    ("one", "two"),
]


def tokenized(student: object, folder: Path) -> TokenizedCorpus:
    texts = [join_pair(*pair) for pair in PAIRS]
    return TokenizedCorpus.build(student, lambda rows: [texts[row] for row in rows], len(texts), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [None, "classify: "])
def test_the_students_ids_are_those_of_the_pair(
    tiny_model_folders: dict[str, Path], tmp_path: Path, kind: str, prompt: str | None
) -> None:
    student = load_student(tiny_model_folders[kind], max_length=32, device="cpu")
    if prompt:
        student.prompts["mine"] = prompt
        student.default_prompt_name = "mine"
    tokens = tokenized(student, tmp_path)
    tokens = tokenized(student, tmp_path)  # now from the files
    expected = student.preprocess(PAIRS, prompt=prompt)
    found = tokens.features(range(len(PAIRS)))
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert (name in found) == (name in expected)
        if name in found:
            assert torch.equal(found[name], expected[name]), name
    own = student.tokenizer([((prompt or "") + a, b) for a, b in PAIRS], truncation="longest_first", max_length=32)[
        "input_ids"
    ]
    assert tokens.lengths.tolist() == [len(ids) for ids in own]
    assert tokens.truncated == sum(
        len(ids) > 32 for ids in student.tokenizer([((prompt or "") + a, b) for a, b in PAIRS])["input_ids"]
    )


def test_segments_reach_the_model(real_teacher_folder: Path, tmp_path: Path) -> None:
    student = load_student(real_teacher_folder, max_length=32, device="cpu").eval()
    tokenized(student, tmp_path)
    features = tokenized(student, tmp_path).features([4, 0, 1, 2])
    expected = student.preprocess([PAIRS[row] for row in (4, 0, 1, 2)])
    assert torch.equal(features["token_type_ids"], expected["token_type_ids"])
    assert set(features["token_type_ids"].unique().tolist()) == {0, 1}
    without = {name: value for name, value in features.items() if name != "token_type_ids"}
    student.pop(2)  # Normalize; the tap leaves it out
    own = student.encode([PAIRS[row] for row in (4, 0, 1, 2)])
    with torch.no_grad():
        output = StudentTap(student)(features, views=2)
        blind = StudentTap(student)(without, views=1)
    np.testing.assert_allclose(output.embedding[1].numpy(), own, atol=1e-5)
    assert np.abs(blind.embedding[0].numpy() - own).max() > 1e-3


def test_a_corpus_of_single_texts_has_no_segments(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu")
    tokens = TokenizedCorpus.build(student, lambda rows: ["one text"] * len(rows), 3, tmp_path)
    assert "token_type_ids" not in tokens.features([0, 1])
    assert not list(tmp_path.glob("types-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_teachers_quick_ids_are_those_of_the_pair(tiny_model_folders: dict[str, Path], kind: str) -> None:
    teacher = load_teacher(model=tiny_model_folders[kind], device="cpu", max_length=32)
    assert teacher.tokens is not None
    mixed = [join_pair(*PAIRS[0]), "a single text", *(join_pair(*pair) for pair in PAIRS[1:])]
    found = teacher.tokens.features(teacher.tokens.read(mixed))
    expected = teacher.model.preprocess([PAIRS[0], "a single text", *PAIRS[1:]])
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name
    whole = [len(teacher.model.tokenizer(a, b)["input_ids"]) for a, b in PAIRS]
    assert teacher.tokens.lengths([join_pair(*pair) for pair in PAIRS]).tolist() == whole
    own = teacher.model.encode(PAIRS)
    assert np.abs(teacher.encode([join_pair(*pair) for pair in PAIRS]) - own).max() < 1e-5


def test_the_real_teacher_reads_pairs_as_pairs(real_teacher_folder: Path) -> None:
    teacher = load_teacher(model=real_teacher_folder, device="cpu")
    tokens = quick_tokens(teacher.model, "")
    assert tokens is not None
    ids = tokens.read([join_pair("a man sings", "a person sings")])[0].ids
    assert teacher.model.tokenizer.decode(ids) == "[CLS] a man sings [SEP] a person sings [SEP]"
    found = teacher.encode([join_pair(*pair) for pair in PAIRS])
    assert np.abs(found - teacher.model.encode(PAIRS)).max() < 1e-5
    joined = teacher.model.encode(["a man sings a person sings"])
    assert np.abs(teacher.encode([join_pair("a man sings", "a person sings")]) - joined).max() > 1e-3
