"""Teachers that come as a causal base and low-rank adapters, read both ways: LLM2Vec."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny_models
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from distilvec.errors import DataError, DistilvecError
from distilvec.students import load_student
from distilvec.teachers import load_teacher

TEXTS = ["short", "a text that is clearly longer than the other one", "two words"]
RANK, ALPHA = 4, 8
#: The layers' maps that LLM2Vec's adapters stand beside.
TARGETS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bare causal Mistral, and two folders of adapters: of a model, and of one with a language head."""
    home = tmp_path_factory.mktemp("parts")
    made = tiny_models.build("mistral", home / "made")
    base = home / "base"
    model, tokenizer = AutoModel.from_pretrained(made), AutoTokenizer.from_pretrained(made)
    del model.config.is_causal
    model.save_pretrained(base)
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(base)
    shutil.copytree(base, home / "unpadded")  # as Mistral's own tokenizer is
    tokenizer.pad_token = None
    tokenizer.save_pretrained(home / "unpadded")
    kinds = {"first": "", "second": "model."}
    made_of = {name: adapters(home / name, model, within) for name, within in kinds.items()}
    return {"base": base, "unpadded": home / "unpadded", **made_of}


def adapters(folder: Path, model: torch.nn.Module, within: str, **settings: object) -> Path:
    generator = torch.Generator().manual_seed(len(within))
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(TARGETS):
            rows, columns = module.weight.shape  # type: ignore[misc]
            for side, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                key = f"base_model.model.{within}{name}.lora_{side}.weight"
                tensors[key] = 0.1 * torch.randn(shape, generator=generator)  # type: ignore[arg-type]
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [name.split(".")[-1] for name in TARGETS]
    config = {"peft_type": "LORA", "target_modules": targets, "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    config |= settings
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def reference(parts: dict[str, Path], texts: list[str], skipped: int) -> Tensor:
    """LLM2Vec's vectors, text by text: weights added by hand, all tokens seen, the first not in the mean."""
    model, tokenizer = AutoModel.from_pretrained(parts["base"]).eval(), AutoTokenizer.from_pretrained(parts["base"])
    weights = dict(model.named_parameters())
    for name in ("first", "second"):
        tensors = load_file(parts[name] / "adapter_model.safetensors")
        for key in [key for key in tensors if ".lora_A." in key]:
            of = key.split(".lora_A.")[0].removeprefix("base_model.model.").removeprefix("model.")
            weights[f"{of}.weight"].data += ALPHA / RANK * tensors[key.replace(".lora_A.", ".lora_B.")] @ tensors[key]
    rows = []
    with torch.no_grad():
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            length = ids.shape[1]
            # A mask of four dimensions is taken as it is: nothing is hidden.
            states = model(input_ids=ids, attention_mask=torch.zeros(1, 1, length, length)).last_hidden_state
            rows.append(states[0, skipped:].mean(0))
    return torch.stack(rows)


@pytest.mark.parametrize("prompt", [None, "Say what it means: "])
def test_vectors_are_those_of_a_reference_forward(parts: dict[str, Path], prompt: str | None) -> None:
    teacher = load_teacher(
        model=parts["unpadded"], adapters=[parts["first"], parts["second"]], causal=False, prompt=prompt, device="cpu"
    )
    tokenizer = AutoTokenizer.from_pretrained(parts["base"])
    skipped = len(tokenizer(prompt)["input_ids"]) if prompt else 0
    expected = reference(parts, [(prompt or "") + text for text in TEXTS], skipped)
    np.testing.assert_allclose(teacher.encode(TEXTS), expected.numpy(), atol=1e-5)
    assert (teacher.card.pooling, teacher.causal) == ("mean", False)
    assert teacher.model.tokenizer.padding_side == "left"  # type: ignore[attr-defined]


def test_neither_adapters_nor_the_mask_are_taken_lightly(parts: dict[str, Path]) -> None:
    both = {"adapters": [parts["first"], parts["second"]], "causal": False}
    kinds = [
        {},
        {"causal": False},
        {"adapters": [parts["first"]], "causal": False},
        {"adapters": [parts["second"], parts["first"]], "causal": False},
        both,
    ]
    teachers = [load_teacher(model=parts["base"], pooling="mean", device="cpu", **kind) for kind in kinds]  # type: ignore[arg-type]
    assert len({teacher.card.fingerprint for teacher in teachers}) == len(kinds)
    vectors = [teacher.encode(TEXTS) for teacher in teachers]
    for one, other in ((0, 1), (1, 2), (2, 4)):
        assert np.abs(vectors[one] - vectors[other]).max() > 1e-3
    np.testing.assert_allclose(vectors[3], vectors[4], atol=1e-5)  # a sum has no order


def test_saved_it_is_a_model_as_any_other(parts: dict[str, Path], tmp_path: Path) -> None:
    teacher = load_teacher(model=parts["base"], adapters=[parts["first"]], causal=False, device="cpu")
    teacher.model.save_pretrained(str(tmp_path), create_model_card=False)  # type: ignore[attr-defined]
    again, student = load_teacher(model=tmp_path, device="cpu"), load_student(tmp_path, device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), teacher.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(student.encode(TEXTS), teacher.encode(TEXTS), atol=1e-6)


def test_peft_merges_the_same(parts: dict[str, Path]) -> None:
    peft = pytest.importorskip("peft")
    model = AutoModel.from_pretrained(parts["base"])
    merged = peft.PeftModel.from_pretrained(model, parts["first"]).merge_and_unload()
    teacher = load_teacher(model=parts["base"], adapters=[parts["first"]], device="cpu")
    ours = teacher.model[0].model.state_dict()  # type: ignore[attr-defined]
    for name, weight in merged.state_dict().items():
        torch.testing.assert_close(ours[name], weight)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "a start of next year"),
        ("bias", "lora_only"),
        ("fan_in_fan_out", True),
        ("rank_pattern", {"q_proj": 8}),
        ("a_setting_of_next_year", {"scale": 2}),
    ],
)
def test_settings_that_are_not_known_to_be_plain_are_refused(
    key: str, value: object, parts: dict[str, Path], tmp_path: Path
) -> None:
    folder = adapters(tmp_path / "made", AutoModel.from_pretrained(parts["base"]), "", **{key: value})
    with pytest.raises(DistilvecError, match=rf"(?s)adapter_config\.json.*{key}.*merge_and_unload"):
        load_teacher(model=parts["base"], adapters=[folder], device="cpu")


