"""Vectors made smaller: cut short, as bytes, as bits; and what is left of their geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError
from distilvec.judging.encoder import CachedEncoder, ChangedEncoder, Vectors
from distilvec.judging.tasks import unit

Array = npt.NDArray[Any]
Precision = Literal["float32", "int8", "binary"]
#: Narrower prefixes are not tried unless they are asked for.
NARROWEST = 32


@dataclass(frozen=True)
class Form:
    """One way to keep a vector: so many of its first numbers, each as four bytes, one byte or one bit."""

    width: int
    precision: Precision = "float32"

    @property
    def bytes_per_vector(self) -> int:
        return {"float32": 4 * self.width, "int8": self.width, "binary": -(-self.width // 8)}[self.precision]

    def stored(self, vectors: Array, limit: float) -> Array:
        """Return what an index keeps of vectors [n, d]: float32 [n, w], int8 [n, w], or uint8 [n, ceil(w / 8)] of bits.

        Args:
            vectors: cut to `width` and brought to length 1 first.
            limit: of `calibrated`; int8 spreads -127 to 127 over -limit to limit, alike for every dimension and rounded
                to the nearest, so that products of bytes are proportional to products of vectors. Larger numbers are
                clipped.
        """
        short = unit(np.asarray(vectors)[:, : self.width])
        if self.precision == "int8":
            return np.rint(short * (127 / limit)).clip(-127, 127).astype(np.int8)
        if self.precision == "binary":
            return np.packbits(short > 0, axis=1)
        return short

    def compared(self, vectors: Array, limit: float) -> Vectors:
        """float32 [n, w] of length 1 with the cosines of the stored vectors; of bits, 1 - 2 Hamming / w.

        Of one length in every form: a probe's regularisation depends on the scale of what it is given.
        """
        stored = self.stored(vectors, limit)
        if self.precision == "binary":
            stored = 2.0 * np.unpackbits(stored, axis=1, count=min(self.width, np.shape(vectors)[1])) - 1.0
        return unit(stored.astype(np.float32))


def calibrated(vectors: Array, width: int) -> float:
    """The largest absolute number among vectors [n, d] that are cut to `width` and brought to length 1.

    Raises:
        DistilvecError: there are none, or all are zero.
    """
    short = unit(np.asarray(vectors)[:, :width])
    limit = float(np.abs(short).max()) if short.size else 0.0
    if limit == 0:
        shape = list(np.shape(vectors))
        raise DistilvecError(f"int8 vectors are calibrated on vectors, and those given {shape} are none but zeros")
    return limit


def forms(width: int, widths: Sequence[int] | None = None) -> list[Form]:
    """The full width and prefixes of it, widest first, each as numbers, bytes and bits.

    Args:
        width: d.
        widths: prefixes; None = halves, down to 32.

    Raises:
        DistilvecError: a prefix is not between 1 and d.

    >>> [(form.width, form.precision) for form in forms(64)][:4]
    [(64, 'float32'), (64, 'int8'), (64, 'binary'), (32, 'float32')]
    """
    if widths is None:
        halves = [width // 2**power for power in range(1, 16) if width % 2**power == 0]
        widths = [half for half in halves if half >= NARROWEST]
    wrong = next((each for each in widths if not 1 <= each <= width), None)
    if wrong is not None:
        raise DistilvecError(
            f"a vector of {width} numbers cannot be cut to {wrong}", remedy=f"Choose widths from 1 to {width}."
        )
    wanted = sorted({width, *widths}, reverse=True)
    kinds: tuple[Precision, ...] = ("float32", "int8", "binary")
    return [Form(each, kind) for each in wanted for kind in kinds]


class CompressedEncoder(ChangedEncoder):
    """A model whose vectors come back as they are stored: what the evaluators score.

    Args:
        encode: of the whole vectors, which are kept for all forms.
        form: how they are stored.
        limit: of `calibrated` for the form's width.
    """

    def __init__(self, encode: CachedEncoder, form: Form, limit: float) -> None:
        super().__init__(encode, lambda vectors: form.compared(vectors, limit))
