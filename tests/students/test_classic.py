"""Students are written in the form that older versions of sentence-transformers, and servers built on them, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from distilvec.students import load_student, ship, static
from distilvec.students.classic import write_classic


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def shipped(model: Any, folder: Path, sentences: list[str], **options: Any) -> list[str]:
    """Ship a model, compare what plain sentence-transformers gets with what it gave, and name its modules."""
    ship(model, folder, **options)
    opened = SentenceTransformer(str(folder), device="cpu")
    if not options:
        assert np.array_equal(opened.encode(sentences[:20]), model.encode(sentences[:20]))
        assert opened.max_seq_length == model.max_seq_length
    return [module["type"] for module in read(folder / "modules.json")]


@pytest.mark.parametrize("name", ["bert", "xlmr", "modernbert"])
def test_settings_have_the_names_that_all_versions_know(
    name: str, tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders[name], device="cpu")
    modules = shipped(student, tmp_path / "student", sentences)
    assert modules[:2] == ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    settings = read(tmp_path / "student" / "sentence_bert_config.json")
    # What the Transformer of sentence-transformers 3 takes; any other name ends in a TypeError there.
    assert settings.keys() <= {"max_seq_length", "do_lower_case", "model_args", "tokenizer_args", "config_args"}
    assert settings["max_seq_length"] == student.max_seq_length
    pooling = read(tmp_path / "student" / "1_Pooling" / "config.json")
    assert sum(value for key, value in pooling.items() if key.startswith("pooling_mode_")) == 1
    assert "pooling_mode" not in pooling and pooling["word_embedding_dimension"] > 0
    tokenizer = read(tmp_path / "student" / "tokenizer_config.json")
    assert "backend" not in tokenizer and tokenizer["tokenizer_class"] != "TokenizersBackend"


def test_a_space_before_the_first_word_is_named_where_older_versions_look(
    tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    """transformers 4 puts `add_prefix_space` of tokenizer_config.json, or false, over that of tokenizer.json."""
    from tokenizers import pre_tokenizers

    student = load_student(tiny_model_folders["modernbert"], device="cpu")
    tokenizer: Any = student.tokenizer
    for space in (True, False):
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        shipped(student, tmp_path / str(space), sentences)
        assert read(tmp_path / str(space) / "tokenizer_config.json")["add_prefix_space"] is space


@pytest.mark.parametrize(("modes", "old"), [(("cls", "mean"), True), (("mean", "cls"), False)])
def test_several_poolings_keep_their_order(
    modes: tuple[str, ...], old: bool, tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """Older versions join them in an order of their own, so that another one has no old form."""
    student: Any = load_student(tiny_bert, device="cpu")
    student[1] = Pooling(student[1].embedding_dimension, pooling_mode=modes)
    found = shipped(student, tmp_path / "student", sentences)
    assert (found[1] == "sentence_transformers.models.Pooling") is old


def test_a_tokenizer_without_a_limit_has_none_in_the_old_form(
    tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    student: Any = load_student(tiny_bert, device="cpu")
    student.save_pretrained(str(tmp_path / "student"))
    file = tmp_path / "student" / "tokenizer_config.json"
    file.write_text(json.dumps({**read(file), "model_max_length": 10**30}))
    write_classic(tmp_path / "student")
    assert read(tmp_path / "student" / "sentence_bert_config.json")["max_seq_length"] is None
    opened = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert np.array_equal(opened.encode(sentences[:5]), student.encode(sentences[:5]))


def test_a_map_and_a_table_are_written_so_too(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    student = load_student(tiny_bert, device="cpu")
    wide = torch.nn.Linear(student.get_embedding_dimension() or 0, 7)
    modules = shipped(student, tmp_path / "mapped", sentences, teacher_map=wide)
    assert modules[2:] == ["sentence_transformers.models.Dense", "sentence_transformers.models.Normalize"]
    settings = read(tmp_path / "mapped" / "2_Dense" / "config.json")
    assert settings.keys() == {"in_features", "out_features", "bias", "activation_function"}
    table = static(tiny_bert, dimensions=8, texts=sentences)
    assert "sentence_transformers.models.StaticEmbedding" in shipped(table, tmp_path / "table", sentences)


def test_what_no_older_version_opens_stays_as_it_is(
    tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu")
    tokenizer: Any = student.tokenizer
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    modules = shipped(student, tmp_path / "student", sentences)
    assert modules[0] == "sentence_transformers.base.modules.transformer.Transformer"
    assert "pooling_mode" in read(tmp_path / "student" / "1_Pooling" / "config.json")