@pytest.mark.parametrize("start", [True, "gaussian"])
def test_an_adapter_as_peft_saves_it_is_merged(start: object, parts: dict[str, Path], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"], init_lora_weights=start)
    torch.manual_seed(1)
    trained = peft.get_peft_model(AutoModel.from_pretrained(parts["base"]), config)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter) * parameter.requires_grad)
    trained.save_pretrained(tmp_path / "adapters")
    merged = trained.merge_and_unload().state_dict()
    teacher = load_teacher(model=parts["base"], adapters=[tmp_path / "adapters"], device="cpu")
    for name, weight in teacher.model[0].model.state_dict().items():  # type: ignore[attr-defined]
        torch.testing.assert_close(weight, merged[name])


def test_what_does_not_fit_is_refused(parts: dict[str, Path], tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(parts["base"])

    def refused(folder: Path, said: str, kind: type[DistilvecError] = DistilvecError) -> None:
        with pytest.raises(kind, match=said):
            load_teacher(model=parts["base"], adapters=[folder], device="cpu")

    refused(tmp_path / "nowhere", "nowhere")
    refused(parts["base"], "adapter_config.json")
    refused(adapters(tmp_path / "dora", model, "", use_dora=True), "dora.*use_dora|use_dora.*dora")
    refused(adapters(tmp_path / "ia3", model, "", peft_type="IA3"), "IA3")
    refused(adapters(tmp_path / "else", model, "encoder."), "else.*encoder.layers.0|encoder.layers.0.*else")
    broken = adapters(tmp_path / "broken", model, "")
    tensors = load_file(broken / "adapter_model.safetensors")
    lost = next(key for key in tensors if ".lora_B." in key)
    save_file({key: value for key, value in tensors.items() if key != lost}, broken / "adapter_model.safetensors")
    refused(broken, f"broken.*{lost.split('.lora_B')[0].removeprefix('base_model.model.')}", DataError)
    with pytest.raises(DistilvecError, match="causal"):
        load_teacher(model=tiny_models.build("bert", tmp_path / "bert"), causal=False, device="cpu")
    with pytest.raises(DistilvecError, match="adapters"):
        load_teacher(vectors="v.npy", texts="t.txt", adapters=[broken])
