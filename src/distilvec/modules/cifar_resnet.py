"""A small residual network for images, as a sentence-transformers module that brings its own code along.

    h = relu(bn(conv(x)));  h = relu(bn(conv(relu(bn(conv(h))))) + shortcut(h)), n times in each of 3 stages;
    y = mean of h over height and width

This file is copied into the folder of every model that has such a network, so it imports nothing but torch, numpy,
Pillow and sentence-transformers. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from typing import Self

    from sentence_transformers import SentenceTransformer

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "DIB", "TIFF", "WEBP")  # pixels only: Pillow opens EPS by running a program


class ImageModule(InputModule):
    """The base of modules on images: how images are read, and how a folder is opened.

    An image is a PIL image, the path of a file, a data URI "data:image/...;base64,..." or a uint8 array [h, w],
    [h, w, 1] or [h, w, 3]. A module has the attributes `image_size`, to which images of another size are resized, and
    `mean` and `std`: what the network sees is (x / 255 - mean) / std, per channel.
    """

    item = "image"
    save_in_root = False
    #: Files with the code of the class, which ship with the model.
    code: tuple[str, ...] = ("cifar_resnet.py",)
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def modalities(self) -> list[Any]:
        """Images only."""
        return ["image"]

    def prepare(self, items: Sequence[Any]) -> list[npt.NDArray[Any]]:
        """Each image as an array in 0..255, compact enough to be kept.

        uint8 [3, h, w], its own pixels, where these are no more than the network sees; else it is resized here, and
        float16 [3, image_size, image_size] keeps an eighth of a level at the bright end.

        Raises:
            ValueError: an item is not an image, or cannot be read, with the item concerned.
        """
        rgb = [np.ascontiguousarray(_rgb(item).transpose(2, 0, 1)) for item in items]
        return [each if each[0].size <= self.image_size**2 else self._resized(each)[0].half().numpy() for each in rgb]

    def collate(self, prepared: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
        """`pixel_values` float32 [N, 3, image_size, image_size]: (x / 255 - mean) / std."""
        pixels = torch.cat([self._resized(each) for each in prepared])
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return {"pixel_values": pixels.div_(255).sub_(mean).div_(std)}

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Images -> `pixel_values`; a prompt means nothing here."""
        return self.collate(self.prepare(inputs))

    @classmethod
    def load(cls, *place: Any, **options: Any) -> Self:
        of_place = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        more = {name: options[name] for name in of_place if name in options}
        more["model"] = super().load(*place, **options)
        return cls.load_torch_weights(*place, **more)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write configuration and weights to the module's folder, and the code to the model's, its parent."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
        for name in self.code:
            shutil.copyfile(Path(__file__).with_name(name), Path(output_path).resolve().parent / name)

    def __reduce__(self) -> tuple[Any, ...]:
        # By the name of the class's own file, as its functions have it: that of the class is none that another process
        # can import.
        return _empty, (type(self).forward.__module__, type(self).__name__), self.__getstate__()

    def _see(self, image_size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean and std hold one number for each of 3 channels, std above 0, not {mean} and {std}")
        self.image_size, self.mean, self.std = image_size, tuple(map(float, mean)), tuple(map(float, std))

    def _fill(self, path: str | Path, tensors: Mapping[str, Tensor]) -> Self:
        """Take the tensors of a classifier's file, in float32, as this network's own."""
        # Copies: the file's own are its pages, which go when it is written again.
        own = {name: (each.float() if each.is_floating_point() else each).clone() for name, each in tensors.items()}
        counters = {name: torch.tensor(0) for name in self.state_dict() if name.endswith("num_batches_tracked")}
        own, expected = counters | own, self.state_dict().keys()
        for what, names in (("missing", expected - own.keys()), ("unknown", own.keys() - expected)):
            if names:
                raise ValueError(f"{path}: {what} tensors: {', '.join(sorted(names))}")
        try:
            self.load_state_dict(own, assign=True)
        except RuntimeError as problem:
            raise ValueError(f"{path}: {problem}") from problem
        return self.eval()

    def _resized(self, pixels: npt.NDArray[Any]) -> Tensor:
        """float32 [1, 3, image_size, image_size]."""
        wide, size = torch.tensor(pixels, dtype=torch.float32).unsqueeze(0), (self.image_size, self.image_size)
        # Half-pixel centres, no antialiasing, no rounding: what the pretrained networks were checked with.
        same = wide.shape[-2:] == size
        return wide if same else functional.interpolate(wide, size, mode="bilinear", align_corners=False)


class CifarResNet(ImageModule):
    """Residual network of CIFAR style: images -> `sentence_embedding` [N, 4 * width], non-negative.

    Three stages of n basic blocks with `width`, 2 `width` and 4 `width` channels; shortcuts without parameters
    (every second pixel, new channels zero).

    Args:
        depth: 6 n + 2 with n >= 1; 20, 32, 44, 56 are the usual ones.
        width: channels of the first stage, at least 1; 16 in the paper.
        image_size: height and width of what the network sees, at least 4. Other images are resized to it.
        mean, std: per channel, of pixels in 0..1.

    Raises:
        ValueError: a depth that is not 6 n + 2, a size out of range, or not three means and deviations.

    Source: He et al. 2016, "Deep residual learning for image recognition", section 4.2, option A.
    """

    config_keys = ["depth", "width", "image_size", "mean", "std"]  # noqa: RUF012
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "cifar_resnet"

    def __init__(
        self,
        depth: int = 20,
        width: int = 16,
        image_size: int = 32,
        mean: Sequence[float] = _MEAN,
        std: Sequence[float] = _STD,
    ) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth is 6 n + 2 (20, 32, 44, 56, ...), not {depth}")
        if width < 1 or image_size < 4:
            raise ValueError(f"width is at least 1 and image_size at least 4, not {width} and {image_size}")
        self.depth, self.width = depth, width
        self._see(image_size, mean, std)
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, blocks)
        self.layer2 = _stage(width, 2 * width, blocks)
        self.layer3 = _stage(2 * width, 4 * width, blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_embedding_dimension(self) -> int:
        return 4 * self.width

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # Channels last: twice as fast on a processor, and the convolutions pass it on.
        states = features["pixel_values"].to(self.conv1.weight.dtype, memory_format=torch.channels_last)
        states = functional.relu(self.bn1(self.conv1(states)))
        states = self.layer3(self.layer2(self.layer1(states)))
        features["sentence_embedding"] = states.mean((-2, -1))
        return features

    @classmethod
    def from_classifier(cls, path: str | Path, tensors: Mapping[str, Tensor]) -> CifarResNet:
        """The network of a classifier's tensors; its last layer, `linear`, is left out.

        Depth and width are read off the tensors, whose names are this class's own.

        Args:
            path: of the file, for messages.
            tensors: what it holds.

        Raises:
            ValueError: tensors are missing or unknown (named), or of another shape.
        """
        blocks = [int(found[1]) for name in tensors if (found := re.match(r"layer1\.(\d+)\.", name))]
        if not blocks or "conv1.weight" not in tensors:
            raise ValueError(f"{path}: not a CIFAR residual network, conv1.weight or layer1 is missing")
        network = cls(6 * (max(blocks) + 1) + 2, len(tensors["conv1.weight"]))
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("linear.")}
        return network._fill(path, own)


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut that has no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = ((outputs - inputs) // 2, (outputs - inputs + 1) // 2)

    def forward(self, states: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(states)))
        inner = self.bn2(self.conv2(inner))
        if self.stride > 1:
            states = functional.pad(states[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.new_channels))
        return functional.relu(inner + states)


