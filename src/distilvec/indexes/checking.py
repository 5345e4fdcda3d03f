"""Do these vectors and this model belong together? Rows are encoded again; what does not fit is named.

A row fits where the cosine between its vector and the model's of its text is over a threshold. The threshold is
calibrated on right rows: the model in bfloat16 against itself in float32, the coarsest arithmetic of an honest index.
The logarithm of 1 - cosine is taken for normal, and the threshold lies where a clean index, whose m rows are looked at,
is accused with a probability of at most `FALSE_ALARMS`. Wrong rows (a text against the vectors of others) say how often
a row that does not belong would pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from distilvec.errors import DataError
from distilvec.evenly import evenly_spaced
from distilvec.indexes.causes import Cause, Causes, IndexSample, same_texts
from distilvec.indexes.findings import FALSE_ALARMS, REMEDIES, Finding, IndexCheck
from distilvec.indexes.rows import BROKEN, EMPTY, Marks, Rows, in_words, located, ranges, spread, unusable
from distilvec.indexes.variants import IndexVariant, Reader
from distilvec.judging.tasks import cosines, unit
from distilvec.progress import at_work
from distilvec.teachers.vector_files import read_vectors

#: Rows that the threshold is calibrated on, and the least that a check can do with.
CALIBRATION, FEWEST = 48, 16
#: 1 - cosine that is never more than arithmetic: kernels and machines differ by less.
_FLOOR = 2e-4
#: Relative difference of lengths that is never more than arithmetic (bfloat16 keeps eight bits).
_LENGTH = 0.02
_CAUSES = 4
#: Rows that tell whether two models agree on which texts are alike.
ENOUGH = 48
#: At most so many times the checked rows are read to find them.
_MORE = 4


@at_work
def check_index(
    model: str | Path,
    vectors: str | Path | npt.NDArray[np.floating],
    texts: str | Path | Sequence[str] | None = None,
    *,
    prompt: str | None = None,
    rows: int | None = 500,
    seed: int = 0,
    device: str | None = None,
) -> IndexCheck:
    """Tell whether vectors were made by a model, from texts in the same order, and if not, what is wrong.

    Named are: another model of the same width, a prompt, another pooling or maximum length, missing normalisation,
    shuffled or shifted rows, several models in one index and which rows, rows that hold nothing.

    Args:
        model: folder or hub id.
        vectors: .npy file [n, D], array, or a table as `VectorsTeacher` reads it ("file.parquet:column").
        texts: of the rows: .txt (one a line), .jsonl, a list, or the name of a table's text column.
        prompt: what the index is meant to have before its texts: a text, the name of one of the model's prompts, ""
            for none; None = the model's default.
        rows: how many are encoded again, at least 16; None = all, which tells every wrong row.
        seed: of the choice of rows.
        device: of the model; None = the best there is.

    Raises:
        DistilvecError: no such model, or no texts.
        DataError: vectors or texts cannot be read, differ in number, or are fewer than 16 usable rows, or the model
            reads nothing in the texts.
    """
    if rows is not None and rows < FEWEST:
        raise DataError(f"{rows} rows say too little", where="rows", remedy=f"Check at least {FEWEST}; None is all.")
    matrix, table = read_vectors(vectors, texts)
    broken, empty = unusable(matrix)
    findings = [*_damaged(broken, BROKEN), *_damaged(empty, EMPTY)]
    usable = np.flatnonzero(~(broken | empty))
    if len(usable) < FEWEST:
        where = str(vectors) if isinstance(vectors, str | Path) else "vectors"
        found = f"{len(usable)} of {len(matrix)} rows hold a vector, too few to check"
        raise DataError(found, where=where, remedy=f"At least {FEWEST} are needed.")
    reader = Reader(model, prompt=prompt, device=device)
    chosen = usable[spread(len(usable), rows, seed)]
    asked = [table[row] for row in chosen]
    read, width = reader.read(asked), int(matrix.shape[1])
    least = threshold(reader, asked, read[:, :width])
    if width != reader.width:
        findings.insert(0, _width(reader, matrix[chosen], read, least))
        return IndexCheck(findings, len(matrix), len(chosen), least)
    sample = IndexSample(chosen, asked, np.asarray(matrix[chosen], np.float32), read)
    check = _Check(Causes(reader, matrix, table, least), sample, ~(broken | empty))
    repeated = len(table) - len(set(table))
    return IndexCheck(
        sorted([*findings, *check.findings()], key=lambda each: -each.share),
        len(matrix),
        len(chosen),
        least,
        passes=_passes(sample, least),
        cosine=float(np.median(cosines(sample.read, sample.stored))),
        notes=[f"{repeated:,} rows repeat the text of an earlier row."] if repeated else [],
    )


def threshold(reader: Reader, texts: Sequence[str], read: npt.NDArray[np.floating]) -> float:
    """Cosine from which on a vector is the model's of a text: see the head of this file.

    Args:
        texts: those of the sample, m of them.
        read: float32 [m, D], the model's vectors of them.
    """
    # A text without pieces that the model knows is a vector of zeros, and has no direction to compare.
    known = np.flatnonzero(read.any(axis=1))
    few = known[evenly_spaced(len(known), CALIBRATION)]
    coarse = reader.rounded([texts[row] for row in few])[:, : read.shape[1]]
    seen = coarse.any(axis=1)
    if seen.sum() < FEWEST:
        raise DataError(
            f"the model reads something in {seen.sum()} of {len(texts)} checked texts, too few to tell its vectors "
            "from others",
            where="texts",
            remedy="See that the texts are in a language of the model; check more rows.",
        )
    noise = np.log(np.maximum(1 - cosines(read[few][seen], coarse[seen]), 1e-9))
    # Mean and deviation are those of a few texts: Student's t, and the next text scatters about a mean that does, too.
    wide = stdtrit(len(noise) - 1, 1 - FALSE_ALARMS / len(texts)) * np.sqrt(1 + 1 / len(noise))
    highest = noise.mean() + noise.std(ddof=1) * wide
    return 1 - max(_FLOOR, float(np.exp(highest)))


class _Check:
    """One check: which rows of the sample fit, and what is wrong with the others; `usable` rows hold a vector."""

    def __init__(self, causes: Causes, sample: IndexSample, usable: Marks) -> None:
        self._causes, self._sample, self._usable = causes, sample, usable
        self._fits = cosines(sample.read, sample.stored) >= causes.least
        self._found: list[IndexVariant | None] = []
        #: Stored length / the model's, where the direction is known.
        self._lengths = np.full(len(sample.rows), np.nan)
        self._measure(np.flatnonzero(self._fits), sample.read[self._fits])

    def findings(self) -> list[Finding]:
        """Return what is wrong, first with directions, then with lengths."""
        findings: list[Finding] = []
        left = np.flatnonzero(~self._fits)
        while len(left) and len(findings) < _CAUSES:
            cause = self._causes.of(self._sample.part(left))
            if cause is None:
                break
            explained = left[cause.explained]
            self._found.append(cause.variant)
            findings.append(
                self._elsewhere(cause, explained) if cause.variant is None else self._read_as(cause, explained)
            )
            left = left[~cause.explained]
        if len(left):
            findings.append(self._foreign(left))
        return [*findings, *self._normalisation()]

    def _read_as(self, cause: Cause, places: Rows) -> Finding:
        variant = cause.variant
        assert variant is not None and cause.read is not None
        self._measure(places, cause.read[cause.explained])
        # Rows that fit anyway do not speak against it: of a short text, two lengths are one.
        right = np.flatnonzero(self._fits)
        whole = not len(right) or bool(self._causes.read_as(self._sample.part(right), variant).explained.mean() > 0.9)
        rows, exact = ([], True) if whole else self._where(places, lambda more: self._causes.explained(more, variant))
        what = f"{self._told(places, rows, exact, whole)} those of texts read {variant}"
        if variant.prompt is not None:
            own = f'the prompt "{self._causes.reader.prompt}"' if self._causes.reader.prompt else "no prompt"
            what += f"; this check put {own} before them"
        return self._finding(variant.kind, what, places, rows, exact)

    def _elsewhere(self, cause: Cause, places: Rows) -> Finding:
        assert cause.places is not None
        rows, exact = self._where(places, lambda more: self._causes.explained(more, None))
        steps = cause.places[cause.explained] - self._sample.rows[places]
        values, counts = np.unique(steps, return_counts=True)
        what = f"the vectors of {len(places):,} of {len(self._sample.rows):,} checked texts lie in other rows"
        if counts.max() > 0.8 * len(steps):
            what += f", {abs(values[counts.argmax()]):,} {'later' if values[counts.argmax()] > 0 else 'earlier'}"
        what += f" ({'rows' if exact else 'of those checked: rows'} {in_words(rows)})"
        return self._finding("shuffled rows", what, places, rows, exact)

    def _foreign(self, places: Rows) -> Finding:
        """Rows that nothing explains: another model's, or other texts'."""
        fitting = float(self._fits.mean())
        rows, exact = ([], True) if fitting < 0.02 else self._where(places, self._unexplained)
        alike = same_texts(self._more(places, rows, exact))
        cosine = float(np.median(cosines(self._sample.read[places], self._sample.stored[places])))
        told = self._told(places, rows, exact, fitting < 0.02)
        if alike is None:
            kind, what = "unrelated", "of other texts than those given, or of another model in another order"
        else:
            kind = "another model" if fitting < 0.02 else "mixed models"
            what = f"another model's of the same texts (which texts are alike agrees to {alike:.2f})"
        return self._finding(kind, f"{told} {what}; median cosine {cosine:.3f}", places, rows, exact)

    def _more(self, places: Rows, rows: list[tuple[int, int]], exact: bool) -> IndexSample:
        """These rows, and where they are few others that are as wrong: eight rows say little about which are alike."""
        if len(places) >= ENOUGH:
            return self._sample.part(places)
        known = rows if exact and rows else [(0, len(self._causes.texts) - 1)]
        inside = np.concatenate([np.arange(first, last + 1) for first, last in known])
        inside = inside[self._usable[inside]]
        checked = len(self._sample.rows)
        wanted = ENOUGH if exact else min(ENOUGH * checked // len(places), _MORE * checked)
        more = inside[spread(len(inside), wanted, 0)] if len(inside) else self._sample.rows[places]
        looked = self._look(more)
        return looked.part(np.flatnonzero(cosines(looked.read, looked.stored) < self._causes.least))

    def _normalisation(self) -> list[Finding]:
        known = np.flatnonzero(~np.isnan(self._lengths))
        off = known[np.abs(self._lengths[known] - 1) > _LENGTH]
        if not len(off):
            return []
        stored = np.linalg.norm(np.asarray(self._sample.stored[off], np.float64), axis=1)
        whole = len(off) > 0.98 * len(known)
        rows, exact = ([], True) if whole else self._where(off, self._known)
        told = self._told(off, rows, exact, whole)
        if self._causes.reader.normalizes:
            what = f"not of length 1 as the model's are, but {stored.min():.3g} to {stored.max():.3g} long"
        elif np.abs(stored - 1).max() < _LENGTH:
            what = "of length 1, and the model's are not"
        else:
            what = f"{np.median(self._lengths[off]):.3g} times as long as the model's"
        return [self._finding("normalisation", f"{told} {what}", off, rows, exact)]

    def _measure(self, places: Rows, read: npt.NDArray[np.floating]) -> None:
        self._lengths[places] = _relative_lengths(self._sample.stored[places], read)

    def _where(self, places: Rows, same: Callable[[IndexSample], Marks]) -> tuple[list[tuple[int, int]], bool]:
        """The stretches of rows that are as wrong as these, and whether these are all of them.

        Args:
            places: of the sample.
            same: which of further rows have the fault of these. Asked where rows with another fault lie beside them;
                elsewhere it is enough that a row does not fit.
        """
        wrong = np.zeros(len(self._sample.rows), bool)
        wrong[places] = True
        if len(self._sample.rows) == int(self._usable.sum()):
            return ranges(self._sample.rows[wrong]), True
        others = (~self._fits | (np.abs(self._lengths - 1) > _LENGTH)) & ~wrong
        touching = bool(((wrong[1:] & others[:-1]) | (wrong[:-1] & others[1:])).any())
        usable = np.flatnonzero(self._usable)  # between right and wrong rows, one without a vector is neither

        def is_wrong(places: Rows) -> Marks:
            looked = self._look(usable[places])
            lengths = _relative_lengths(looked.stored, looked.read)
            marks = (cosines(looked.read, looked.stored) < self._causes.least) | (np.abs(lengths - 1) > _LENGTH)
            return np.asarray(marks & same(looked) if touching else marks)

        blocks = located(np.searchsorted(usable, self._sample.rows), wrong, is_wrong)
        if blocks is None:
            return ranges(self._sample.rows[wrong]), False
        return [(int(usable[first]), int(usable[last])) for first, last in blocks], True

    def _look(self, rows: Rows) -> IndexSample:
        """Further rows that hold a vector."""
        asked = [self._causes.texts[row] for row in rows]
        stored = np.asarray(self._causes.vectors[rows], np.float32)
        return IndexSample(rows, asked, stored, self._causes.reader.read(asked))

    def _known(self, looked: IndexSample) -> Marks:
        """Tell which rows fit the model, by direction or by a cause that was found."""
        return np.asarray((cosines(looked.read, looked.stored) >= self._causes.least) | ~self._unexplained(looked))

    def _unexplained(self, looked: IndexSample) -> Marks:
        """By no cause that was found."""
        marks = [self._causes.explained(looked, each) for each in self._found]
        return ~np.any(marks, axis=0) if marks else np.ones(len(looked.rows), bool)

    def _told(self, places: Rows, rows: list[tuple[int, int]], exact: bool, whole: bool) -> str:
        count, of = len(places), len(self._sample.rows)
        if whole:
            return f"the vectors ({count:,} of {of:,} checked rows) are"
        if exact:
            return f"rows {in_words(rows)} ({count:,} of {of:,} checked) are"
        return f"{count:,} of {of:,} checked rows ({in_words(rows)}), spread over the index, are"

    def _finding(self, kind: str, what: str, places: Rows, rows: list[tuple[int, int]], exact: bool) -> Finding:
        return Finding(kind, f"{what}.", REMEDIES[kind], len(places) / len(self._sample.rows), rows, exact)


def _relative_lengths(stored: npt.NDArray[np.floating], read: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """float64 [m], the lengths of stored vectors divided by those of the model's."""
    a, b = (np.linalg.norm(np.asarray(each, np.float64), axis=1) for each in (stored, read))
    return np.asarray(a / np.maximum(b, 1e-12))


