"""The residual network for images: its arithmetic, what it takes for an image, and that it opens anywhere."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tests.elsewhere import opened_saved_and_opened
from tests.modules.pictures import data_uri, pictures
from tests.shared import SHARED, SMALL, needs_shared
from torch.nn import functional

from distilvec.errors import DataError
from distilvec.modules.cifar_resnet import CifarResNet, image_model
from distilvec.modules.network_files import read_image_network

OWN = {"cifar_resnet.CifarResNet": CifarResNet}


def network(**settings) -> CifarResNet:
    torch.manual_seed(0)
    made = CifarResNet(**{"depth": 8, "width": 4, **settings})
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # statistics that are not those of a fresh network
            torch.nn.init.uniform_(module.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return made.eval()


def by_hand(weights: dict[str, torch.Tensor], pixels: torch.Tensor, blocks: int) -> torch.Tensor:
    """Another way to the same features: pixels 0..255 [N, 3, s, s], from the tensors alone."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, weight, bias = (
            weights[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (pixels / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    x = norm(functional.conv2d(x, weights["conv1.weight"], padding=1), "bn1").relu()
    for stage in (1, 2, 3):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = functional.conv2d(x, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = functional.conv2d(norm(y, f"{name}.bn1").relu(), weights[f"{name}.conv2.weight"], padding=1)
            if stride == 2:
                empty = torch.zeros_like(x[:, : x.shape[1] // 2, ::2, ::2])
                x = torch.cat([empty, x[:, :, ::2, ::2], empty], dim=1)
            x = (norm(y, f"{name}.bn2") + x).relu()
    return x.mean((2, 3))


@pytest.mark.parametrize(("depth", "width", "size"), [(8, 4, 32), (20, 6, 32), (14, 8, 33)])
def test_features_are_those_of_the_specification(depth: int, width: int, size: int) -> None:
    net, images = network(depth=depth, width=width, image_size=size), pictures(5, size)
    with torch.no_grad():
        found = net(net.preprocess(list(images)))["sentence_embedding"]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    torch.testing.assert_close(found, by_hand(net.state_dict(), pixels, (depth - 2) // 6), rtol=1e-4, atol=1e-5)
    assert found.shape == (5, 4 * width) == (5, net.get_embedding_dimension())


def test_parameter_count_of_the_paper() -> None:
    # 0.27 million with the classifier of 650 (He et al. 2016, table 6).
    assert sum(p.numel() for p in CifarResNet(20).parameters()) + 650 == 269_722
    assert sum(p.numel() for p in CifarResNet(56).parameters()) + 650 == 853_018


def test_every_form_of_an_image_is_the_same_image(tmp_path) -> None:
    pixels = pictures(1)[0]
    Image.fromarray(pixels).save(tmp_path / "image.png")
    forms = [Image.fromarray(pixels), str(tmp_path / "image.png"), tmp_path / "image.png", data_uri(pixels), pixels]
    forms += [torch.from_numpy(pixels), Image.fromarray(pixels).convert("RGBA")]
    prepared = network().prepare(forms)
    for one in prepared:
        assert one.dtype == np.uint8
        assert np.array_equal(one, pixels.transpose(2, 0, 1))


def test_grey_images_are_three_times_the_same_channel() -> None:
    grey = pictures(1)[0, :, :, 0]
    for form in (grey, grey[:, :, None], Image.fromarray(grey), data_uri(grey)):
        assert np.array_equal(network().prepare([form])[0], np.stack([grey] * 3))


def test_transparent_and_deep_pixels_are_those_of_a_corpus() -> None:
    """What a student sees when it is used is what it saw when it was trained."""
    from distilvec.kinds.image.images import open_image

    clear = np.dstack([pictures(1)[0], np.full((32, 32), 255, np.uint8)])
    clear[:8, :, 3], clear[8:16, :, 3] = 0, 100
    deep = np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32)
    palette = Image.fromarray(np.zeros((32, 32), np.uint8), "P")
    palette.putpalette([200, 10, 10])
    for image, more in ((Image.fromarray(clear), {}), (Image.fromarray(deep), {}), (palette, {"transparency": 0})):
        file = io.BytesIO()
        image.save(file, "PNG", **more)
        item = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        seen = network().prepare([item])[0]
        assert np.array_equal(seen, np.asarray(open_image(item)).transpose(2, 0, 1))
        assert np.array_equal(network().prepare([Image.open(file)])[0], seen)


def test_resizing_has_half_pixel_centres_and_does_not_round() -> None:
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    pixels[0, 1] = 200
    net = network(image_size=4, mean=(0, 0, 0), std=(1 / 255,) * 3)
    (found,) = net.preprocess([pixels])["pixel_values"].numpy()
    # Centres at 1/4, 3/4, 5/4, 7/4 of a pixel: weights 0, 1/4, 3/4, 1 from the left, 1, 3/4, 1/4, 0 from the top.
    expected = 200 * np.outer([1, 0.75, 0.25, 0], [0, 0.25, 0.75, 1])
    np.testing.assert_allclose(found, np.stack([expected] * 3), rtol=1e-6, atol=1e-5)
    # What is kept of an image is never more than the network sees of it.
    (kept,) = net.prepare([pixels])
    assert np.array_equal(kept, pixels.transpose(2, 0, 1))
    (large,) = net.prepare([np.kron(pixels, np.ones((8, 4, 1), np.uint8))])
    assert (large.dtype, large.shape) == (np.float16, (3, 4, 4))


def test_prepared_images_of_both_kinds_make_one_batch() -> None:
    net = network()
    small, large = pictures(1)[0], pictures(2, 48)[0]
    together = net.collate(net.prepare([small, large]))["pixel_values"]
    assert together.dtype == torch.float32
    for row, image in enumerate((small, large)):
        assert torch.equal(together[row], net.preprocess([image])["pixel_values"][0])


def test_cached_images_stay_as_they_are() -> None:
    net = network()
    prepared = net.prepare(list(pictures(3)))
    before = copy.deepcopy(prepared)
    net(net.collate(prepared))
    assert all(np.array_equal(a, b) for a, b in zip(prepared, before))


def test_encode_gives_one_row_per_item_in_order(tmp_path) -> None:
    model = image_model(network())
    images = pictures(7)
    with torch.no_grad():
        expected = model[0](model[0].preprocess(list(images)))["sentence_embedding"].numpy()
    paths = [str(tmp_path / f"{n}.png") for n in range(7)]
    for path, image in zip(paths, images):
        Image.fromarray(image).save(path)
    for items in ([Image.fromarray(i) for i in images], paths, [data_uri(i) for i in images], list(images)):
        np.testing.assert_allclose(model.encode(items, batch_size=3), expected, atol=1e-5)
    unit = model.encode(paths, batch_size=2, normalize_embeddings=True)
    np.testing.assert_allclose(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    assert np.allclose(model.encode(paths[4]), expected[4], atol=1e-5)
    assert model.get_embedding_dimension() == 16
    assert model.modalities == ["image"]


def test_text_is_refused() -> None:
    with pytest.raises(ValueError, match="'text'.*image"):
        image_model(network()).encode(["a sentence"])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, r"\bint$"),
        (np.zeros((4, 4, 2), np.uint8), r"not uint8 \[4, 4, 2\]"),
        (np.zeros((4, 4, 3), np.float32), r"not float32 \[4, 4, 3\]"),
        (np.zeros((0, 4, 3), np.uint8), r"not uint8 \[0, 4, 3\]"),
        ("nowhere.png", r"nowhere\.png \(.*No such file"),
        ("data:image/png;base64,!!", "base64,!! .*base64"),
        ("data:image/png,abc", r"data:image/png,abc \(.+\)"),
        (
            "data:image/png;base64," + base64.b64encode(b"no image").decode(),
            r"data:image/png;base64,bm8gaW1hZ2U= \(.+\)",
        ),
        (data_uri(pictures(1)[0])[:200], r"data:image/png;base64,.* \(.+\)"),
        (data_uri(pictures(1)[0], "eps"), r"data:image/.* \(.+\)"),
    ],
)
def test_a_file_that_is_not_an_image_is_refused_by_name(item, message) -> None:
    with pytest.raises(ValueError, match=message):
        network().prepare([pictures(1)[0], item])


@pytest.mark.parametrize(
    "wrong", [{"depth": 18}, {"depth": 2}, {"width": 0}, {"image_size": 3}, {"mean": [0.5]}, {"std": [0, 1, 1]}]
)
def test_settings_that_do_not_exist_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=rf"\b{next(iter(wrong))}\b.*\bnot .*{re.escape(str(*wrong.values()))}"):
        CifarResNet(**wrong)


def classifier(net: CifarResNet, file: Path, **changes: torch.Tensor | None) -> Path:
    """The network's tensors with a classifier behind, as the public files have them."""
    tensors = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    tensors |= {"linear.weight": torch.zeros(10, 16), "linear.bias": torch.zeros(10)}
    tensors |= changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)
    return file


def test_a_classifiers_file_gives_its_features(tmp_path) -> None:
    net, images = network(depth=14), list(pictures(4))
    file = classifier(net, tmp_path / "net.safetensors")
    read = CifarResNet.from_classifier(file, load_file(file))
    assert (read.depth, read.width, read.training) == (14, 4, False)
    assert np.array_equal(image_model(read).encode(images), image_model(net).encode(images))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer3.1.bn2.bias": None}, r"missing .*: layer3\.1\.bn2\.bias$"),
        ({"layer4.0.conv1.weight": torch.zeros(1)}, r"unknown .*: layer4\.0\.conv1\.weight$"),
        (
            {"layer2.0.conv1.weight": torch.zeros(8, 4, 5, 5)},
            r"layer2\.0\.conv1\.weight: .*\[8, 4, 5, 5\].*\[8, 4, 3, 3\]",
        ),
        ({"conv1.weight": None}, r"conv1\.weight or layer1"),
    ],
)
def test_a_file_of_another_network_is_refused_by_name(tmp_path, changes, message) -> None:
    file = classifier(network(depth=14), tmp_path / "net.safetensors", **changes)
    with pytest.raises(ValueError, match=rf"/net\.safetensors: (.|\n)*{message}"):
        CifarResNet.from_classifier(file, load_file(file))


