"""Pretrained graph networks over molecules, as their authors' layers compute.

The parameters are named as in the files, so that a file is checked by its keys alone. This file and `molecule.py` are
copied into the folder of every model that starts with such a graph network, so they import nothing but torch, NumPy and
sentence-transformers, and RDKit when a molecule is read. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .molecule import MoleculeModule, collate, graphs_of, normed

GRAPHS = ("gcn", "graphsage", "gat", "molclr")
_HEADS = 2
_SELF_LOOP = 4  # the bond type of an atom with itself
_DIRECTIONS = 3


class GraphNetwork(nn.Module):
    """Message passing over atoms and bonds, with a self-loop at every atom, then the mean of the atoms.

    Per layer h <- norm(layer(h)), and relu after all but the last. In `Σ` j runs over the neighbours of i and i itself,
    d is their number, e the sum of the embeddings of a bond's type and direction, y a linear map of h:

        gcn        Σ (y_j + e_ij) / sqrt(d_i d_j)
        graphsage  the mean of y_j + e_ij, divided by its length
        gat        two heads, their mean: Σ softmax_j(leaky(a · [y_i, y_j + e_ij])) (y_j + e_ij), plus a bias
        molclr     Σ (y_j + e_ij), e_ij one number, plus a bias

    Args:
        kind: one of `GRAPHS`.
        shapes: of the file's tensors by key; read are the number of layers and the widths.
        features: molclr only: whether the result is the linear map of the mean that its pretraining ends with.

    Source: Hu et al. 2020 (gcn, graphsage, gat); Wang et al. 2022 (MolCLR).
    """

    def __init__(self, kind: str, shapes: Mapping[str, Sequence[int]], features: bool = False) -> None:
        super().__init__()
        self.kind, self.features = kind, features
        atoms, self.width = shapes["x_embedding1.weight"]
        self.x_embedding1 = nn.Embedding(atoms, self.width)
        self.x_embedding2 = nn.Embedding(shapes["x_embedding2.weight"][0], self.width)
        bonds = shapes["gnns.0.edge_embedding1.weight"][0]
        layers = 1 + max(int(key.split(".")[1]) for key in shapes if key.startswith("gnns."))
        self.gnns = nn.ModuleList(_layer(kind, self.width, bonds) for _ in range(layers))
        self.batch_norms = nn.ModuleList(nn.BatchNorm1d(self.width) for _ in range(layers))
        if kind == "molclr":
            self.feat_lin = nn.Linear(self.width, shapes["feat_lin.weight"][0])
            self.width = self.feat_lin.out_features if features else self.width

    def forward(self, smiles: Sequence[str]) -> Tensor:
        """float32 [N, width]."""
        device = self.x_embedding1.weight.device
        return self.embed({key: tensor.to(device) for key, tensor in collate(graphs_of(smiles)).items()})

    def embed(self, graph: Mapping[str, Tensor]) -> Tensor:
        """[N, width] of what `molecule.collate` gives, on the network's device."""
        device = self.x_embedding1.weight.device
        nodes, sizes = graph["nodes"], graph["sizes"].unsqueeze(-1)
        itself = torch.arange(len(nodes), device=device)
        source, target = torch.cat([graph["edges"], itself.expand(2, -1)], dim=1)
        own = torch.tensor([_SELF_LOOP, 0], device=device).expand(len(nodes), 2)
        bonds = torch.cat([graph["bonds"], own])
        states = self.x_embedding1(nodes[:, 0]) + self.x_embedding2(nodes[:, 1])
        for layer, (message, norm) in enumerate(zip(self.gnns, self.batch_norms)):
            states = normed(norm, message(states, source, target, bonds))
            if layer < len(self.gnns) - 1:
                states = states.relu()
        pooled = _sum(states, graph["graph"], len(sizes)) / sizes
        return self.feat_lin(pooled) if self.features else pooled


