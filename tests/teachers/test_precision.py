"""Which precision a teacher reads in where its recipe leaves it open, and what its store says of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.flow.teach import open_store, teach_one
from distilvec.recipe import ModelSection
from distilvec.store import SignalStore
from distilvec.teachers import Reading, load_teacher
from distilvec.teachers.precision import settle_precision
from distilvec.teachers.table import open_teacher


@pytest.fixture(params=[True, False], ids=["pays", "does not pay"])
def pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("distilvec.teachers.precision.bfloat16_pays", lambda device: request.param)
    return bool(request.param)


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.teachers.precision.bfloat16_pays", lambda device: True)


def test_a_real_teacher_reads_in_bfloat16_where_it_pays(
    real_teacher_folder: Path, sentences: list[str], pays: bool
) -> None:
    teacher = load_teacher(name="minilm", model=real_teacher_folder, device="cpu")
    full = teacher.encode(sentences[:40])
    said = settle_precision(teacher, sentences[:40])
    found = teacher.encode(sentences[:40])
    assert teacher.card.dtype == ("bfloat16" if pays else "float32")
    assert (np.abs(found - full).max() == 0) is not pays
    if pays:
        assert said.startswith("minilm reads in bfloat16") and "of 32 texts" in said
        assert 0.9995 < (found * full).sum(1).min() < 1
    else:
        assert said == ""


@pytest.mark.usefixtures("paying")
def test_a_teacher_whose_vectors_would_be_others_reads_in_float32(tiny_bert: Path, sentences: list[str]) -> None:
    teacher = load_teacher(model=tiny_bert, device="cpu")
    full = teacher.encode(sentences[:32])
    last = [module for module in teacher.model.modules() if isinstance(module, torch.nn.LayerNorm)][-1]
    last.register_forward_hook(lambda _module, _args, out: -out if torch.is_autocast_enabled("cpu") else out)
    said = settle_precision(teacher, sentences)
    assert teacher.card.dtype == "float32" and "not in bfloat16" in said and "0.999" in said
    assert np.array_equal(teacher.encode(sentences[:32]), full)


@pytest.mark.usefixtures("paying")
def test_who_asks_for_a_precision_gets_it(tiny_bert: Path, sentences: list[str]) -> None:
    for dtype in ("float32", "bfloat16"):
        teacher = load_teacher(model=tiny_bert, device="cpu", dtype=dtype)
        assert settle_precision(teacher, sentences) == "" and teacher.card.dtype == dtype
    called = load_teacher(call=lambda texts: np.ones((len(texts), 2)))
    assert settle_precision(called, sentences) == ""


@pytest.mark.usefixtures("paying")
def test_a_store_goes_on_in_its_own_precision(
    real_teacher_folder: Path, sentences: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few, all_of_them = (read_corpus(sentences[:n], tmp_path / f"c{n}", holdout=0.0) for n in (60, 90))

    def section(dtype: str | None) -> ModelSection:
        return ModelSection.model_validate({"name": "minilm", "model": str(real_teacher_folder), "dtype": dtype})

    taught = teach_one(section("float32"), few, tmp_path / "stores")
    before = taught.store.read(taught.store.rows(few.teacher_keys))
    caplog.set_level(logging.INFO)
    more = teach_one(section(None), all_of_them, tmp_path / "stores")
    assert more.filled.present == 60 and more.teacher.card.dtype == "float32"
    assert "minilm reads in float32, as what its store holds was read" in caplog.text
    assert np.array_equal(more.store.read(more.store.rows(few.teacher_keys)), before)
    # bfloat16 by request is accepted, and the store says so; who then asks for float32 is refused.
    teach_one(section("bfloat16"), all_of_them, tmp_path / "stores")
    card = json.loads((tmp_path / "stores" / "minilm" / "store.json").read_text())["teacher"]
    assert card["dtype"] == "bfloat16" and card["fingerprint"] == taught.store.card["fingerprint"]
    with pytest.raises(DistilvecError, match="computed in bfloat16.*asks for float32"):
        open_store(section("float32"), few, tmp_path / "stores", open_teacher(section("float32"), Reading()))
    again = teach_one(section(None), all_of_them, tmp_path / "stores")
    assert again.filled.taught == 0 and again.teacher.card.dtype == "bfloat16"


def test_a_store_in_bfloat16_goes_on_in_it_wherever_it_pays(
    real_teacher_folder: Path, sentences: list[str], tmp_path: Path, pays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it pays is measured, and a busy machine may say otherwise than before."""
    given = {"name": "minilm", "model": str(real_teacher_folder)}
    few, all_of_them = (read_corpus(sentences[:n], tmp_path / f"c{n}", holdout=0.0) for n in (30, 60))
    teach_one(ModelSection(**given, dtype="bfloat16"), few, tmp_path / "stores")
    caplog.set_level(logging.INFO)
    more = teach_one(ModelSection(**given), all_of_them, tmp_path / "stores")
    assert more.filled.taught == 30 and more.teacher.card.dtype == "bfloat16"
    assert "minilm reads in bfloat16, as what its store holds was read" in caplog.text


@pytest.mark.usefixtures("paying")
def test_a_new_store_says_what_the_probe_chose(real_teacher_folder: Path, sentences: list[str], tmp_path: Path) -> None:
    corpus = read_corpus(sentences[:60], tmp_path / "corpus", holdout=0.0)
    section = ModelSection(name="minilm", model=str(real_teacher_folder))
    teach_one(section, corpus, tmp_path / "stores")
    assert SignalStore.open(tmp_path / "stores" / "minilm").card["dtype"] == "bfloat16"
