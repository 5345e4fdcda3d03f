"""The pretrained image networks of the experiments: their padding and weight coding, and the shared goldens."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.shared import SHARED, SMALL, needs_shared

from distilvec.corpus.images import data_uri
from distilvec.errors import DataError, DistilvecError

ROOT = Path(__file__).parent.parent
NAMES = (
    "cifar10_mlperf_resnet8",
    "vww_mobilenet_v1_025",
    "imagenet_mobilenet_v1_050_160",
    "inat_birds_mobilenet_v2_224",
)


@pytest.fixture
def networks() -> ModuleType:
    return importlib.import_module("experiments.images.networks")


@pytest.mark.parametrize(("size", "kernel", "stride"), [(6, 3, 2), (7, 3, 2), (5, 3, 1), (8, 1, 2), (6, 4, 1)])
def test_same_padding_puts_the_surplus_below_and_to_the_right(networks, size, kernel, stride) -> None:
    generator = torch.Generator().manual_seed(size)
    states = torch.randn(1, 1, size, size, generator=generator)
    weight = torch.randn(1, 1, kernel, kernel, generator=generator)
    found = networks.SameConv(weight, torch.tensor([0.5]), stride=stride)(states)[0, 0]
    outputs = -(-size // stride)
    before = max((outputs - 1) * stride + kernel - size, 0) // 2
    assert found.shape == (outputs, outputs)
    for row in range(outputs):
        for column in range(outputs):
            total = 0.5
            for i in range(kernel):
                for j in range(kernel):
                    y, x = row * stride + i - before, column * stride + j - before
                    if 0 <= y < size and 0 <= x < size:
                        total += float(weight[0, 0, i, j] * states[0, 0, y, x])
            assert abs(total - float(found[row, column])) < 1e-5


def test_batch_norm_is_folded_in(networks) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(4, 3, 3, 3, generator=generator), torch.randn(4, generator=generator)
    norm = torch.nn.BatchNorm2d(4, eps=1e-3).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        torch.nn.init.normal_(tensor, generator=generator)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2, generator=generator)
    states = torch.randn(2, 3, 6, 6, generator=generator)
    expected = norm(networks.SameConv(weight, bias)(states)).relu()
    found = networks.SameConv(weight, bias, norm=norm.state_dict(), top=float("inf"))(states)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_eight_bits(networks, tmp_path) -> None:
    coded = torch.tensor([[0, 10], [128, 255]], dtype=torch.uint8)
    file = tmp_path / "weights.safetensors"
    save_file(
        {
            "head.weight_q": coded,
            "head.weight_scale": torch.tensor(0.5),
            "head.weight_zero": torch.tensor(10),
            "more": coded.clone(),
        },
        file,
    )
    tensors = networks.Tensors(file)
    assert tensors.weight("head").tolist() == [[-5, 0], [59, 122.5]]
    with pytest.raises(DataError, match=r"/weights\.safetensors: unknown .*: more\.$"):
        tensors.done()
    with pytest.raises(DataError, match=r"/weights\.safetensors: .*more\.bias .*missing"):
        tensors.take("more.bias")


def test_a_wrong_name_is_refused(networks) -> None:
    with pytest.raises(DistilvecError, match='"vww_mobilenet_v1".*"vww_mobilenet_v1_025"'):
        networks.load("vww_mobilenet_v1")


def test_resizing_of_an_item(networks) -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    found = networks.pixels(data_uri(image), 3)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float(), (3, 3), mode="bilinear"
    )
    assert torch.equal(found, expected)
    assert networks.pixels(data_uri(image[:, :4]), 4).permute(0, 2, 3, 1)[0].numpy().tolist() == image[:, :4].tolist()


def test_golden_features_of_a_small_network(networks, small_shared, monkeypatch) -> None:
    """Its weights lie in half precision in tests/data."""
    monkeypatch.setenv("DISTILVEC_DATA", str(small_shared))
    check_golden(networks, NAMES[0], 0.02)


@needs_shared
def test_golden_features(networks, subtests) -> None:
    """Four networks of 0.3 to 3.5 MB, and as functions."""
    for name in NAMES:
        with subtests.test(name=name):
            check_golden(networks, name, 1e-4)
    with subtests.test("teachers as functions"):
        check_functions(networks)


def check_golden(networks, name, tolerance) -> None:
    golden = np.load(SMALL / "models" / "goldens.npz")
    images = np.load(SMALL / "data" / "images" / "cifar10.npz")["test_images"][:8]
    items = [data_uri(image) for image in images]
    found = networks.embedder(name, batch_size=5)(items)
    np.testing.assert_allclose(found, golden[f"{name}/features"], rtol=tolerance, atol=tolerance)
    logits = networks.load(name).logits(torch.from_numpy(found)).numpy()
    np.testing.assert_allclose(logits, golden[f"{name}/logits"], rtol=tolerance, atol=tolerance)


def check_functions(networks) -> None:
    images = np.load(SHARED / "data" / "images" / "cifar10.npz")["test_images"][:3]
    items = [data_uri(image) for image in images]
    widths = {"mlperf_resnet8": 64, "vww_mobilenet": 256, "imagenet_mobilenet": 512, "birds_mobilenet": 1280}
    for name, width in widths.items():
        vectors = getattr(networks, name)(items)
        assert (vectors.shape, vectors.dtype) == ((3, width), np.float32)
        np.testing.assert_allclose(vectors[1:2], getattr(networks, name)(items[1:2]), rtol=1e-3, atol=1e-4)
    native = networks.embedder(NAMES[3])(items)
    assert not np.allclose(native, networks.birds_mobilenet(items), atol=1e-2)  # 96 pixels, not 224
    assert networks.birds_mobilenet([]).shape == (0, 1280)
