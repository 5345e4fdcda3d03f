"""Molecules as items: canonical SMILES."""

from __future__ import annotations

from typing import Any

from distilvec.corpus.keys import Components
from distilvec.corpus.problem import Problem
from distilvec.extras import need
from distilvec.kinds.base import ReadItem

MAX_CHARACTERS = 1_000
MAX_HEAVY_ATOMS = 250
_ROUNDS = 4


def canonical_smiles(smiles: str, components: Components = "keep") -> str:
    """The SMILES that every way to write this molecule leads to: RDKit's canonical isomeric one, a fixed point.

    Args:
        smiles: at most `MAX_CHARACTERS`; stereo marks, charges and isotopes are kept.
        components: what happens to several components (salts, mixtures): "largest" keeps the one with most heavy
            atoms (of equal ones the first by SMILES), "keep" keeps all, "reject" refuses.

    Raises:
        Problem: "empty molecule" (nothing, or no heavy atom), "too long" (or more than `MAX_HEAVY_ATOMS`), "not a
            valid SMILES", "several components".
        EnvironmentProblem: RDKit is not installed.

    >>> canonical_smiles("C1=CC=CC=C1O"), canonical_smiles("[Na+].CC(=O)[O-]", "largest")
    ('Oc1ccccc1', 'CC(=O)[O-]')
    """
    return molecule_item(smiles, components).item


def molecule_item(smiles: Any, components: Components) -> ReadItem:
    """Return what a row holds, as an item; see `canonical_smiles`."""
    if smiles is None:
        raise Problem("missing SMILES")
    if not isinstance(smiles, str):
        raise Problem("not text")
    text = smiles.strip()
    if not text:
        raise Problem("empty molecule")
    # The parser's time and stack grow with the text, so the length is looked at first. It stops at white space and
    # reads the rest as a name: prose that starts with letters of elements would pass.
    if len(text) > MAX_CHARACTERS:
        raise Problem("too long")
    if not text.isascii() or any(character.isspace() for character in text):
        raise Problem("not a valid SMILES")
    need("Reading molecules", "molecules", "rdkit")
    from rdkit import rdBase

    with rdBase.BlockLogs():
        canonical = _fixed_point(text)
        parts = canonical.split(".")
        if len(parts) > 1 and components == "reject":
            raise Problem("several components")
        if len(parts) > 1 and components == "largest":
            canonical = _fixed_point(min(parts, key=lambda part: (-_parsed(part).GetNumHeavyAtoms(), part)))
        heavy = _parsed(canonical).GetNumHeavyAtoms()
    if heavy == 0:
        raise Problem("empty molecule")
    if heavy > MAX_HEAVY_ATOMS:
        raise Problem("too long")
    return ReadItem(canonical, canonical, len(parts) > 1)


def _fixed_point(text: str) -> str:
    """Canonicalise until nothing changes: an item's SMILES must have the key it was given, read again or not.

    One round does it but for rare stereo marks, of which another order of atoms makes something else; where the
    rounds go in a circle, the first SMILES in it by order of letters is taken.
    """
    from rdkit import Chem

    seen = [text]
    for _ in range(_ROUNDS):
        molecule = _parsed(seen[-1])
        try:
            canonical = Chem.MolToSmiles(molecule)
        except RuntimeError as error:
            raise Problem("not a valid SMILES") from error
        if canonical in seen:
            return str(min(seen[seen.index(canonical) :]))
        seen.append(canonical)
    return str(seen[-1])


def _parsed(smiles: str) -> Any:
    """RDKit's molecule."""
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise Problem("not a valid SMILES")
    return molecule