def test_a_file_that_is_not_safetensors_is_refused(tmp_path) -> None:
    (tmp_path / "net.safetensors").write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"/net\.safetensors: .*header"):
        read_image_network(tmp_path / "net.safetensors")


def test_bit_identical_after_save_and_load_also_without_distilvec(start, tmp_path) -> None:
    model = image_model(network(image_size=24, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)))
    items = [data_uri(image) for image in pictures(3)]
    expected = model.encode(items)
    folder = tmp_path / "student"
    model.save_pretrained(str(folder), create_model_card=False)
    listed = json.loads((folder / "modules.json").read_text())
    assert listed[0]["type"] == "cifar_resnet.CifarResNet"
    assert (folder / "cifar_resnet.py").is_file()
    with pytest.raises(ValueError, match=r"cifar_resnet\.CifarResNet(.|\n)*trust_remote_code"):
        SentenceTransformer(str(folder), device="cpu")
    # What students/load.py does: our class for the name, and no code of the folder's.
    ours = SentenceTransformer._load_with_module_classes(str(folder), OWN, device="cpu")
    assert np.array_equal(ours.encode(items), expected)
    read = opened_saved_and_opened(start, folder, items, tmp_path)
    np.testing.assert_allclose(read["first"], expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(read["second"], read["first"])


def test_a_damaged_network_does_not_load(tmp_path) -> None:
    image_model(network()).save_pretrained(str(tmp_path / "student"), create_model_card=False)
    config = next((tmp_path / "student").glob("*CifarResNet")) / "config.json"
    config.write_text(config.read_text().replace('"width": 4', '"width": 5'))
    with pytest.raises(RuntimeError, match=r"conv1\.weight: .*\[4, 3, 3, 3\].*\[5, 3, 3, 3\]"):
        SentenceTransformer._load_with_module_classes(str(tmp_path / "student"), OWN, device="cpu")


def test_copies_and_pickles() -> None:
    net = network()
    features = net.preprocess(list(pictures(2)))
    expected = net(dict(features))["sentence_embedding"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.conv1.weight is not net.conv1.weight
        assert torch.equal(other(dict(features))["sentence_embedding"], expected)


def test_half_precision() -> None:
    net = network()
    features = net.preprocess(list(pictures(2)))
    exact = net(dict(features))["sentence_embedding"]
    half = net.bfloat16()(dict(features))["sentence_embedding"]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=0.1)


def test_learns() -> None:
    """A fresh network separates two kinds of images within a few steps."""
    torch.manual_seed(0)
    net = CifarResNet(8, 4)
    images = pictures(16)
    images[::2, :, :, 0] //= 4
    features = net.collate(net.prepare(list(images)))
    labels = torch.arange(16) % 2
    head = torch.nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-2)
    losses = []
    for _ in range(15):
        loss = functional.cross_entropy(head(net(dict(features))["sentence_embedding"]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@needs_shared
def test_golden_features(subtests: pytest.Subtests) -> None:
    """Four published networks of 1 to 3.5 MB."""
    for depth in (20, 32, 44, 56):
        with subtests.test(depth=depth):
            check_golden(SHARED / "models" / f"cifar10_resnet{depth}.safetensors", depth)


def check_golden(file: Path, depth: int) -> None:
    net = CifarResNet.from_classifier(file, load_file(file))
    assert (net.depth, net.width) == (depth, 16)
    images = np.load(SMALL / "data" / "images" / "cifar10.npz")["test_images"][:8]
    golden = np.load(SMALL / "models" / "goldens.npz")
    found = image_model(net).encode(list(images))
    np.testing.assert_allclose(found, golden[f"cifar10_resnet{depth}/features"], rtol=1e-4, atol=1e-4)
    linear = load_file(file)
    logits = found @ linear["linear.weight"].numpy().T + linear["linear.bias"].numpy()
    np.testing.assert_allclose(logits, golden[f"cifar10_resnet{depth}/logits"], rtol=1e-4, atol=1e-3)
