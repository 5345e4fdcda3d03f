"""ResNet-8 and MobileNets from a classifier's file: their arithmetic, what is refused, and that they open anywhere."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.modules.networks import V2, layers_of, network, tensors_of
from tests.modules.pictures import data_uri, pictures
from tests.shared import SHARED, SMALL, needs_shared
from torch import Tensor
from torch.nn import functional

from distilvec.modules.cifar_resnet import image_model
from distilvec.modules.image_networks import ImageNetwork
from distilvec.modules.network_files import read_image_network

NETWORKS = ("resnet8", "v1", "v1_eight_bits", "v2_eight_bits")
#: Size, shift and scale of what the published networks see, of pixels 0..255.
SEEN = {"resnet8": (32, 0, 1), "v1": (96, 0, 255), "v1_eight_bits": (160, 128, 128), "v2_eight_bits": (224, 128, 128)}
PUBLISHED = {
    "resnet8": "cifar10_mlperf_resnet8",
    "v1": "vww_mobilenet_v1_025",
    "v1_eight_bits": "imagenet_mobilenet_v1_050_160",
    "v2_eight_bits": "inat_birds_mobilenet_v2_224",
}


def by_hand(kind: str, pixels: Tensor) -> Tensor:
    """Another way to the same features: pixels 0..255 [N, 3, s, s] of the network's size, from the tensors alone."""
    w, layers = tensors_of(kind), {layer[0]: layer for layer in layers_of(kind)}
    _, shift, scale = SEEN[kind]
    top = 6.0 if "eight" in kind else float("inf")

    def conv(x: Tensor, place: str, active: bool = True) -> Tensor:
        _, norm, _, outputs, kernel, stride, groups = layers[place]
        size, weight = x.shape[-1], w.get(f"{place}.weight")
        if weight is None:
            weight = w[f"{place}.weight_scale"] * (w[f"{place}.weight_q"].float() - w[f"{place}.weight_zero"])
        after = -(-size // stride)
        total = max((after - 1) * stride + kernel - size, 0)
        wide = torch.zeros(*x.shape[:2], size + total, size + total)
        wide[..., total // 2 : total // 2 + size, total // 2 : total // 2 + size] = x
        found = functional.conv2d(wide, weight, stride=stride, groups=groups) + w[f"{place}.bias"].view(-1, 1, 1)
        assert found.shape[1:] == (outputs, after, after)
        if norm:
            mean, var, gain, bias = (
                w[f"{norm}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
            )
            found = (found - mean) / (var + 1e-3).sqrt() * gain + bias
        return found.clamp(0, top) if active else found

    x = (pixels - shift) / scale
    if kind == "resnet8":
        x = conv(x, "stem.conv")
        for stage in (1, 2, 3):
            inner = conv(conv(x, f"stage{stage}.conv1"), f"stage{stage}.conv2", active=False)
            x = (inner + (x if stage == 1 else conv(x, f"stage{stage}.shortcut", active=False))).relu()
    elif kind.startswith("v1"):
        for place in layers:
            x = conv(x, place)
    else:
        x = conv(x, "stem")
        for block, stride in enumerate(V2):
            inner = conv(x, f"block{block}.expand") if block else x
            inner = conv(conv(inner, f"block{block}.depthwise"), f"block{block}.project", active=False)
            x = inner + x if stride == 1 and inner.shape == x.shape else inner
        x = conv(x, "head")
    return x.mean((2, 3))


@pytest.mark.parametrize("size", [32, 33])
@pytest.mark.parametrize("kind", NETWORKS)
def test_features_are_those_of_the_specification(kind: str, size: int) -> None:
    net, images = network(kind, image_size=size), pictures(4, size)
    with torch.no_grad():
        found = net(net.preprocess(list(images)))["sentence_embedding"]
    expected = by_hand(kind, torch.from_numpy(images).permute(0, 3, 1, 2).float())
    assert found.shape == (4, net.get_embedding_dimension()) == expected.shape
    assert expected.std(0).mean() > 0.003 * expected.abs().mean() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NETWORKS)
def test_input_scaling_of_the_published_networks(kind: str) -> None:
    net, image = network(kind), pictures(1, 48)[0]
    size, shift, scale = SEEN[kind]
    (found,) = net.preprocess([image])["pixel_values"]
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    (expected,) = functional.interpolate(pixels, size, mode="bilinear") - shift
    # What is made smaller is kept in half precision.
    torch.testing.assert_close(found * scale, expected, rtol=1e-5, atol=0.07 if size < 48 else 1e-3)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_gradient_reaches_every_parameter_and_half_precision_is_read(kind: str, tmp_path) -> None:
    file = tmp_path / "net.safetensors"
    save_file(
        {name: t.half() if t.ndim > 1 and t.is_floating_point() else t for name, t in tensors_of(kind).items()}, file
    )
    net = read_image_network(file)
    assert isinstance(net, ImageNetwork)
    assert not net.training
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    net.image_size = 32
    features = net.preprocess(list(pictures(6)))
    net.train()(features)["sentence_embedding"].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in net.parameters())
    counters = [value for name, value in net.state_dict().items() if name.endswith("num_batches_tracked")]
    assert [int(value) for value in counters] == [1] * len(counters)


@pytest.mark.parametrize("kind", ["resnet8", "v2_eight_bits"])
def test_copies_and_pickles(kind: str) -> None:
    net = network(kind, image_size=32)
    features = net.preprocess(list(pictures(2)))
    expected = net(dict(features))["sentence_embedding"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.stem.conv.weight is not net.stem.conv.weight
        assert torch.equal(other(dict(features))["sentence_embedding"], expected)


def test_half_precision() -> None:
    net = network("v1", image_size=32)
    features = net.preprocess(list(pictures(2)))
    exact = net(dict(features))["sentence_embedding"]
    half = net.bfloat16()(dict(features))["sentence_embedding"]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("resnet8", {"stage3.bn2.bias": None}, r"missing .*: stage3\.bn2\.bias$"),
        ("resnet8", {"stage2.conv2.weight": None}, r"missing .*stage2\.conv2\.weight"),
        ("resnet8", {"stage4.conv1.weight": torch.zeros(1)}, r"unknown .*: stage4\.conv1\.weight$"),
        ("v1", {"stem.conv.weight": torch.tensor(1.0)}, r"at least 1"),
        ("v1", {"block13.pointwise.conv.weight": torch.zeros(2**40, 0)}, r"block13\.pointwise\.conv\.weight"),
        ("v1_eight_bits", {"block4.depthwise.weight_scale": None}, r"missing .*block4\.depthwise\.weight_scale"),
        ("v2_eight_bits", {"head.weight_scale": torch.zeros(7)}, r"head\.conv\.weight.*\[12, 11, 1, 7\]"),
        (
            "v2_eight_bits",
            {"block3.project.weight_q": torch.zeros(9, 9, 1, 1, dtype=torch.uint8)},
            r"\[9, 9, 1, 1\].*\[9, 36, 1, 1\]",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(kind: str, changes: dict, message: str) -> None:
    tensors = {name: tensor for name, tensor in {**tensors_of(kind), **changes}.items() if tensor is not None}
    with pytest.raises(ValueError, match=rf"^net\.safetensors: (.|\n)*{message}"):
        ImageNetwork.from_classifier("net.safetensors", tensors)


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "resnet9"}, {"channels": [4, 4]}, {"channels": [4, 4, 0, 4]}, {"image_size": 0}, {"std": [0, 1, 1]}],
)
def test_settings_that_do_not_exist_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=rf"\bnot (.* and )?{re.escape(str(*wrong.values()))}"):
        ImageNetwork(**{"kind": "resnet8", "channels": [4, 4, 6, 8], **wrong})


def check_golden(kind: str, file, tolerance: float) -> None:
    golden = np.load(SMALL / "models" / "goldens.npz")
    images = np.load(SMALL / "data" / "images" / "cifar10.npz")["test_images"][:8]
    net = read_image_network(file)
    assert isinstance(net, ImageNetwork)
    found = image_model(net).encode([data_uri(image) for image in images], batch_size=5)
    np.testing.assert_allclose(found, golden[f"{PUBLISHED[kind]}/features"], rtol=tolerance, atol=tolerance)


def test_golden_features_of_a_small_network() -> None:
    """Its weights lie in half precision in tests/data."""
    check_golden("resnet8", SMALL / "models" / "cifar10_mlperf_resnet8.safetensors", 0.02)


@needs_shared
def test_golden_features(subtests: pytest.Subtests) -> None:
    """Four networks of 0.3 to 3.5 MB."""
    for kind, name in PUBLISHED.items():
        with subtests.test(name=name):
            check_golden(kind, SHARED / "models" / f"{name}.safetensors", 1e-4)
