"""Which tokens are a text's own, for every kind of tokenizer, with and without a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from distilvec.modules.contents import Contents
from distilvec.students import load_student
from distilvec.students.tap import StudentTap
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import Wanted
from distilvec.training.tokens import TokenizedCorpus

TEXTS = ["the cat sat on the mat", "rain", "a dog and a 😂 ran", "query: what is this?"]
PROMPTS = ["", "query: ", "query:", "Instruct: find\nQuery:"]
KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


def own(tokenizer, prompt: str, text: str) -> list[int]:
    """By character: the ids of the tokens that hold a character of the text."""
    encoding = tokenizer(prompt + text, return_offsets_mapping=True)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
    return [token for token, (_, end) in pairs if end > len(prompt) and token not in special]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_the_text_and_no_others(tiny_model_folders: dict[str, Path], kind: str, prompt: str) -> None:
    """A trailing space of the prompt, unknown characters, either padding: student, teacher and corpus agree."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folders[kind])
    expected = [own(tokenizer, prompt, text) for text in TEXTS]
    assert all(expected)
    student = load_student(tiny_model_folders[kind], device="cpu").eval()
    student.prompts["own"], student.default_prompt_name = prompt, "own"
    for side in ("left", "right"):
        student.tokenizer.padding_side = side
        features = dict(student.preprocess(TEXTS, prompt=prompt or None))
        mask, content = StudentTap(student).masks(features, None)
        assert mask is not None and content is not None and mask.sum() > content.sum()
        assert [ids[row].tolist() for ids, row in zip(features["input_ids"], content, strict=True)] == expected
    teacher = load_teacher(model=tiny_model_folders[kind], prompt=prompt, device="cpu")
    seen = teacher.signals(TEXTS, Wanted(tokens=(1,)))
    assert seen.ids is not None and seen.content is not None
    assert [ids[row].tolist() for ids, row in zip(seen.ids, seen.content, strict=True)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_counts_as_the_step_does(tiny_model_folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    student = load_student(tiny_model_folders[kind], device="cpu").eval()
    student.prompts["own"], student.default_prompt_name = "query: ", "own"
    tokens = TokenizedCorpus.build(student, lambda rows: [TEXTS[int(row)] for row in rows], len(TEXTS), tmp_path)
    rows = np.arange(len(TEXTS))
    features = tokens.features(rows)
    _, content = StudentTap(student).masks(features, None)
    assert content is not None
    for text, (ids, positions), row, whole in zip(
        TEXTS, tokens.contents(rows), content, features["input_ids"], strict=True
    ):
        assert ids.tolist() == whole[row].tolist() == own(student.tokenizer, "query: ", text)
        assert len(positions) == len(ids)


def test_both_forms_agree_on_random_ids() -> None:
    class Tokenizer:
        all_special_ids = (0, 1, 2)
        unk_token_id = 2

        def __call__(self, prompt: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [5, 6, 5]}

    contents = Contents(Tokenizer(), "a prompt")
    assert contents.special.tolist() == [0, 1] and contents.prompt.tolist() == [5, 6, 5]
    ids = torch.randint(0, 8, (200, 9), generator=torch.Generator().manual_seed(0))
    ids[:100, 1:3] = torch.tensor([5, 6])
    mask = contents.mask(ids, torch.ones_like(ids, dtype=torch.bool))
    for row, found in zip(ids.numpy(), mask, strict=True):
        assert contents.positions(row).tolist() == torch.nonzero(found).flatten().tolist()
    assert Contents(None).positions(np.array([0, 1, 2])).tolist() == [0, 1, 2]
