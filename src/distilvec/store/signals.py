"""Put into a store all that teachers say: sentence vectors, token states, attention maps, token ids and logits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError

from distilvec.corpus.lazy import take
from distilvec.errors import DataError, DistilvecError
from distilvec.store.axes import TokenAxes, settle_axes
from distilvec.store.codec import misfit
from distilvec.store.keyed import KeyedParts
from distilvec.store.layout import SIGNAL, VOCABULARY, states_fingerprint, write_vocabulary
from distilvec.store.ragged import RaggedSignal
from distilvec.store.reader import SignalStore
from distilvec.store.writer import StoreWriter
from distilvec.teachers.signals import CANDIDATES, NEXT
from distilvec.validation import first_problem

if TYPE_CHECKING:
    from distilvec.teachers.base import Teacher
    from distilvec.teachers.signals import TeacherSignals, Wanted

_CHUNK = 2048
#: Token ids are kept with whether the token is content (neither special nor a part of the prompt).
IDS_WIDTH = 2


def open_signals(store: SignalStore, teacher: Teacher, wanted: Wanted) -> dict[str, RaggedSignal]:
    """The wanted signals of a store, entered where they are new."""
    layouts = dict.fromkeys(wanted.signals, (1, "float16"))
    for layer in wanted.tokens:
        assert teacher.hidden is not None  # `refuse` has been asked
        layouts[f"tokens-{layer}"] = (wanted.axes or teacher.hidden, "float16")
    if "tokenids" in layouts:
        layouts["tokenids"] = (IDS_WIDTH, "int32")
    if wanted.next:
        assert teacher.pieces is not None
        kept = min(CANDIDATES, len(teacher.pieces.content))
        layouts |= {NEXT[0]: (kept + 1, "float16"), NEXT[1]: (kept, "int32")}
    if wanted.logits:
        layouts["logits"] = (1, "float32")
    normed = f"tokens-{teacher.card.layers}" if wanted.tokens and teacher.final_norm else None
    fingerprint = states_fingerprint(str(store.card["fingerprint"]))
    return {
        name: RaggedSignal.create(store.path, name, *layout, fingerprint if name == normed else None)
        for name, layout in layouts.items()
    }


class Filling:
    """The filling of a store: finds texts that lack something, asks the teacher, and writes the answers.

    All signals of a text come from one forward pass; what the store has already is not written again.

    Args:
        texts: all that are to be taught; axes of token states are fitted to some of them.
        keys: uint8 [n, 16], their keys.
        wanted: signals besides sentence vectors; without any, vectors come as the teacher streams them.
    """

    def __init__(
        self, store: SignalStore, teacher: Teacher, texts: Sequence[str], keys: np.ndarray, wanted: Wanted
    ) -> None:
        if len(texts) != len(keys):
            raise DistilvecError(f"expected one key per text, found {len(texts)} texts and {len(keys)} keys")
        self._axes: dict[int, TokenAxes] = {}
        if wanted.signals:
            teacher.refuse(wanted)
            self._axes = settle_axes(store.path, teacher, texts, wanted)
        self._signals = open_signals(store, teacher, wanted)
        if "tokenids" in wanted.signals and not (store.path / VOCABULARY).exists():
            # So that a store can be aligned with a student when its teacher is gone.
            write_vocabulary(store.path, {"tokens": teacher.vocabulary})
        self._store, self._teacher, self._texts, self._keys, self._wanted = store, teacher, texts, keys, wanted
        self._needed: dict[str, np.ndarray] = {}

    def missing(self, distinct: np.ndarray) -> np.ndarray:
        """Return which of some positions lack a sentence vector or any signal: bool [m]."""
        filled: dict[str, KeyedParts[Any]] = {SIGNAL: self._store, **self._signals}
        lacking = {name: signal.missing_at(self._keys, distinct) for name, signal in filled.items()}
        self._needed = {name: _marked(len(self._keys), distinct[missing]) for name, missing in lacking.items()}
        return np.logical_or.reduce(list(lacking.values()))

    def batches(self, todo: np.ndarray) -> Generator[tuple[np.ndarray, dict[str, Any] | None]]:
        """Positions and what the teacher says of them by signal, without padding, until all of `todo` is covered.

        None where it has nothing to say.
        """
        chunk = _CHUNK if self._signals else self._teacher.can.chunk
        for start in range(0, len(todo), chunk):
            rows = todo[start : start + chunk]
            yield from (self._observed if self._signals else self._streamed)(rows, take(self._texts, rows))

    def _observed(self, rows: np.ndarray, texts: list[str]) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        for local, seen in self._teacher.observe(texts, self._wanted):
            items: dict[str, Any] = reduced(unpadded(seen, self._wanted), self._axes)
            if seen.sentence is not None:
                items[SIGNAL] = seen.sentence.numpy()
            yield rows[np.asarray(local)], items

    def _streamed(self, rows: np.ndarray, texts: list[str]) -> Iterator[tuple[np.ndarray, dict[str, Any] | None]]:
        if not (known := self._teacher.has(texts)).all():
            yield rows[~known], None
            texts, rows = [text for text, here in zip(texts, known.tolist(), strict=True) if here], rows[known]
            if not texts:
                return
        covered = 0
        with closing(self._teacher.stream(texts)) as stream:
            for local, vectors in stream:
                if not len(local):  # it waits for somebody, and lets us ask whether to stop
                    yield rows[:0], None
                    continue
                covered += len(local)
                given = rows[np.asarray(local)]
                lacks = np.isnan(vectors).all(axis=1) if self._teacher.can.gaps else np.zeros(len(given), bool)
                if lacks.any():
                    yield given[lacks], None
                if not lacks.all():
                    yield given[~lacks], {SIGNAL: vectors[~lacks]}
        if covered != len(rows):
            raise DistilvecError(f"the teacher gave vectors for {covered} of {len(rows)} texts")

    @contextmanager
    def writing(self, writer: StoreWriter, part_bytes: int) -> Iterator[Callable[[np.ndarray, Any], None]]:
        """Yield the function that writes a batch of `batches`; `writer` takes sentence vectors. All added is kept."""
        writers = {name: signal.writer(writer.name, part_bytes) for name, signal in self._signals.items()}

        def add(rows: np.ndarray, items: dict[str, Any]) -> None:
            for name in [name for name in (SIGNAL, *writers) if name in items]:
                at = np.flatnonzero(self._needed[name][rows])
                if not len(at):
                    continue
                if name == SIGNAL:
                    self._add_vectors(writer, rows, np.asarray(items[name], np.float32), at)
                else:
                    writers[name].add(self._keys[rows[at]], [items[name][number] for number in at])

        try:
            yield add
        finally:
            for each in writers.values():
                each.flush()

    def _add_vectors(self, writer: StoreWriter, rows: np.ndarray, vectors: np.ndarray, at: np.ndarray) -> None:
        if vectors.ndim == 2 and len(vectors) == len(rows):  # else the writer says what is wrong
            rows, vectors = rows[at], vectors[at]
            if (wrong := misfit(vectors, self._store.dtype)) is not None:
                row = int(rows[wrong.row])
                raise DataError(
                    f"the teacher's vector of the text {self._texts[row][:120]!r} has {wrong.what}",
                    where=f"item {row}, key {self._keys[row].tobytes().hex()}",
                    remedy=f"Nothing of this batch was stored. {wrong.remedy}",
                )
        writer.add(self._keys[rows], vectors)


class _Vocabulary(BaseModel):
    tokens: list[str]


def read_vocabulary(store: SignalStore) -> list[str]:
    """Return what `fill` kept of the teacher's tokenizer.

    Raises:
        DataError: it is missing or damaged.
    """
    file = store.path / VOCABULARY
    try:
        return _Vocabulary.model_validate_json(file.read_bytes(), strict=True).tokens
    except (OSError, ValidationError) as error:
        told = first_problem(error) if isinstance(error, ValidationError) else str(error.strerror)
        remedy = "Remove this file and teach again: what is there is kept."
        raise DataError(f"the teacher's vocabulary cannot be read ({told})", where=str(file), remedy=remedy) from error


def _marked(count: int, rows: np.ndarray) -> np.ndarray:
    """bool [count], True at `rows`."""
    marks = np.zeros(count, bool)
    marks[rows] = True
    return marks


def unpadded(seen: TeacherSignals, wanted: Wanted) -> dict[str, list[np.ndarray]]:
    """Signals of a batch, item by item and without padding: name -> B arrays [length, width]."""
    signals: dict[str, list[np.ndarray]] = {}
    if seen.mask is not None:
        real = [row.nonzero()[:, 0] for row in seen.mask]
        for layer in wanted.tokens:
            signals[f"tokens-{layer}"] = [state[at].numpy() for state, at in zip(seen.tokens[layer], real, strict=True)]
        for layer in wanted.attention:
            signals[f"attention-{layer}"] = [
                grid[at].numpy()[:, at.numpy()].reshape(-1, 1)
                for grid, at in zip(seen.attention[layer], real, strict=True)
            ]
        if seen.ids is not None and seen.content is not None:
            signals["tokenids"] = [
                np.stack([ids[at].numpy(), content[at].numpy()], axis=1).astype(np.int32)
                for ids, content, at in zip(seen.ids, seen.content, real, strict=True)
            ]
    if wanted.next and seen.content is not None:
        logs = torch.cat([seen.next["logs"], seen.next["rest"].unsqueeze(-1)], -1)
        # After the prompt, and after each token of the answer.
        counts = [count + 1 for count in seen.content.sum(-1).tolist()]
        for name, table in zip(NEXT, (logs, seen.next["ids"]), strict=True):
            signals[name] = [row[:count].numpy() for row, count in zip(table, counts, strict=True)]
    if seen.logits is not None:
        signals["logits"] = [row.numpy()[:, None] for row in seen.logits]
    return signals


def reduced(items: dict[str, list[np.ndarray]], axes: dict[int, TokenAxes]) -> dict[str, list[np.ndarray]]:
    """The signals of a batch with token states on the axes of their layer, where it has any."""
    short = {
        name: [axes[layer].reduce(states) for states in items[name]] for layer in axes if (name := f"tokens-{layer}")
    }
    return {**items, **short}