class GraphEncoder(MoleculeModule):
    """SMILES strings to `sentence_embedding` [N, width] by a `GraphNetwork`, to be trained on.

    Args:
        kind: one of `GRAPHS`.
        layers: rounds of message passing.
        width: of the states, and of the embedding.
        atoms, chiralities, bonds: rows of the tables that a molecule enters by.

    Source: as of `GraphNetwork`.
    """

    code = ("molecule_networks.py", "molecule.py")
    config_keys = ["kind", "layers", "width", "atoms", "chiralities", "bonds"]  # noqa: RUF012
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "molecule_networks"

    def __init__(self, kind: str, layers: int, width: int, atoms: int, chiralities: int, bonds: int) -> None:
        super().__init__()
        self.kind, self.layers, self.width = kind, layers, width
        self.atoms, self.chiralities, self.bonds = atoms, chiralities, bonds
        shapes: dict[str, Sequence[int]] = {
            "x_embedding1.weight": (atoms, width),
            "x_embedding2.weight": (chiralities, width),
            "gnns.0.edge_embedding1.weight": (bonds, width),
            f"gnns.{layers - 1}.edge_embedding1.weight": (bonds, width),
            "feat_lin.weight": (1, width),
        }
        self.network = GraphNetwork(kind, shapes)
        if kind == "molclr":  # nothing reads it: its parameters would never have a gradient
            del self.network.feat_lin

    @classmethod
    def of(cls, network: GraphNetwork) -> GraphEncoder:
        """A network that was read from a file; without the map behind molclr's mean."""
        atoms, width = network.x_embedding1.weight.shape
        first: Any = network.gnns[0]
        bonds: int = first.edge_embedding1.num_embeddings
        encoder = cls(network.kind, len(network.gnns), width, atoms, network.x_embedding2.num_embeddings, bonds)
        encoder.network.load_state_dict(
            {name: value for name, value in network.state_dict().items() if not name.startswith("feat_lin.")}
        )
        return encoder

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features["sentence_embedding"] = self.network.embed(features)
        return features


class _Layer(nn.Module):
    """The base of the four layers: a bond is the sum of two embeddings."""

    def __init__(self, width: int, bonds: int) -> None:
        super().__init__()
        self.edge_embedding1 = nn.Embedding(bonds, width)
        self.edge_embedding2 = nn.Embedding(_DIRECTIONS, width)

    def edges(self, bonds: Tensor) -> Tensor:
        return self.edge_embedding1(bonds[:, 0]) + self.edge_embedding2(bonds[:, 1])


class _Gcn(_Layer):
    def __init__(self, width: int, bonds: int) -> None:
        super().__init__(width, bonds)
        self.linear = nn.Linear(width, width)

    def forward(self, states: Tensor, source: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
        scale = torch.bincount(target, minlength=len(states)).to(states.dtype).rsqrt()
        weight = (scale[source] * scale[target]).unsqueeze(-1)
        return _sum(weight * (self.linear(states)[source] + self.edges(bonds)), target, len(states))


class _GraphSage(_Layer):
    def __init__(self, width: int, bonds: int) -> None:
        super().__init__(width, bonds)
        self.linear = nn.Linear(width, width)

    def forward(self, states: Tensor, source: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
        sums = _sum(self.linear(states)[source] + self.edges(bonds), target, len(states))
        degree = torch.bincount(target, minlength=len(states)).unsqueeze(-1)
        return functional.normalize(sums / degree, dim=-1, eps=1e-12)


class _Gat(_Layer):
    def __init__(self, width: int, bonds: int) -> None:
        super().__init__(_HEADS * width, bonds)
        self.weight_linear = nn.Linear(width, _HEADS * width)
        self.att = nn.Parameter(torch.empty(1, _HEADS, 2 * width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, states: Tensor, source: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
        nodes, width = states.shape
        own, other = self.att[..., :width], self.att[..., width:]
        mapped = self.weight_linear(states).unflatten(-1, (_HEADS, width))
        values = mapped[source] + self.edges(bonds).unflatten(-1, (_HEADS, width))
        scores = functional.leaky_relu((own * mapped).sum(-1)[target] + (other * values).sum(-1), 0.2)
        at = target.unsqueeze(-1).expand(-1, _HEADS)
        largest = scores.new_full((nodes, _HEADS), -torch.inf).scatter_reduce(0, at, scores, "amax")
        shares = (scores - largest[target]).exp()
        shares = shares / _sum(shares, target, nodes)[target]
        return _sum(shares.unsqueeze(-1) * values, target, nodes).mean(1) + self.bias


class _MolClr(_Layer):
    def __init__(self, width: int, bonds: int) -> None:
        super().__init__(1, bonds)
        self.weight = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, states: Tensor, source: Tensor, target: Tensor, bonds: Tensor) -> Tensor:
        return _sum((states @ self.weight)[source] + self.edges(bonds), target, len(states)) + self.bias


def _layer(kind: str, width: int, bonds: int) -> _Layer:
    return {"gcn": _Gcn, "graphsage": _GraphSage, "gat": _Gat, "molclr": _MolClr}[kind](width, bonds)


def _sum(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """[E, ...] -> [count, ...]: the sum of the values of each row."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, rows, values)
