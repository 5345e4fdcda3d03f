"""Teachers of SMILES strings: pretrained networks from a file, Morgan fingerprints, descriptors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DataError
from distilvec.extras import need
from distilvec.modules.network_files import read_network
from distilvec.modules.smiles_network import canonical
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, fingerprint, hash_file

__all__ = ["MoleculeNetwork", "MoleculeTeacher", "descriptors", "molecule_teacher", "morgan"]

_BATCH = 256


class MoleculeNetwork:
    """A frozen network from a file: SMILES strings to vectors, float32 [n, width].

    Attributes:
        kind: "gcn", "graphsage", "gat", "molclr" or "chemvae".
        width: D.
        parameters: number of weights.
    """

    def __init__(
        self, path: str | Path, kind: str | None = None, features: bool = False, device: str | None = None
    ) -> None:
        """Read a safetensors file.

        Args:
            path: of a graph network ("gcn", "graphsage" or "gat" of Hu et al. 2020, "molclr", five layers of 300 as
                published) or of the chemical VAE's encoder ("chemvae").
            kind: which of them it is; None = told by the file's keys, and by its name between "gcn" and "graphsage",
                whose keys are the same.
            features: molclr only: the 512 features that its pretraining's projection starts from, in place of the mean
                of the atoms (300).
            device: None = the best there is.

        Raises:
            DataError: no such file, not a safetensors file, keys or shapes of another network.
            DistilvecError: no such kind, the kind cannot be told, or features of another kind than molclr.
        """
        self.kind, network = read_network(path, kind, features)
        need("A teacher of molecules", "molecules", "rdkit")
        self.width = network.width
        self.parameters = sum(parameter.numel() for parameter in network.parameters())
        self._where = str(path)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._network = network.eval().requires_grad_(False).to(device)

    def __call__(self, smiles: Sequence[str]) -> np.ndarray:
        """float32 [n, width], in the order of the strings."""
        vectors = np.zeros((len(smiles), self.width), np.float32)
        for start in range(0, len(smiles), _BATCH):
            vectors[start : start + _BATCH] = self._batch(smiles[start : start + _BATCH])
        return vectors

    def _batch(self, smiles: Sequence[str]) -> np.ndarray:
        try:
            with torch.inference_mode():
                vectors: Tensor = self._network(canonical(smiles) if self.kind == "chemvae" else smiles)
        except ValueError as problem:
            raise DataError(str(problem), where=self._where) from problem
        return vectors.cpu().numpy()


#: The network of a file, as a function of one's own.
molecule_teacher = MoleculeNetwork


class MoleculeTeacher(Teacher):
    """A pretrained network over molecules as a teacher of SMILES strings.

    Attributes:
        card: who it is. Its fingerprint covers the file's content and the kind of network.
    """

    can = Capabilities(local=True)

    def __init__(self, path: Path, *, name: str = "teacher", device: str | None = None) -> None:
        """Read the file; errors as of `MoleculeNetwork`."""
        self._network = MoleculeNetwork(path, device=device)
        self.card = TeacherCard(
            name=name,
            kind="molecule",
            source=str(path),
            fingerprint=fingerprint(hash_file(path), self._network.kind, False),
            width=self._network.width,
            pooling=None if self._network.kind == "chemvae" else "mean",
            normalized=False,
            parameters=self._network.parameters,
            size_bytes=path.stat().st_size,
        )

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(texts), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(texts)))
            yield rows, self._network(texts[start : start + _BATCH])


def morgan(smiles: Sequence[str], bits: int = 2048, radius: int = 2, counts: bool = False) -> np.ndarray:
    """Morgan fingerprints, float32 [n, bits]: which circular surroundings of atoms a molecule has, by hashed place.

    Args:
        bits: width.
        radius: bonds around an atom; 2 corresponds to ECFP4. Chirality is not looked at.
        counts: how often, in place of whether (0 or 1).

    Raises:
        DataError: a string that RDKit cannot read.
        EnvironmentProblem: RDKit is not installed.

    Source: Rogers and Hahn 2010.
    """
    molecules = _molecules(smiles, "morgan")
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=bits)
    one: Callable[[Any], np.ndarray] = (
        generator.GetCountFingerprintAsNumPy if counts else generator.GetFingerprintAsNumPy
    )
    vectors = np.zeros((len(molecules), bits), np.float32)
    for row, molecule in enumerate(molecules):
        vectors[row] = one(molecule)
    return vectors


def descriptors(smiles: Sequence[str]) -> np.ndarray:
    """RDKit's descriptors in its order, float32 [n, D]: weight, logP, surface areas, counts of fragments and so on.

    D depends on the version of RDKit (217 in 2026.09). What RDKit cannot compute (partial charges of rare elements)
    is NaN or infinite there and 0 here; what is beyond float32 is clipped to its range. Their scales differ by many
    orders of magnitude: standardise.

    Raises:
        DataError: a string that RDKit cannot read.
        EnvironmentProblem: RDKit is not installed.
    """
    molecules = _molecules(smiles, "descriptors")
    from rdkit import rdBase
    from rdkit.Chem import Descriptors

    with rdBase.BlockLogs():
        rows = [list(Descriptors.CalcMolDescriptors(molecule, missingVal=np.nan).values()) for molecule in molecules]
    values = np.array(rows, np.float64).reshape(len(rows), len(Descriptors.descList))
    edge = float(np.finfo(np.float32).max)
    return np.clip(np.where(np.isfinite(values), values, 0.0), -edge, edge).astype(np.float32)


def _molecules(smiles: Sequence[str], where: str) -> list[Any]:
    need("A teacher of molecules", "molecules", "rdkit")
    from rdkit import Chem, rdBase

    molecules = []
    with rdBase.BlockLogs():
        for text in smiles:
            # The parser would take what follows white space for the molecule's name.
            molecule = Chem.MolFromSmiles(text) if len(text.split()) == 1 else None
            if molecule is None or molecule.GetNumAtoms() == 0:
                raise DataError(f"not a SMILES string that RDKit can read: {text[:200]!r}", where=where)
            molecules.append(molecule)
    return molecules
