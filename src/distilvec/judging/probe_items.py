"""Labelled images and molecules for a probe: read as a corpus reads them, and counted where they cannot be used."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from distilvec.corpus.column_names import ColumnNames
from distilvec.corpus.keys import folded
from distilvec.corpus.problem import Problem
from distilvec.corpus.sources import find_source
from distilvec.errors import DataError, EnvironmentProblem
from distilvec.judging.probes import Columns
from distilvec.judging.tables import TaskTable
from distilvec.judging.tasks import folded_parts
from distilvec.kinds.base import find_kind

logger = logging.getLogger(__name__)
_LOOKED_AT = 200
_UNLABELLED = "no label"


def image_table(path: Path, text: str, answer: str) -> TaskTable | None:
    """The images of a folder (columns "image", "path" and "folder") or of an .npz file; None where it is neither."""
    if not path.is_dir() and path.suffix not in find_kind("image").suffixes:
        return None
    rows = [row for row in find_source(path, "image").rows([text, answer], 0) if row.fault is None]
    return TaskTable(str(path), [row.value for row in rows], [row.line for row in rows], "image")


class ProbeItems:
    """Items of one probe, and why others were left out.

    An image that cannot be read is left out, and where most are SMILES, what is none; and rows without a label, which
    tables of several tasks have for what was not measured.

    Attributes:
        rejected: reason -> number of rows.
        contents: digests of the images that were taken, whose files may change under their names.
        identities: of each image that was taken its digest, of each molecule its canonical SMILES; of others nothing.
    """

    def __init__(self, name: str, images: bool) -> None:
        self.name, self.images = name, images
        self.rejected: Counter[str] = Counter()
        self.contents: list[str] = []
        self.identities: list[str] = []
        self._first: dict[str, str] = {}

    def columns(
        self,
        table: TaskTable,
        text: str,
        answer: str,
        read: Callable[[TaskTable], list[Any]],
        folder: Path,
        excluded: Collection[str] = (),
    ) -> Columns:
        """(items, answers) of the rows that can be used.

        Args:
            read: the answers of a table.
            folder: where relative paths of images start.
            excluded: items to be left out, molecules and images however they are written.
        """
        labelled = [row for row, value in enumerate(table.rows) if not _blank(value.get(answer, 0))]
        self._count(table, set(range(len(table))) - set(labelled), _UNLABELLED)
        table = table.take(labelled)
        values: list[Any] = [row.get(text) for row in table.rows] if self.images else table.texts(text)
        plain = not self.images and not self._mostly_molecules(values)
        away = folded_parts(excluded) if plain else {identity(each, folder, images=self.images) for each in excluded}
        kept, items, known = [], list[Any](), 0
        for row, value in enumerate(values):
            try:
                item, key = (value, folded(value)) if plain else _read(value, folder, self.images)
            except Problem as problem:
                self._count(table, {row}, str(problem))
                continue
            if key in away:
                known += 1
                continue
            kept.append(row)
            items.append(item)
            self.identities += [] if plain else [key]
            self.contents += [key] if self.images else []
        if not items and known:
            raise DataError(f"all {known} test items are excluded", where=table.source, remedy="See its exclude.")
        if not items:
            told = ", ".join(f"{reason} ({count:,})" for reason, count in self.rejected.most_common())
            raise DataError(f"no row can be used: {told}", where=f"{table.source}, column {text}")
        return items, read(table.take(kept))

    def _mostly_molecules(self, values: list[Any]) -> bool:
        good = 0
        for value in values[:_LOOKED_AT]:
            try:
                _read(value, Path(), False)
                good += 1
            except EnvironmentProblem:
                return False
            except Problem:
                pass
        return 2 * good > len(values[:_LOOKED_AT])

    def _count(self, table: TaskTable, rows: set[int], reason: str) -> None:
        if rows:
            self.rejected[reason] += len(rows)
            self._first.setdefault(reason, f"{table.source}, {table.unit} {table.lines[min(rows)]}")

    def tell(self) -> None:
        """Say in the log what was left out, and where it began."""
        for reason, count in self.rejected.items():
            logger.warning("task %s: %s rows left out, %s (%s)", self.name, f"{count:,}", reason, self._first[reason])


def identity(item: str, folder: Path, *, images: bool) -> str:
    """Return what equal images or molecules share; what cannot be read is nothing but itself."""
    try:
        return _read(item, folder, images)[1]
    except Problem:
        return item


def _read(value: Any, folder: Path, images: bool) -> tuple[str, str]:
    """An image and its digest, or a molecule and its canonical SMILES."""
    wanted = ColumnNames(("item",), modality="image" if images else "molecule", components="keep")
    found = wanted.kind.read(value, wanted, str(folder / "row"))
    return (found.item if images else value), found.identity


def _blank(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