def image_model(network: ImageModule, device: str = "cpu") -> SentenceTransformer:
    """A `SentenceTransformer` of this network alone; its `encode` takes all that `ImageModule` takes."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(modules=[network], device=device).eval()


def _empty(file: str, name: str) -> Any:
    kind = getattr(import_module(file), name)
    return kind.__new__(kind)


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    """`blocks` blocks, the first with stride 2 where the number of channels grows."""
    first = _Block(inputs, outputs, 1 if inputs == outputs else 2)
    return nn.Sequential(first, *(_Block(outputs, outputs, 1) for _ in range(blocks - 1)))


def _rgb(item: Any) -> npt.NDArray[np.uint8]:
    """uint8 [h, w, 3] of anything that is an image; grey values three times, transparency on white."""
    if isinstance(item, np.ndarray | Tensor):
        return _rgb_array(np.asarray(item))
    if isinstance(item, Image.Image):
        return _pixels(item)
    if not isinstance(item, str | Path):
        raise ValueError(f"an image is a PIL image, a path, a data URI or a uint8 array, not a {type(item).__name__}")
    try:
        with Image.open(_source(str(item)), formats=_FORMATS) as image:
            return _pixels(image)
    except (OSError, SyntaxError, ValueError, binascii.Error, Image.DecompressionBombError) as problem:
        raise ValueError(f"this image cannot be read: {str(item)[:120]} ({problem})") from problem


def _source(item: str) -> str | io.BytesIO:
    if not item.startswith("data:"):
        return item
    head, comma, code = item.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError('a data URI starts with "data:image/png;base64," or the like')
    return io.BytesIO(base64.b64decode(code, validate=True))


def _pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    """As a corpus of distilvec reads them: upright, 16 bits scaled to 8, transparency on white."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("more than 16 bits")
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, (255, 255, 255, 255)), layers)
    return np.asarray(image.convert("RGB"))


def _rgb_array(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    shape = pixels.shape
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size:
        raise ValueError(f"an image array is uint8 [h, w], [h, w, 1] or [h, w, 3], not {pixels.dtype} {list(shape)}")
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
