"""Teachers of molecules, against node-by-node computations, and against the goldens where the shared data are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.shared import SHARED, SMALL, needs_shared
from tests.teachers.molecules import FEATURES, LAYERS, NAMES, SMILES, WIDTH, tensors_of, vae_tensors
from torch import Tensor

pytest.importorskip("rdkit")

from rdkit import Chem

from distilvec.errors import DataError, DistilvecError
from distilvec.teachers.molecule import MoleculeTeacher, descriptors, molecule_teacher, morgan


def write(folder: Path, kind: str, tensors: dict[str, Tensor] | None = None) -> Path:
    path = folder / f"{NAMES[kind]}_small.safetensors"
    save_file(tensors_of(kind) if tensors is None else tensors, path)
    return path


def graph_of(smiles: str) -> tuple[list[tuple[int, int]], list[dict[int, tuple[int, int]]]]:
    """Per atom its two integers, and the two integers of the bond with every neighbour and with itself."""
    molecule = Chem.MolFromSmiles(Chem.MolToSmiles(Chem.MolFromSmiles(smiles)))
    tags = {Chem.ChiralType.CHI_TETRAHEDRAL_CW: 1, Chem.ChiralType.CHI_TETRAHEDRAL_CCW: 2}
    types = [Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC]
    ways = [Chem.BondDir.NONE, Chem.BondDir.ENDUPRIGHT, Chem.BondDir.ENDDOWNRIGHT]
    atoms, neighbours = [], []
    for atom in molecule.GetAtoms():
        atoms.append(((atom.GetAtomicNum() or 119) - 1, tags.get(atom.GetChiralTag(), 0)))
        around = {atom.GetIdx(): (4, 0)}
        for bond in atom.GetBonds():
            place = types.index(bond.GetBondType()), ways.index(bond.GetBondDir())
            around[bond.GetOtherAtomIdx(atom.GetIdx())] = place
        neighbours.append(around)
    return atoms, neighbours


def slowly(kind: str, smiles: str) -> Tensor:
    """The mean of the atoms [WIDTH], one atom after the other."""
    w = {key: tensor.float() for key, tensor in tensors_of(kind).items()}
    atoms, neighbours = graph_of(smiles)
    states = [w["x_embedding1.weight"][a] + w["x_embedding2.weight"][b] for a, b in atoms]
    for layer in range(LAYERS):
        own = {key.removeprefix(f"gnns.{layer}."): tensor for key, tensor in w.items() if f"gnns.{layer}." in key}
        norm = {key.split(".")[-1]: tensor for key, tensor in w.items() if f"batch_norms.{layer}." in key}
        after = []
        for i in range(len(atoms)):
            bonds = {
                j: own["edge_embedding1.weight"][a] + own["edge_embedding2.weight"][b]
                for j, (a, b) in neighbours[i].items()
            }
            out = _LAYERS[kind](own, states, i, bonds, [len(each) for each in neighbours])
            out = (out - norm["running_mean"]) / (norm["running_var"] + 1e-5).sqrt() * norm["weight"] + norm["bias"]
            after.append(out.relu() if layer < LAYERS - 1 else out)
        states = after
    return torch.stack(states).mean(0)


def _gcn(own, states, i, bonds, degrees) -> Tensor:
    total = torch.zeros(WIDTH)
    for j, bond in bonds.items():
        message = own["linear.weight"] @ states[j] + own["linear.bias"] + bond
        total = total + message / math.sqrt(degrees[i] * degrees[j])
    return total


def _graphsage(own, states, i, bonds, degrees) -> Tensor:
    total = sum(own["linear.weight"] @ states[j] + own["linear.bias"] + bond for j, bond in bonds.items())
    mean = total / len(bonds)
    return mean / mean.norm().clamp_min(1e-12)


def _gat(own, states, i, bonds, degrees) -> Tensor:
    mapped = [own["weight_linear.weight"] @ state + own["weight_linear.bias"] for state in states]
    heads = []
    for k in range(2):
        part, a = slice(WIDTH * k, WIDTH * (k + 1)), own["att"][0, k]
        values = torch.stack([mapped[j][part] + bond[part] for j, bond in bonds.items()])
        scores = torch.stack([a[:WIDTH] @ mapped[i][part] + a[WIDTH:] @ value for value in values])
        heads.append(torch.nn.functional.leaky_relu(scores, 0.2).softmax(0) @ values)
    return (heads[0] + heads[1]) / 2 + own["bias"]


def _molclr(own, states, i, bonds, degrees) -> Tensor:
    return sum(states[j] @ own["weight"] + bond for j, bond in bonds.items()) + own["bias"]


_LAYERS: dict[str, Callable[..., Tensor]] = {"gcn": _gcn, "graphsage": _graphsage, "gat": _gat, "molclr": _molclr}


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_graph_networks_node_by_node(kind: str, tmp_path) -> None:
    network = molecule_teacher(write(tmp_path, kind))
    expected = torch.stack([slowly(kind, smiles) for smiles in SMILES])
    found = network(SMILES)
    assert (network.kind, network.width, found.dtype) == (kind, WIDTH, np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    if kind == "molclr":
        w = tensors_of(kind)
        features = expected @ w["feat_lin.weight"].float().mT + w["feat_lin.bias"]
        wide = molecule_teacher(write(tmp_path, kind), features=True)
        assert wide.width == FEATURES
        np.testing.assert_allclose(wide(SMILES), features, rtol=1e-4, atol=1e-4)


def test_smiles_network_position_by_position(tmp_path) -> None:
    save_file(vae_tensors(), tmp_path / "vae.safetensors")
    network = molecule_teacher(tmp_path / "vae.safetensors")
    long = "C" * 130
    smiles = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "C[Se]C", long, long + "N"]
    w = {key: tensor.double().numpy() for key, tensor in vae_tensors().items()}
    letters = [*"76o]3s(-S/B4[)#IlOHc1@=nP8C2F5rN+", "\\", " "]
    assert len(letters) == 35

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-3)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    found = network(smiles)
    for row, text in enumerate(smiles):
        x = np.array([[letter == character for letter in letters] for character in text[:120].ljust(120)], float)
        for index in range(3):
            weight, bias = w[f"conv{index}.weight"], w[f"conv{index}.bias"]
            window = weight.shape[2]
            rows = [np.tensordot(weight, x[t : t + window].T, 2) + bias for t in range(len(x) - window + 1)]
            x = norm(f"bn{index}", np.tanh(np.stack(rows)))
        dense = norm("bn_dense", np.tanh(w["dense.weight"] @ x.reshape(-1) + w["dense.bias"]))
        np.testing.assert_allclose(found[row], w["z_mean.weight"] @ dense + w["z_mean.bias"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[3], found[4], atol=1e-5)
    # Another SMILES of the second.
    np.testing.assert_allclose(network(["OC(=O)c1c(cccc1)OC(C)=O"])[0], found[1], atol=1e-5)


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_depends_on_the_molecule_alone(kind: str, tmp_path) -> None:
    network = molecule_teacher(write(tmp_path, kind))
    together, alone = network(SMILES * 40), np.concatenate([network([smiles]) for smiles in SMILES])
    np.testing.assert_allclose(together, np.tile(alone, (40, 1)), atol=1e-5)
    for smiles, expected in zip(SMILES, alone):
        others = list(Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), 4, randomSeed=1))
        np.testing.assert_allclose(network(others), np.tile(expected, (4, 1)), atol=1e-5)
    assert network([]).shape == (0, WIDTH)


def test_teacher_card_and_order(tmp_path) -> None:
    path = write(tmp_path, "gcn")
    teacher = MoleculeTeacher(path, name="contextpred")
    card = teacher.card
    assert (card.name, card.kind, card.source, card.width) == ("contextpred", "molecule", str(path), WIDTH)
    assert card.parameters == sum(t.numel() for key, t in tensors_of("gcn").items() if "running" not in key)
    np.testing.assert_array_equal(teacher.encode(SMILES), molecule_teacher(path)(SMILES))
    streamed = list(teacher.stream(SMILES * 40))
    assert np.concatenate([rows for rows, _ in streamed]).tolist() == list(range(40 * len(SMILES)))
    assert len(streamed) == 2
    assert teacher.signals(SMILES).present.all()
    assert teacher.rendered("CCO") == ("CCO", 0)
    np.testing.assert_array_equal(teacher.together(SMILES), teacher.encode(SMILES))


def test_fingerprint_is_of_the_content_and_of_what_is_computed_with_it(tmp_path) -> None:
    path = write(tmp_path, "gcn")
    first = MoleculeTeacher(path).card.fingerprint
    (tmp_path / "copy").mkdir()
    assert MoleculeTeacher(write(tmp_path / "copy", "gcn"), name="b").card.fingerprint == first
    other = tensors_of("gcn")
    other["gnns.1.linear.bias"][2] += 1
    clr = write(tmp_path, "molclr")
    found = {
        first,
        MoleculeTeacher(write(tmp_path / "copy", "gcn", other)).card.fingerprint,
        MoleculeTeacher(clr).card.fingerprint,
    }
    assert len(found) == 3


@pytest.mark.parametrize("kind", [*sorted(NAMES), "chemvae"])
def test_missing_and_unexpected_keys_are_named(kind: str, tmp_path) -> None:
    tensors = vae_tensors() if kind == "chemvae" else tensors_of(kind)
    path = tmp_path / f"{kind}.safetensors"
    for key in sorted(tensors):
        save_file({other: tensor for other, tensor in tensors.items() if other != key}, path)
        with pytest.raises(DataError, match=key.replace(".", r"\.")) as caught:
            molecule_teacher(path, kind=kind)
        assert str(path) in str(caught.value)
    save_file({**tensors, "pool.weight": torch.zeros(2)}, path)
    with pytest.raises(DataError, match=rf"{kind}\.safetensors: .*'pool\.weight'"):
        molecule_teacher(path)


def test_files_that_are_something_else(tmp_path) -> None:
    with pytest.raises(DataError, match=r"none\.safetensors: "):
        molecule_teacher(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(DataError, match=r"text\.safetensors: "):
        molecule_teacher(tmp_path / "text.safetensors")
    save_file({"embeddings.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match=r"other\.safetensors: .*embeddings\.weight"):
        molecule_teacher(tmp_path / "other.safetensors")
    narrow = tensors_of("gcn")
    narrow["gnns.1.linear.weight"] = narrow["gnns.1.linear.weight"][:2]
    with pytest.raises(DataError, match=r"gnns\.1\.linear\.weight.*\[2, 6\].*\[6, 6\]"):
        molecule_teacher(write(tmp_path, "gcn", narrow))


def test_gcn_and_graphsage_are_distinguished_by_file_name(tmp_path) -> None:
    assert molecule_teacher(write(tmp_path, "graphsage")).kind == "graphsage"
    path = tmp_path / "model.safetensors"
    save_file(tensors_of("gcn"), path)
    with pytest.raises(DistilvecError, match=r'model\.safetensors: .*"gcn" or "sage".*\bkind\b'):
        molecule_teacher(path)
    assert molecule_teacher(path, kind="gcn").kind == "gcn"
    with pytest.raises(DistilvecError, match='"sage".*"graphsage"'):
        molecule_teacher(path, kind="sage")
    with pytest.raises(DistilvecError, match=r"model\.safetensors: features .*molclr.*\bgcn\b"):
        molecule_teacher(path, kind="gcn", features=True)


@pytest.mark.parametrize("wrong", ["", "hello", "C1CC", "CCO and more"])
def test_an_invalid_molecule_is_named(wrong: str, tmp_path, capfd) -> None:
    save_file(vae_tensors(), tmp_path / "vae.safetensors")
    for teacher in (
        molecule_teacher(write(tmp_path, "gcn")),
        molecule_teacher(tmp_path / "vae.safetensors"),
        morgan,
        descriptors,
    ):
        with pytest.raises(DataError, match=re.escape(repr(wrong))):
            teacher(["CCO", wrong])
    assert capfd.readouterr().err == ""


def test_morgan() -> None:
    found = morgan(SMILES)
    assert (found.shape, found.dtype) == ((len(SMILES), 2048), np.float32)
    assert np.unique(found).tolist() == [0, 1]
    assert found[0].sum() == 1
    assert found[1].sum() == 6  # the three atoms, and each with its neighbours; two bonds away there is nothing new
    counts = morgan(["CCCCCC"], bits=64, counts=True)
    assert counts.shape == (1, 64)
    assert counts.max() >= 4
    assert morgan(["CCCCCC"], radius=0).sum() == 2
    np.testing.assert_array_equal(morgan(["OCC"]), morgan(["CCO"]))
    assert morgan([]).shape == (0, 2048)


def test_descriptors() -> None:
    from rdkit.Chem import Descriptors

    names = [name for name, _ in Descriptors.descList]
    found = descriptors([*SMILES, "C[Pt](Cl)Cl", "c1ccc2cc3ccccc3cc2c1" + "C" * 150])
    assert (found.shape, found.dtype) == ((len(SMILES) + 2, len(names)), np.float32)
    assert np.isfinite(found).all()
    assert found[1, names.index("MolWt")] == pytest.approx(46.069, abs=1e-2)
    assert found[1, names.index("HeavyAtomCount")] == 3
    # Platinum has no Gasteiger charges.
    assert found[-2, names.index("MaxPartialCharge")] == 0 != found[1, names.index("MaxPartialCharge")]
    assert found[-1, names.index("Ipc")] > 1e30
    assert descriptors([]).shape == (0, len(names))


PUBLISHED = [
    ("mol_gcn_supervised_contextpred", "pooled"),
    ("mol_graphsage_contextpred", "pooled"),
    ("mol_gat_contextpred", "pooled"),
    ("mol_molclr_gcn", "pooled"),
    ("mol_molclr_gcn", "features"),
    ("mol_chemvae_zinc_properties", "z_mean"),
]


@needs_shared
def test_published_networks_give_their_goldens(subtests: pytest.Subtests) -> None:
    """Files of 0.9 to 2 MB."""
    goldens = np.load(SMALL / "models" / "goldens.npz")
    for file, key in PUBLISHED:
        with subtests.test(file=file, key=key):
            weights = SHARED / "models" / f"{file}.safetensors"
            network = molecule_teacher(weights, features=key == "features", device="cpu")
            found = network([str(smiles) for smiles in goldens["molecules/smiles"]])
            np.testing.assert_allclose(found, goldens[f"{file}/{key}"], rtol=1e-4, atol=1e-4)
