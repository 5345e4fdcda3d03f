"""The molecule encoder: its arithmetic, what it must not depend on, and that it opens without distilvec."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest
import torch
from tests.elsewhere import opened_saved_and_opened

from distilvec.modules.molecule import normed

pytest.importorskip("rdkit")
pytest.importorskip("torch_geometric")

from rdkit import Chem
from sentence_transformers import SentenceTransformer

from distilvec.modules.molecule import KINDS, MoleculeEncoder

# Rings, salts, charges, one atom, no bond, no atomic number, both kinds of stereo marks, a dative bond.
SMILES = [
    "C",
    "CCO",
    "CC(=O)Oc1ccccc1C(=O)O",
    "Cn1c(=O)c2c(ncn2C)n(C)c1=O",
    "C/C=C/C(=O)O",
    "C/C=C\\C#N",
    "C[C@H](N)C(=O)O",
    "CC(C)Cc1ccc([C@@H](C)C(=O)O)cc1",
    "C[C@H]1CC[C@@H](C)CC1",
    "[Na+].CC(=O)[O-]",
    "[Na+].[Cl-]",
    "*CC",
    "N->[Pt](Cl)Cl",
    "O=S(=O)(c1ccc(Br)cc1)N1CCN(Cc2ccco2)CC1",
]
OWN = {"molecule.MoleculeEncoder": MoleculeEncoder}


def encoder(kind: str = "gine", layers: int = 3, width: int = 16, **settings) -> MoleculeEncoder:
    """In evaluation mode, with weights and running statistics as after some training."""
    torch.manual_seed(0)
    found = MoleculeEncoder(kind, layers, width, **settings)
    with torch.no_grad():
        for norm in found.norms:
            norm.weight.uniform_(0.5, 2)
            norm.bias.normal_()
        for _ in range(20):
            found(found.preprocess(SMILES))
    return found.eval()


def embed(module: MoleculeEncoder, smiles: list[str]) -> torch.Tensor:
    return module(module.preprocess(smiles))["sentence_embedding"]


def rewritten(smiles: str, count: int) -> list[str]:
    """Other strings for the same molecule."""
    molecule = Chem.MolFromSmiles(smiles)
    return list(Chem.MolToRandomSmilesVect(molecule, count, randomSeed=1))


def test_gine_is_what_the_paper_says_atom_by_atom() -> None:
    module, smiles = encoder(layers=2), "C[C@H](N)C(=O)OC#C"
    molecule = Chem.MolFromSmiles(Chem.MolToSmiles(Chem.MolFromSmiles(smiles)))
    tags = {Chem.ChiralType.CHI_TETRAHEDRAL_CW: 1, Chem.ChiralType.CHI_TETRAHEDRAL_CCW: 2}
    types = {Chem.BondType.SINGLE: 0, Chem.BondType.DOUBLE: 1, Chem.BondType.TRIPLE: 2}
    states = [
        module.atom.weight[atom.GetAtomicNum() - 1] + module.chirality.weight[tags.get(atom.GetChiralTag(), 0)]
        for atom in molecule.GetAtoms()
    ]
    for layer in range(2):
        network, norm, bonds = module.messages[layer].nn, module.norms[layer], module.bonds[layer].weight
        after = []
        for atom in molecule.GetAtoms():
            total = states[atom.GetIdx()]
            for bond in atom.GetBonds():
                total = total + (states[bond.GetOtherAtomIdx(atom.GetIdx())] + bonds[types[bond.GetBondType()]]).relu()
            hidden = (network[0].weight @ total + network[0].bias).relu()
            out = network[2].weight @ hidden
            out = (out - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
            after.append(out.relu() if layer == 0 else out)
        states = after
    torch.testing.assert_close(embed(module, [smiles])[0], torch.stack(states).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_another_smiles_of_the_same_molecule_gives_the_same(kind: str) -> None:
    module = encoder(kind)
    for smiles, expected in zip(SMILES, embed(module, SMILES)):
        others = embed(module, rewritten(smiles, 8))
        torch.testing.assert_close(others, expected.expand_as(others), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_in_the_batch_do_not_matter(kind: str) -> None:
    module = encoder(kind)
    alone = torch.cat([embed(module, [smiles]) for smiles in SMILES])
    torch.testing.assert_close(embed(module, SMILES), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(module, SMILES[::-1]).flip(0), alone, rtol=0, atol=1e-5)
    assert alone.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_reaches_every_parameter(kind: str) -> None:
    module = encoder(kind, dropout=0.1).train()
    (embed(module, SMILES) * torch.randn(len(SMILES), 16)).sum().backward()
    for name, parameter in module.named_parameters():
        # Rounding leaves about 1e-7 where there is none, as for a bias before a normalisation.
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-4, name


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_kind_looks_at(kind: str) -> None:
    module = encoder(kind)
    hand = embed(module, ["C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"])
    assert (hand[0] - hand[1]).abs().max() > 1e-3
    bond = embed(module, ["CCO", "C=CO"])
    assert ((bond[0] - bond[1]).abs().max() > 1e-3) == (kind in ("gine", "gat"))
    assert not module(module.preprocess(["C"]))["bonds"].numel()


@pytest.mark.parametrize("kind", KINDS)
def test_views_are_copies_of_the_batch(kind: str) -> None:
    module = encoder(kind)
    features = module.preprocess(SMILES)
    two = module.repeat(features, 2)
    copies = module.collate(module.prepare(SMILES * 2))
    assert two.keys() == copies.keys() == {"sizes", "nodes", "edges", "bonds", "graph"}
    assert all(torch.equal(two[key], copies[key]) and two[key].dtype == torch.int64 for key in two)
    both = module(two)["sentence_embedding"]
    expected = module(features)["sentence_embedding"]
    torch.testing.assert_close(both, torch.cat([expected, expected]), rtol=0, atol=1e-5)


def test_the_features_of_a_small_molecule() -> None:
    module = MoleculeEncoder(layers=1, width=4)
    prepared = module.prepare(["O=C", "[Cl-]", "F/C=C/*"])
    assert [tuple(array.dtype.name for array in graph) for graph in prepared] == [("uint8", "uint16")] * 3
    features = module.collate(prepared)
    assert features["sizes"].tolist() == [2, 1, 4]
    assert features["graph"].tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert features["nodes"][:3].tolist() == [[7, 0], [5, 0], [16, 0]]
    assert sorted(features["nodes"][3:, 0].tolist()) == [5, 5, 8, 118]
    assert features["edges"][:, :2].tolist() == [[1, 0], [0, 1]]
    assert features["edges"][1].diff().min() >= 0
    assert features["bonds"][:2].tolist() == [[1, 0], [1, 0]]
    assert sorted(features["bonds"][2:].tolist()) == [[0, 1]] * 4 + [[1, 0]] * 2  # E: both marks point up
    assert len(pickle.dumps(module.prepare(SMILES))) < 500 * len(SMILES)


def test_dropout_in_training_only_and_views_differ() -> None:
    module = encoder(dropout=0.5).train()
    first, second = module(module.repeat(module.preprocess(SMILES), 2))["sentence_embedding"].chunk(2)
    assert not torch.allclose(first, second)
    module.eval()
    assert torch.equal(embed(module, SMILES), embed(module, SMILES))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_near(kind: str) -> None:
    module = encoder(kind)
    exact = embed(module, SMILES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loose = embed(module, SMILES)
    half = embed(copy.deepcopy(module).bfloat16(), SMILES)
    assert (loose.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    for other in (loose, half.float()):
        assert torch.nn.functional.cosine_similarity(other, exact).min() > 0.99


def test_encodes_in_order_whatever_the_batches() -> None:
    model = SentenceTransformer(modules=[encoder()], device="cpu")
    expected = embed(model[0], SMILES).detach().numpy()
    for size in (1, 3, 100):
        np.testing.assert_allclose(model.encode(SMILES, batch_size=size), expected, atol=1e-5)
    lengths = np.linalg.norm(model.encode(SMILES, normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    assert model.encode("CCO").shape == (16,)
    assert model.get_embedding_dimension() == 16
    with pytest.raises(ValueError, match="prompt 'query: '"):
        model.encode(SMILES, prompt="query: ")


@pytest.mark.parametrize("wrong", ["", " ", "hello", "C1CC", "C(C)(C)(C)(C)C", "CCO and more", "東京", None, 3])
def test_an_invalid_molecule_is_named(wrong, capfd) -> None:
    module = MoleculeEncoder(layers=1, width=4)
    with pytest.raises(ValueError, match=re.escape(repr(str(wrong)))):
        module.preprocess(["CCO", wrong])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "settings", [{"kind": "mlp"}, {"layers": 0}, {"width": 0}, {"dropout": 1.0}, {"kind": "gat", "width": 6}]
)
def test_settings_that_do_not_exist_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"\b{}( of)? {}\b".format(*list(settings.items())[-1])):
        MoleculeEncoder(**settings)


@pytest.mark.parametrize("kind", ["gine", "gat"])
def test_bit_identical_after_save_and_load(kind: str, tmp_path) -> None:
    model = SentenceTransformer(modules=[encoder(kind, dropout=0.25)], device="cpu")
    expected = model.encode(SMILES)
    model.save_pretrained(str(tmp_path), create_model_card=False)
    ours = SentenceTransformer._load_with_module_classes(str(tmp_path), OWN, device="cpu")
    assert np.array_equal(ours.encode(SMILES), expected)
    assert (ours[0].kind, ours[0].dropout) == (kind, 0.25)


def test_opens_where_distilvec_cannot_be_imported(start, tmp_path) -> None:
    model = SentenceTransformer(modules=[encoder()], device="cpu")
    folder = tmp_path / "student"
    model.save_pretrained(str(folder), create_model_card=False)
    listed = json.loads((folder / "modules.json").read_text())
    assert listed[0]["type"] == "molecule.MoleculeEncoder"
    assert (folder / "molecule.py").is_file()
    assert not (folder / "config.json").exists()
    with pytest.raises(ValueError, match=r"molecule\.MoleculeEncoder(.|\n)*trust_remote_code"):
        SentenceTransformer(str(folder), device="cpu")
    read = opened_saved_and_opened(start, folder, SMILES, tmp_path)
    expected = model.encode(SMILES)
    np.testing.assert_allclose(read["first"], expected, atol=1e-6)  # the number of threads may differ
    assert np.array_equal(read["second"], read["first"])


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles(kind: str) -> None:
    module = encoder(kind)
    expected = embed(module, SMILES)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.atom.weight is not module.atom.weight
        assert torch.equal(embed(other, SMILES), expected)


def test_it_learns() -> None:
    """Two layers see how many atoms of nitrogen a molecule has, as its share of the atoms."""
    module = encoder(layers=2, width=32).train()
    shares = [[a.GetSymbol() == "N" for a in Chem.MolFromSmiles(smiles).GetAtoms()] for smiles in SMILES]
    wanted = torch.tensor([sum(each) / len(each) for each in shares])
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = (embed(module, SMILES).mean(-1) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 50


def test_batch_of_one_molecule_in_training() -> None:
    pytest.importorskip("rdkit")
    from distilvec.modules.smiles_network import SmilesEncoder, codes_of

    network = SmilesEncoder().train()
    found = network({"codes": torch.from_numpy(codes_of(["CCO"]))})["sentence_embedding"]
    assert found.shape == (1, 196) and torch.isfinite(found).all()


def test_batch_norm_of_one_row_uses_running_statistics() -> None:
    norm = torch.nn.BatchNorm1d(4)
    norm.running_mean.fill_(1.0)
    assert torch.allclose(normed(norm, torch.ones(1, 4)), torch.zeros(1, 4), atol=1e-6)
    assert torch.equal(normed(norm, torch.eye(4)), torch.nn.BatchNorm1d(4)(torch.eye(4)))
