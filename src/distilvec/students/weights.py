"""A pretrained student of images or molecules, from one file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.errors import DataError, DistilvecError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SUFFIX = ".safetensors"


def open_weights(path: Path, device: str | None = None) -> SentenceTransformer:
    """The network of a safetensors file as a student, in float32; what its classifier was is left out.

    Which network it is, its keys say: a CIFAR residual network of 6 n + 2 layers, or a graph network on molecules (gcn,
    graphsage, gat, molclr; between the first two the file's name tells). These are the files that can be teachers, but
    for the chemical VAE, whose strings of characters no student reads.

    Args:
        device: default is the processor.

    Raises:
        DataError: no such file, a damaged one, or not one of these networks.
        DistilvecError: a network that is a teacher only, or one that the keys leave open.
    """
    from distilvec.modules.network_files import holds_cifar_network, read_network

    if not path.is_file():
        raise DataError("there is no such file", where=str(path), remedy="Check the path.")
    if holds_cifar_network(path):
        from distilvec.modules.cifar_resnet import CifarResNet, image_model

        try:
            return image_model(CifarResNet.from_classifier(path), device or "cpu")
        except ValueError as problem:
            raise DataError(str(problem), where=str(path)) from problem
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.molecule_networks import GraphEncoder, GraphNetwork

    kind, network = read_network(path)
    if not isinstance(network, GraphNetwork):
        raise DistilvecError(
            f"a network of kind {kind} can be a teacher, and no student",
            where=str(path),
            remedy="Choose one of the graph networks, or student.molecule.",
        )
    return SentenceTransformer(modules=[GraphEncoder.of(network)], device=device or "cpu")
