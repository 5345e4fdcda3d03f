"""Model folders made by an enemy: nothing of them runs, nothing outside them is read, and nobody is asked."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from tests.jobs import Job

import distilvec
from distilvec.alignment.loading import load_tokenizer
from distilvec.choosing.settle_student import settle_student
from distilvec.cli.measures import compress, drift, geometry
from distilvec.errors import DistilvecError
from distilvec.export import export_onnx
from distilvec.flow.compare import compare
from distilvec.flow.finetune import finetune
from distilvec.modules.folder_checks import PICKLES
from distilvec.modules.guarded import no_questions, nothing_made_up, open_config
from distilvec.modules.writing import open_writer
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import recipe_of
from distilvec.students import load_student, shrink, static, upcycle
from distilvec.students.fresh_models import fresh
from distilvec.tasks.predictor import Predictor
from distilvec.teachers import load_teacher

SOURCES = Path(distilvec.__file__).parent


class Explosive:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trap: Path) -> None:
        self.trap = str(trap)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.trap, "w"))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    return tmp_path / "was-here"


@pytest.fixture
def folder(tiny_bert: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bert, tmp_path / "model")


@pytest.fixture
def layered(tiny_bert: Path, tmp_path: Path) -> Path:
    """A model with a Dense behind its pooling."""
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.append(Dense(32, 8))
    model.save(str(tmp_path / "layered"), create_model_card=False)
    return tmp_path / "layered"


@pytest.fixture(autouse=True)
def somebody_says_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks on standard input is told to go on."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def plant_code(folder: Path, trap: Path) -> None:
    """What the issue describes: a type that transformers does not know, and code that does."""
    (folder / "evil.py").write_text(
        f"open({str(trap)!r}, 'w')\nfrom transformers import BertConfig, BertModel\n"
        "class C(BertConfig):\n    model_type = 'evil'\nclass M(BertModel):\n    config_class = C\n"
    )
    edit(
        folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForCausalLM": "evil.M"},
    )


def _recipe(model: Path, data: Path) -> Recipe:
    return recipe_of(str(model), str(model), str(data), "cosine", data.parent / "out")


def _planned(model: Path, data: Path) -> Any:
    auto = {"auto": {"of": str(model)}}
    return settle_student(recipe_of(str(model), auto, str(data), "cosine", data.parent / "out"))


DOORS: dict[str, Callable[[Path, Path], Any]] = {
    "load_student": lambda model, _: load_student(model),
    "load": lambda model, _: distilvec.load(model),
    "teacher": lambda model, _: load_teacher(model=model),
    "image teacher": lambda model, _: load_teacher(model=model, modality="image"),
    "shrink": lambda model, _: shrink(str(model), layers=1),
    "geometry": lambda model, data: geometry(str(model), data),
    "export": lambda model, data: export_onnx(model, data.parent / "exported"),
    "finetune": lambda model, data: finetune(model, data, data.parent / "tuned"),
    "evaluate": lambda model, data: distilvec.evaluate(
        str(model), {"kind": "classification", "train": str(data), "test": str(data)}
    ),
    "evaluate answers": lambda model, data: distilvec.evaluate(
        str(model), {"kind": "generation", "test": str(data), "prompt": "text", "answer": "label"}
    ),
    "writing student": lambda model, _: open_writer(model),
    "writing teacher": lambda model, _: load_teacher(model=model, separator="\n"),
    "predictor": lambda model, _: Predictor.load(model),
    "fresh": lambda model, _: fresh(layers=1, width=32, tokenizer=model),
    "static": lambda model, _: static(model),
    "upcycle": lambda model, _: upcycle(model),
    "compress": lambda model, data: compress(str(model), data, data.parent / "compressed"),
    "drift": lambda model, data: drift(data, data, str(model)),
    "compare": lambda model, data: compare(_recipe(model, data), ["cosine"], 1),
    "plan": _planned,
    "distill": lambda model, data: distilvec.distill(
        str(model), student=str(model), corpus=str(data), method="cosine", output=data.parent / "out"
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_code_in_a_folder_runs_at_no_door(door: str, folder: Path, trap: Path, sentences: list[str]) -> None:
    plant_code(folder, trap)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]}, tokenizer_class="Evil")
    data = folder.parent / "data.jsonl"
    rows = [{"text": text, "label": str(row % 2)} for row, text in enumerate(sentences[:40])]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DistilvecError):
        DOORS[door](folder, data)
    assert not trap.exists()


def test_the_tokenizers_own_code_does_not_run(folder: Path, trap: Path) -> None:
    plant_code(folder, trap)
    (folder / "tokenizer.json").unlink()
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", None]}, tokenizer_class="Evil")
    with pytest.raises(DistilvecError):
        load_tokenizer(folder)
    assert not trap.exists()


@pytest.mark.parametrize(
    "type_name",
    ["evil.C", "distilvec_trap.C", "sentence_transformers.base.model.torch", "sentence_transformers.util.http_get"],
)
def test_classes_that_are_not_modules_are_refused(type_name: str, folder: Path, trap: Path) -> None:
    plant_code(folder, trap)
    (folder.parent / "distilvec_trap.py").write_text(f"open({str(trap)!r}, 'w')\nclass C: pass\n")
    sys.path.insert(0, str(folder.parent))
    try:
        listed = json.loads((folder / "modules.json").read_text())
        listed[-1]["type"] = type_name
        (folder / "modules.json").write_text(json.dumps(listed))
        for door in ("load_student", "teacher"):
            with pytest.raises(DistilvecError):
                DOORS[door](folder, folder)
    finally:
        sys.path.remove(str(folder.parent))
    assert not trap.exists()


@pytest.mark.parametrize("decoy", ["other.safetensors", "model2.safetensors", "Model.safetensors"])
@pytest.mark.parametrize("door", ["load_student", "teacher", "load"])
def test_a_pickle_next_to_safetensors_is_not_read(door: str, decoy: str, layered: Path, trap: Path) -> None:
    dense = layered / "2_Dense"
    (dense / "model.safetensors").rename(dense / decoy)
    torch.save(Explosive(trap), dense / "pytorch_model.bin")
    with pytest.raises(DistilvecError, match=r"/2_Dense: .*pytorch_model\.bin.*save_pretrained"):
        DOORS[door](layered, layered)
    assert not trap.exists()


@pytest.mark.parametrize("shards", [{}, {"linear.weight": "other.safetensors"}])
def test_an_index_does_not_cover_a_pickle(layered: Path, trap: Path, shards: dict[str, str]) -> None:
    dense = layered / "2_Dense"
    (dense / "model.safetensors").rename(dense / "other.safetensors")
    (dense / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    torch.save(Explosive(trap), dense / "pytorch_model.bin")
    with pytest.raises(DistilvecError, match=r"/2_Dense: .*pytorch_model\.bin"):
        load_student(layered)
    assert not trap.exists()


@pytest.mark.parametrize("size", ["in_features", "out_features"])
def test_a_module_cannot_ask_for_all_memory(layered: Path, size: str) -> None:
    edit(layered / "2_Dense/config.json", **{size: 10**12})
    with pytest.raises(DistilvecError, match=rf"/2_Dense/config\.json: {size} .*\btensors with [\d,]+ numbers"):
        load_student(layered)


@pytest.mark.parametrize("door", ["load_student", "teacher"])
def test_a_pickle_deep_in_the_folder_is_not_read(door: str, layered: Path, trap: Path) -> None:
    deep = layered / "a" / "b" / "2_Dense"
    deep.parent.mkdir(parents=True)
    (layered / "2_Dense").rename(deep)
    torch.save(load_file(deep / "model.safetensors"), deep / "pytorch_model.bin")
    (deep / "model.safetensors").unlink()
    listed = json.loads((layered / "modules.json").read_text())
    listed[-1]["path"] = "a/b/2_Dense"
    (layered / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(DistilvecError, match=r"/a/b/2_Dense: .*pytorch_model\.bin.*save_pretrained"):
        DOORS[door](layered, layered)


def test_a_shard_that_is_a_pickle_is_not_read(folder: Path) -> None:
    names = list(load_file(folder / "model.safetensors"))
    torch.save(load_file(folder / "model.safetensors"), folder / "weights.bin")
    (folder / "model.safetensors").rename(folder / "decoy.safetensors")
    for shard in ("weights.bin", "../outside.safetensors"):
        edit(folder / "model.safetensors.index.json", weight_map=dict.fromkeys(names, shard))
        with pytest.raises(DistilvecError, match=rf'/model\.safetensors\.index\.json: .*"{re.escape(shard)}"'):
            load_student(folder)


def test_a_route_within_a_router_is_looked_at_too(layered: Path, tmp_path: Path) -> None:
    dense = layered / "2_Dense"
    inner = dense / "query"
    inner.mkdir()
    torch.save({}, inner / "pytorch_model.bin")
    (dense / "router_config.json").write_text(json.dumps({"types": {"query": "x"}, "structure": {}}))
    with pytest.raises(DistilvecError, match=r"/2_Dense/query: .*pytorch_model\.bin.*save_pretrained"):
        load_student(layered)
    (dense / "router_config.json").write_text(json.dumps({"types": {"../../..": "x"}, "structure": {}}))
    with pytest.raises(DistilvecError, match=r'/modules\.json: .*/2_Dense/\.\./\.\./\.\."'):
        load_student(layered)


@pytest.mark.parametrize("how", ["path", "absolute", "linked folder", "linked file", "loop"])
@pytest.mark.parametrize("door", ["load_student", "teacher"])
def test_nothing_outside_the_folder_is_read(door: str, how: str, layered: Path, tmp_path: Path) -> None:
    dense, outside = layered / "2_Dense", tmp_path / "outside"
    shutil.copytree(dense, outside)
    listed = json.loads((layered / "modules.json").read_text())
    if how in ("path", "absolute"):
        listed[-1]["path"] = "../outside" if how == "path" else str(outside)
        (layered / "modules.json").write_text(json.dumps(listed))
    elif how == "linked file":
        (dense / "model.safetensors").unlink()
        (dense / "model.safetensors").symlink_to(outside / "model.safetensors")
    else:
        shutil.rmtree(dense)
        dense.symlink_to(outside if how == "linked folder" else dense)
    with pytest.raises(DistilvecError, match=r'/modules\.json: .*/outside"|/2_Dense.*: .*cp -rL'):
        DOORS[door](layered, layered)


def test_the_hubs_cache_is_made_of_links_and_opens(tiny_bert: Path, tmp_path: Path) -> None:
    snapshot = shutil.copytree(tiny_bert, tmp_path / "models--a--b" / "snapshots" / "0123")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(each for each in snapshot.rglob("*") if each.is_file())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    assert load_student(snapshot, device="cpu").encode(["text"]).shape == (1, 32)


@pytest.mark.parametrize(
    "change",
    [
        {"model_kwargs": {"use_safetensors": False}},
        {"model_args": {"weights_only": False}},
        {"tokenizer_name_or_path": "/etc"},
        {"processor_kwargs": {"tokenizer_file": "/etc/passwd"}},
        {"model_kwargs": {"attn_implementation": "somebody/kernel"}},
        {"config_args": {"cache_dir": "/"}},
    ],
)
def test_settings_do_not_reach_outside(change: dict[str, Any], folder: Path) -> None:
    edit(folder / "sentence_bert_config.json", **change)
    section = next(iter(change.values()))
    key = next(iter(section if isinstance(section, dict) else change))
    with pytest.raises(DistilvecError, match=rf'/sentence_bert_config\.json: "{key}"'):
        load_student(folder)


def test_settings_cannot_switch_trust_on(folder: Path, trap: Path) -> None:
    plant_code(folder, trap)
    for key in ("model_kwargs", "config_args", "processor_kwargs"):
        edit(folder / "sentence_bert_config.json", **{key: {"trust_remote_code": True}})
    with pytest.raises(DistilvecError):
        load_student(folder)
    assert not trap.exists()


def test_an_adapter_does_not_open_its_base_unseen(folder: Path, tmp_path: Path) -> None:
    edit(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path / "elsewhere"), peft_type="LORA")
    with pytest.raises(DistilvecError, match=r"/adapter_config\.json: .*merge_and_unload"):
        load_student(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**6},
        {"hidden_size": 10**7},
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**10},
        {"intermediate_size": 10**9},
        {"type_vocab_size": 10**9},
    ],
)
def test_a_configuration_cannot_ask_for_all_memory(change: dict[str, int], folder: Path) -> None:
    edit(folder / "config.json", **change)
    for door in ("load_student", "teacher"):
        with pytest.raises(DistilvecError, match=r"/config\.json: .*\b\d+ tensors with [\d,]+ numbers"):
            DOORS[door](folder, folder)


@pytest.mark.parametrize(
    "change",
    [
        {"config_kwargs": {"num_hidden_layers": 10**6}},
        {"config_args": {"intermediate_size": 10**9}},
        {"config_kwargs": {"vocab_size": 10**12}},
        {"model_kwargs": {"num_hidden_layers": 10**6}},
        # Together with config.json: a width of 32 there, and so many rows here.
        {"config_kwargs": {"max_position_embeddings": 10**7}},
    ],
)
@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_settings_next_to_the_configuration_cannot_either(change: dict[str, Any], name: str, folder: Path) -> None:
    edit(folder / name, **change)
    [(key, value)] = next(iter(change.values())).items()
    for door in ("load_student", "teacher"):
        with pytest.raises(DistilvecError, match=rf"/{name}: {key} is {value:,}, .*\btensors with [\d,]+ numbers"):
            DOORS[door](folder, folder)


def test_settings_that_fit_the_weights_override_the_configuration(folder: Path) -> None:
    edit(folder / "sentence_bert_config.json", config_kwargs={"hidden_dropout_prob": 0.25, "num_hidden_layers": 3})
    assert load_student(folder)[0].model.config.hidden_dropout_prob == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["d_model", "n_embd", "hidden_dim"])
def test_a_width_alone_is_a_size(key: str, folder: Path) -> None:
    edit(folder / "config.json", **{key: 10**6})
    with pytest.raises(DistilvecError, match=rf"/config\.json: {key} is 1,000,000"):
        load_student(folder)


def test_a_module_without_weights_cannot_ask_for_all_memory(layered: Path) -> None:
    edit(layered / "2_Dense/config.json", in_features=50_000, out_features=60_000)
    (layered / "2_Dense/model.safetensors").unlink()
    with pytest.raises(DistilvecError, match=r"/2_Dense/config\.json: out_features is 60,000, .*\b0 tensors"):
        load_student(layered)


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_experts_implementation"])
@pytest.mark.parametrize("value", ["flex_attention", "paged|sdpa", "somebody/kernel", 5, {"": "sdpa", "text": "flex"}])
@pytest.mark.parametrize("file", ["config.json", "sentence_bert_config.json"])
def test_a_configuration_starts_no_compiler_and_fetches_no_kernel(
    key: str, value: object, file: str, folder: Path
) -> None:
    edit(folder / file, **({key: value} if file == "config.json" else {"model_kwargs": {key: value}}))
    for door in ("load_student", "teacher"):
        with pytest.raises(DistilvecError, match=rf'/{file}: "{key}"'):
            DOORS[door](folder, folder)


@pytest.mark.parametrize("value", ["eager", "sdpa", None])
def test_plain_attention_may_be_chosen(value: str | None, folder: Path) -> None:
    edit(folder / "config.json", _attn_implementation=value, _attn_implementation_autoset=True)
    own: Any = load_student(folder)[0]
    assert own.model.config._attn_implementation == (value or "sdpa")


@pytest.mark.parametrize(
    "name",
    [
        "modules.json",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "README.md",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
        "additional_chat_templates/tools.jinja",
    ],
)
@pytest.mark.timeout(60)
def test_a_pipe_in_a_folder_is_not_waited_for(name: str, folder: Path) -> None:
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    for door in ("load", "teacher", "image teacher"):
        with pytest.raises(DistilvecError, match=rf"/{name}: .*(expected a file|not a file)"):
            DOORS[door](folder, folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.json", "chat_template.jinja"])
def test_a_pipe_next_to_a_tokenizer_is_not_waited_for(name: str, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(DistilvecError, match=rf"/{name}: expected a file"):
        fresh(layers=1, width=32, tokenizer=folder)
    with contextlib.suppress(DistilvecError):  # it may do with other files, and reads no pipe
        load_tokenizer(folder)


@pytest.mark.timeout(60)
def test_a_pipe_below_a_model_that_a_student_is_cut_of_is_left_alone(
    folder: Path, sentences: list[str], tmp_path: Path
) -> None:
    (folder / "notes").mkdir()
    os.mkfifo(folder / "notes" / "pipe.json")
    section = {"shrink": {"of": str(folder), "layers": 1}}
    recipe = recipe_of(str(folder), section, sentences, "cosine", tmp_path / "out")
    assert len(Job(recipe).student()[0].model.encoder.layer) == 1  # type: ignore[union-attr, operator]


@pytest.mark.timeout(60)
def test_a_link_to_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "README.md").symlink_to("pipe")
    with pytest.raises(DistilvecError, match=r"/README\.md: .*expected a file"):
        load_student(folder)


def test_token_ids_beyond_the_table_are_said_at_once(folder: Path) -> None:
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"]["zebra"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(words))
    for door in ("load_student", "teacher"):
        with pytest.raises(DistilvecError, match=r"/model: .*\b1,000,000\b.*\b400 pieces"):
            DOORS[door](folder, folder)


@pytest.mark.parametrize("name", ["x" * 300, "/" + "x" * 300, "a/" * 3000, "a\0b", "~nobody-here/x"])
def test_invalid_paths_are_refused(name: str, tmp_path: Path) -> None:
    for given in (name, Path(name)):
        with pytest.raises(DistilvecError):
            load_student(given)
        with pytest.raises(DistilvecError):
            load_teacher(model=given)


def test_deep_json_and_loops(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DistilvecError):
        load_student(tmp_path / "loop")
    (folder / "modules.json").write_text("[" * 100_000)
    with pytest.raises(DistilvecError):
        load_student(folder)


#: What opens somebody's folder with transformers or sentence-transformers.
OPENING = {"from_pretrained", "_load_with_module_classes", "SentenceTransformer", "Transformer", "CrossEncoder"}
GUARDED = SOURCES / "modules" / "guarded.py"


def unguarded(source: str) -> list[int]:
    """Lines that open a model by name or path without saying `trust_remote_code=False`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if called not in OPENING or (called != "from_pretrained" and not node.args):
            continue
        if ast.unparse(node.func) == "StaticModel.from_pretrained":  # of model2vec, which knows no code in a folder
            continue
        trust = given.get("trust_remote_code")
        if not (isinstance(trust, ast.Constant) and trust.value is False):
            found.append(node.lineno)
    return found


