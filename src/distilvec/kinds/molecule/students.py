"""A student that reads molecules: a graph network with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilvec.errors import DistilvecError
from distilvec.extras import need

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


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
        encoder = MoleculeEncoder(kind, layers, width, dropout)
    except ValueError as problem:
        raise DistilvecError(str(problem)) from problem
    return SentenceTransformer(modules=[encoder], device="cpu")
