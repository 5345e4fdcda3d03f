"""Image networks with random weights, and the tensors of their files."""

from __future__ import annotations

import torch
from torch import Tensor

from distilvec.modules.image_networks import ImageNetwork

#: Of a MobileNet V1 and V2: first strides, as published.
V1 = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
V2 = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)


def layers_of(kind: str) -> list[tuple[str, str | None, int, int, int, int, int]]:
    """Convolution, batch norm, inputs, outputs, kernel, stride and groups, in the order of computation."""
    if kind == "resnet8":
        found: list = [("stem.conv", "stem.bn", 3, 4, 3, 1, 1)]
        for stage, inputs, outputs, stride in ((1, 4, 4, 1), (2, 4, 6, 2), (3, 6, 8, 2)):
            found += [
                (f"stage{stage}.conv1", f"stage{stage}.bn1", inputs, outputs, 3, stride, 1),
                (f"stage{stage}.conv2", f"stage{stage}.bn2", outputs, outputs, 3, 1, 1),
            ]
            found += [(f"stage{stage}.shortcut", None, inputs, outputs, 1, stride, 1)] if stage > 1 else []
        return found
    place, norm = ("{}.conv", "{}.bn") if kind == "v1" else ("{}", "")
    parts = [("stem", 3, 6, 3, 2, 1)]
    width = 6
    for number, stride in enumerate(V2 if kind.startswith("v2") else V1):
        after = 6 + number // 3
        if kind.startswith("v2"):
            inner = 6 * width if number else width
            parts += [(f"block{number}.expand", width, inner, 1, 1, 1)] if number else []
            parts += [(f"block{number}.depthwise", inner, inner, 3, stride, inner)]
            parts += [(f"block{number}.project", inner, after, 1, 1, 1)]
        else:
            parts += [(f"block{number + 1}.depthwise", width, width, 3, stride, width)]
            parts += [(f"block{number + 1}.pointwise", width, after, 1, 1, 1)]
        width = after
    parts += [("head", width, 12, 1, 1, 1)] if kind.startswith("v2") else []
    return [(place.format(name), norm.format(name) or None, *sizes) for name, *sizes in parts]


def tensors_of(kind: str) -> dict[str, Tensor]:
    """Random weights with the layout of the files, and a classifier behind."""
    generator = torch.Generator().manual_seed(0)
    found = {"linear.bias": torch.zeros(3)} if kind in ("resnet8", "v1") else {"classifier.bias": torch.zeros(3)}
    for place, norm, inputs, outputs, kernel, _, groups in layers_of(kind):
        shape = (outputs, inputs // groups, kernel, kernel)
        found[f"{place}.bias"] = torch.randn(outputs, generator=generator) / 4
        if "eight" in kind:
            found[f"{place}.weight_q"] = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            found[f"{place}.weight_scale"] = torch.tensor(
                1 / (40 if kind.startswith("v1") else 50) / (shape[1] * kernel * kernel) ** 0.5
            )
            found[f"{place}.weight_zero"] = torch.tensor(125)
        else:
            found[f"{place}.weight"] = 2 * torch.randn(shape, generator=generator) / (shape[1] * kernel * kernel) ** 0.5
        for part in ("weight", "bias", "running_mean", "running_var") if norm else ():
            found[f"{norm}.{part}"] = torch.rand(outputs, generator=generator) + 0.2 - float(part == "running_mean")
    return found


def network(kind: str, image_size: int | None = None) -> ImageNetwork:
    made = ImageNetwork.from_classifier("net.safetensors", tensors_of(kind))
    made.image_size = image_size or made.image_size
    return made
