"""What a recipe gets that leaves its settings open."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense

import distilvec
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.flow.defaults import is_open, kind_of, with_defaults
from distilvec.flow.settle import prepare
from distilvec.modules.blocks import parameters
from distilvec.recipe import Recipe
from distilvec.recipe.defaults import DEFAULTS
from distilvec.students import load_student
from distilvec.students.sizes import cut_of


def filled(tmp_path: Path, texts: list[str], teachers: list[dict[str, Any]], **sections: Any) -> Recipe:
    """The recipe of some teachers and texts after its open settings are filled."""
    given = {"corpus": {"path": texts}, "teachers": teachers, "output": str(tmp_path / "out"), **sections}
    recipe = Recipe.build(given)
    assert is_open(recipe)
    made = with_defaults(recipe, read_corpus(texts, tmp_path / "corpus"))
    assert not is_open(made)
    assert Recipe.build(made.model_dump()) == made, "a saved recipe loads as the same"
    return made


def test_teacher_and_corpus_are_enough(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "distilvec"):
        run = distilvec.distill(
            str(tiny_bert), sentences[:200], tmp_path / "out", training={"max_steps": 3}, judging={"speed": False}
        )
    assert parameters(run.student) < parameters(load_student(tiny_bert))
    chosen = [record.getMessage() for record in caplog.records if record.getMessage().startswith("chosen ")]
    assert [line.split(":")[0] for line in chosen] == ["chosen student", "chosen method", "chosen training"]
    assert "experiments/results/defaults" in chosen[1]
    saved = Recipe.load(tmp_path / "out" / "recipe.yaml")
    assert not is_open(saved)
    assert (saved.method.name, saved.student.space, saved.student.shrink.layers) == (
        "cosine + token_states",
        "teacher",
        1,
    )
    assert f"learning rate {saved.optimizer.lr:g}" in (tmp_path / "out" / "report.md").read_text()


def test_given_settings_are_not_changed_by_defaults(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    teachers = [{"name": "big", "model": str(tiny_bert)}]
    made = filled(
        tmp_path,
        sentences[:100],
        teachers,
        student={"shrink": {"of": "big", "layers": 1}, "dropout": 0.1},
        method=[{"name": "auto"}, {"name": "token_states", "weight": 0}],
        optimizer={"lr": 5e-5},
        training={"batch_size": 7},
    )
    assert made.student.shrink.layers == 1 and made.student.shrink.embedding is None
    assert made.student.dropout == 0.1
    assert made.method.entries == [{"name": "cosine", "map": False}]
    assert (made.optimizer.lr, made.training.batch_size) == (5e-5, 7)
    assert made.training.epochs == DEFAULTS["wide"].epochs(
        len(read_corpus(sentences[:100], tmp_path / "corpus").train_rows)
    )


def test_sizes_stand_without_the_model_that_is_cut(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    teachers = [{"name": "big", "model": str(tiny_bert)}]
    made = filled(tmp_path, sentences[:100], teachers, student={"shrink": {"vocabulary": 300}})
    assert made.student.shrink.model_dump(exclude_none=True) == {"of": "big", "vocabulary": 300}


def test_a_named_embedder_and_a_plain_transformer_have_rows_of_their_own(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    teachers = [{"name": "big", "model": str(tiny_bert)}]
    plain = tmp_path / "plain"
    student = load_student(tiny_bert)
    student[0].model.save_pretrained(plain)
    student.tokenizer.save_pretrained(plain)
    other = tmp_path / "other"
    student[0].model.embeddings.word_embeddings.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    student.save_pretrained(str(other))
    for folder, kind in ((tiny_bert, "same space"), (other, "embedder"), (plain, "words")):
        made = filled(tmp_path, sentences[:60], teachers, student={"model": str(folder)})
        assert made.optimizer.lr == DEFAULTS[kind].lr, kind
        assert made.method.entries == DEFAULTS[kind].method, kind
        assert any(DEFAULTS[kind].kind in line for line in made.chosen), kind
    config = json.loads((plain / "config.json").read_text())
    assert config["hidden_size"] < 512
    for sizes in ({"hidden_size": 768}, {"hidden_size": None, "dim": 768}, {"hidden_size": None}):
        kept = {name: value for name, value in (config | sizes).items() if value is not None}
        (plain / "config.json").write_text(json.dumps(kept))
        assert kind_of(made, {"model": str(plain)}) == "wide words", sizes


def test_a_teacher_without_a_model_gets_a_student_with_random_weights(tmp_path: Path, sentences: list[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "t.txt").write_text("\n".join(sentences[:60]))
    teacher = {"name": "bought", "vectors": str(tmp_path / "v.npy"), "texts": str(tmp_path / "t.txt")}
    made = filled(tmp_path, sentences[:60], [teacher])
    assert made.student.fresh is not None
    assert "no teacher is a model" in made.chosen[0]
    with pytest.raises(DistilvecError, match=r"student\.shrink\.of"):
        filled(tmp_path, sentences[:60], [teacher], student={"shrink": {"parameters": "1M"}})


def test_several_teachers_share_no_space(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    teachers = [{"name": name, "model": str(tiny_bert)} for name in ("one", "two")]
    made = filled(tmp_path, sentences[:60], teachers)
    assert made.student.shrink.of == "one"
    assert made.student.space == "own" and made.method.name == "cosine"


def test_shorter_prefixes_of_a_cut_student_can_be_trained(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    teachers = [{"name": "big", "model": str(tiny_bert)}]
    method = [{"name": "matryoshka", "dims": [8, 16]}, {"name": "token_states"}]
    made = filled(tmp_path, sentences[:60], teachers, method=method)
    assert made.student.space == "own"
    assert prepare(made).needs, "nothing refuses it: each length has a map of its own"


def test_parameters_is_a_budget(real_teacher_folder: Path) -> None:
    model = load_student(real_teacher_folder, device="cpu")
    assert "vocabulary" not in cut_of(model, 10_000_000), "all word pieces, of a rank that leaves room for them"
    for most in (8_000_000, 4_000_000, 1_200_000):
        cut = cut_of(model, most)
        made = distilvec.shrink(model, **cut, texts=["a few words to cut it by", "and some more of them"])[0]
        assert 0.9 * most < parameters(made) <= most, cut
    for sizes in (384, 1536), (1536, 384):  # behind the pooling, as EmbeddingGemma and LaBSE have some
        model.append(Dense(*sizes))
    made = distilvec.shrink(model, **cut_of(model, 4_000_000), texts=["a few words to cut it by", "and some more"])[0]
    assert 3_600_000 < parameters(made) <= 4_000_000
    with pytest.raises(DistilvecError, match=r"parameters"):
        cut_of(model, 1000)
    with pytest.raises(DistilvecError, match=r"parameters"):
        distilvec.distill(str(real_teacher_folder), ["a"], student=str(real_teacher_folder), parameters="1M")
