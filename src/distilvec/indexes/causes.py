"""Causes of rows that do not fit a model: ways to read a text, and places of rows, tried one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distilvec.evenly import evenly_spaced
from distilvec.indexes.rows import Marks, Rows, top
from distilvec.indexes.variants import IndexVariant, Reader, Vectors
from distilvec.judging.metrics import measure
from distilvec.judging.tasks import cosines, unit

#: Rows that a cause is tried on before all are.
PROBE = 24
#: A cause counts where it explains at least this share of the probe: a wrong one explains next to nothing.
_ENOUGH = 0.1
#: From here on no other is tried.
_PLENTY = 0.95
_FEWEST_TO_COMPARE = 8
_DRAWS = 199


@dataclass(frozen=True)
class IndexSample:
    """The rows of an index that are looked at.

    Attributes:
        rows: int64 [m] ascending.
        texts: of these rows.
        stored: [m, D], their vectors.
        read: float32 [m, D], the model's vectors of the texts.
    """

    rows: Rows
    texts: list[str]
    stored: npt.NDArray[np.floating]
    read: Vectors

    def part(self, places: Rows) -> IndexSample:
        """Some of them."""
        return IndexSample(
            self.rows[places], [self.texts[place] for place in places], self.stored[places], self.read[places]
        )


@dataclass(frozen=True)
class Cause:
    """A cause of rows that do not fit, and the rows that it explains.

    Attributes:
        variant: how the texts were read; None where the rows lie elsewhere.
        explained: bool [m], of the rows that were asked about.
        read: float32 [m, D], the vectors of the variant.
        places: int64 [m], where the vectors of these texts were found.
    """

    variant: IndexVariant | None
    explained: Marks
    read: Vectors | None = None
    places: Rows | None = None


@dataclass(frozen=True)
class Causes:
    """Finds the cause of rows that do not fit.

    Attributes:
        vectors: [n, D], the whole index.
        texts: of the whole index.
        least: cosine from which on a vector is that of a text, in (0, 1).
    """

    reader: Reader
    vectors: npt.NDArray[np.floating]
    texts: Sequence[str]
    least: float

    def of(self, sample: IndexSample) -> Cause | None:
        """The cause that explains most of these rows; None where nothing that is tried explains a tenth of them."""
        probe = sample.part(evenly_spaced(len(sample.rows), PROBE))
        elsewhere = float(self._elsewhere(probe).explained.mean())
        share, variant = 0.0, IndexVariant()
        if elsewhere < _PLENTY:
            for tried, read in self._read(probe):
                fitting = float(self._fits(probe, read).mean())
                if fitting > share:
                    share, variant = fitting, tried
                if share > _PLENTY:
                    break
        if max(elsewhere, share) < _ENOUGH:
            return None
        return self._elsewhere(sample) if elsewhere >= share else self.read_as(sample, variant)

    def read_as(self, sample: IndexSample, variant: IndexVariant) -> Cause:
        """Return which rows are those of texts read in one way."""
        read = self.reader.read(sample.texts, variant)
        return Cause(variant, self._fits(sample, read), read=read)

    def explained(self, sample: IndexSample, variant: IndexVariant | None) -> Marks:
        """bool [m], rows that a cause explains: their text read in one way, or, by None, their place."""
        return (self._elsewhere(sample) if variant is None else self.read_as(sample, variant)).explained

    def _read(self, probe: IndexSample) -> Iterator[tuple[IndexVariant, Vectors]]:
        """The probe read in every way; a variant of one part comes before those of two, so that it wins a tie."""
        reader = self.reader
        for prompt in (None, *reader.prompts):
            modes = [*([] if prompt is None else [None]), *reader.poolings]
            if modes:
                read = reader.read_all(probe.texts, IndexVariant(prompt), modes)
                yield from ((IndexVariant(prompt, mode), read[mode]) for mode in modes)
        for length in reader.lengths:
            yield IndexVariant(length=length), reader.read(probe.texts, IndexVariant(length=length))

    def _elsewhere(self, sample: IndexSample) -> Cause:
        """Rows whose text has its vector in a row of another text."""
        places = top(sample.read, self.vectors, 1)[:, 0]
        near = cosines(sample.read, self.vectors[places]) >= self.least
        other = np.array(
            [self.texts[place] != text for place, text in zip(places, sample.texts, strict=True)], dtype=bool
        )
        return Cause(None, near & other, places=places)

    def _fits(self, sample: IndexSample, read: Vectors) -> Marks:
        return np.asarray(cosines(read, sample.stored) >= self.least)


def same_texts(sample: IndexSample, seed: int = 0) -> float | None:
    """Correlation of the model's cosines with the stored ones over all pairs of rows, where it is no accident.

    Two models mostly agree on which texts are alike. None where one of 199 orders of the rows does as well (Mantel's
    test), or where there are fewer than eight rows: then the vectors may be those of other texts.
    """
    probe = sample.part(evenly_spaced(len(sample.rows), 8 * PROBE))
    count = len(probe.rows)
    if count < _FEWEST_TO_COMPARE:
        return None
    upper = np.triu_indices(count, k=1)
    stored, read = (np.asarray(unit(each) @ unit(each).T, np.float64) for each in (probe.stored, probe.read))
    correlation = measure("pearson", stored[upper], read[upper])
    random = np.random.default_rng(seed)
    orders = (random.permutation(count) for _ in range(_DRAWS))
    by_chance = max(measure("pearson", stored[np.ix_(order, order)][upper], read[upper]) for order in orders)
    return correlation if correlation > max(by_chance, 0.0) else None
