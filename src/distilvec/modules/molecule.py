"""Molecules from SMILES strings, as a sentence-transformers module that brings its own code along.

    h_0 = atom[number] + chirality[tag],  h_l+1 = relu(norm_l(message_l(h_l, bonds))),  embedding = mean of h_L's atoms

There is no relu after the last layer. This file is copied into the folder of every model that starts with such a
module, so it imports nothing but torch, NumPy and sentence-transformers, and RDKit and torch_geometric when a molecule
is read and a network is built. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from typing import Self

KINDS = ("gine", "gin", "gcn", "sage", "gat", "tag")
_ATOMS, _CHIRALITIES, _BONDS = 119, 3, 4  # the last atom is what has no atomic number ("*")
_HEADS = 4
_MOST_ATOMS = 2**16 - 1

Graph = tuple[np.ndarray, np.ndarray]
"""uint8 [atoms, 2] atomic number - 1 and chirality tag; uint16 [bonds, 4] begin, end, type and direction."""


class MoleculeModule(InputModule):
    """The base of modules on SMILES strings: how molecules are read, and how a folder is opened.

    A module has the attribute `width`, of its embedding.
    """

    #: What kind of item it reads; sentence-transformers has no word for it.
    item = "molecule"
    # In a folder of its own: a config.json in the model's root would pass for that of a transformers model.
    save_in_root = False
    #: Files with the code of the class, which ship with the model.
    code: tuple[str, ...] = ("molecule.py",)
    width: int

    def prepare(self, items: Sequence[str]) -> list[Graph]:
        """One small graph per SMILES, of arrays that can be pickled and kept; see `graphs_of`."""
        return graphs_of(items)

    def collate(self, prepared: Sequence[Graph]) -> dict[str, Tensor]:
        """Graphs to the features of a batch; see `collate`."""
        return collate(prepared)

    def repeat(self, features: dict[str, Tensor], views: int) -> dict[str, Tensor]:
        """The features of the batch V times over: molecule n of view v is row v N + n."""
        atoms, molecules, edges = len(features["nodes"]), len(features["sizes"]), features["edges"]
        view = torch.arange(views, device=edges.device)
        return {
            "sizes": features["sizes"].repeat(views),
            "nodes": features["nodes"].repeat(views, 1),
            "edges": edges.repeat(1, views) + (view * atoms).repeat_interleave(edges.shape[1]),
            "bonds": features["bonds"].repeat(views, 1),
            "graph": features["graph"].repeat(views) + (view * molecules).repeat_interleave(atoms),
        }

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """SMILES to the features of a batch."""
        if prompt:
            raise ValueError(f"a molecule cannot be prefixed with the prompt {prompt!r}")
        return self.collate(self.prepare(inputs))

    def get_embedding_dimension(self) -> int:
        return self.width

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


class MoleculeEncoder(MoleculeModule):
    """SMILES strings to `sentence_embedding` [N, width]: message passing over the bonds, then the mean of the atoms.

    An atom enters as the sum of the embeddings of its atomic number and its chirality tag. Bond types (single, double,
    triple, aromatic) enter each layer of "gine" (added to the neighbour's state) and "gat" (in the attention); the
    other kinds do not look at them. The message networks of "gine" and "gin" have two layers. Batch normalisation
    after each layer, relu and dropout between them; no residual connections, as the network has none in the paper.
    What a layer ends with has no bias, as the normalisation would remove it.

    The embedding is a property of the molecule: another SMILES of the same molecule gives the same.

    Args:
        kind: "gine", "gin", "gcn", "sage" (mean), "gat" (4 heads, concatenated) or "tag" (3 hops).
        layers: at least 1.
        width: of the states and of the embedding; a multiple of 4 for "gat".
        dropout: after each layer, in training, in [0, 1).

    Raises:
        ValueError: another kind, no layer, or a width that the kind cannot have.
        ImportError: torch_geometric is not installed.

    Source: many teachers by Gaussian kernels, appendix B.1 (GINE, 10 layers of 512); Hu et al. 2020 (GINE).
    """

    config_keys = ["kind", "layers", "width", "dropout"]  # noqa: RUF012
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "molecule"

    def __init__(self, kind: str = "gine", layers: int = 10, width: int = 512, dropout: float = 0.0) -> None:
        super().__init__()
        if kind not in KINDS or layers < 1 or width < 1 or not 0 <= dropout < 1:
            given = f"kind {kind}, layers {layers}, width {width}, dropout {dropout}"
            raise ValueError(f"{given}: kind is one of {KINDS}, layers and width are at least 1, dropout is in [0, 1)")
        if kind == "gat" and width % _HEADS:
            raise ValueError(f"a width of {width} does not divide into the {_HEADS} heads of a gat")
        self.kind, self.layers, self.width, self.dropout = kind, layers, width, dropout
        self.atom = nn.Embedding(_ATOMS, width)
        self.chirality = nn.Embedding(_CHIRALITIES, width)
        self.bonds = nn.ModuleList(nn.Embedding(_BONDS, width) for _ in range(layers if kind == "gine" else 0))
        self.messages = nn.ModuleList(_message(kind, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        nodes, edges, graph = features["nodes"], features["edges"], features["graph"]
        kinds = features["bonds"][:, 0]
        states: Tensor = self.atom(nodes[:, 0]) + self.chirality(nodes[:, 1])
        # One-hot bond types times the attention's own matrix are an embedding of bond types per layer.
        one_hot = functional.one_hot(kinds, _BONDS).to(states.dtype) if self.kind == "gat" else None
        for layer, (message, norm) in enumerate(zip(self.messages, self.norms)):
            if self.kind == "gine":
                states = message(states, edges, self.bonds[layer](kinds))
            elif self.kind == "gat":
                states = message(states, edges, one_hot)
            else:
                states = message(states, edges)
            states = normed(norm, states)
            if layer < self.layers - 1:
                states = states.relu()
            states = functional.dropout(states, self.dropout, self.training)
        sizes = features["sizes"].unsqueeze(-1)
        # In half precision, a sum over some ten atoms would lose more than the states did.
        pooled = states.new_zeros(len(sizes), self.width, dtype=torch.float32).index_add(0, graph, states.float())
        features["sentence_embedding"] = (pooled / sizes).to(self.atom.weight.dtype)
        return features


def normed(norm: nn.Module, states: Tensor) -> Tensor:
    """[N, width] by the spread of these rows while training; one row has none, and that of others stands for it."""
    alone = norm.training and len(states) == 1
    if not alone or not isinstance(norm, nn.BatchNorm1d):
        made: Tensor = norm(states)
        return made
    known = norm.running_mean, norm.running_var
    return functional.batch_norm(states, *known, norm.weight, norm.bias, False, 0.0, norm.eps)


def _empty(file: str, name: str) -> Any:
    kind = getattr(import_module(file), name)
    return kind.__new__(kind)


def _message(kind: str, width: int) -> nn.Module:
    from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, SAGEConv, TAGConv

    if kind in ("gine", "gin"):
        network = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width, bias=False))
        return GINEConv(network) if kind == "gine" else GINConv(network)
    if kind == "gat":
        return GATConv(width, width // _HEADS, heads=_HEADS, edge_dim=_BONDS, bias=False)
    return {"gcn": GCNConv, "sage": SAGEConv, "tag": TAGConv}[kind](width, width, bias=False)


def molecules_of(items: Sequence[str]) -> Iterator[Any]:
    """RDKit's molecules of SMILES strings. Nothing is logged until all are read.

    Raises:
        ValueError: a string that is no SMILES, or one of no atom; it is named.
        ImportError: RDKit is not installed.
    """
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        for item in items:
            # The parser would take what follows white space for the molecule's name.
            molecule = Chem.MolFromSmiles(item) if isinstance(item, str) and len(item.split()) == 1 else None
            if molecule is None or not 1 <= molecule.GetNumAtoms() <= _MOST_ATOMS:
                raise ValueError(f"not a SMILES string that RDKit can read: {str(item)[:200]!r}")
            yield molecule


def graphs_of(items: Sequence[str]) -> list[Graph]:
    """The graphs of SMILES strings, hydrogens implicit, aromaticity as RDKit perceives it.

    Chirality tag: 0 none, 1 clockwise, 2 counter-clockwise. Bond type: 0 single (and all unusual ones), 1 double, 2
    triple, 3 aromatic; direction: 0 none, 1 end up right, 2 end down right. Tags and directions depend on the order in
    which a SMILES names its atoms, therefore a molecule that has any is read from its canonical SMILES.
    """
    from rdkit import Chem

    chiralities = {Chem.ChiralType.CHI_TETRAHEDRAL_CW: 1, Chem.ChiralType.CHI_TETRAHEDRAL_CCW: 2}
    types = {Chem.BondType.DOUBLE: 1, Chem.BondType.TRIPLE: 2, Chem.BondType.AROMATIC: 3}
    directions = {Chem.BondDir.ENDUPRIGHT: 1, Chem.BondDir.ENDDOWNRIGHT: 2}

    def arrays(molecule: Any) -> Graph:
        nodes = [((a.GetAtomicNum() or _ATOMS) - 1, chiralities.get(a.GetChiralTag(), 0)) for a in molecule.GetAtoms()]
        bonds = [
            (b.GetBeginAtomIdx(), b.GetEndAtomIdx(), types.get(b.GetBondType(), 0), directions.get(b.GetBondDir(), 0))
            for b in molecule.GetBonds()
        ]
        return np.array(nodes, np.uint8).reshape(-1, 2), np.array(bonds, np.uint16).reshape(-1, 4)

    graphs = []
    for molecule in molecules_of(items):
        graph = arrays(molecule)
        if graph[0][:, 1].any() or graph[1][:, 3].any():
            graph = arrays(Chem.MolFromSmiles(Chem.MolToSmiles(molecule)) or molecule)
        graphs.append(graph)
    return graphs


def collate(prepared: Sequence[Graph]) -> dict[str, Tensor]:
    """One graph of N molecules that have no bonds with one another.

    Returns:
        All int64: "sizes" [N] atoms per molecule; "nodes" [atoms, 2]; "edges" [2, 2 bonds] from and to, each bond in
        both directions, sorted by "to", as sums over neighbours are faster so; "bonds" [2 bonds, 2] type and
        direction; "graph" [atoms] the molecule of each atom.
    """
    sizes = np.array([len(nodes) for nodes, _ in prepared], np.int64)
    counts = [len(bonds) for _, bonds in prepared]
    nodes = np.concatenate([np.zeros((0, 2), np.uint8), *(nodes for nodes, _ in prepared)]).astype(np.int64)
    bonds = np.concatenate([np.zeros((0, 4), np.uint16), *(bonds for _, bonds in prepared)]).astype(np.int64)
    ends = bonds[:, :2] + np.repeat(np.cumsum(sizes) - sizes, counts)[:, None]
    edges = np.concatenate([ends, ends[:, ::-1]]).T
    order = np.argsort(edges[1], kind="stable")
    return {
        "sizes": torch.from_numpy(sizes),
        "nodes": torch.from_numpy(nodes),
        "edges": torch.from_numpy(edges[:, order]),
        "bonds": torch.from_numpy(np.concatenate([bonds[:, 2:], bonds[:, 2:]])[order]),
        "graph": torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
    }
