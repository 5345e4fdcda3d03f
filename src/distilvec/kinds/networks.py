"""Students that are no transformers: networks of images and molecules with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilvec.errors import DistilvecError
from distilvec.extras import need

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


def fresh_molecule(kind: str = "gine", layers: int = 10, width: int = 512, dropout: float = 0.0) -> SentenceTransformer:
    """A model that embeds SMILES strings, with random weights (torch's global generator), on the CPU.

    Args:
        kind: "gine" (the only one besides "gat" that looks at bond types), "gin", "gcn", "sage", "gat" or "tag".
        layers: rounds of message passing.
        width: d, of the states and of the embeddings; a multiple of 4 for "gat".
        dropout: after each layer, in training, in [0, 1).

    Raises:
        DistilvecError: an argument is outside its range.
        EnvironmentProblem: RDKit or torch-geometric is not installed.
    """
    need("A student of molecules", "molecules", "rdkit", "torch_geometric")
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.molecule import MoleculeEncoder

    try:
        return SentenceTransformer(modules=[MoleculeEncoder(kind, layers, width, dropout)], device="cpu")
    except ValueError as problem:
        raise DistilvecError(str(problem), where="student.molecule") from problem
