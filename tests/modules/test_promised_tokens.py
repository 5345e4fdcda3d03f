"""Start and end tokens that tokenizer_config.json promises and tokenizer.json leaves out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from tests import tiny_models

import distilvec
from distilvec.indexes import check_index
from distilvec.modules.promised_tokens import ENDS_BARE, around
from distilvec.modules.writing import open_writer
from distilvec.teachers import load_teacher, text
from distilvec.teachers.describe import describe

Made = Callable[..., Path]


def template(single: str) -> dict[str, Any]:
    """The post-processor of a tokenizer.json: "<s> $A </s>"."""
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2}
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}} if each == "$A" else {"SpecialToken": {"id": each, "type_id": 0}}
        for each in single.split()
    ]
    special = {each: {"id": each, "ids": [ids[each]], "tokens": [each]} for each in single.split() if each in ids}
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special}


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.fixture
def made(tiny_model_folders: dict[str, Path], tmp_path: Path) -> Made:
    def make(name: str, single: str, **promised: bool) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny_model_folders["mistral"], folder)
        change(folder / "tokenizer.json", post_processor=template(single))
        change(folder / "tokenizer_config.json", **promised)
        change(folder / "1_Pooling" / "config.json", pooling_mode="lasttoken")
        return folder

    return make


@pytest.mark.parametrize(
    ("single", "promised", "whole"),
    [
        ("<s> $A", {"add_eos_token": True, "add_bos_token": True}, "<s> $A </s>"),
        ("<s> $A", {"add_eos_token": True}, "<s> $A </s>"),
        ("$A </s>", {"add_bos_token": True}, "<s> $A </s>"),
        ("$A", {"add_bos_token": True}, "<s> $A"),
    ],
)
def test_a_promised_token_is_put(
    single: str, promised: dict[str, bool], whole: str, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    folder, right = made("promised", single, **promised), made("right", whole)
    texts = ["hello world", "a longer text about the weather in spring"]
    expected = SentenceTransformer(str(right), device="cpu").encode(texts)
    lacking = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(lacking - expected).max() > 1e-3
    teacher, student = load_teacher(model=folder, device="cpu"), distilvec.load(folder)
    assert "tokenizer_config.json" in caplog.text
    assert str(folder) in caplog.text
    np.testing.assert_allclose(teacher.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(student.encode(texts), expected, atol=1e-5)
    student.save(str(folder.parent / "saved"))  # type: ignore[union-attr]
    saved = SentenceTransformer(str(folder.parent / "saved"), device="cpu")
    np.testing.assert_allclose(saved.encode(texts), expected, atol=1e-5)


def test_the_fingerprint_knows_of_a_token_that_was_put(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    put, own = made("put", "<s> $A", add_eos_token=True), made("own", "<s> $A </s>", add_eos_token=True)
    found = {folder: load_teacher(model=folder, device="cpu").card.fingerprint for folder in (put, own)}
    monkeypatch.setattr(text, "tokens_put", lambda model: [])
    before = {folder: load_teacher(model=folder, device="cpu").card.fingerprint for folder in (put, own)}
    assert found[put] != before[put]  # stores of versions that left it out are another teacher's
    assert found[own] == before[own]


def test_an_index_is_checked_with_the_token(made: Made, sentences: list[str]) -> None:
    folder, right = made("promised", "<s> $A", add_eos_token=True), made("right", "<s> $A </s>")
    vectors = SentenceTransformer(str(right), device="cpu").encode(sentences[:40])
    assert check_index(folder, vectors, sentences[:40], device="cpu").findings == []


def test_each_route_of_a_router_keeps_its_own_promise(made: Made, tiny_bert: Path, tmp_path: Path) -> None:
    decoder = SentenceTransformer(str(made("promised", "<s> $A")), device="cpu")
    router = Router.for_query_document(list(SentenceTransformer(str(tiny_bert)).children()), list(decoder.children()))
    folder = tmp_path / "router"
    SentenceTransformer(modules=[router], device="cpu").save(str(folder), create_model_card=False)
    change(folder / "document_0_Transformer" / "tokenizer_config.json", add_eos_token=True)
    routes: Any = load_teacher(model=folder, device="cpu").model[0].sub_modules  # type: ignore[attr-defined]
    assert routes["document"][0].tokenizer("hello").tokens()[-1] == "</s>"
    assert routes["query"][0].tokenizer("hello").tokens()[-1] == "[SEP]"


def test_a_model_that_writes_begins_with_its_token(tmp_path: Path) -> None:
    folder = tiny_models.build_writer("opt", tmp_path / "opt")
    expected = open_writer(folder, device="cpu")[0].answers.prompts(["hello"], 4)  # type: ignore[union-attr, operator]
    change(folder / "tokenizer.json", post_processor=None)
    change(folder / "tokenizer_config.json", add_bos_token=True)
    assert open_writer(folder, device="cpu")[0].answers.prompts(["hello"], 4) == expected  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("single", ["<unk> $A", "$A <unk>"])
def test_other_special_tokens_are_left_as_they_are(single: str, made: Made, caplog: pytest.LogCaptureFixture) -> None:
    folder = made("other", single, add_eos_token=True)
    tokens = load_teacher(model=folder, device="cpu").model.tokenizer("hello").tokens()  # type: ignore[attr-defined]
    assert "</s>" not in tokens
    # What ends with a token of another kind lacks nothing; what begins with one cannot be changed without losing it.
    assert ("add_eos_token" in caplog.text and "post_processor" in caplog.text) is single.startswith("<unk>")


def test_last_token_pooling_of_a_word_piece_is_said(made: Made, tiny_model_folders: dict[str, Path]) -> None:
    bare, ended = made("bare", "<s> $A"), made("ended", "<s> $A </s>")
    assert ENDS_BARE in describe(load_teacher(model=bare, device="cpu"), ["a"]).warnings
    assert ENDS_BARE not in describe(load_teacher(model=ended, device="cpu"), ["a"]).warnings
    assert ENDS_BARE not in describe(load_teacher(model=tiny_model_folders["bert"], device="cpu"), ["a"]).warnings


def test_around(tiny_model_folders: dict[str, Path]) -> None:
    tokenizer = SentenceTransformer(str(tiny_model_folders["bert"]), device="cpu").tokenizer
    assert around(tokenizer) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])
