"""A model that writes and reads an old index's space, made from the index's vectors and texts alone.

Rows are parted at random: report rows, choice rows, and rows that maps are fitted to. Every kind of map (`adapters`) is
fitted with several settings; the one whose choice rows find most of their own neighbours in the index (recall@10) is
put behind the new model as stock modules. Report rows choose nothing and are measured on the model that ships.
"""

from __future__ import annotations

import functools
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError, DistilvecError
from distilvec.files import write_text
from distilvec.folders import check_model
from distilvec.indexes.adapters import Map, PairMoments, low_rank, procrustes, residual, ridge
from distilvec.indexes.queries import DEPTH, read_queries
from distilvec.indexes.rows import BLOCK, BROKEN, EMPTY, Rows, top, unusable
from distilvec.judging import CachedEncoder
from distilvec.judging.agreement import agreement
from distilvec.judging.tasks import overlap
from distilvec.modules.pipeline import item_kinds
from distilvec.progress import at_work
from distilvec.report.grid import Cell, Grid
from distilvec.students import load_student, ship
from distilvec.students.ship import named, with_modules
from distilvec.teachers.vector_files import read_vectors
from distilvec.words import points

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

#: Rows of the curve, besides all.
CURVE = (1_000, 3_000, 10_000, 30_000)
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: Of the residual network: on its hidden units, and how many these are.
HIDDEN_PENALTIES, HIDDEN = (0.1, 0.3, 1.0, 3.0), 1024
#: Held-out rows, once to choose and once to report, and the rows that they are searched among.
HELD, SEARCHED = 1_000, 50_000
FEWEST = 100
FILES = ("adapt.json", "adapt.md")


@dataclass(frozen=True)
class Point:
    """One kind of map after so many rows.

    Attributes:
        kind: "procrustes", "ridge", "low rank" or "residual".
        setting: of its settings the one that did best on the choice rows.
        rows: that it was fitted to.
        choice, report: recall@10 of choice and of report rows, in [0, 1].
        parameters: numbers in the map.
    """

    kind: str
    setting: str
    rows: int
    choice: float
    report: float
    parameters: int


@dataclass(frozen=True)
class Adaptation:
    """The result of `adapt`.

    Attributes:
        model: folder of the new model.
        chosen: the map that is in it.
        points: every kind of map at every number of rows, the chosen one among those of all rows.
        recall: recall@10 of the report rows by the model as it ships, in [0, 1]: the share of a text's ten nearest of
            the old index that the new model's vector of the text finds there.
        agreement: of the same rows, see `distilvec.judging.agreement`.
        rows: of the index.
        repeated: rows left out, because an earlier one has the same text.
        held: report rows, and as many choice rows.
        searched: rows of the index that these are searched among.
        queries: see `Queries.scores`; None where none were given.
        notes: what is worth knowing.
    """

    model: Path
    chosen: Point
    points: list[Point]
    recall: float
    agreement: dict[str, Any]
    rows: int
    repeated: int
    held: int
    searched: int
    queries: dict[str, float | int] | None = None
    notes: list[str] = field(default_factory=list)

    def grid(self) -> Grid:
        """Recall@10 of the report rows by kind of map and number of rows, times 100."""
        kinds = list(dict.fromkeys(point.kind for point in self.points))
        sizes = sorted({point.rows for point in self.points})
        by = {(point.rows, point.kind): point for point in self.points}
        rows = [[Cell(f"{size:,}"), *(Cell(points(by[size, kind].report)) for kind in kinds)] for size in sizes]
        chosen = self.chosen
        told = [
            f"Recall@10 times 100: of a held-out text's ten nearest in the old index, the share that its new vector "
            f"finds among {self.searched:,} rows. {self.held:,} texts that chose nothing.",
            f"Chosen on {self.held:,} other texts: {chosen.kind} ({chosen.setting}), {chosen.parameters:,} numbers.",
            f"As it ships: recall@10 {points(self.recall)}, mean cosine {self.agreement['cosine']:.3f}, "
            f"neighbours by itself {points(self.agreement['neighbours'])}.",
        ]
        return Grid(["rows the map saw", *kinds], rows, [*told, *self._of_queries(), *self.notes])

    def _of_queries(self) -> list[str]:
        if (scores := self.queries) is None:
            return []
        parts = []
        if "recall" in scores:
            old = f" (old model {points(scores['old_recall'])})" if "old_recall" in scores else ""
            parts.append(f"recall@10 of their documents {points(scores['recall'])}{old}")
        if "overlap" in scores:
            parts.append(f"of the old model's first ten {points(scores['overlap'])} are found")
        return [f"{scores['queries']:,} queries on the whole old index: {', '.join(parts)}."]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "model": self.model.name}


