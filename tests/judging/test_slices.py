"""Kinds of held-out items, and what the student keeps of the teacher's view on each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError
from distilvec.judging import agreement, item_masks, slices
from distilvec.students.vocabulary import prune_tokenizer


def test_the_kind_that_was_moved_is_behind_and_its_complement_is_not() -> None:
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(200, 16)).astype(np.float32)
    moved = np.arange(200) % 4 == 0
    student = np.where(moved[:, None], rng.normal(size=teacher.shape), teacher)
    found = {each.name: each for each in slices({"moved": moved, "still": ~moved}, teacher, student)}
    assert found["moved"].behind and not found["still"].behind
    assert found["moved"].share == 0.25 and found["moved"].items == 50
    assert found["moved"].low <= found["moved"].neighbours <= found["moved"].high < found["still"].low
    assert found["moved"].neighbours == found["still"].others
    whole = sum(each.share * each.neighbours for each in found.values())
    assert whole == pytest.approx(agreement(teacher, student)["neighbours"])


def test_kinds_of_few_items_or_of_nearly_all_are_left_out() -> None:
    vectors = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    number = np.arange(100)
    masks = {"few": number < 19, "nearly all": number < 81, "some": number < 20}
    assert [each.name for each in slices(masks, vectors, vectors)] == ["some"]
    assert slices({}, vectors[:2], vectors[:2]) == []
    with pytest.raises(DataError, match=r"\b100 vectors .*\b99\b"):
        slices(masks, vectors, vectors[:99])


def test_a_sample_is_the_agreement_s() -> None:
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(300, 8)).astype(np.float32)
    student = teacher + rng.normal(size=teacher.shape)
    masks = {"even": np.arange(300) % 2 == 0, "odd": np.arange(300) % 2 == 1}
    found = slices(masks, teacher, student, sample=120, seed=3)
    assert sum(each.items for each in found) == 120
    whole = sum(each.share * each.neighbours for each in found)
    assert whole == pytest.approx(agreement(teacher, student, sample=120, seed=3)["neighbours"])


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Plain texts, one with a word that no other has, and one that is long."""
    rows = [{"text": "the cat sat on the mat" + n * " very", "from": "home"} for n in range(40)]
    rows += [
        {"text": "the volcano", "from": "news"},
        {"text": "the cat sat on the mat and the mat and the cat", "from": "home"},
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_corpus(tmp_path / "texts.jsonl", tmp_path / "corpus", domain="from")


def test_words_the_student_lacks_rare_words_lengths_and_domains(corpus: Corpus, real_teacher_folder: Path) -> None:
    whole = AutoTokenizer.from_pretrained(real_teacher_folder)
    texts = corpus.texts()
    fewer = prune_tokenizer(whole, [text for text in texts if "volcano" not in text], 400).tokenizer
    rows = np.arange(len(texts))
    masks = item_masks(corpus, rows, fewer, whole)
    (other,) = [mask for name, mask in masks.items() if name.startswith("cut into other pieces")]
    assert [texts[row] for row in rows[other]] == ["the volcano"]
    (rare,) = [mask for name, mask in masks.items() if name.startswith("with a word piece that fewer than 30 of")]
    assert rare[other].all() and not rare.all()
    longest = max(range(len(texts)), key=lambda row: len(texts[row]))
    assert next(mask for name, mask in masks.items() if name.endswith("pieces and more"))[longest]
    assert [texts[row] for row in rows[masks["of the domain news"]]] == ["the volcano"]
    assert masks["of the domain home"].sum() == len(texts) - 1


def test_only_a_reduced_vocabulary_cuts_otherwise_and_without_tokenizers_domains_are_left(
    corpus: Corpus, real_teacher_folder: Path
) -> None:
    whole = AutoTokenizer.from_pretrained(real_teacher_folder)
    same = item_masks(corpus, np.arange(len(corpus)), whole, whole)
    assert not any(name.startswith("cut into") for name in same)
    assert set(item_masks(corpus, np.arange(len(corpus)))) == {"of the domain home", "of the domain news"}


def test_pieces_that_no_training_text_has(tmp_path: Path, real_teacher_folder: Path) -> None:
    whole = AutoTokenizer.from_pretrained(real_teacher_folder)
    words = [word for word in sorted(whole.get_vocab()) if word.isascii() and word.isalpha() and len(word) > 5][:200]
    rows = "".join(json.dumps({"text": word}) + "\n" for word in words)  # no two have a piece in common
    (tmp_path / "texts.jsonl").write_text(rows, encoding="utf-8")
    corpus = read_corpus(tmp_path / "texts.jsonl", tmp_path / "corpus", holdout=0.2)
    masks = item_masks(corpus, np.arange(len(words)), whole, whole)
    (name,) = [name for name in masks if "word piece that" in name]
    assert "that none of" in name and 0 < masks[name].sum() < len(words)
