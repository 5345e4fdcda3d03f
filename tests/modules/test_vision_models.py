"""Vision models of transformers as embedders of images: each kind, tiny, with random weights and a Pillow processor."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from distilvec.errors import DistilvecError
from distilvec.modules.layouts import is_vision
from distilvec.modules.opening import open_pipeline
from distilvec.modules.vision import image_pooling, open_vision
from distilvec.students import load_student
from distilvec.teachers import load_teacher

_SQUARE = {"height": 32, "width": 32}
_EDGE = {"shortest_edge": 32}
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
#: kind -> (model, settings, image processor, its size)
KINDS = {
    "vit": ("ViT", {**_LAYERS, "image_size": 32, "patch_size": 8}, "ViT", _SQUARE),
    "dinov2": (
        "Dinov2",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        "Bit",
        _EDGE,
    ),
    "beit": ("Beit", {**_LAYERS, "image_size": 32, "patch_size": 8}, "Beit", _SQUARE),
    "beit-cls": ("Beit", {**_LAYERS, "image_size": 32, "patch_size": 8, "use_mean_pooling": False}, "Beit", _SQUARE),
    "swin": (
        "Swin",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        "ViT",
        _SQUARE,
    ),
    "pvt_v2": (
        "PvtV2",
        {
            "image_size": 32,
            "hidden_sizes": [8, 8, 16, 24],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "mlp_ratios": [2, 2, 2, 2],
        },
        "Pvt",
        _SQUARE,
    ),
    "resnet": (
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "ConvNext",
        _EDGE,
    ),
    "mobilenet_v2": ("MobileNetV2", {"image_size": 32, "depth_multiplier": 0.25}, "MobileNetV2", _EDGE),
    "convnext": ("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, "ConvNext", _EDGE),
}
WIDTHS = {"swin": 16, "pvt_v2": 24, "resnet": 16, "mobilenet_v2": 1280, "convnext": 16}
FIRST_TOKEN = ("vit", "dinov2", "beit-cls")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> folder as transformers writes it. Do not write."""
    root = tmp_path_factory.mktemp("vision")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for kind, (model, settings, processor, size) in KINDS.items():
            config = getattr(transformers, f"{model}Config")(**settings)
            made = getattr(transformers, f"{model}Model")(config)
            for module in made.modules():
                if isinstance(module, torch.nn.LayerNorm):  # as after training, so that leaving one out is seen
                    torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            made.save_pretrained(root / kind)
            options = {"size": size, "image_mean": [0.5, 0.4, 0.3]}
            if size is _EDGE:
                options["crop_size"] = _SQUARE
            getattr(transformers, f"{processor}ImageProcessorPil")(**options).save_pretrained(root / kind)
    return {kind: root / kind for kind in KINDS}


