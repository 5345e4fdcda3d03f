"""Several teachers as one, whose vectors are theirs side by side, or averaged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from distilvec.corpus.lazy import LazyTexts
from distilvec.errors import DistilvecError
from distilvec.interruption import StopSignals
from distilvec.store import FillReport, SignalStore, fill
from distilvec.store.layout import read_format, read_identity
from distilvec.store.turns import alone
from distilvec.teachers import Capabilities, Teacher, TeacherCard
from distilvec.teachers.cards import fingerprint
from distilvec.teachers.describe import TeacherReport

if TYPE_CHECKING:
    from distilvec.corpus import Corpus
    from distilvec.flow.teach import Taught

How = Literal["concatenate", "average"]
_CHUNK = 8192
#: Characters of the teachers' names in that of a folder, which may have 255 in all.
_NAME = 200


class CombinedTeacher(Teacher):
    """Several teachers as one. It has something for an item where all of them have.

    concatenate: v = [sqrt(w_1) n(v_1), ..., sqrt(w_K) n(v_K)], so that cos(v, v') is the weighted mean of the cosines
    average:     v = n(w_1 n(v_1) + ... + w_K n(v_K)), which takes teachers of one width

    with n(x) = x / ||x|| and weights that add up to 1. Vectors have length 1.

    The card's fingerprint covers the teachers', the weights and how they are combined.

    Raises:
        DistilvecError: teachers of different widths cannot be averaged.
    """

    def __init__(self, teachers: Sequence[Teacher], weights: Sequence[float], how: How) -> None:
        widths = [teacher.card.width for teacher in teachers]
        if how == "average" and len(set(widths)) > 1:
            raise DistilvecError(
                f"teachers of different widths ({', '.join(map(str, widths))}) cannot be averaged",
                where="combine",
                remedy="Use combine: concatenate, or separate.",
            )
        self.teachers, self.how = list(teachers), how
        self.weights = [weight / sum(weights) for weight in weights]
        parts = [teacher.can for teacher in teachers]
        self.can = Capabilities(
            local=all(each.local for each in parts),
            paid=any(each.paid for each in parts),
            made=any(each.made for each in parts),
            gaps=any(each.gaps for each in parts),
        )
        cards = [teacher.card for teacher in teachers]
        sizes = [card.parameters for card in cards]
        self.card = TeacherCard(
            name="+".join(card.name for card in cards),
            kind="combined",
            source=" + ".join(card.source for card in cards),
            fingerprint=fingerprint(how, self.weights, [card.fingerprint for card in cards]),
            width=sum(widths) if how == "concatenate" else widths[0],
            normalized=True,
            licence=_licence([card.licence for card in cards]),
            parameters=None if None in sizes else sum(size or 0 for size in sizes),
        )

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]), in the order of the items."""
        for start in range(0, len(texts), _CHUNK):
            part = texts[start : start + _CHUNK]
            vectors = self.combined([teacher.encode(part) for teacher in self.teachers])
            yield np.arange(start, start + len(vectors)), vectors

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether all teachers have something for each item."""
        return np.logical_and.reduce([teacher.has(texts) for teacher in self.teachers])

    def has_side(self, side: str) -> bool:
        """Tell whether one of the teachers reads this side with a prompt of its own."""
        return any(teacher.has_side(side) for teacher in self.teachers)

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of search queries, each teacher with its own prompt for them."""
        return self.combined([teacher.encode_query(texts) for teacher in self.teachers])

    def encode_document(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of documents to be found, each teacher with its own prompt for them."""
        return self.combined([teacher.encode_document(texts) for teacher in self.teachers])

    def combined(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [n, D_k] each -> [n, D]; all NaN where one of the teachers has a row of NaN."""
        units = [each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in vectors]
        if self.how == "concatenate":
            scaled = [np.sqrt(weight) * each for weight, each in zip(self.weights, units, strict=True)]
            joined = np.concatenate(scaled, axis=1).astype(np.float32)
            joined[np.isnan(joined).any(axis=1)] = np.nan
            return joined
        mean = sum(weight * each for weight, each in zip(self.weights, units, strict=True))
        return np.asarray(mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12), np.float32)


def _licence(stated: Sequence[str | None]) -> str | None:
    """Return what the teachers state; None if one of them states nothing, unless another forbids commercial use."""
    from distilvec.report.sections.lineage import forbids_commercial_use

    together = "; ".join(dict.fromkeys(each for each in stated if each))
    return together if together and (all(stated) or forbids_commercial_use(together)) else None


def name_of_store(teacher: CombinedTeacher, stores: Sequence[Path], dtype: str) -> str:
    """The folder's name: another one where teachers or weights change, or where a store of theirs was made anew."""
    made = [(read_identity(store), read_format(store).dtype) for store in stores]
    known = any(identity for identity, _ in made)
    digest = fingerprint(teacher.card.fingerprint, made, dtype) if known else teacher.card.fingerprint
    return f"{teacher.card.name[:_NAME]}-{teacher.how}-{digest[:8]}"


def combine(
    taught: Sequence[Taught],
    how: How,
    corpus: Corpus,
    stores: Path,
    dtype: str,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[CombinedTeacher, SignalStore, FillReport, TeacherReport]:
    """The combined teacher of taught ones, with a store of its own made from theirs; nothing is encoded again."""
    teacher = CombinedTeacher([each.teacher for each in taught], [each.weight for each in taught], how)
    folder = stores / name_of_store(teacher, [each.store.path for each in taught], dtype)
    store = SignalStore.create(folder, teacher.card, teacher.card.width, dtype)
    store.verify(changed=True)
    filled = _fill(store, teacher, taught, corpus.teacher_keys, progress)
    seen = TeacherReport(teacher.card, taught[0].seen.examples, taught[0].seen.texts, None, None)
    return teacher, store, filled, seen


class _FromStores(Teacher):
    """A combined teacher that is asked for rows of a corpus, and puts together what its parts' stores have of them."""

    can = Capabilities(gaps=True, chunk=_CHUNK)

    def __init__(self, teacher: CombinedTeacher, taught: Sequence[Taught], keys: np.ndarray) -> None:
        self.card, self.teacher, self.taught, self.keys = teacher.card, teacher, taught, keys

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        keys = self.keys[np.asarray(texts, np.int64)]
        rows = np.stack([each.store.rows(keys) for each in self.taught])
        here = (rows >= 0).all(0)
        vectors = np.full((len(keys), self.card.width), np.nan, np.float32)
        if here.any():
            parts = [each.store.read(row[here]) for each, row in zip(self.taught, rows, strict=True)]
            vectors[here] = self.teacher.combined(parts)
        yield np.arange(len(keys)), vectors


def _fill(
    store: SignalStore,
    teacher: CombinedTeacher,
    taught: Sequence[Taught],
    keys: np.ndarray,
    progress: Callable[[int, int], None] | None,
) -> FillReport:
    """Write the combined vectors that the store lacks of these keys."""
    rows = LazyTexts(lambda places: [str(place) for place in places.tolist()], range(len(keys)))
    # Of the processes of a distributed training the first makes it, the others find it.
    with StopSignals() as signals, alone(store.path, signals):
        filled = fill(store, _FromStores(teacher, taught, keys), rows, keys, progress=progress, stop=signals.came)
    told = f"stopped by {signals.name} while the teachers were combined; {filled.taught:,} more vectors are kept"
    signals.check(told, store.path)
    new = min(filled.taught, max(each.filled.taught for each in taught))  # the others are only put together
    seconds = filled.seconds + sum(each.filled.seconds for each in taught)
    return replace(filled, present=filled.distinct - filled.absent - new, taught=new, seconds=seconds)
