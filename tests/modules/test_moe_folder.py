"""The published folder opens without its code; what is saved of it opens in processes with and without distilvec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from tests.modules import nomic_moe
from tests.modules.nomic_moe import TEXTS
from tests.training.starting import Starter

from distilvec.errors import DataError
from distilvec.modules.aggregation import set_aggregation
from distilvec.modules.layouts import is_nomic_moe
from distilvec.modules.opening import open_pipeline
from distilvec.students import load_student, ship, shrink

# Opens a model twice, the second time from what it saved of the first.
READER = """
import json, sys
how, folder, again, out, texts = sys.argv[1:]
if how == "own":
    import distilvec.modules.moe_encoder
import numpy, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
trust = how == "foreign"
model = SentenceTransformer(folder, device="cpu", trust_remote_code=trust)
model.save_pretrained(again, create_model_card=False)
second = SentenceTransformer(again, device="cpu", trust_remote_code=trust)
texts = json.loads(texts)
numpy.savez(out, first=model.encode(texts), second=second.encode(texts), module=type(model[0].model).__module__)
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nomic_moe.write(tmp_path_factory.mktemp("moe") / "published")


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return nomic_moe.weights(nomic_moe.configuration())


def opened(folder: Path) -> SentenceTransformer:
    return open_pipeline(str(folder), device="cpu")


def test_opens_with_tokenizer_pooling_length_and_prompts(published: Path, tensors: dict[str, torch.Tensor]) -> None:
    assert is_nomic_moe(published)
    model = opened(published)
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Normalize"]
    assert model.max_seq_length == 64 and model.prompts["query"] == "search_query: "
    inner: Any = model[0]
    assert inner.model.config._name_or_path == str(published)
    state = inner.model.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
    ids = model.tokenizer("query: " + TEXTS[1])["input_ids"]
    expected = torch.nn.functional.normalize(nomic_moe.states(tensors, ids).mean(0), dim=0)
    np.testing.assert_allclose(model.encode(TEXTS[1], prompt="query: "), expected, atol=1e-6)


def test_saves_and_opens_again_under_the_published_names(published: Path, tmp_path: Path) -> None:
    model = opened(published)
    set_aggregation(model, "sba", normalize_weights=True)
    ship(model, tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(nomic_moe.weights(nomic_moe.configuration()))
    again = opened(tmp_path / "saved")
    assert again[0].model.config.aggregation == "sba" and again[0].model.config.normalize_weights
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))
    assert np.array_equal(load_student(tmp_path / "saved", device="cpu").encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize("how", ["foreign", "own"])
def test_ships_with_its_code(start: Starter, how: str, published: Path, tmp_path: Path) -> None:
    model = opened(published)
    set_aggregation(model, "norm_free")
    ship(model, tmp_path / "shipped")
    arguments = [how, tmp_path / "shipped", tmp_path / "again", tmp_path / "out.npz", json.dumps(TEXTS)]
    if how == "foreign":
        start.elsewhere(READER, *arguments, place=tmp_path)
    else:
        code, output = start.code(READER, *arguments, folder=str(tmp_path)).wait()
        assert code == 0, output
    found = np.load(tmp_path / "out.npz")
    assert str(found["module"]).startswith("transformers_modules" if how == "foreign" else "distilvec.")
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(found["first"], expected, atol=1e-6)
    np.testing.assert_array_equal(found["first"], found["second"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_several_files(dtype: torch.dtype, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    half = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    state = opened(nomic_moe.write(tmp_path / "half", half, shards=3))[0].model.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(state[name], half[name].float()) for name in half)
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


def test_every_weight_is_accounted_for(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    router = "encoder.layers.3.mlp.router.layer.weight"
    without = {name: tensor for name, tensor in tensors.items() if name != router}
    wide = {**tensors, router: torch.zeros(5, nomic_moe.WIDTH)}
    more = {**tensors, "pooler.dense.weight": torch.zeros(2, 2), "pooler.dense.bias": torch.zeros(2)}
    for name, given, message in (
        ("without", without, f"{router} .*missing"),
        ("wide", wide, rf"{router} is \[5, 16\].*\[4, 16\]"),
        ("more", more, r"pooler\.dense\.bias and 1 more .*unknown"),
    ):
        with pytest.raises(DataError, match=f"/{name}: .*{message}"):
            opened(nomic_moe.write(tmp_path / name, given))
    folder = nomic_moe.write(tmp_path / "shards", tensors, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DataError, match=r"/shards/model-00002-of-00002\.safetensors: "):
        opened(folder)
    folder = nomic_moe.write(tmp_path / "damaged", tensors)
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(DataError, match=r"/damaged/model\.safetensors: "):
        opened(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prenorm": True}, "prenorm is True"),
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved is True"),
        ({"rotary_scaling_factor": 2.0}, "rotary_scaling_factor is 2.0"),
        ({"activation_function": "swiglu"}, "activation_function is 'swiglu'"),
        ({"moe_resid_pdrop": 0.1}, "moe_resid_pdrop is 0.1"),
        ({"moe_normalize_expert_weights": 2}, "moe_normalize_expert_weights is 2"),
        ({"moe_top_k": 9}, "9 of 4 experts"),
        ({"moe_every_n_layers": 4}, r"encoder\.layers\.3\.mlp\.fc1\.bias and 3 more"),
    ],
)
def test_other_architectures_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"/other.*: .*{message}"):
        opened(nomic_moe.write(tmp_path / "other", **changes))


def test_blocks_can_be_cut_out(published: Path, tmp_path: Path) -> None:
    cut, _ = shrink(opened(published), layers=[1, 4], vocabulary=200, texts=TEXTS)
    assert cut[0].model.config.layer_kinds == ["dense", "mixture"]
    ship(cut, tmp_path / "cut")
    assert np.array_equal(opened(tmp_path / "cut").encode(TEXTS), cut.encode(TEXTS))


def test_renormalised_weights_are_read(tmp_path: Path) -> None:
    model = opened(nomic_moe.write(tmp_path / "normalized", moe_normalize_expert_weights=1))
    assert model[0].model.config.normalize_weights is True


def test_folders_without_a_valid_nomic_moe(tiny_bert: Path, tmp_path: Path) -> None:
    assert not is_nomic_moe(tiny_bert)
    assert not is_nomic_moe(tmp_path)
    config = nomic_moe.configuration()
    del config["n_inner"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"/config\.json: .*\bn_inner\b"):
        opened(tmp_path)