def pictures(count: int = 3) -> list[Image.Image]:
    """Noise of 40 x 50 pixels."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (50, 40, 3), dtype=np.uint8)) for _ in range(count)]


def data_uri(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def expected(folder: Path, kind: str, pixels: torch.Tensor) -> np.ndarray:
    """What the model itself gives for the whole image."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(pixel_values=pixels)
    states = output.last_hidden_state
    if kind in FIRST_TOKEN:
        return states[:, 0].numpy()
    if kind == "beit":
        mean = states[:, 1:].mean(1)
        norm = model.pooler.layernorm
        return torch.nn.functional.layer_norm(mean, mean.shape[-1:], norm.weight, norm.bias, norm.eps).detach().numpy()
    if kind == "convnext":
        return output.pooler_output.numpy()
    return states.mean((2, 3)).numpy() if states.ndim == 4 else states.mean(1).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_one_vector_for_an_image(folders, kind) -> None:
    model = open_vision(folders[kind], device="cpu")
    images = pictures()
    vectors = model.encode(images, batch_size=2)
    width = WIDTHS.get(kind, 32)
    assert vectors.shape == (3, width) == (3, model.get_embedding_dimension())
    features = model.preprocess(images)
    assert features["pixel_values"].shape == (3, 3, 32, 32)
    np.testing.assert_allclose(vectors, expected(folders[kind], kind, features["pixel_values"]), rtol=1e-4, atol=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 0
    assert model.modalities == ["image"]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_vision_models_open_with_plain_sentence_transformers(folders, kind, tmp_path) -> None:
    model = open_vision(folders[kind], device="cpu")
    images = [*pictures(2), pictures(1)[0].convert("L")]
    model.save_pretrained(str(tmp_path / "student"), create_model_card=False)
    types = [entry["type"] for entry in json.loads((tmp_path / "student" / "modules.json").read_text())]
    assert all(name.startswith("sentence_transformers.") for name in types)
    plain = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert np.array_equal(plain.encode(images), model.encode(images))
    assert plain.get_embedding_dimension() == model.get_embedding_dimension()
    again = open_pipeline(str(tmp_path / "student"), device="cpu")
    assert np.array_equal(again.encode(images), model.encode(images))
    assert is_vision(folders[kind])
    assert not is_vision(tmp_path / "student")


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_every_form_of_an_image(folders, kind, tmp_path) -> None:
    model = open_vision(folders[kind], device="cpu")
    images = pictures()
    paths = [str(tmp_path / f"{n}.png") for n in range(3)]
    for path, image in zip(paths, images):
        image.save(path)
    plain = model.encode(images)
    for items in (paths, [data_uri(image) for image in images], [image.convert("RGBA") for image in images]):
        np.testing.assert_allclose(model.encode(items), plain, rtol=1e-5, atol=1e-6)
    grey = [image.convert("L") for image in images]
    coloured = model.encode([image.convert("RGB") for image in grey])
    np.testing.assert_allclose(model.encode(grey), coloured, rtol=1e-5, atol=1e-6)


def test_vision_models_as_sentence_transformers_opens_them(folders) -> None:
    """Why there is a loader: no first token, no width for MobileNet, no grey images."""
    assert SentenceTransformer(str(folders["vit"]), device="cpu")[1].pooling_mode == "mean"
    with pytest.raises(ValueError, match="MobileNetV2Config"):
        SentenceTransformer(str(folders["mobilenet_v2"]), device="cpu")
    refused = r"mean .*1 elements.*3|\[1, 1, 32, 32\]"  # without and with torchvision
    with pytest.raises((ValueError, RuntimeError), match=refused):
        SentenceTransformer(str(folders["vit"]), device="cpu").encode([pictures(1)[0].convert("L")])


def test_weights_of_half_precision_are_read_as_float32(folders, tmp_path) -> None:
    model = transformers.AutoModel.from_pretrained(folders["vit"]).half()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text((folders["vit"] / "preprocessor_config.json").read_text())
    assert {p.dtype for p in open_vision(tmp_path, device="cpu").parameters()} == {torch.float32}


def test_an_unknown_kind_has_its_positions_averaged() -> None:
    assert image_pooling(SimpleNamespace(model_type="something_new")) == "mean"


def test_text_models_and_empty_folders_are_not_vision_models(tiny_bert, tmp_path) -> None:
    assert not is_vision(tiny_bert)
    assert not is_vision(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert not is_vision(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert not is_vision(tmp_path)


def test_a_folder_without_an_image_processor_is_refused(folders, tmp_path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folders["vit"] / name).read_bytes())
    assert is_vision(tmp_path)
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + r".*preprocessor_config\.json"):
        open_vision(tmp_path, device="cpu")


@pytest.mark.parametrize(
    "config",
    [
        {"architecture": "resnet18", "num_features": 512, "pretrained_cfg": {"input_size": [3, 224, 224]}},
        {"architecture": "resnet18", "model_type": "timm_wrapper", "pretrained_cfg": {}},
    ],
)
def test_a_folder_of_timm_is_refused_with_the_reason(config: dict, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "model.safetensors")
    for opened in (
        lambda: open_vision(tmp_path),
        lambda: load_student(tmp_path),
        lambda: load_teacher(model=str(tmp_path), modality="image"),
    ):
        with pytest.raises(DistilvecError, match=rf"{re.escape(str(tmp_path))}: .*timm"):
            opened()


def test_a_damaged_folder_is_refused(folders, tmp_path) -> None:
    for file in folders["vit"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("cls_token"))
    save_file({**tensors, name: torch.zeros(1, 1, 5)}, tmp_path / "model.safetensors")
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + ".*ignore_mismatched_sizes"):
        open_vision(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + ".*model_type"):
        open_vision(tmp_path, device="cpu")


def test_a_model_of_texts_and_images_teaches_either(tmp_path, tiny_bert) -> None:
    from transformers import AutoTokenizer, CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_bert), model_max_length=64)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "eos_token_id": tokenizer.sep_token_id}
    config = CLIPConfig(
        text_config={**sizes, **words}, vision_config={**sizes, "image_size": 16, "patch_size": 8}, projection_dim=12
    )
    CLIPModel(config).save_pretrained(tmp_path)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(images, tokenizer).save_pretrained(tmp_path)
    alone = SentenceTransformer(str(tmp_path), device="cpu")
    texts, seen = ["one", "two and three", "a text beyond its positions " * 40], pictures()
    found = load_teacher(model=tmp_path, device="cpu").encode(texts)
    np.testing.assert_allclose(found, alone.encode(texts), atol=1e-6)
    found = load_teacher(model=tmp_path, device="cpu", modality="image").encode([data_uri(each) for each in seen])
    np.testing.assert_allclose(found, alone.encode(seen), atol=1e-6)