def _damaged(marks: Marks, what: str) -> list[Finding]:
    rows = ranges(np.flatnonzero(marks))
    if not rows:
        return []
    told = f"{int(marks.sum()):,} rows hold {what}: {in_words(rows)}."
    return [Finding("damaged rows", told, REMEDIES["damaged rows"], float(marks.mean()), rows)]


def _width(reader: Reader, stored: npt.NDArray[np.floating], read: npt.NDArray[np.floating], least: float) -> Finding:
    width = stored.shape[1]
    if width < reader.width and (cosines(read[:, :width], stored) >= least).mean() > 0.95:
        what = f"the vectors are the first {width} of this model's {reader.width} numbers."
        return Finding("shortened", what, f"Cut queries to {width} numbers too (truncate_dim={width}).", 1.0)
    what = f"the vectors have {width} numbers, this model gives {reader.width}."
    return Finding("width", what, REMEDIES["another model"], 1.0)


def _passes(sample: IndexSample, least: float) -> float:
    """Share of pairs of a text and another text's vector that are over the threshold; equal texts are no pairs."""
    products = unit(sample.read[:500]) @ unit(sample.stored[:500]).T
    first: dict[str, int] = {}
    names = np.array([first.setdefault(text, row) for row, text in enumerate(sample.texts[:500])])
    others = names[:, None] != names[None, :]
    return float((products >= least)[others].mean()) if others.any() else 1.0
