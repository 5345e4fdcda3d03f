"""The pretrained image networks that are not CIFAR residual networks of the usual kind: teachers as functions.

    items = ["/images/1.png", "data:image/png;base64,..."]
    imagenet_mobilenet(items)  # float32 [2, 512]

Architectures, file layout and input rules: models/SPEC.md of the shared data, sections 2 to 5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from experiments.harness.script import shared
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from distilvec.corpus.images import open_image
from distilvec.errors import DataError, DistilvecError, nearest

STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
"""Of the 13 depthwise convolutions of a MobileNet V1."""

GROUPS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""(expansion, channels, blocks, first stride) of a MobileNet V2."""


class SameConv(nn.Module):
    """Convolution with "SAME" padding (the surplus below and to the right), batch norm where it has one, activation."""

    def __init__(
        self, weight: Tensor, bias: Tensor, stride: int = 1, norm: dict[str, Tensor] | None = None, top: float = 0.0
    ) -> None:
        """top: 0 = no activation, infinity = ReLU, 6 = clamped to 0..6."""
        super().__init__()
        if norm is not None:  # folded in: eps is 1e-3 in all of these
            factor = norm["weight"] * torch.rsqrt(norm["running_var"] + 1e-3)
            bias = (bias - norm["running_mean"]) * factor + norm["bias"]
            weight = weight * factor.view(-1, 1, 1, 1)
        self.weight, self.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        self.stride, self.top = stride, top

    def forward(self, states: Tensor) -> Tensor:
        kernel = self.weight.shape[-1]
        total = [max((-(-size // self.stride) - 1) * self.stride + kernel - size, 0) for size in states.shape[-2:]]
        padding = [half for size in reversed(total) for half in (size // 2, size - size // 2)]
        groups = states.shape[1] // self.weight.shape[1]
        states = functional.conv2d(
            functional.pad(states, padding), self.weight, self.bias, stride=self.stride, groups=groups
        )
        return states.clamp(0, self.top) if self.top else states


class Network(nn.Module):
    """Images [N, 3, size, size] in 0..255 -> features [N, width]; `logits` of features by its own last layer."""

    def __init__(self, body: nn.Module, weight: Tensor, bias: Tensor, size: int, shift: float, scale: float) -> None:
        super().__init__()
        self.body, self.size, self.shift, self.scale = body, size, shift, scale
        self.weight, self.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)

    def forward(self, pixels: Tensor) -> Tensor:
        states = ((pixels - self.shift) / self.scale).contiguous(memory_format=torch.channels_last)
        return self.body(states).mean((-2, -1))

    def logits(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight, self.bias)


class Residual(nn.Module):
    """ReLU (or nothing) of the sum of a chain and a shortcut."""

    def __init__(self, chain: nn.Module, shortcut: nn.Module | None = None, rectify: bool = True) -> None:
        super().__init__()
        self.chain, self.shortcut, self.rectify = chain, shortcut or nn.Identity(), rectify

    def forward(self, states: Tensor) -> Tensor:
        total = self.chain(states) + self.shortcut(states)
        return total.relu() if self.rectify else total


class Tensors:
    """A file's tensors by name; every one has to be used."""

    def __init__(self, file: Path) -> None:
        self.file, self._tensors = file, load_file(str(file))

    def take(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise DataError(f"the tensor {name} is missing", where=str(self.file))
        return self._tensors.pop(name).float()

    def weight(self, place: str) -> Tensor:
        """As it is, or from 8 bits: scale * (q - zero)."""
        if f"{place}.weight" in self._tensors:
            return self.take(f"{place}.weight")
        coded, scale, zero = (self.take(f"{place}.weight_{part}") for part in ("q", "scale", "zero"))
        return scale * (coded - zero)

    def conv(self, place: str, norm: str | None = None, **settings: Any) -> SameConv:
        statistics = None
        if norm is not None:
            names = ("weight", "bias", "running_mean", "running_var")
            statistics = {name: self.take(f"{norm}.{name}") for name in names}
        return SameConv(self.weight(place), self.take(f"{place}.bias"), norm=statistics, **settings)

    def done(self) -> None:
        if self._tensors:
            raise DataError(f"unknown tensors: {', '.join(sorted(self._tensors))}", where=str(self.file))


def read_mlperf_resnet8(file: Path) -> Network:
    tensors, relu = Tensors(file), float("inf")
    stages: list[nn.Module] = [tensors.conv("stem.conv", "stem.bn", top=relu)]
    for stage in (1, 2, 3):
        place, stride = f"stage{stage}", 1 if stage == 1 else 2
        chain = nn.Sequential(
            tensors.conv(f"{place}.conv1", f"{place}.bn1", stride=stride, top=relu),
            tensors.conv(f"{place}.conv2", f"{place}.bn2"),
        )
        stages.append(Residual(chain, tensors.conv(f"{place}.shortcut", stride=2) if stage > 1 else None))
    return _network(tensors, stages, "linear", 32, 0.0, 1.0)


def read_vww_mobilenet(file: Path) -> Network:
    tensors, relu = Tensors(file), float("inf")
    blocks = [tensors.conv("stem.conv", "stem.bn", stride=2, top=relu)]
    for number, stride in enumerate(STRIDES, 1):
        for part, step in (("depthwise", stride), ("pointwise", 1)):
            place = f"block{number}.{part}"
            blocks.append(tensors.conv(f"{place}.conv", f"{place}.bn", stride=step, top=relu))
    return _network(tensors, blocks, "linear", 96, 0.0, 255.0)


def read_imagenet_mobilenet(file: Path) -> Network:
    tensors = Tensors(file)
    blocks = [tensors.conv("stem", stride=2, top=6.0)]
    for number, stride in enumerate(STRIDES, 1):
        blocks.append(tensors.conv(f"block{number}.depthwise", stride=stride, top=6.0))
        blocks.append(tensors.conv(f"block{number}.pointwise", top=6.0))
    return _network(tensors, blocks, "classifier", 160, 128.0, 128.0)


def read_birds_mobilenet(file: Path) -> Network:
    tensors = Tensors(file)
    blocks: list[nn.Module] = [tensors.conv("stem", stride=2, top=6.0)]
    number, inputs = 0, 32
    for expansion, channels, count, first in GROUPS:
        for repeat in range(count):
            place, stride = f"block{number}", first if repeat == 0 else 1
            chain = [tensors.conv(f"{place}.expand", top=6.0)] if expansion > 1 else []
            chain += [tensors.conv(f"{place}.depthwise", stride=stride, top=6.0), tensors.conv(f"{place}.project")]
            block: nn.Module = nn.Sequential(*chain)
            blocks.append(Residual(block, rectify=False) if stride == 1 and inputs == channels else block)
            number, inputs = number + 1, channels
    blocks.append(tensors.conv("head", top=6.0))
    return _network(tensors, blocks, "classifier", 224, 128.0, 128.0)


def _network(tensors: Tensors, body: Sequence[nn.Module], last: str, size: int, shift: float, scale: float) -> Network:
    network = Network(
        nn.Sequential(*body), tensors.weight(last).flatten(1), tensors.take(f"{last}.bias"), size, shift, scale
    )
    tensors.done()
    return network.eval()


NETWORKS: dict[str, Callable[[Path], Network]] = {
    "cifar10_mlperf_resnet8": read_mlperf_resnet8,
    "vww_mobilenet_v1_025": read_vww_mobilenet,
    "imagenet_mobilenet_v1_050_160": read_imagenet_mobilenet,
    "inat_birds_mobilenet_v2_224": read_birds_mobilenet,
}


def load(name: str) -> Network:
    """A network by the name of its file, from the shared data.

    Raises:
        DistilvecError: there is no such network.
        DataError: the file lacks a tensor or has others.
    """
    if name not in NETWORKS:
        raise DistilvecError(f'unknown network "{name}"', remedy=nearest(name, NETWORKS))
    return NETWORKS[name](shared() / "models" / f"{name}.safetensors")


def embedder(
    name: str, resolution: int | None = None, batch_size: int = 64
) -> Callable[[Sequence[str]], npt.NDArray[np.float32]]:
    """A function from images (paths or data URIs) to features [n, width].

    Args:
        name: of the network's file.
        resolution: height and width that images are resized to (bilinear, half-pixel centres, no rounding); the
            network's own where not given. The birds' network takes any multiple of 32.
        batch_size: images at once.
    """
    network = load(name)
    size = resolution or network.size

    @torch.inference_mode()
    def embed(items: Sequence[str]) -> npt.NDArray[np.float32]:
        parts = [
            network(torch.cat([pixels(item, size) for item in items[start : start + batch_size]])).numpy()
            for start in range(0, len(items), batch_size)
        ]
        return np.concatenate(parts) if parts else np.empty((0, network.weight.shape[1]), dtype=np.float32)

    return embed


def pixels(item: str, size: int) -> Tensor:
    """float32 [1, 3, size, size] in 0..255."""
    image = torch.from_numpy(np.asarray(open_image(item), dtype=np.float32)).permute(2, 0, 1).unsqueeze(0)
    if image.shape[-2:] == (size, size):
        return image
    return functional.interpolate(image, (size, size), mode="bilinear", align_corners=False)


_embedder = functools.lru_cache(maxsize=None)(embedder)


def mlperf_resnet8(items: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n, 64], trained on CIFAR-10."""
    return _embedder("cifar10_mlperf_resnet8")(items)


def vww_mobilenet(items: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n, 256], trained on person or no person: most channels are dead, a weak teacher on purpose."""
    return _embedder("vww_mobilenet_v1_025")(items)


def imagenet_mobilenet(items: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n, 512], trained on ImageNet, 160 pixels."""
    return _embedder("imagenet_mobilenet_v1_050_160")(items)


def birds_mobilenet(items: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n, 1280], trained on bird species, at 96 pixels, which costs a fifth of its own 224."""
    return _embedder("inat_birds_mobilenet_v2_224", 96)(items)
