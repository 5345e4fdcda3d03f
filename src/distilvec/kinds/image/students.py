"""A student that reads images: a small residual network with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilvec.errors import DistilvecError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def fresh_resnet(depth: int = 20, width: int = 16, image_size: int = 32) -> SentenceTransformer:
    """A model that embeds images, with random weights (torch's global generator), on the CPU.

    Args:
        depth: 6 n + 2.
        width: channels of the first stage; the vector is four times as wide.
        image_size: height and width that images are resized to.

    Raises:
        DistilvecError: an argument is outside its range.
    """
    from distilvec.modules.cifar_resnet import CifarResNet, image_model

    try:
        return image_model(CifarResNet(depth, width, image_size))
    except ValueError as problem:
        raise DistilvecError(str(problem), where="student.resnet") from problem
