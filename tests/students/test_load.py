"""Opening students: what is dropped, what is upcast, what is refused and how it is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file, save_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.blocks import parameters
from distilvec.students import describe_student, load_student
from distilvec.students.fresh_models import tokenizer_kind

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_student_encodes_as_the_model_does(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders[kind], device="cpu")
    plain = SentenceTransformer(str(tiny_model_folders[kind]), device="cpu")
    assert (student.encode(sentences[:20]) == plain.encode(sentences[:20])).all()
    assert student.prompts == plain.prompts


def test_the_unused_pooler_is_dropped(real_teacher_folder: Path, sentences: list[str]) -> None:
    plain = SentenceTransformer(str(real_teacher_folder), device="cpu")
    student = load_student(real_teacher_folder, device="cpu")
    assert parameters(plain) - parameters(student) == 384 * 384 + 384
    assert (student.encode(sentences[:20]) == plain.encode(sentences[:20])).all()


def test_a_model_without_a_pooler_is_opened_without_one(tiny_bert: Path, tmp_path: Path) -> None:
    load_student(tiny_bert, device="cpu").save(str(tmp_path / "student"), create_model_card=False)
    names = load_file(tmp_path / "student" / "model.safetensors")
    assert not any("pooler" in name for name in names)
    assert load_student(tmp_path / "student", device="cpu")[0].model.pooler is None


def bare(folder: Path, target: Path) -> Path:
    """The transformers model alone, as someone who never heard of sentence-transformers would save it."""
    shutil.copytree(folder, target)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (target / name).unlink()
    shutil.rmtree(target / "1_Pooling")
    return target


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("bert", "mean"), ("xlmr", "mean"), ("modernbert", "mean"), ("qwen3", "lasttoken"), ("mistral", "mean")],
)
def test_a_bare_model_gets_a_pooling_that_suits_it(
    kind: str, pooling: str, tiny_model_folders: dict[str, Path], tmp_path: Path
) -> None:
    student = load_student(bare(tiny_model_folders[kind], tmp_path / kind), device="cpu")
    assert student[1].pooling_mode == pooling
    assert student.encode(["two words"]).shape == (1, 32)


def test_the_pooling_of_a_bare_model_is_chosen(
    tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    folder = bare(tiny_model_folders["bert"], tmp_path / "bert")
    texts = sorted(sentences[:12], key=len)
    transformer = SentenceTransformer(str(folder), device="cpu")[0]
    transformer.eval()
    found = {}
    for name, place in (("cls", 0), ("last", -1)):
        student = load_student(folder, pooling=name, device="cpu")
        found[name] = student.encode(texts)
        for text, vector in zip(texts, found[name], strict=True):  # one at a time: no padding
            states = transformer(transformer.preprocess([text]))["token_embeddings"]
            assert vector == pytest.approx(states[0, place].detach().numpy(), abs=1e-5)
    assert abs(found["cls"] - found["last"]).max() > 0.01
    assert load_student(bare(tiny_model_folders["qwen3"], tmp_path / "q"), pooling="mean")[1].pooling_mode == "mean"


def test_a_folder_with_its_own_pooling_keeps_it(tiny_model_folders: dict[str, Path], tmp_path: Path) -> None:
    assert load_student(tiny_model_folders["xlmr"], pooling="cls", device="cpu")[1].pooling_mode == "cls"
    with pytest.raises(DistilvecError, match="/xlmr: .*cls.*pooling: mean"):
        load_student(tiny_model_folders["xlmr"], pooling="mean", device="cpu")
    words = SentenceTransformer(str(tiny_model_folders["bert"]), device="cpu").tokenizer.backend_tokenizer
    SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)]).save(str(tmp_path / "static"))
    with pytest.raises(DistilvecError, match="/static: .*pooling: mean"):
        load_student(tmp_path / "static", pooling="mean", device="cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_upcast(dtype: torch.dtype, tiny_bert: Path, tmp_path: Path) -> None:
    half = SentenceTransformer(str(tiny_bert), device="cpu")
    half.append(Dense(32, 8))
    half.to(dtype).save(str(tmp_path / "half"), create_model_card=False)
    student = load_student(tmp_path / "half", device="cpu")
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    student.save(str(tmp_path / "full"), create_model_card=False)
    assert json.loads((tmp_path / "full" / "config.json").read_text())["dtype"] == "float32"
    assert next(iter(load_file(tmp_path / "full" / "model.safetensors").values())).dtype == torch.float32


def test_length_is_set_and_bounded_by_the_positions(tiny_model_folders: dict[str, Path]) -> None:
    assert load_student(tiny_model_folders["bert"], max_length=17, device="cpu").max_seq_length == 17
    text = "word " * 500
    # XLM-R counts positions from its padding id on: 130 rows are 128 tokens.
    student = load_student(tiny_model_folders["xlmr"], max_length=128, device="cpu")
    assert student.preprocess([text])["input_ids"].shape == (1, 128)
    student.encode([text])
    for wrong in (129, 0):
        with pytest.raises(DistilvecError, match=rf"/xlmr: max_length is {wrong}, .*\b3 to 128\b"):
            load_student(tiny_model_folders["xlmr"], max_length=wrong, device="cpu")
    assert load_student(tiny_model_folders["qwen3"], max_length=10_000, device="cpu").max_seq_length == 10_000


def test_an_xlmr_that_states_no_length_stops_at_its_last_position(
    tiny_model_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model_folders["xlmr"], tmp_path / "xlmr")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 10**6}))
    student = load_student(folder, device="cpu")
    assert student.max_seq_length == 128
    student.encode(["word " * 500])


def test_description(real_teacher_folder: Path) -> None:
    said = describe_student(load_student(real_teacher_folder, device="cpu"))
    assert said == {
        "parameters": 22_565_376,
        "layers": 6,
        "width": 384,
        "max_length": 256,
        "vocabulary": 30_522,
    }


def test_kinds_of_tokenizers(tiny_model_folders: dict[str, Path]) -> None:
    kinds = {
        kind: tokenizer_kind(load_student(tiny_model_folders[kind], device="cpu").tokenizer.backend_tokenizer)
        for kind in KINDS
    }
    assert kinds == {
        "bert": "WordPiece",
        "xlmr": "Unigram",
        "modernbert": "byte-level BPE",
        "qwen3": "byte-level BPE",
        "mistral": "byte-level BPE",
    }


def copy_with(folder: Path, target: Path, **config: Any) -> Path:
    shutil.copytree(folder, target)
    settings = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**settings, **config}))
    return target


def test_objects_that_are_not_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (tmp_path / "nowhere", str(tmp_path / "nowhere"), "./nowhere"):
        with pytest.raises(DistilvecError, match=rf"^{re.escape(str(model))}: "):
            load_student(model)
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + r".*modules\.json.*config\.json"):
        load_student(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(DistilvecError, match=r"/weights\.safetensors: .*header"):
        load_student(tmp_path / "weights.safetensors")
    save_file({"embeddings.weight": torch.zeros(2, 2)}, tmp_path / "text.safetensors")
    with pytest.raises(DistilvecError, match=r"/text\.safetensors: .*embeddings\.weight.*folder"):
        load_student(tmp_path / "text.safetensors")
    with pytest.raises(DistilvecError, match="nobody/no-such-model: .*HF_HUB_OFFLINE"):
        load_student("nobody/no-such-model")


class Explosive:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def test_pickled_weights_are_refused_and_never_read(tiny_bert: Path, tmp_path: Path) -> None:
    trap = tmp_path / "was-here"
    folder = shutil.copytree(tiny_bert, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save(Explosive(str(trap)), folder / "pytorch_model.bin")
    with pytest.raises(DistilvecError, match=r"/pickled: .*pytorch_model\.bin.*save_pretrained"):
        load_student(folder)
    dense = SentenceTransformer(str(tiny_bert), device="cpu")
    dense.append(Dense(32, 8))
    dense.save(str(tmp_path / "dense"), create_model_card=False)
    (tmp_path / "dense" / "2_Dense" / "model.safetensors").unlink()
    torch.save(Explosive(str(trap)), tmp_path / "dense" / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(DistilvecError, match=r"/dense/2_Dense: .*pytorch_model\.bin.*save_pretrained"):
        load_student(tmp_path / "dense")
    assert not trap.exists()


def test_code_in_the_folder_does_not_run(tiny_bert: Path, tmp_path: Path) -> None:
    trap = tmp_path / "was-here"
    code = f"open({str(trap)!r}, 'w')\nclass Model: pass\nclass Config: pass\n"
    folder = copy_with(
        tiny_bert,
        tmp_path / "remote",
        model_type="made-up",
        auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"},
    )
    (folder / "code.py").write_text(code)
    with pytest.raises(DistilvecError, match="/remote: .*trust_remote_code"):
        load_student(folder)
    modules = shutil.copytree(tiny_bert, tmp_path / "modules")
    listed = json.loads((modules / "modules.json").read_text())
    (modules / "modules.json").write_text(
        json.dumps([*listed, {"idx": 2, "name": "2", "path": "", "type": "code.Model"}])
    )
    (modules / "code.py").write_text(code)
    with pytest.raises(DistilvecError, match="/modules: .*trust_remote_code"):
        load_student(modules)
    assert not trap.exists()


def test_damaged_weights_are_named(tiny_bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"/damaged/model\.safetensors: "):
        load_student(folder, device="cpu")
    broken = copy_with(tiny_bert, tmp_path / "sizes", hidden_size=64)
    with pytest.raises(DistilvecError, match="/sizes: .*ignore_mismatched_sizes"):
        load_student(broken, device="cpu")
    empty = shutil.copytree(tiny_bert, tmp_path / "unreadable")
    (empty / "config.json").write_text("{")
    with pytest.raises(DistilvecError, match=r"/unreadable/config\.json: .*line 1 column 2"):
        load_student(empty, device="cpu")


def test_adapters_and_optimizers_next_to_safetensors_are_ignored(tiny_bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "student")
    torch.save({"step": 1}, folder / "optimizer.pt")
    assert load_student(folder, device="cpu").encode(["text"]).shape == (1, 32)


def test_weights_that_a_class_cuts_out_of_one_tensor_can_be_written_as_a_checkpoint(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """As of nomic-embed, whose files keep query, key and value of a block together."""
    if not hasattr(transformers, "NomicBertModel"):
        pytest.skip("this version of transformers has no class for it")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tiny_bert))
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }
    model = transformers.NomicBertModel(transformers.NomicBertConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert any("Wqkv" in name for name in load_file(tmp_path / "model.safetensors"))
    student = load_student(tmp_path, device="cpu")
    save_model(student, str(tmp_path / "checkpoint.safetensors"))
    held = load_file(tmp_path / "checkpoint.safetensors")
    assert held.keys() == student.state_dict().keys()


def test_decoder_without_a_padding_token_is_padded(tmp_path: Path, tiny_model_folders: dict[str, Path]) -> None:
    folder = tmp_path / "gpt2"
    shutil.copytree(tiny_model_folders["gpt2"], folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            content = json.loads((folder / name).read_text())
            content.pop("pad_token", None)
            content.setdefault("eos_token", "</s>")
            (folder / name).write_text(json.dumps(content))
    model = load_student(folder, device="cpu")
    texts = ["a small text", "a longer text, so that the first one has to be padded"]
    np.testing.assert_allclose(model.encode(texts)[0], model.encode(texts[:1])[0], atol=1e-5)


def test_every_trainable_parameter_of_a_vision_student_has_a_gradient(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    ViTModel(config, use_mask_token=True).save_pretrained(str(tmp_path))
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(str(tmp_path))
    student = load_student(tmp_path, device="cpu").train()
    from PIL import Image

    features = student.preprocess([Image.new("RGB", (8, 8), "red")])
    student(features)["sentence_embedding"].square().sum().backward()
    left = [name for name, each in student.named_parameters() if each.requires_grad and each.grad is None]
    assert left == []
