"""Students of molecules from nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("rdkit")
pytest.importorskip("torch_geometric")

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.kinds.networks import fresh_molecule


def test_is_a_model_that_reads_smiles() -> None:
    torch.manual_seed(3)
    student = fresh_molecule(layers=2, width=24, dropout=0.1)
    vectors = student.encode(["CCO", "c1ccccc1"])
    assert vectors.shape == (2, 24)
    assert (student[0].kind, student[0].layers, student[0].dropout) == ("gine", 2, 0.1)
    torch.manual_seed(3)
    again = fresh_molecule(layers=2, width=24, dropout=0.1)
    assert np.array_equal(again.encode(["CCO", "c1ccccc1"]), vectors)


def test_the_size_of_the_paper() -> None:
    student = fresh_molecule()
    layer = 2 * 512 * 512 + 512 + 4 * 512 + 2 * 512  # network, bond types, normalisation
    assert sum(p.numel() for p in student.parameters()) == 10 * layer + (119 + 3) * 512


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "gini"}, r"kind gini\b.*'gine'"),
        ({"layers": 0}, r"layers 0\b"),
        ({"kind": "gat", "width": 6}, r"width of 6\b.*\b4 heads.*\bgat\b"),
        ({"dropout": 1.0}, r"dropout 1\.0\b"),
    ],
)
def test_what_cannot_be(wrong: dict, message: str) -> None:
    with pytest.raises(DistilvecError, match=message):
        fresh_molecule(**wrong)


def test_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"torch_geometric.*distilvec\[molecules\]"):
        fresh_molecule(layers=1, width=4)
