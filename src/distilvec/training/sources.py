"""Signals for corpus rows: from stores, or from teachers that run alongside the student."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.alignment.pieces import ENDS
from distilvec.errors import DataError
from distilvec.files import scratch, spilled
from distilvec.store import RaggedSignal, SignalStore, read_vocabulary
from distilvec.teachers.signals import DIGEST, NEXT, Wanted
from distilvec.training.derived import DigestedCorpus, TeacherTokens, align_corpus
from distilvec.training.row_numbers import Ragged, filled, square

if TYPE_CHECKING:
    from distilvec.corpus import Corpus
    from distilvec.teachers import Teacher
    from distilvec.training.items import PreparedCorpus
    from distilvec.training.tokens import TokenizedCorpus

#: Corpus rows that are looked up at once.
_ROWS = 1 << 18


class StoreSource:
    """Signals of one teacher from its store; row numbers are looked up once, for the whole corpus.

    Args:
        rows: corpus rows that are wanted; None = all.
        classes: column of the teacher's logits for each class of the student; None = as they are.
    """

    def __init__(
        self,
        store: SignalStore,
        corpus: Corpus,
        rows: np.ndarray | None = None,
        classes: np.ndarray | None = None,
    ) -> None:
        self.store, self._classes = store, classes
        self._keys = corpus.teacher_keys
        self._rows = spilled(np.arange(len(corpus))) if rows is None else np.asarray(rows)
        self.numbers = self._look_up(store)
        if len(self._rows) and all((self.numbers[rows] < 0).all() for rows in self._blocks()):
            raise DataError(
                "this store has none of the corpus' texts",
                where=str(store.path),
                remedy="Was it made from another corpus? Run `distilvec teach` for this one.",
            )
        self._wanted = Wanted()
        self._signals: dict[str, RaggedSignal] = {}
        self._places: dict[str, np.ndarray] = {}
        self._pairs: dict[str, Ragged] = {}
        self._digested: DigestedCorpus | None = None

    def _look_up(self, where: SignalStore | RaggedSignal) -> np.ndarray:
        numbers = scratch(len(self._keys), np.int64)
        numbers -= 1
        for rows in self._blocks():
            numbers[rows] = where.rows(self._keys[rows])
        return numbers

    def _blocks(self) -> Iterator[np.ndarray]:
        """The rows in parts: a copy of what there is of all takes memory."""
        return (self._rows[start : start + _ROWS] for start in range(0, len(self._rows), _ROWS))

    def prepare(self, wanted: Wanted, tokens: TokenizedCorpus | PreparedCorpus) -> None:
        """Open the signals that a method wants, and align the texts.

        Raises:
            DataError: where the store lacks a signal.
        """
        self._wanted = wanted
        self._signals = {name: RaggedSignal(self.store.path, name) for name in wanted.signals}
        self._places = {name: self._look_up(signal) for name, signal in self._signals.items()}
        for name, places in self._places.items():
            lacking = (places[self._rows] < 0) & (self.numbers[self._rows] >= 0)
            if lacking.any():
                raise DataError(
                    f"the store lacks {name} for {int(lacking.sum()):,} of the corpus' texts",
                    where=str(self.store.path),
                    remedy="Run `distilvec teach` with this recipe: it adds what is missing.",
                )
        if wanted.alignment:
            known = self._rows[self._places["tokenids"][self._rows] >= 0]
            self._pairs = align_corpus(
                tokens,
                TeacherTokens(
                    read_vocabulary(self.store),
                    self._contents,
                    str(self.store.card["fingerprint"]),
                    self.store.card.get("max_length"),
                ),
                known,
                wanted.alignment,
                self.store.path / "derived",
            )
        if wanted.digest:
            self._digested = DigestedCorpus(
                wanted.digest,
                self._with_maps,
                self._rows[self.numbers[self._rows] >= 0],
                len(self._keys),
                self.store.path / "derived",
                f"{self.store.card['fingerprint']} {getattr(tokens, 'name', '')}",
            )

    def _with_maps(self, rows: np.ndarray) -> dict[str, Any]:
        present = np.ones(len(rows), bool)
        return {"present": torch.from_numpy(present), **self._tokens(rows, present)}

    def _contents(self, rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        contents = []
        for table in self._signals["tokenids"].read(self._places["tokenids"][rows]):
            at = np.flatnonzero(table[:, 1])
            contents.append((table[at, 0].astype(np.int64), at))
        return contents

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Corpus rows -> the fields of `TeacherSignals`; tokens are padded on the right."""
        index = np.asarray(rows)
        numbers = self.numbers[index]
        present = numbers >= 0
        vectors = np.zeros((len(numbers), self.store.width), np.float32)
        if present.any():
            vectors[present] = self.store.read(numbers[present])
        fields: dict[str, Any] = {"sentence": torch.from_numpy(vectors), "present": torch.from_numpy(present)}
        if self._signals:
            fields.update(self._tokens(index, present))
        return fields

    def _tokens(self, index: np.ndarray, present: np.ndarray) -> dict[str, Any]:
        here = np.flatnonzero(present)

        def read(name: str) -> list[np.ndarray]:
            return self._signals[name].read(self._places[name][index[here]])

        fields: dict[str, Any] = {}
        if self._wanted.logits:
            values = [value[:, 0] if self._classes is None else value[self._classes, 0] for value in read("logits")]
            columns = 1 if self._classes is None else len(self._classes)  # of a batch of which it has nothing
            fields["logits"] = filled(values, (len(index), len(values[0]) if values else columns), at=here)
        if self._wanted.next:
            fields["next"] = self._next(index, here)
        if "tokenids" not in self._signals:
            return fields
        tables = read("tokenids")
        longest = max((len(table) for table in tables), default=1)
        size = len(index), longest
        fields["mask"] = filled((np.ones(len(table), bool) for table in tables), size, bool, at=here)
        fields["content"] = filled((table[:, 1] > 0 for table in tables), size, bool, at=here)
        fields["tokens"] = {
            layer: filled(read(name), (*size, self._signals[name].width), at=here)
            for layer in self._wanted.tokens
            for name in [f"tokens-{layer}"]
        }
        fields["attention"] = {
            layer: filled(map(square, read(f"attention-{layer}")), (*size, longest), at=here)
            for layer in (() if self._digested else self._wanted.attention)
        }
        fields["alignments"] = {mode: pairs.pairs(index) for mode, pairs in self._pairs.items()}
        if self._digested:
            fields["alignments"][DIGEST], fields["digest"] = self._digested.fetch(index, longest)
        return fields

    def _next(self, index: np.ndarray, here: np.ndarray) -> dict[str, Tensor]:
        """`TeacherSignals.next` of corpus rows, of which those at `here` are present."""
        logs, ids = ([*self._signals[name].read(self._places[name][index[here]])] for name in NEXT)
        most, kept = max(map(len, ids), default=1), self._signals[NEXT[1]].width
        table = filled(logs, (len(index), most, kept + 1), at=here)
        tokens = filled(ids, (len(index), most, kept), np.int64, at=here)
        return {"ids": tokens, "logs": table[..., :-1], "rest": table[..., -1]}


