"""Folders that must not be opened, or cannot be."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.students import load_student
from distilvec.students.fresh_models import fresh
from distilvec.teachers import load_teacher
from distilvec.teachers.cards import licence_of


class _Bomb:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def copy(tiny_bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_bert, tmp_path / "model")
    return tmp_path / "model"


def test_pickled_weights_are_refused_and_not_read(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb(tmp_path / "burst")))
    with pytest.raises(DistilvecError, match=r"/model: .*pytorch_model\.bin.*save_pretrained") as caught:
        load_teacher(model=copy)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "burst").exists()


def test_real_pickled_weights_are_refused(copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    load_teacher(model=copy)  # beside safetensors they do no harm, they are not read
    (copy / "model.safetensors").unlink()
    with pytest.raises(DistilvecError, match=r"/model: .*pytorch_model\.bin.*save_pretrained"):
        load_teacher(model=copy)


def test_pickled_weights_of_a_later_module_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    base = SentenceTransformer(str(tiny_bert), device="cpu")
    model = SentenceTransformer(modules=[base[0], Pooling(32), Dense(32, 16)], device="cpu")
    model.save(str(tmp_path / "dense"))
    assert load_teacher(model=tmp_path / "dense").card.width == 16
    weights = next((tmp_path / "dense").glob("2_Dense/*.safetensors"))
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(DistilvecError, match=r"/dense/2_Dense: .*pytorch_model\.bin"):
        load_teacher(model=tmp_path / "dense")


def test_no_weights_at_all(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(DistilvecError, match="/model: .*safetensors.*save_pretrained"):
        load_teacher(model=copy)


def test_remote_code_is_refused(copy: Path, tmp_path: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "code.StrangeConfig", "AutoModel": "code.StrangeModel"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DistilvecError, match="/model: .*trust_remote_code"):
        load_teacher(model=copy)
    assert not (tmp_path / "ran").exists()


def test_weights_that_the_files_do_not_hold_are_not_made_up(copy: Path) -> None:
    """As of jina-embeddings-v2: a BERT by its type, whose own code has no positions and gates its feed-forward."""
    file, config = copy / "model.safetensors", json.loads((copy / "config.json").read_text())
    held = load_file(file)
    save_file({name: each for name, each in held.items() if "pooler" not in name}, file)
    load_teacher(model=copy)
    save_file({name: each for name, each in held.items() if "position" not in name and ".2." not in name}, file)
    for opens in (load_teacher, load_student):
        with pytest.raises(DataError, match=r"no embeddings\.position_embeddings\.weight and 16 more.*download"):
            opens(model=copy)
    names = {"AutoConfig": "org/code--configuration.Config", "AutoModel": "org/code--modeling.Model"}
    (copy / "config.json").write_text(json.dumps({**config, "auto_map": names}))
    with pytest.raises(DistilvecError, match=r"position_embeddings.*Read that code.*trust_remote_code"):
        load_teacher(model=copy)


def test_no_pooler_is_made_up_where_weights_lie_in_several_files(copy: Path) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(copy), add_pooling_layer=False)
    model.save_pretrained(copy)
    whole = load_teacher(model=copy).card.parameters
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy, max_shard_size="20KB")
    assert len(list(copy.glob("model-*.safetensors"))) > 1
    assert load_teacher(model=copy).card.parameters == whole


def test_foreign_modules_are_refused(copy: Path, tmp_path: Path) -> None:
    modules = json.loads((copy / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "", "type": "evil.Head"})
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DistilvecError, match="/model: .*trust_remote_code"):
        load_teacher(model=copy)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder", "CrossEncoder", "ColBERT"])
def test_models_without_a_single_vector_per_text_are_refused(kind: str, copy: Path) -> None:
    """sentence-transformers would take its blocks with mean pooling behind them."""
    if kind == "ColBERT":  # of PyLate, which says so by its modules alone
        modules = json.loads((copy / "modules.json").read_text())
        modules[1] = {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}
        (copy / "modules.json").write_text(json.dumps(modules))
    else:
        (copy / "config_sentence_transformers.json").write_text(json.dumps({"model_type": kind}))
    for opens in (load_teacher, load_student):
        with pytest.raises(DistilvecError, match=f"/model: this is a {kind}, .*one vector"):
            opens(model=copy)
    (copy / "modules.json").unlink()
    assert load_student(copy).get_embedding_dimension() == 32


def test_modules_outside_the_folder_are_refused(copy: Path) -> None:
    modules = json.loads((copy / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DistilvecError, match=r'/model/modules\.json: .*/\.\./elsewhere"'):
        load_teacher(model=copy)


def test_missing_things(tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path / 'nowhere'}: ")):
        load_teacher(model=tmp_path / "nowhere")
    with pytest.raises(DistilvecError, match=r"^\./nowhere: "):
        load_teacher(model="./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DistilvecError, match=r"/empty: .*modules\.json.*config\.json"):
        load_teacher(model=tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path / 'file'}: ")):
        load_teacher(model=tmp_path / "file")


def test_hub_out_of_reach() -> None:
    with pytest.raises(EnvironmentProblem, match="nobody/no-such-model-anywhere: .*HF_HUB_OFFLINE"):
        load_teacher(model="nobody/no-such-model-anywhere")


def test_damaged_files(copy: Path) -> None:
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(DataError, match=r"/model/model\.safetensors: "):
        load_teacher(model=copy)
    (copy / "model.safetensors").write_bytes(weights)
    (copy / "modules.json").write_text("{")
    with pytest.raises(DataError, match=r"/model/modules\.json: .*line 1 column 2"):
        load_teacher(model=copy)


def test_licence(copy: Path) -> None:
    assert load_teacher(model=copy).card.licence is None
    (copy / "README.md").write_text("---\nlicense: cc-by-nc-4.0\ntags: [a]\n---\n# x\n")
    assert load_teacher(model=copy).card.licence == "cc-by-nc-4.0"
    (copy / "README.md").write_text("---\nlicense: other\nlicense_name: my-terms\n---\n")
    assert load_teacher(model=copy).card.licence == "my-terms"
    (copy / "README.md").write_text("---\ntags: [broken\nlicense:\n- mit\n- apache-2.0\nlanguage: en\n---\n")
    assert load_teacher(model=copy).card.licence == "mit, apache-2.0"
    (copy / "README.md").write_text("---\nlicense: [broken\n---\n")
    assert load_teacher(model=copy).card.licence is None


@pytest.mark.timeout(30)  # of its 30 MB a parser of YAML would make minutes
@pytest.mark.parametrize("line", ["a: b\n", "- b\n", "\n"])
def test_the_licence_of_a_very_long_readme(line: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\nresults:\n" + line * (30_000_000 // len(line)) + "---\n")
    assert licence_of(tmp_path) == "mit"
    (tmp_path / "README.md").write_text("---\nlicense:\n" + line * (30_000_000 // len(line)) + "---\n")
    licence_of(tmp_path)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", [5, True, [], ["float16"], "auto", "no", "", "torch.float16", {"": [1]}])
def test_a_type_of_weights_that_torch_has_not(key: str, value: object, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config.pop("dtype", None)
    (copy / "config.json").write_text(json.dumps(config | {key: value}))
    for door in (lambda: load_teacher(model=copy), lambda: load_student(copy)):
        with pytest.raises(DataError, match=rf"/config\.json: {key} is .*float32"):
            door()


@pytest.mark.parametrize("value", ["float16", "float64", None, {"": "float16"}])
def test_a_type_of_weights_that_torch_has(value: object, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"dtype": value}))
    assert load_teacher(model=copy, device="cpu").encode(["a"]).shape == load_student(copy).encode(["a"]).shape


@pytest.mark.parametrize("content", ["[]", "5", "null", '"text"'])
def test_a_configuration_that_is_not_an_object_is_refused(content: str, copy: Path) -> None:
    (copy / "config.json").write_text(content)
    for door in (lambda: load_teacher(model=copy), lambda: load_student(copy)):
        with pytest.raises(DataError, match=r"/config\.json: these are no settings"):
            door()


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("bert", {"unk_token": "[NO]"}),
        ("bert", {"type": "WordLevel", "vocab": {"[CLS]": 2, "[SEP]": 3, "a": 9}, "unk_token": "[NO]"}),
        ("xlmr", {"unk_id": None}),
    ],
)
def test_a_vocabulary_without_an_unknown_token(
    kind: str, change: dict[str, Any], tiny_model_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model_folders[kind], tmp_path / "model")
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"] |= change
    (folder / "tokenizer.json").write_text(json.dumps(words))
    doors: list[Any] = [lambda: load_teacher(model=folder), lambda: load_student(folder)]
    for door in [*doors, lambda: fresh(layers=1, width=32, tokenizer=folder)]:
        with pytest.raises(DistilvecError, match=r"/model: .*vocabulary.*(?:missing|Missing).*unk_token"):
            door()


def test_sources_exclude_each_other(tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match="^t: .*exactly one of model, call"):
        load_teacher(name="t")
    with pytest.raises(DistilvecError, match="^teacher: .*exactly one of model, call"):
        load_teacher(model=tiny_bert, call="a:b")
    with pytest.raises(DistilvecError, match="^teacher, max_length: unknown key .*goes with model"):
        load_teacher(call=len, max_length=3)
    with pytest.raises(DistilvecError, match="^teacher, texts: unknown key .*goes with vectors"):
        load_teacher(model=tiny_bert, texts=["a"])
