"""What the attack of `benchmarks/attack.py` found, each as the smallest case that shows it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distilvec.alignment.loading import load_tokenizer
from distilvec.choosing.scale.reckoning import Devices
from distilvec.cli.main import _shard
from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow.finetune import finetune
from distilvec.flow.output import output_folder
from distilvec.judging import load_task
from distilvec.recipe import Recipe
from distilvec.report.sections.lineage import origin
from distilvec.store import SignalStore
from distilvec.students import load_student
from distilvec.teachers import load_teacher
from distilvec.teachers.vectors import VectorsTeacher
from distilvec.training.tokens import TokenizedCorpus


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[      \n"])
def test_bytes_that_numpy_takes_for_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vectors.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"vectors\.npy: .*numpy\.save"):
        VectorsTeacher(tmp_path / "vectors.npy", texts=["a"])


def test_vectors_under_a_name_that_is_there_twice(tmp_path: Path) -> None:
    vectors = pa.array([[0.5, 1.0]], pa.list_(pa.float32()))
    table = pa.Table.from_arrays([vectors, pa.array(["a"]), pa.array([1])], names=["vector", "text", "text"])
    pq.write_table(table, tmp_path / "vectors.parquet")
    with pytest.raises(DataError, match=r'vectors\.parquet: .*"text"'):
        load_teacher(vectors=tmp_path / "vectors.parquet")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = SignalStore.create(tmp_path / "store", {"name": "t", "kind": "vectors", "fingerprint": "f" * 16}, 4)
    with made.writer("a") as writer:
        writer.add(np.arange(48, dtype=np.uint8).reshape(3, 16), np.eye(3, 4, dtype=np.float32))
    return tmp_path / "store"


def test_a_damaged_table_of_keys_is_not_needed(store: Path) -> None:
    SignalStore.open(store).build_index()
    (index,) = (store / "derived").glob("*.npy")
    index.write_bytes(b"PK\x03\x04")
    found = SignalStore.open(store)
    assert found.rows(np.arange(48, dtype=np.uint8).reshape(3, 16)).tolist() == [0, 1, 2]


def test_a_table_of_keys_that_names_rows_that_there_are_not(store: Path) -> None:
    SignalStore.open(store).build_index()
    (index,) = (store / "derived").glob("*.npy")
    table = np.load(index)
    table[1, 1] += 7 << 32
    np.save(index, table)
    found = SignalStore.open(store)
    assert found.rows(np.arange(48, dtype=np.uint8).reshape(3, 16)).tolist() == [0, 1, 2]
    assert not index.exists()


def test_a_folder_in_the_place_of_a_store_s_description(store: Path) -> None:
    (store / "store.json").unlink()
    (store / "store.json").mkdir()
    with pytest.raises(DataError, match=r"store\.json: .*IsADirectoryError"):
        SignalStore.open(store)


@pytest.mark.parametrize("name", ["corpus.json", "items.arrow"])
def test_a_folder_in_the_place_of_a_prepared_corpus_file(tmp_path: Path, name: str) -> None:
    read_corpus(["one", "two"], tmp_path / "corpus", holdout=0.0)
    (tmp_path / "corpus" / name).unlink()
    (tmp_path / "corpus" / name).mkdir()
    with pytest.raises(EnvironmentProblem, match=re.escape(f"{tmp_path / 'corpus'}: ")):
        read_corpus(["one", "two", "three"], tmp_path / "corpus", holdout=0.0)
    assert not list((tmp_path / "corpus").glob(".distilvec-tmp-*"))
    (tmp_path / "corpus" / name).rmdir()
    assert len(read_corpus(["one", "two", "three"], tmp_path / "corpus", holdout=0.0)) == 3
    assert len(Corpus.open(tmp_path / "corpus")) == 3


def test_a_source_that_is_too_long_for_a_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^x{80,}: .*File name too long"):
        read_corpus("x" * 5000, tmp_path / "corpus")


@pytest.mark.parametrize("value", [[2, 2], "ten", 1.5, 0, 2**63])
def test_a_number_of_steps_is_a_number(value: object) -> None:
    with pytest.raises(DistilvecError, match=rf"^training\.max_steps: .*\(got {re.escape(repr(value))}\)"):
        Recipe.build({"training": {"max_steps": value}})


def test_a_model_without_anything_that_reads(tmp_path: Path, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    modules = json.loads((tmp_path / "model/modules.json").read_text())
    (tmp_path / "model/modules.json").write_text(json.dumps(modules[1:]))
    with pytest.raises(DataError, match=r"/model: .*modules\.json"):
        load_student(tmp_path / "model", device="cpu")


def test_a_model_that_opens_and_cannot_read(tmp_path: Path, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    settings = tmp_path / "model/sentence_bert_config.json"
    output = {"method": "forward", "method_output_name": "nothing"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"modality_config": {"text": output}}))
    for load in (load_student, lambda model, device: load_teacher(model=model, device=device)):
        with pytest.raises(DataError, match=r"/model: .*'nothing'.*config\.json"):
            load(tmp_path / "model", device="cpu")


def test_a_folder_called_like_a_file_has_no_hash(tmp_path: Path, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    (tmp_path / "model/tokenizer_config.json").unlink()
    (tmp_path / "model/tokenizer_config.json").mkdir()
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\na man sings,0\na dog runs,1\n")
    assert (finetune(tmp_path / "model", rows, tmp_path / "out") / "model.safetensors").is_file()


@pytest.mark.parametrize("damage", [lambda b: b[:-2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"\x80\x04" + b])
@pytest.mark.parametrize("kind", ["ids", "offsets"])
def test_damaged_token_ids_are_made_again(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], kind: str, damage: Callable[[bytes], bytes]
) -> None:
    def ids() -> list[int]:
        student = load_student(tiny_bert, device="cpu")
        found = TokenizedCorpus.build(student, lambda rows: [sentences[row] for row in rows], 50, tmp_path)
        return [*found.ids.tolist(), *found.offsets.tolist()]

    before = ids()
    (file,) = tmp_path.glob(f"{kind}-*")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert ids() == before and file.read_bytes() == whole


DEEP = "[" * 100_000


def test_json_that_is_nested_too_deeply(tmp_path: Path, store: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/corpus.json").write_text(DEEP)
    with pytest.raises(DataError, match=r"corpus\.json: "):
        Corpus.open(tmp_path / "corpus")
    (tmp_path / "texts.jsonl").write_text(DEEP)
    with pytest.raises(DataError, match=r"texts\.jsonl:1: "):
        VectorsTeacher(np.eye(1), texts=tmp_path / "texts.jsonl")
    (tmp_path / "task.json").write_text(DEEP)
    with pytest.raises(DistilvecError, match=r"task\.json"):
        load_task(str(tmp_path / "task.json"), tmp_path)
    (record,) = store.glob("sentence-*.json")
    record.write_text(DEEP)
    assert list(SignalStore.open(store).bad) == [record.stem]


@pytest.mark.parametrize("label", ["7" * 22, "7" * 5000])
def test_labels_that_are_too_long_for_a_number_are_names(tmp_path: Path, label: str) -> None:
    (tmp_path / "rows.csv").write_text(f"text,label\na man,{label}\na dog,1\n")
    corpus = read_corpus(tmp_path / "rows.csv", tmp_path / "corpus", label="label", holdout=0.0)
    assert corpus.label_names == ["1", label]


@pytest.mark.parametrize("shard", ["1" * 5000 + "/" + "2" * 5000, "²/3", "0/²"])
def test_shards_that_are_not_numbers(shard: str) -> None:
    with pytest.raises(DistilvecError, match=f'^--shard: "{shard[:100]}'):
        _shard(shard)


def test_devices_that_are_too_many() -> None:
    with pytest.raises(DistilvecError, match='^--devices: "9{200}"'):
        Devices.read("9" * 5000 + "xH100")


def test_a_tokenizer_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.alignment.loading.MOST_BYTES", 1 << 20)
    (tmp_path / "tokenizer.json.gz").write_bytes(gzip.compress(b" " * (3 << 20)))
    with pytest.raises(DistilvecError, match=r"tokenizer\.json\.gz"):
        load_tokenizer(tmp_path / "tokenizer.json.gz")


def test_a_card_names_no_place_of_a_network(tmp_path: Path) -> None:
    (tmp_path / "network.safetensors").touch()
    assert "base" not in origin({"model": str(tmp_path / "network.safetensors")}, {})
    assert origin({"model": "me/model"}, {})["base"] == "me/model"


def test_a_saved_recipe_that_is_not_text_is_another_recipe(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    sections = {"corpus": {"path": sentences[:40]}, "teachers": [{"name": "t", "model": str(tiny_bert)}]}
    student = {"student": {"model": str(tiny_bert)}, "method": {"name": "cosine"}}
    recipe = Recipe.build({**sections, **student, "output": str(tmp_path / "out")})
    output_folder(recipe, resume=False)
    (tmp_path / "out/recipe.yaml").write_bytes(b"\xff\xfe")
    assert output_folder(recipe, resume=False) == tmp_path / "out"
    assert Recipe.load(tmp_path / "out/recipe.yaml").method.name == "cosine"
