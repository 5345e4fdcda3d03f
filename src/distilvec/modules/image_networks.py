"""Pretrained convolutional networks for images, read from a classifier's file: a small ResNet and two MobileNets.

    resnet8       stem; x = relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))) in three stages
    mobilenet_v1  stem; 13 times a 3x3 convolution per channel, then a 1x1 convolution
    mobilenet_v2  stem; 17 times 1x1 to more channels, 3x3 per channel, 1x1 back (plus x, where it fits); 1x1

The embedding is the mean over height and width of what their classifiers read. All convolutions have a bias and "SAME"
padding, whose surplus lies below and to the right. This file and `cifar_resnet.py` are copied into the folder of every
model that has such a network, so they import nothing but torch, NumPy, Pillow and sentence-transformers. Such a model
opens with `trust_remote_code=True`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cifar_resnet import ImageModule

_V1 = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
_V2 = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)
#: Strides of the blocks.
_STRIDES = {"resnet8": (1, 2, 2), "mobilenet_v1": _V1, "mobilenet_v2": _V2}
#: What the published files see: height and width, mean and deviation of pixels in 0..1. By kind and by whether its
#: batch norms are there.
_INPUTS = {
    ("resnet8", True): (32, 0.0, 1 / 255),  # that is, 0..255
    ("mobilenet_v1", True): (96, 0.0, 1.0),
    ("mobilenet_v1", False): (160, 128 / 255, 128 / 255),
    ("mobilenet_v2", False): (224, 128 / 255, 128 / 255),
}
#: A tensor that only this kind has -> kind, and whether its batch norms are there.
_TELLING = {
    "stage1.conv1.weight": ("resnet8", True),
    "block1.pointwise.conv.weight": ("mobilenet_v1", True),
    "block1.pointwise.weight_q": ("mobilenet_v1", False),
    "block1.project.weight_q": ("mobilenet_v2", False),
}
_EPSILON = 1e-3


class ImageNetwork(ImageModule):
    """Images -> `sentence_embedding` [N, last of `channels`], non-negative.

    Args:
        kind: "resnet8", "mobilenet_v1" or "mobilenet_v2".
        channels: of the stem's output and of each block's (3, 13 or 17), and of the last convolution of a mobilenet_v2.
        norm: whether batch norms follow the convolutions; without, activations are cut at 6, as in the files of eight
            bits, whose batch norms are folded into their convolutions.
        image_size: height and width of what the network sees. Other images are resized to it.
        mean, std: per channel, of pixels in 0..1.

    Source: Howard et al. 2017 (MobileNet); Sandler et al. 2018 (MobileNetV2); Banbury et al. 2021 (MLPerf Tiny).
    """

    code = ("image_networks.py", "cifar_resnet.py")
    config_keys = ["kind", "channels", "norm", "image_size", "mean", "std"]  # noqa: RUF012
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "image_networks"

    def __init__(
        self,
        kind: str,
        channels: Sequence[int],
        norm: bool = True,
        image_size: int = 32,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        if kind not in _STRIDES:
            raise ValueError(f"kind is one of {', '.join(_STRIDES)}, not {kind}")
        strides = _STRIDES[kind]
        count = 1 + len(strides) + (kind == "mobilenet_v2")
        if len(channels) != count or min(channels) < 1 or image_size < 1:
            raise ValueError(
                f"{kind} has {count} channels, each at least 1 as image_size is, not {list(channels)} and {image_size}"
            )
        self.kind, self.channels, self.norm = kind, list(channels), norm
        self._see(image_size, mean, std)
        self.stem = _Unit(3, channels[0], 3, 1 if kind == "resnet8" else 2, norm)
        first = 0 if kind == "mobilenet_v2" else 1
        named: list[str] = []
        for number, stride in enumerate(strides):
            inputs, outputs = channels[number], channels[number + 1]
            named.append(f"{'stage' if kind == 'resnet8' else 'block'}{number + first}")
            self.add_module(named[-1], _block(kind, inputs, outputs, stride, norm, number > 0))
        self._blocks = named
        if kind == "mobilenet_v2":
            self.head = _Unit(channels[-2], channels[-1], 1, 1, norm)

    def get_embedding_dimension(self) -> int:
        return self.channels[-1]

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # Channels last: twice as fast on a processor, and the convolutions pass it on.
        states = features["pixel_values"].to(self.stem.conv.weight.dtype, memory_format=torch.channels_last)
        states = self.stem(states)
        for name in self._blocks:
            states = self.get_submodule(name)(states)
        if self.kind == "mobilenet_v2":
            states = self.head(states)
        features["sentence_embedding"] = states.mean((-2, -1))
        return features

    @staticmethod
    def is_of(names: Container[str]) -> bool:
        """Tell whether these are tensors of such a network."""
        return any(name in names for name in _TELLING)

    @classmethod
    def from_classifier(cls, path: str | Path, tensors: Mapping[str, Tensor]) -> ImageNetwork:
        """The network of a classifier's tensors; its last layer is left out.

        Kind and widths are read off the tensors. Weights of eight bits become floats, scale * (q - zero), so that they
        can be trained; what is shipped is in float32.

        Args:
            path: of the file, for messages.
            tensors: what it holds, of a network that `is_of` knows.
        """
        kind, norm = next(kind for name, kind in _TELLING.items() if name in tensors)
        size, mean, std = _INPUTS[kind, norm]
        try:
            own = _renamed({name: tensor for name, tensor in tensors.items() if not name.startswith(_LAST)}, norm)
            with torch.device("meta"):  # a file may ask for more than it holds: what is trained is the file's own
                network = cls(kind, _channels(kind, own), norm, size, [mean] * 3, [std] * 3)
        except KeyError as problem:
            raise ValueError(f"{path}: missing tensors: {problem}") from problem
        except (RuntimeError, ValueError) as problem:
            raise ValueError(f"{path}: {problem}") from problem
        return network._fill(path, own)


class _Same(nn.Conv2d):
    """A convolution with bias and "SAME" padding."""

    def forward(self, states: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        total = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in states.shape[-2:]]
        if any(size % 2 for size in total):
            states = functional.pad(
                states, [half for size in reversed(total) for half in (size // 2, size - size // 2)]
            )
            total = [0, 0]
        half = [size // 2 for size in total]
        return functional.conv2d(states, self.weight, self.bias, self.stride, half, groups=self.groups)


class _Unit(nn.Module):
    """Convolution, batch norm where there is one, activation where there is one: ReLU, cut at 6 without batch norms."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, norm: bool, groups: int = 1, active: bool = True
    ) -> None:
        super().__init__()
        self.conv = _Same(inputs, outputs, kernel, stride, groups=groups)
        self.bn: nn.Module = nn.BatchNorm2d(outputs, eps=_EPSILON) if norm else nn.Identity()
        self.top = (float("inf") if norm else 6.0) if active else None

    def forward(self, states: Tensor) -> Tensor:
        states = self.bn(self.conv(states))
        return states if self.top is None else states.clamp(0, self.top)


