"""JSON of other types than were written, in records of ours and in settings of others: refused, or done again."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from distilvec import folders
from distilvec.arrays import as_vectors
from distilvec.errors import DataError, DistilvecError
from distilvec.export import load_onnx
from distilvec.export.convert import export_onnx
from distilvec.files import read_record, write_record
from distilvec.mining.outcome import SUMMARY, Mined
from distilvec.modules.task_head import TaskHead
from distilvec.store import SignalStore
from distilvec.store.layout import VOCABULARY, write_vocabulary
from distilvec.store.signals import read_vocabulary
from distilvec.students import load_student
from distilvec.tasks.labels import finite_numbers
from distilvec.training.log import _step

#: No number, no text, no list of texts: what JSON can hold in their place.
ODD = {"null": None, "true": True, "huge": 10**400, "inf": math.inf, "nan": math.nan, "list": [[], None], "object": {}}


@pytest.mark.parametrize("value", [*ODD.values(), 4, 3.5, "x"])
def test_a_record_in_which_anything_was_changed_is_none(tmp_path: Path, value: Any) -> None:
    record = {"scores": {"a": 3, "b": [0.1, "ü"]}, "identity": ["x"], "none": 7}
    write_record(tmp_path / "a.json", record)
    written = json.loads((tmp_path / "a.json").read_text())
    assert read_record(tmp_path / "a.json") == written and {**written, **record} == written
    changed = written | {"scores": {"a": value, "b": [0.1, "ü"]}}
    (tmp_path / "a.json").write_text(json.dumps(changed))
    assert read_record(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text(json.dumps(written | {"own_checksum": value}))
    assert read_record(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text(json.dumps(record))  # as earlier versions wrote it
    assert read_record(tmp_path / "a.json") == record


@pytest.mark.parametrize("value", ODD.values())
def test_a_damaged_summary_of_a_mining_is_none(tmp_path: Path, value: Any) -> None:
    mined = Mined(tmp_path, ["query", "document"], "t", "d" * 8, pairs=3, taken={"relative_margin 0.05": 2})
    mined.write()
    assert Mined.read(tmp_path) == mined
    for change in ({"pairs": value}, {"taken": {"relative_margin 0.05": value}}, {"unknown key": value}):
        found = json.loads((tmp_path / SUMMARY).read_text())
        (tmp_path / SUMMARY).write_text(json.dumps(found | change))
        assert Mined.read(tmp_path) is None
        mined.write()
    (tmp_path / SUMMARY).write_text(json.dumps([value]))
    assert Mined.read(tmp_path) is None


@pytest.fixture(scope="module")
def exported(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export_onnx(tiny_bert, folder, quantize=False)
    return folder


@pytest.mark.parametrize(
    "name", ["inputs", "output", "width", "pad_id", "max_length", "prompts", "default_prompt_name"]
)
def test_settings_of_an_export_have_their_types(exported: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    settings = json.loads((folder / "distilvec_onnx.json").read_text())
    fits = {"max_length": (None,), "default_prompt_name": (None,), "prompts": ({},)}.get(name, ())
    for value in [*ODD.values(), "other", [["x"]], {"a": 1}]:
        if value in fits:
            continue
        (folder / "distilvec_onnx.json").write_text(json.dumps(settings | {name: value}))
        with pytest.raises(DataError, match="exported"):
            load_onnx(folder, threads=1)
    for given, width in ((settings, 32), (settings | {"width": 31}, 31)):
        (folder / "distilvec_onnx.json").write_text(json.dumps(given))
        if width == 32:
            assert load_onnx(folder, threads=1).encode(["a text"]).shape == (1, 32)
        else:
            with pytest.raises(DataError, match="exported model cannot be opened"):
                load_onnx(folder, threads=1)


def _store(folder: Path) -> dict[str, Any]:
    SignalStore.create(folder, {"name": "t", "kind": "vectors", "fingerprint": "f" * 16}, 4)
    content: dict[str, Any] = json.loads((folder / "store.json").read_text())
    return content


@pytest.mark.parametrize("value", [*ODD.values(), -1, 0.5])
def test_what_a_store_says_of_itself_has_its_types(tmp_path: Path, value: Any) -> None:
    content = _store(tmp_path)
    vectors = content["signals"]["sentence"]
    changes: list[Any] = [
        content | {"signals": value},
        content | {"teacher": value},
        content | {"schema": value},
        content | {"identity": value},
        content | {"teacher": content["teacher"] | {"fingerprint": value}},
        content | {"signals": {"sentence": vectors | {"dtype": value}}},
    ]
    if value != 10**400:  # a width, if a large one
        changes.append(content | {"signals": {"sentence": vectors | {"width": value}}})
    for change in changes:
        if change == content | {"schema": -1}:
            continue
        (tmp_path / "store.json").write_text(json.dumps(change))
        with pytest.raises(DataError, match=r"store\.json: (store\.json cannot be understood|the store has schema)"):
            SignalStore.open(tmp_path)


@pytest.mark.parametrize("tokens", [*ODD.values(), ["a", 3]])
def test_a_damaged_vocabulary_is_named(tmp_path: Path, tokens: Any) -> None:
    _store(tmp_path)
    store = SignalStore.open(tmp_path)
    with pytest.raises(DataError, match=r"vocabulary\.json: .*cannot be read"):
        read_vocabulary(store)
    write_vocabulary(tmp_path, {"tokens": ["a", "ü"]})
    assert read_vocabulary(store) == ["a", "ü"]
    (tmp_path / VOCABULARY).write_text(json.dumps({"tokens": tokens}))
    with pytest.raises(DataError, match=r"vocabulary\.json: .*tokens"):
        read_vocabulary(store)


def test_a_folder_that_a_failing_disk_left_empty_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "out/corpus/parts").mkdir(parents=True)
    folders.check(tmp_path / "out", "output", folders.OUTPUT, alone=True)
    (tmp_path / "out/corpus/parts/notes.txt").write_text("mine")
    with pytest.raises(DistilvecError, match="did not write: corpus"):
        folders.check(tmp_path / "out", "output", folders.OUTPUT, alone=True)
    (tmp_path / "out/corpus/parts/notes.txt").unlink()
    (tmp_path / "out/corpus/parts/link").symlink_to(tmp_path)
    with pytest.raises(DistilvecError, match="did not write: corpus"):
        folders.check(tmp_path / "out", "output", folders.OUTPUT, alone=True)


def _copy(tiny_bert: Path, folder: Path, file: str, change: dict[str, Any]) -> Path:
    shutil.copytree(tiny_bert, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | change))
    return folder


def test_a_model_without_a_padding_token_reads_batches(tmp_path: Path, tiny_bert: Path) -> None:
    texts = ["a small text", "a longer text, so that the first one has to be padded"]
    folder = _copy(tiny_bert, tmp_path / "model", "tokenizer_config.json", {"pad_token": None})
    found, right = (load_student(each, device="cpu").encode(texts) for each in (folder, tiny_bert))
    np.testing.assert_allclose(found, right, atol=1e-5)


def test_a_tokenizer_whose_pairs_name_no_known_token(tmp_path: Path, tiny_bert: Path) -> None:
    """The library in Rust panics at such a one, past every `except Exception`."""
    settings = json.loads((tiny_bert / "tokenizer.json").read_text())["post_processor"]
    settings["pair"][0]["SpecialToken"]["id"] = "[NOWHERE]"
    folder = _copy(tiny_bert, tmp_path / "model", "tokenizer.json", {"post_processor": settings})
    with pytest.raises(DistilvecError, match="fails on what its vocabulary lacks"):
        load_student(folder, device="cpu")


def test_settings_of_a_table_of_word_pieces_have_their_types(tmp_path: Path, tiny_bert: Path) -> None:
    save_file({"embeddings": np.eye(400, 8, dtype=np.float32)}, tmp_path / "model.safetensors")
    shutil.copyfile(tiny_bert / "tokenizer.json", tmp_path / "tokenizer.json")
    for name, odd in (("max_length", [*ODD.values(), "x"]), ("normalize", [*ODD.values(), "x"])):
        for value in odd:
            if value is None or (name, value) == ("normalize", True):
                continue
            (tmp_path / "config.json").write_text(json.dumps({name: value}))
            with pytest.raises(DataError, match=rf"config\.json: .*model2vec.*{name}"):
                load_student(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(json.dumps({"normalize": True, "max_length": 7}))
    assert np.linalg.norm(load_student(tmp_path, device="cpu").encode("a text")) == pytest.approx(1)


def test_numbers_of_four_hundred_digits_are_refused_as_others_are() -> None:
    with pytest.raises(DataError, match=r"^t: .*not a column of numbers"):
        finite_numbers([1, 10**400], "t")
    with pytest.raises(DataError, match="no array of numbers"):
        as_vectors([[10**400]], "vectors")
    assert _step(json.dumps({"step": 10**400})) == math.inf


@pytest.mark.parametrize("name", ["truncate_dim", "prompts", "default_prompt_name", "model_type"])
def test_what_a_model_says_of_itself_has_its_types(tmp_path: Path, tiny_bert: Path, name: str) -> None:
    """A length of NaN was taken for none, and sentence-transformers itself fails at it."""
    for number, value in enumerate([*ODD.values(), -1, {"query": 5}, "x"]):
        fits = (value is None and name != "model_type") or (name == "prompts" and value == {})
        if fits or (value == "x" and name in ("default_prompt_name", "model_type")):
            continue
        if name == "truncate_dim" and value == 10**400:  # a width like another, if a large one
            continue
        file = "config_sentence_transformers.json"
        folder = _copy(tiny_bert, tmp_path / str(number), file, {name: value})
        with pytest.raises(DataError, match=rf"{file}: the model cannot be opened: {name}"):
            load_student(folder, device="cpu")


@pytest.mark.parametrize("value", ["-", 31, True, 10**400, math.nan])
def test_a_width_that_the_vectors_do_not_have(tmp_path: Path, tiny_bert: Path, value: Any) -> None:
    folder = _copy(tiny_bert, tmp_path / "model", "1_Pooling/config.json", {"embedding_dimension": value})
    with pytest.raises(DistilvecError, match=r"its modules say|cannot be opened"):
        load_student(folder, device="cpu")


def test_a_folder_in_the_place_of_a_module_s_settings(tmp_path: Path, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    (tmp_path / "model/1_Pooling/config.json").unlink()
    (tmp_path / "model/1_Pooling/config.json").mkdir()
    with pytest.raises(DistilvecError, match="model"):
        load_student(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("name", ["width", "kind", "labels", "encoding", "shift", "scale"])
def test_what_a_task_head_says_of_itself_has_its_types(tmp_path: Path, name: str) -> None:
    head = TaskHead(4, "regression", shift=2.0, scale=0.5)
    head.save(tmp_path)
    file = tmp_path / "task/task.json"
    settings = json.loads(file.read_text())
    assert TaskHead.load(tmp_path).config() == head.config()
    for value in [*ODD.values(), "x", -1]:
        if (name, value) in (("labels", None), ("shift", -1)):
            continue
        file.write_text(json.dumps(settings | {name: value}))
        with pytest.raises(DataError, match="the task head cannot be read"):
            TaskHead.load(tmp_path)
