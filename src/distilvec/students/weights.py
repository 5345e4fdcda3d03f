"""A pretrained student of images or molecules, from one file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.errors import DataError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SUFFIX = ".safetensors"


def open_weights(path: Path, device: str | None = None) -> SentenceTransformer:
    """The network of a safetensors file as a student, in float32; what its classifier was is left out.

    Which network it is, its keys say: of images a CIFAR residual network of 6 n + 2 layers, the ResNet-8 of MLPerf or a
    MobileNet; of molecules a graph network (gcn, graphsage, gat, molclr; between the first two the file's name tells)
    or the chemical VAE's encoder. These are the files that can be teachers.

    Args:
        device: default is the processor.

    Raises:
        DataError: no such file, a damaged one, or not one of these networks.
        DistilvecError: a network that the keys leave open.
    """
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.cifar_resnet import image_model
    from distilvec.modules.molecule_networks import GraphEncoder, GraphNetwork
    from distilvec.modules.network_files import read_image_network, read_network
    from distilvec.modules.smiles_network import SmilesEncoder

    if not path.is_file():
        raise DataError("there is no such file", where=str(path), remedy="Check the path.")
    if (of_images := read_image_network(path)) is not None:
        return image_model(of_images, device or "cpu")
    _, network = read_network(path)
    encoder = GraphEncoder.of(network) if isinstance(network, GraphNetwork) else SmilesEncoder.of(network)
    return SentenceTransformer(modules=[encoder], device=device or "cpu")