class _Residual(nn.Module):
    """Two 3x3 convolutions; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, change: bool) -> None:
        super().__init__()
        self.conv1 = _Same(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs, eps=_EPSILON)
        self.conv2 = _Same(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs, eps=_EPSILON)
        self.shortcut: nn.Module = _Same(inputs, outputs, 1, stride) if change else nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(states)))))
        return functional.relu(self.shortcut(states) + inner)


class _Separable(nn.Module):
    """3x3 per channel, then 1x1."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.depthwise = _Unit(inputs, inputs, 3, stride, norm, groups=inputs)
        self.pointwise = _Unit(inputs, outputs, 1, 1, norm)

    def forward(self, states: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(states))


class _Inverted(nn.Module):
    """1x1 to six times the channels (the first block: none), 3x3 per channel, 1x1 back without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool, wide: bool) -> None:
        super().__init__()
        inner = 6 * inputs if wide else inputs
        self.expand: nn.Module = _Unit(inputs, inner, 1, 1, norm) if wide else nn.Identity()
        self.depthwise = _Unit(inner, inner, 3, stride, norm, groups=inner)
        self.project = _Unit(inner, outputs, 1, 1, norm, active=False)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, states: Tensor) -> Tensor:
        inner = self.project(self.depthwise(self.expand(states)))
        return states + inner if self.adds else inner


def _block(kind: str, inputs: int, outputs: int, stride: int, norm: bool, later: bool) -> nn.Module:
    if kind == "resnet8":
        return _Residual(inputs, outputs, stride, change=later)
    if kind == "mobilenet_v1":
        return _Separable(inputs, outputs, stride, norm)
    return _Inverted(inputs, outputs, stride, norm, wide=later)


#: Names of the classifiers.
_LAST = ("linear.", "classifier.")


def _renamed(tensors: Mapping[str, Tensor], norm: bool) -> dict[str, Tensor]:
    """Tensors by this module's names; KeyError where the scale or the zero of a weight is missing."""
    if norm:
        return dict(tensors)
    renamed = {}
    for name, tensor in tensors.items():
        place, _, part = name.rpartition(".")
        if part == "weight_q":
            scale, zero = (tensors[f"{place}.weight_{each}"].float() for each in ("scale", "zero"))
            renamed[f"{place}.conv.weight"] = scale * (tensor.float() - zero)
        elif part not in ("weight_scale", "weight_zero"):
            renamed[f"{place}.conv.{part}"] = tensor
    return renamed


def _channels(kind: str, tensors: Mapping[str, Tensor]) -> list[int]:
    """Read the channels of stem, blocks and head; KeyError if a weight that they are read from is missing."""
    last = {
        "resnet8": "stage{}.conv2",
        "mobilenet_v1": "block{}.pointwise.conv",
        "mobilenet_v2": "block{}.project.conv",
    }
    start = 0 if kind == "mobilenet_v2" else 1
    names = ["stem.conv", *(last[kind].format(start + number) for number in range(len(_STRIDES[kind])))]
    names += ["head.conv"] if kind == "mobilenet_v2" else []
    return [(*tensors[f"{name}.weight"].shape, 0)[0] for name in names]
