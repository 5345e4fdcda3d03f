"""A student that reads molecules: a graph network with random weights."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from distilvec.errors import DistilvecError, EnvironmentProblem, nearest

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
    missing = [name for name in ("rdkit", "torch_geometric") if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"students of molecules need {' and '.join(missing)}", remedy='pip install "distilvec[molecules]"'
        )
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.molecule import KINDS, MoleculeEncoder

    if kind not in KINDS:
        raise DistilvecError(f'there is no kind of molecule encoder "{kind}"', remedy=nearest(kind, KINDS))
    try:
        encoder = MoleculeEncoder(kind, layers, width, dropout)
    except ValueError as problem:
        raise DistilvecError(str(problem)) from problem
    return SentenceTransformer(modules=[encoder], device="cpu")
