"""Molecules: SMILES strings."""

from __future__ import annotations

from typing import Any

from distilvec.kinds.base import Kind, ReadItem


class Molecule(Kind):
    """Molecules; every way to write one is the same item."""

    name = "molecule"
    column = "smiles"
    columns = ("smiles",)
    example = 'vectors = model.encode(["CCO", "c1ccccc1"])  # SMILES; needs rdkit and torch-geometric'
    probe = "CCO"
    also_texts = True
    fresh = "molecule"
    sizes = "Compare the sizes of docs/molecules.md by training them."

    def read(self, cell: Any, wanted: Any, file: str) -> ReadItem:
        from distilvec.kinds.molecule.smiles import molecule_item

        return molecule_item(cell, wanted.components)

    def canonical(self, item: str, components: Any = "keep") -> str:
        from distilvec.kinds.molecule.smiles import canonical_smiles

        return canonical_smiles(item, components)

    def forms(self, item: str) -> list[str]:
        return [self.canonical(item, components) for components in ("largest", "keep")]