def _check_arguments(limit: int, queries: Any, query_vectors: Any) -> None:
    """Refuse what needs no data to be refused."""
    if limit < FEWEST:
        raise DistilvecError(f"{limit} rows are too few to fit a map to", where="limit", remedy=f"At least {FEWEST}.")
    if query_vectors is not None and queries is None:
        raise DistilvecError(
            "these are vectors of queries, and there are no queries",
            where="query_vectors",
            remedy="Give the queries too (--queries).",
        )


@at_work
def adapt(
    model: str | Path,
    vectors: str | Path | npt.NDArray[np.floating],
    texts: str | Path | Sequence[str] | None = None,
    output: str | Path = "adapted",
    *,
    queries: str | Path | Sequence[Mapping[str, Any]] | None = None,
    query_vectors: str | Path | npt.NDArray[np.floating] | None = None,
    limit: int = 50_000,
    seed: int = 0,
    device: str | None = None,
) -> Adaptation:
    """Put the best of four maps behind a new model, so that its vectors can be searched for in an old index.

    Args:
        model: the new model: folder or hub id. Where it has prompts for documents and queries, rows of the index are
            read with the one and queries with the other.
        vectors: the old index: .npy file [n, D], array, or parquet file.
        texts: of its rows: .txt (one a line), .jsonl, a list, or the name of a parquet file's text column.
        output: folder of the new model, with `adapt.md` and `adapt.json` beside its modules; a new or an empty one.
        queries: file or rows with `query` and `document` (the text of a row that should be found).
        query_vectors: the old model's vectors of the queries, one a row.
        limit: fit to at most so many rows; a map has little use for more.
        seed: of how the rows are parted, and of the residual network.
        device: of the model; None = the best there is.

    Raises:
        DistilvecError: the output holds something, no such model, no texts, queries without a truth, or a limit below
            100.
        DataError: vectors or texts cannot be read, differ in number, hold NaN, infinity or rows of zeros, or are fewer
            than 100 different texts.
    """
    _check_arguments(limit, queries, query_vectors)
    target = named(Path(output).expanduser())
    check_model(target, new=True)
    matrix, table = read_vectors(vectors, texts)
    where = str(vectors) if isinstance(vectors, str | Path) else "vectors"
    unit_length = _refuse_damaged(matrix, where)
    distinct = _distinct(table, where)
    asked = None if queries is None else read_queries(queries, query_vectors, table, matrix.shape[1])
    base = _normalized(_open(model, device))
    order = distinct[np.random.default_rng(seed).permutation(len(distinct))]
    held = min(HELD, len(order) // 5)
    maps = _MapFits(CachedEncoder(base, name=str(model)), matrix, table, order, held, seed)
    curve = maps.curve(order[2 * held : 2 * held + limit])
    best, chosen = max(curve[-1], key=lambda pair: pair[1].choice)
    adapted = _behind(base, best.modules(), normalize=unit_length)
    shipped = CachedEncoder(adapted, name="the adapted model")
    made = shipped.document([table[row] for row in maps.report])
    recall, repeated, searched = maps.recall(made, reporting=True), len(matrix) - len(distinct), len(maps.searched)
    points = [point for each in curve for _, point in each]
    alike = agreement(np.asarray(matrix[maps.report], np.float32), made, shared_space=True)
    found = None if asked is None else asked.scores(shipped.query(asked.texts), matrix)
    counts = (len(matrix), repeated, held, searched)
    result = Adaptation(target, chosen, points, recall, alike, *counts, found, _notes(recall, searched, repeated))
    ship(adapted, target, beside=[functools.partial(_write, result, Path(model).name)])
    return result


def _write(result: Adaptation, model: str, folder: Path) -> None:
    """Write what came out next to the modules."""
    write_text(folder / FILES[0], json.dumps(result.to_dict(), indent=1) + "\n")
    write_text(folder / FILES[1], f"# {model} on an old index\n\n{result.grid().markdown()}\n")


class _MapFits:
    """Fits maps to rows and judges them by held-out ones.

    Args:
        order: all different rows in random order: `held` report rows, as many choice rows, others.
    """

    def __init__(
        self, encode: CachedEncoder, vectors: npt.NDArray[Any], texts: Sequence[str], order: Rows, held: int, seed: int
    ) -> None:
        self._encode, self._vectors, self._texts, self._seed = encode, vectors, texts, seed
        self.report, self._choice = order[:held], order[held : 2 * held]
        self.searched = np.asarray(vectors[order[:SEARCHED]], np.float32)
        self._own = np.arange(2 * held)
        self._truth = top(self.searched[: 2 * held], self.searched, DEPTH, self._own)
        self._held = self._read(order[: 2 * held])

    def curve(self, rows: Rows) -> list[list[tuple[Map, Point]]]:
        """The best map of every kind, fitted to more and more of these rows, and to all of them last."""
        sizes = [*(size for size in CURVE if size < len(rows)), len(rows)]
        return [self.best_of_each_kind(rows[:size]) for size in sizes]

    def best_of_each_kind(self, rows: Rows) -> list[tuple[Map, Point]]:
        """Fit every kind of map to these rows, each with the setting that does best on the choice rows."""
        x, y = self._read(rows), self._vectors[rows]
        moments = PairMoments(x.shape[1], y.shape[1]).add(x, y)
        ridges = self._best([ridge(moments, penalty) for penalty in PENALTIES])
        full = min(moments.centred[1].shape)
        ranks = sorted({max(1, full * eighths // 8) for eighths in (2, 4, 5, 6, 7)})
        kinds = [
            self._best([procrustes(moments)]),
            ridges,
            self._best(low_rank(ridges[0], moments, ranks)),
            self._best(residual(ridges[0], x, y, HIDDEN_PENALTIES, hidden=HIDDEN, seed=self._seed)),
        ]
        best = []
        for made, choice in kinds:
            report = self.recall(made(self._held[: len(self.report)]), reporting=True)
            logger.info("%s rows, %s (%s): recall@10 %.3f", f"{len(rows):,}", made.kind, made.setting, report)
            best.append((made, Point(made.kind, made.setting, len(rows), choice, report, made.parameters)))
        return best

    def recall(self, mapped: npt.NDArray[Any], *, reporting: bool) -> float:
        """Share of the held-out rows' own ten nearest of the old index that these vectors find there."""
        held = len(self.report)
        which = slice(0, held) if reporting else slice(held, 2 * held)
        return overlap(self._truth[which], top(mapped, self.searched, DEPTH, self._own[which]))

    def _best(self, maps: Sequence[Any]) -> tuple[Any, float]:
        held = self._held[len(self.report) :]
        return max(((made, self.recall(made(held), reporting=False)) for made in maps), key=lambda pair: pair[1])

    def _read(self, rows: Rows) -> npt.NDArray[np.float32]:
        return self._encode.document([self._texts[row] for row in rows])


def _refuse_damaged(vectors: npt.NDArray[Any], where: str) -> bool:
    """Tell whether all vectors have length 1; a row with NaN, infinity, or nothing but zeros is an error."""
    for marks, what in zip(unusable(vectors), (BROKEN, EMPTY), strict=True):
        if marks.any():
            told = f"{int(marks.sum()):,} rows hold {what}, the first is row {int(marks.argmax())}"
            raise DataError(told, where=where, remedy="Leave these rows and their texts out.")
    return all(
        np.abs(np.linalg.norm(np.asarray(vectors[start : start + BLOCK], np.float64), axis=1) - 1).max() < 0.01
        for start in range(0, len(vectors), BLOCK)
    )


def _distinct(texts: Sequence[str], where: str) -> Rows:
    """The first row of every text: a text that is fitted to must not be reported on."""
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    if len(first) < FEWEST:
        found = f"{len(first)} different texts are too few to fit a map and to judge it"
        raise DataError(found, where=where, remedy=f"At least {FEWEST} are needed, some thousands are better.")
    return np.fromiter(first.values(), np.int64, len(first))


def _open(model: str | Path, device: str | None) -> SentenceTransformer:
    opened = load_student(model, device=device).eval()
    if "text" not in item_kinds(opened):
        raise DistilvecError("it reads no texts", where=str(model), remedy="Give a model of texts.")
    return opened


def _normalized(model: SentenceTransformer) -> SentenceTransformer:
    """The model with vectors of length 1: maps fitted to these found more than those fitted to vectors as they were."""
    from sentence_transformers.base.modules import Normalize

    last = list(model.children())[-1]
    return model if isinstance(last, Normalize) else _behind(model, [], normalize=True)


def _behind(model: SentenceTransformer, more: Sequence[Any], *, normalize: bool) -> SentenceTransformer:
    """A model that shares another one's weights, with further modules behind it."""
    from sentence_transformers.base.modules import Normalize

    modules: Any = OrderedDict(model.named_children())
    for number, module in enumerate([*more, *([Normalize()] if normalize else [])]):
        modules[f"adapter_{len(modules)}_{number}"] = module
    return with_modules(model, modules).eval()


def _notes(recall: float, searched: int, repeated: int) -> list[str]:
    notes = []
    if repeated:
        notes.append(f"{repeated:,} rows repeat the text of an earlier row and were left out.")
    if recall < max(0.05, 5 * DEPTH / searched):
        notes.append(
            "The map finds next to nothing: texts and vectors may not be of one order. If you still have the old "
            "model, `distilvec check-index` tells."
        )
    return notes
