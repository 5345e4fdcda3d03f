"""A teacher that answers from its store, and is asked only for what the store lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError
from distilvec.store import SignalStore
from distilvec.teachers import Teacher

#: The folder in the store of a paid teacher where its answers to judging are kept.
_BESIDE = "judging"


class StoredTeacher:
    """A teacher behind its store: the corpus' own items, which judging asks for, are neither encoded nor paid again.

    What the store lacks (all, where the corpus tells roles apart), and the sides of queries and documents where the
    teacher has them, are asked of the teacher. What a service or a function says of them is kept too, in a store inside
    its own: it may cost money, and the statistics of what is taught are of the corpus alone.

    Args:
        store: with vectors of it; None = it is asked for all.
        prompts: of the corpus, by name: a side that the teacher lacks is read behind the prompt of that name.
    """

    def __init__(
        self,
        teacher: Teacher,
        store: SignalStore | None,
        modality: str,
        prompts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.teacher, self.store, self.modality, self.prompts = teacher, store, modality, prompts
        self.model = teacher.model

    def has_side(self, side: str) -> bool:
        """Tell whether queries or documents are read in another way than texts as such."""
        return self.teacher.has_side(side) or bool(self.prompts.get(side))

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of search queries."""
        return self._side("query", texts, self.teacher.encode_query)

    def encode_document(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of documents to be found."""
        return self._side("document", texts, self.teacher.encode_document)

    def _side(self, side: str, texts: Sequence[str], ask: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
        if self.teacher.has_side(side):
            return ask(texts)
        return self.encode([self.prompts.get(side, "") + text for text in texts])

    def encode(self, items: Sequence[str]) -> np.ndarray:
        """float32 [n, D]."""
        if self.store is None:
            return np.asarray(self.teacher.encode(items))
        try:
            keys = content_keys(items, modality=self.modality)
        except DataError:  # an item of a task that is no molecule, which a model of texts reads all the same
            return np.asarray(self.teacher.encode(items))
        return self._known(self.store, items, keys, self._kept if self.teacher.can.paid else self.teacher.encode)

    def _known(
        self,
        store: SignalStore,
        items: Sequence[str],
        keys: np.ndarray,
        ask: Callable[[Sequence[str]], np.ndarray],
    ) -> np.ndarray:
        """Return what a store has, and what is said of the others."""
        rows = store.rows(keys)
        known = rows >= 0
        if not known.any():
            return np.asarray(ask(items))
        vectors = np.empty((len(items), self.teacher.card.width), np.float32)
        vectors[known] = store.read(rows[known])
        if not known.all():
            vectors[~known] = ask([item for item, there in zip(items, known, strict=True) if not there])
        return vectors

    def _kept(self, items: Sequence[str]) -> np.ndarray:
        """Return what is kept of items that the store lacks; what is not is asked, and kept."""
        card = self.teacher.card
        assert self.store is not None
        kept = SignalStore.create(self.store.path / _BESIDE, card, card.width, "float32")
        keys = content_keys(items, modality=self.modality)

        def ask(asked: Sequence[str]) -> np.ndarray:
            own = content_keys(asked, modality=self.modality)
            vectors = np.full((len(asked), card.width), np.nan, np.float32)
            with self.teacher.keeping(kept.path / "answers") as all_kept:
                with kept.writer() as writer:  # what came is kept, whatever becomes of the rest
                    for rows, said in self.teacher.stream(asked):
                        vectors[rows] = said
                        there = np.isfinite(said).all(axis=1)
                        if there.any():
                            writer.add(own[rows][there], said[there])
                all_kept(items)
            return vectors

        return self._known(kept, items, keys, ask)
