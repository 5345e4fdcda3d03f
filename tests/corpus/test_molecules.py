"""Molecules: one key for every way to write one, salts, what is none, and the files they come in."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.shared import SMALL

pytest.importorskip("rdkit")

from distilvec.corpus import content_key, content_keys, read_corpus
from distilvec.corpus.audit import Problem
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.kinds.molecule.smiles import MAX_CHARACTERS, canonical_smiles

ASPIRIN = ["CC(=O)Oc1ccccc1C(=O)O", "O=C(C)OC1=CC=CC=C1C(O)=O", " OC(=O)c1ccccc1OC(C)=O\n", "C(C)(=O)Oc1c(C(=O)O)cccc1"]


def test_every_way_to_write_a_molecule_has_one_key() -> None:
    assert len({content_key(smiles, modality="molecule") for smiles in ASPIRIN}) == 1
    assert {canonical_smiles(smiles) for smiles in ASPIRIN} == {"CC(=O)Oc1ccccc1C(=O)O"}
    assert content_key(ASPIRIN[0], "query", "molecule") != content_key(ASPIRIN[0], "", "molecule")


def test_stereo_charge_and_isotopes_are_kept() -> None:
    different = [
        "C[C@H](N)C(=O)O",
        "C[C@@H](N)C(=O)O",
        "CC(N)C(=O)O",
        "C[C@H]([NH3+])C(=O)[O-]",
        "[13CH3][C@H](N)C(=O)O",
    ]
    different += ["F/C=C/F", "F/C=C\\F", "FC=CF"]
    assert len({canonical_smiles(smiles) for smiles in different}) == len(different)
    assert canonical_smiles("N[C@@H](C)C(O)=O") == canonical_smiles("C[C@H](N)C(=O)O")


def test_random_writings_of_real_molecules_agree() -> None:
    from rdkit import Chem

    draw = random.Random(0)
    molecules = ["CN1CCC[C@H]1c1cccnc1", "C[C@]12CC[C@H]3[C@@H](CCc4cc(O)ccc43)[C@@H]1CC[C@@H]2O", ASPIRIN[0]]
    molecules += ["CC(C)(C)NC[C@H](O)c1ccc(O)c(CO)c1", "O=C(/C=C/c1ccccc1)NCCc1c[nH]c2ccccc12", "[O-][n+]1ccccc1"]
    for smiles in molecules:
        molecule = Chem.MolFromSmiles(smiles)
        for _ in range(20):
            order = list(range(molecule.GetNumAtoms()))
            draw.shuffle(order)
            written = Chem.MolToSmiles(Chem.RenumberAtoms(molecule, order), canonical=False)
            assert canonical_smiles(written) == canonical_smiles(smiles)
        assert canonical_smiles(canonical_smiles(smiles)) == canonical_smiles(smiles)


def test_several_components() -> None:
    salt = "[Na+].CC(=O)[O-]"
    assert canonical_smiles(salt) == canonical_smiles(salt, "keep") == "CC(=O)[O-].[Na+]"
    assert canonical_smiles(salt, "largest") == "CC(=O)[O-]"
    with pytest.raises(Problem, match="several components"):
        canonical_smiles(salt, "reject")
    assert canonical_smiles("OC.CN", "largest") == canonical_smiles("CN.CO", "largest") == "CN"
    assert canonical_smiles("C1.C1", "reject") == "CC"  # a bond across the dot: one molecule


HOSTILE = {
    "": "empty molecule",
    "  ": "empty molecule",
    "[H][H]": "empty molecule",
    "not a molecule": "not a valid SMILES",
    "CO is carbon and oxygen": "not a valid SMILES",
    "c1cccc1": "not a valid SMILES",
    "N(C)(C)(C)(C)C": "not a valid SMILES",
    "C1CC": "not a valid SMILES",
    "CC\0C": "not a valid SMILES",
    "Cé": "not a valid SMILES",
    "CC>>CC": "not a valid SMILES",
    "(" * 900: "not a valid SMILES",
    "C(" * 300 + "C" + ")" * 300: "too long",
    "C" * 1001: "too long",
    "C" * 10_000_000: "too long",
    "C" * 251: "too long",
    ".".join(["C"] * 400): "too long",
}


def test_an_invalid_molecule_gives_a_reason_and_no_output(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdkit import Chem

    parsed, parse = [], Chem.MolFromSmiles
    monkeypatch.setattr(Chem, "MolFromSmiles", lambda text: (parsed.append(len(text)), parse(text))[1])
    for smiles, reason in HOSTILE.items():
        with pytest.raises(Problem, match=reason):
            canonical_smiles(smiles)
    assert 251 <= max(parsed) <= MAX_CHARACTERS  # RDKit, whose time grows with the text, never sees a longer one
    assert canonical_smiles("C" * 250) == "C" * 250
    with pytest.raises(DataError, match=r"c1cccc1: .*SMILES"):
        content_keys(["CC", "c1cccc1"], modality="molecule")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_smi_files(tmp_path: Path) -> None:
    lines = [
        "CCO ethanol",
        "OCC\tthe same, turned round",
        "",
        "c1ccccc1",
        "oops",
        "[Na+].CC(=O)[O-] a salt",
        "\xff\xfe",
    ]
    content = "\n".join(lines).encode("latin-1")
    (tmp_path / "a.smi").write_bytes(content)
    (tmp_path / "b.smi.gz").write_bytes(gzip.compress(content))
    for name in ("a.smi", "b.smi.gz"):
        corpus = read_corpus(tmp_path / name, tmp_path / name[0], holdout=0.0)
        assert corpus.modality == "molecule" and corpus.texts() == ["CCO", "c1ccccc1", "CC(=O)[O-]"]
        assert corpus.audit.rejected == {"empty": 1, "not a valid SMILES": 1, "not UTF-8": 1}
        assert corpus.audit.duplicates == 1 and corpus.audit.components == 1
        assert "3 molecules kept, 1 duplicates, 1 of several components" in str(corpus.audit)
        assert np.array_equal(corpus.keys, content_keys(corpus.texts(), modality="molecule"))
    kept = read_corpus(tmp_path / "a.smi", tmp_path / "keep", components="keep", holdout=0.0)
    assert kept.texts()[2] == "CC(=O)[O-].[Na+]" and kept.fingerprint != corpus.fingerprint
    refused = read_corpus(tmp_path / "a.smi", tmp_path / "reject", components="reject", holdout=0.0)
    assert refused.audit.rejected["several components"] == 1 and refused.audit.components == 0
    named = read_corpus(tmp_path / "a.smi", tmp_path / "names", modality="text", text="smiles", holdout=0.0)
    assert named.modality == "text" and named.texts()[:2] == ["CCO", "OCC"]
    with pytest.raises(DistilvecError, match=r'corpus\.components: .*"larges".*"largest"'):
        read_corpus(tmp_path / "a.smi", tmp_path / "no", components="larges")  # type: ignore[arg-type]


def test_columns_lists_and_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,split,active\nCCO,train,1\nCCN,train,\nOCC,test,0\nCC,train,0\n")
    whole = read_corpus(tmp_path / "a.csv", tmp_path / "whole", modality="molecule", holdout=0.0)
    assert whole.texts() == ["CCO", "CCN", "CC"] and whole.audit.duplicates == 1
    corpus = read_corpus(
        tmp_path / "a.csv", tmp_path / "some", modality="molecule", label="active", domain="split", holdout=0.0
    )
    assert corpus.texts() == ["CCO", "CC"] and corpus.labels is not None and corpus.labels.tolist() == [1, 0]
    assert corpus.audit.rejected == {"missing label": 1}
    listed = read_corpus(["CCO", "OCC", "N", 3, None], tmp_path / "list", modality="molecule", holdout=0.0)
    assert listed.texts() == ["CCO", "N"] and listed.audit.rejected == {"not text": 1, "missing SMILES": 1}
    assert listed.overlap(["OCC", "n", "c1ccccc1", "[Na+].CCO"]) == 1  # case has a meaning here
    pairs = read_corpus(
        [{"a": "CCO", "b": "CCN", "c": ""}], tmp_path / "pairs", modality="molecule", text=["a", "b", "c"], holdout=0.0
    )
    assert pairs.texts() == ["CCO", "CCN"] and pairs.groups is not None and pairs.groups.tolist() == [0, 0]
    with pytest.raises(DistilvecError, match=r"corpus\.teacher_text: .*molecules"):
        read_corpus(tmp_path / "a.csv", tmp_path / "no", modality="molecule", teacher_text="split")


def test_an_old_corpus_is_one_of_texts_and_the_same_text_has_another_fingerprint(tmp_path: Path) -> None:
    import json

    from distilvec.corpus import Corpus

    texts = read_corpus(["CCO", "CCN"], tmp_path / "texts", holdout=0.0)
    molecules = read_corpus(["CCO", "CCN"], tmp_path / "molecules", modality="molecule", holdout=0.0)
    assert texts.fingerprint != molecules.fingerprint and texts.texts() == molecules.texts()
    place = tmp_path / "texts" / "corpus.json"
    manifest = json.loads(place.read_text())
    for name in ("modality", "components"):
        del manifest["audit"][name]
        assert name not in manifest["options"]
    del manifest["checksums"], manifest["own_checksum"]  # there were none then
    place.write_text(json.dumps(manifest))
    assert Corpus.open(tmp_path / "texts").modality == "text"
    assert Corpus.open(tmp_path / "molecules").modality == "molecule"


def test_without_rdkit_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(EnvironmentProblem, match=r"distilvec\[molecules\]"):
        read_corpus(["CCO"], tmp_path, modality="molecule")


def test_real_molecules_and_images(tmp_path: Path) -> None:
    shared = SMALL / "data"
    pool = read_corpus(shared / "molecules" / "pool.smi.gz", tmp_path / "pool")
    assert len(pool) == 300 and not pool.audit.rejected
    salts = read_corpus(
        shared / "molecules" / "bbbp.csv.gz", tmp_path / "bbbp", modality="molecule", label="p_np", holdout=0.0
    )
    assert salts.audit.read == 2039 and salts.audit.components > 50 and not salts.audit.rejected
    for name, options, rows in (
        ("cifar10", {"text": "train_images", "label": "train_labels"}, 12),
        ("cifar10_extra_jpeg", {"label": "labels"}, 30),
        ("fashion_mnist_small", {"text": "test_images", "label": "test_labels"}, 40),
    ):
        corpus = read_corpus(shared / "images" / f"{name}.npz", tmp_path / name, holdout=0.0, **options)
        assert corpus.audit.read == rows and not corpus.audit.rejected and corpus.labels is not None
        assert np.array_equal(content_keys(corpus.texts([3, 1]), modality="image"), corpus.keys[[3, 1]])
