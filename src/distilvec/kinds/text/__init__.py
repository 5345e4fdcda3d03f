"""Texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.corpus.audit import clean_text
from distilvec.corpus.keys import PAIR, canonical
from distilvec.errors import DataError
from distilvec.kinds.base import TABLE, Kind, ReadItem, find_kind
from distilvec.late import Late


class Text(Kind):
    """Texts, or pairs of texts that are read jointly."""

    name = "text"
    task = "sentence-similarity"
    folded = tokenized = cut = neighbours = True
    foreign = ()
    unsaid = ("modality", "components")
    teacher = Late("distilvec.teachers.models:text_teacher")

    def read(self, cell: Any, wanted: Any, file: str) -> ReadItem:
        text = clean_text(cell, wanted.max_characters, joint=wanted.joint)
        return ReadItem(text, text)

    def canonical(self, item: str, components: Any = "keep") -> str:
        return canonical(item)

    def check_rows(self, rows: Sequence[Any], column: str, where: str) -> None:
        first = next((row.value for row in rows if isinstance(row.value, Mapping)), {})
        for kind in [find_kind(name) for name in TABLE if name != self.name]:
            if kind.recognises(first.get(column)):
                what = f'the column "{column}" holds {kind.noun}'
                raise DataError(what, where=where, remedy=f"Set corpus.modality to {kind.name}.")
            named = next((name for name in first if str(name).lower() in kind.columns), None)
            if column not in first and named is not None:
                what = f'there is no column "{column}", but one "{named}"'
                remedy = f"Set corpus.modality to {kind.name} and corpus.text to {named}; or name the column of texts."
                raise DataError(what, where=where, remedy=remedy)

    def shown(self, items: Sequence[str], held_out: Sequence[str]) -> list[str]:
        return [item.replace(PAIR, " | ") for item in items]
