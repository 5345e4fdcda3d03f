"""Images and molecules on their way into a student: read and prepared once, put together a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import get_worker_info

from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.base import Kind
from distilvec.modules.pipeline import item_kinds, reads_texts
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus

#: Prepared items are kept in memory up to so many bytes, by all workers together; the rest is read in every epoch.
CACHE_BYTES = 2 << 30


class PreparedCorpus:
    """Items of a corpus as a student without a tokenizer reads them.

    Modules that offer `prepare(items) -> list` and `collate(list) -> features` (ours do) have their items prepared
    once; of all others, `student.preprocess` makes every batch from scratch.

    Attributes:
        lengths: int64 [n], all 1: batches are drawn without regard to size.
        truncated: 0, nothing is cut.
        room: bytes of prepared items that may still be kept.
    """

    def __init__(
        self,
        student: SentenceTransformer,
        texts: Callable[[np.ndarray], list[str]],
        count: int,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._student, self._texts = student, texts
        self._module: Any = student[0]
        self._prepares = hasattr(self._module, "prepare") and hasattr(self._module, "collate")
        self._cache: dict[int, Any] = {}
        self.room = cache_bytes
        self.lengths = np.ones(count, np.int64)
        self.truncated = 0

    def features(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Corpus rows -> what the student's first module takes."""
        wanted = [int(row) for row in rows]
        if not self._prepares:
            return dict(self._student.preprocess(self._texts(np.asarray(wanted))))
        missing = [row for row in wanted if row not in self._cache]
        made = self._module.prepare(self._texts(np.asarray(missing))) if missing else []
        fresh = dict(zip(missing, made, strict=True))
        for row, item in fresh.items():
            if (size := bytes_of(item)) <= self.room:
                self._cache[row] = item
                self.room -= size
        return dict(self._module.collate([fresh[row] if row in fresh else self._cache[row] for row in wanted]))


def share_room(tokens: Any, _: int) -> None:
    """Called in every worker of a data loader as it starts: the workers share the room for what is kept."""
    worker = get_worker_info()
    if worker is not None and isinstance(tokens, PreparedCorpus):
        tokens.room //= worker.num_workers


def student_items(student: SentenceTransformer, corpus: Corpus, cache: Path) -> TokenizedCorpus | PreparedCorpus:
    """Return what the student reads of a corpus: token ids, made once and kept in a file, or prepared items."""
    check_items(student, corpus.kind, "student")
    if corpus.kind.tokenized or corpus.modality not in item_kinds(student):
        return TokenizedCorpus.build(student, corpus.texts, len(corpus), cache, corpus.fingerprint)
    return PreparedCorpus(student, corpus.texts, len(corpus))


def check_items(model: SentenceTransformer, kind: Kind, where: str) -> None:
    """Refuse a model that reads another kind of item than the corpus has, before it fails in the middle of a batch."""
    reads = item_kinds(model)
    if kind.name in reads or (kind.also_texts and reads_texts(model)):
        return
    raise DistilvecError(
        f"it reads {' and '.join(f'{each}s' for each in reads)}, and the corpus holds {kind.noun}",
        where=where,
        remedy="Choose a model for these items, or set corpus.modality if the corpus was taken for something else.",
    )


def bytes_of(item: Any) -> int:
    """Size of arrays or tensors, of numbers, and of tuples, lists and dictionaries of them; None has none."""
    if hasattr(item, "nbytes"):
        return int(item.nbytes)
    if isinstance(item, dict):
        return sum(map(bytes_of, item.values()))
    if isinstance(item, tuple | list):
        return sum(map(bytes_of, item))
    if item is None or isinstance(item, int | float):
        return 0 if item is None else 8
    raise DataError(f"a prepared item is arrays, not a {type(item).__name__}")