class LiveSource:
    """Signals of a teacher that reads each batch when it is asked for.

    Args:
        cache: where alignments are kept; needed where a method wants them.
        classes: column of the teacher's logits for each class of the student; None = as they are.
    """

    def __init__(
        self, teacher: Teacher, corpus: Corpus, cache: Path | None = None, classes: np.ndarray | None = None
    ) -> None:
        self.teacher, self.corpus, self._cache, self._classes = teacher, corpus, cache, classes
        self._wanted = Wanted()
        self._pairs: dict[str, Ragged] = {}

    def prepare(self, wanted: Wanted, tokens: TokenizedCorpus | PreparedCorpus) -> None:
        """Take note of what a method wants, and align the texts.

        Raises:
            DistilvecError: the teacher cannot give it.
        """
        self._wanted = wanted
        if wanted.signals:
            self.teacher.refuse(wanted)
        if wanted.alignment:
            assert self._cache is not None
            self._pairs = align_corpus(
                tokens,
                TeacherTokens(
                    self.teacher.vocabulary,
                    lambda rows: self.teacher.contents(self.corpus.teacher_texts(rows)),
                    f"{self.teacher.card.fingerprint} {self.corpus.fingerprint}",
                    self.teacher.card.max_length,
                ),
                np.arange(len(self.corpus)),
                wanted.alignment,
                self._cache,
            )

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Corpus rows -> the fields of `TeacherSignals`, padded as the teacher pads."""
        index = np.asarray(rows)
        texts = self.corpus.teacher_texts(index)
        if not self._wanted.signals:
            vectors = self.teacher.encode(texts)
            finite = np.isfinite(vectors).all(-1)
            return {
                "sentence": torch.from_numpy(np.where(finite[:, None], vectors, 0).astype(np.float32)),
                "present": torch.from_numpy(finite),
            }
        seen = self.teacher.signals(texts, self._wanted)
        assert seen.sentence is not None
        present = seen.present & seen.sentence.isfinite().all(-1)
        fields: dict[str, Any] = {"sentence": torch.where(present[:, None], seen.sentence, 0.0), "present": present}
        if seen.logits is not None:
            fields["logits"] = seen.logits if self._classes is None else seen.logits[:, self._classes]
        if seen.mask is not None:
            fields |= {"mask": seen.mask, "content": seen.content, "tokens": seen.tokens, "attention": seen.attention}
            aligned = {mode: pairs.pairs(index) for mode, pairs in self._pairs.items()}
            fields["alignments"] = shifted(aligned, seen.mask, side=1)
        if seen.next:
            fields["next"] = seen.next
        return fields


def shifted(alignments: dict[str, Tensor], mask: Tensor, side: int) -> dict[str, Tensor]:
    """Pairs [B, P, 2] of positions without padding -> positions in tensors that may be padded on the left, by mode.

    Args:
        mask: bool [B, S] or [B, T], True = not padding.
        side: 0 for the student's positions, 1 for the teacher's.
    """
    start = mask.int().argmax(-1, keepdim=True)
    moved = {mode: pairs.clone() for mode, pairs in alignments.items()}
    for mode, pairs in moved.items():
        if mode != ENDS:  # which are numbers of tokens, not positions
            pairs[..., side] += torch.where(pairs[..., side] >= 0, start, 0)
    return moved