def test_values_of_other_types_name_their_key(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": {"name": 4}}))
    with pytest.raises(DistilvecError, match="num_attention_heads"):
        load_student(folder)
    with pytest.raises(ValueError, match=r"num_attention_heads.*\b4\b"):
        open_config(folder)


def test_threads_that_open_models_leave_transformers_as_it_was(tiny_bert: Path) -> None:
    from transformers import BertForSequenceClassification, PreTrainedModel, dynamic_module_utils

    def state() -> tuple[object, object]:
        return PreTrainedModel.__dict__["from_pretrained"], dynamic_module_utils.TIME_OUT_REMOTE_CODE

    before, entered, leave = state(), threading.Event(), threading.Event()

    def other() -> None:
        with no_questions(), nothing_made_up("other"):
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    with no_questions(), nothing_made_up("first"):
        thread.start()
        entered.wait(0.5)
    leave.set()
    thread.join()
    assert entered.is_set() and state() == before
    with ThreadPoolExecutor(1) as somebody, nothing_made_up("ours"):
        model, told = somebody.submit(
            BertForSequenceClassification.from_pretrained, str(tiny_bert), output_loading_info=True
        ).result()
    assert "classifier.weight" in told["missing_keys"] and model.num_labels == 2


def test_only_the_guarded_opener_opens_models() -> None:
    found = {
        f"{file.relative_to(SOURCES)}:{line}"
        for file in SOURCES.rglob("*.py")
        if file != GUARDED
        for line in unguarded(file.read_text(encoding="utf-8"))
    }
    assert not found
    assert unguarded("AutoConfig.from_pretrained(str(folder))") == [1]
    assert unguarded("x = SentenceTransformer(name, device='cpu')") == [1]
    assert unguarded("AutoTokenizer.from_pretrained(name, trust_remote_code=False)") == []


def test_nothing_is_unpickled_without_its_guard() -> None:
    """`torch.load` with weights_only, `numpy.load` without pickles; the only pickles come from our own workers."""
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("pickle.load", "pickle.loads"):
                assert file.parent.name == "ray" or file.name == "workers.py", (file, node.lineno)
            elif called == "torch.load":
                assert given.get("weights_only") == "True", (file, node.lineno)
            elif called in ("np.load", "numpy.load"):
                assert given.get("allow_pickle", "False") == "False", (file, node.lineno)
    assert ".bin" in PICKLES
