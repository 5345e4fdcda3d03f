"""The chemical VAE's encoder over the characters of a SMILES, frozen and as a sentence-transformers module to train.

The parameters are named as in the file, so that a file is checked by its keys alone. This file and `molecule.py` are
copied into the folder of every model that starts with such a network, so they import nothing but torch, NumPy and
sentence-transformers, and RDKit when a molecule is read. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .molecule import MoleculeModule, molecules_of, normed

# The one-hot code of a character; the last is the padding. From the model's own character list.
CHARACTERS = r"76o]3s(-S/B4[)#IlOHc1@=nP8C2F5rN+\ "
LENGTH = 120


class SmilesNetwork(nn.Module):
    """Three convolutions over the characters of a SMILES and two dense layers, each with tanh and then normalisation.

    A string is cut at 120 characters and padded with spaces. Characters that the network was not trained on are left
    empty.

    Source: Gomez-Bombarelli et al. 2018 (chemical VAE, the encoder's mean).
    """

    width = 196

    def __init__(self) -> None:
        super().__init__()
        sizes = ((len(CHARACTERS), 9, 9), (9, 9, 9), (9, 10, 11))
        self.conv0, self.conv1, self.conv2 = (nn.Conv1d(*size) for size in sizes)
        self.bn0, self.bn1, self.bn2 = (nn.BatchNorm1d(size[1], eps=1e-3) for size in sizes)
        self.dense = nn.Linear(10 * 94, self.width)
        self.bn_dense = nn.BatchNorm1d(self.width, eps=1e-3)
        self.z_mean = nn.Linear(self.width, self.width)

    def forward(self, smiles: Sequence[str]) -> Tensor:
        """float32 [N, 196] of canonical SMILES."""
        return self.embed(torch.from_numpy(codes_of(smiles)).to(self.z_mean.weight.device))

    def embed(self, codes: Tensor) -> Tensor:
        """[N, 196] of what `codes_of` gives, on the network's device."""
        # One code more, for unknown characters, whose column is taken off again.
        hot = functional.one_hot(codes.long(), len(CHARACTERS) + 1)[..., :-1]
        states = hot.to(self.z_mean.weight.dtype).transpose(1, 2)
        for convolution, norm in ((self.conv0, self.bn0), (self.conv1, self.bn1), (self.conv2, self.bn2)):
            states = norm(convolution(states).tanh())
        dense = self.dense(states.transpose(1, 2).flatten(1)).tanh()
        return self.z_mean(normed(self.bn_dense, dense))


class SmilesEncoder(MoleculeModule):
    """SMILES strings to `sentence_embedding` [N, 196] by a `SmilesNetwork`, to be trained on.

    Strings are brought to RDKit's canonical form first, so the embedding is a property of the molecule.

    Source: as of `SmilesNetwork`.
    """

    code = ("smiles_network.py", "molecule.py")
    config_keys: list[str] = []  # noqa: RUF012  its sizes are those of the file
    width = SmilesNetwork.width
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "smiles_network"

    def __init__(self) -> None:
        super().__init__()
        self.network = SmilesNetwork()

    @classmethod
    def of(cls, network: SmilesNetwork) -> SmilesEncoder:
        """A network that was read from a file."""
        encoder = cls()
        encoder.network.load_state_dict(network.state_dict())
        return encoder

    def prepare(self, items: Sequence[str]) -> list[Any]:
        """uint8 [120] per SMILES; see `codes_of`."""
        return list(codes_of(canonical(items)))

    def collate(self, prepared: Sequence[Any]) -> dict[str, Tensor]:
        """ "codes" uint8 [N, 120]."""
        return {"codes": torch.from_numpy(np.stack(prepared))}

    def repeat(self, features: dict[str, Tensor], views: int) -> dict[str, Tensor]:
        """The batch V times over."""
        return {"codes": features["codes"].repeat(views, 1)}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features["sentence_embedding"] = self.network.embed(features["codes"])
        return features


def codes_of(smiles: Sequence[str]) -> np.ndarray:
    """uint8 [N, 120]: the place of each character in `CHARACTERS`, one more for those that are not among them."""
    places = {character: code for code, character in enumerate(CHARACTERS)}
    rows = [[places.get(c, len(CHARACTERS)) for c in text[:LENGTH].ljust(LENGTH)] for text in smiles]
    return np.array(rows, np.uint8).reshape(-1, LENGTH)


def canonical(smiles: Sequence[str]) -> list[str]:
    """Each SMILES in RDKit's canonical form."""
    from rdkit import Chem

    return [Chem.MolToSmiles(molecule) for molecule in molecules_of(smiles)]
