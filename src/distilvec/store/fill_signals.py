"""Teaching of more than sentence vectors: token states, attention maps, token ids and logits, in one pass."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.lazy import take
from distilvec.errors import DistilvecError
from distilvec.store.axes import TokenAxes, settle_axes
from distilvec.store.fill import FillReport, distinct_positions
from distilvec.store.layout import card_dict, check_same_teacher, key_words, states_fingerprint
from distilvec.store.ragged import RaggedSignal
from distilvec.store.reader import SignalStore
from distilvec.store.writer import PART_BYTES
from distilvec.teachers.signals import CANDIDATES, NEXT

if TYPE_CHECKING:
    from distilvec.teachers.signals import TeacherSignals, Wanted

_CHUNK = 2048
#: Token ids are kept with whether the token is content (neither special nor a part of the prompt).
IDS_WIDTH = 2


def open_signals(store: SignalStore, teacher: Any, wanted: Wanted) -> dict[str, RaggedSignal]:
    """The wanted signals of a store, entered where they are new."""
    layouts = dict.fromkeys(wanted.signals, (1, "float16"))
    for layer in wanted.tokens:
        layouts[f"tokens-{layer}"] = (wanted.axes or teacher.hidden, "float16")
    if "tokenids" in layouts:
        layouts["tokenids"] = (IDS_WIDTH, "int32")
    if wanted.next:
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


def fill_signals(
    store: SignalStore,
    teacher: Any,
    texts: Sequence[str],
    keys: np.ndarray,
    wanted: Wanted,
    shard: tuple[int, int] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    part_bytes: int = PART_BYTES,
    index: bool = True,
) -> FillReport:
    """Let the teacher read the texts for which the store lacks a sentence vector or any of the wanted signals.

    All signals of a text come from one forward pass; what the store has already is not written again. Killed and
    started again, it goes on where it was. The arguments are those of `fill`; `wanted` says which signals.

    Raises:
        DistilvecError: where the teacher is not the store's, or cannot give what is wanted.
        DataError: where a signal is not finite or does not fit into float16.
        EnvironmentProblem: where the disk is full. What was complete stays.
    """
    check_same_teacher(str(store.card["fingerprint"]), card_dict(teacher.card)["fingerprint"], store.path)
    if len(texts) != len(keys):
        raise DistilvecError(f"expected one key per text, found {len(texts)} texts and {len(keys)} keys")
    teacher.refuse(wanted)
    axes = settle_axes(store.path, teacher, texts, wanted)
    signals = open_signals(store, teacher, wanted)
    _keep_vocabulary(store, teacher, wanted)
    store.refresh()
    distinct = distinct_positions(key_words(keys), shard)
    lacking = {"sentence": store.missing(keys[distinct])}
    lacking |= {name: signal.missing(keys[distinct]) for name, signal in signals.items()}
    todo = distinct[np.logical_or.reduce(list(lacking.values()))]
    needed = {name: _marked(len(keys), distinct[missing]) for name, missing in lacking.items()}
    present, done, began, parts = len(distinct) - len(todo), len(distinct) - len(todo), time.monotonic(), []
    if progress:
        progress(done, len(distinct))
    if len(todo):
        pool = ThreadPoolExecutor(1, "distilvec-store")
        with store.writer(part_bytes=part_bytes, index=index) as writer, pool:
            writers = {name: signal.writer(writer.name, part_bytes) for name, signal in signals.items()}
            writing: Future[None] | None = None
            try:
                for at, seen in _observed(teacher, texts, todo, wanted):
                    if writing is not None:
                        writing.result()
                    writing = pool.submit(
                        _add, writer, writers, keys, at, reduced(unpadded(seen, wanted), axes), seen, needed
                    )
                    done += len(at)
                    if progress:
                        progress(done, len(distinct))
                    if stop():
                        break
                if writing is not None:
                    writing.result()
            finally:
                for each in writers.values():
                    each.flush()
        parts = writer.parts
        store.refresh()
    if index:
        store.build_index()
    return FillReport(
        items=len(texts),
        distinct=len(distinct),
        present=present,
        taught=done - present,
        seconds=time.monotonic() - began,
        parts=parts,
        set_aside=dict(store.bad),
    )


def _observed(
    teacher: Any, texts: Sequence[str], todo: np.ndarray, wanted: Wanted
) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
    """Positions in `texts` and what the teacher says of them, batch by batch, until all of `todo` is covered."""
    for start in range(0, len(todo), _CHUNK):
        rows = todo[start : start + _CHUNK]
        for local, seen in teacher.observe(take(texts, rows), wanted):
            yield rows[np.asarray(local)], seen


def _keep_vocabulary(store: SignalStore, teacher: Any, wanted: Wanted) -> None:
    """Token strings by id, so that a store can be aligned with a student when its teacher is gone."""
    file = store.path / "vocabulary.json"
    if "tokenids" in wanted.signals and not file.exists():
        from distilvec.store.files import write_json

        write_json(file, {"tokens": teacher.vocabulary})


def read_vocabulary(store: SignalStore) -> list[str]:
    """What `fill_signals` kept of the teacher's tokenizer."""
    tokens: list[str] = json.loads((store.path / "vocabulary.json").read_text(encoding="utf-8"))["tokens"]
    return tokens


def _marked(count: int, rows: np.ndarray) -> np.ndarray:
    """bool [count], True at `rows`."""
    marks = np.zeros(count, bool)
    marks[rows] = True
    return marks


def _add(
    writer: Any,
    writers: dict[str, Any],
    keys: np.ndarray,
    rows: np.ndarray,
    items: dict[str, list[np.ndarray]],
    seen: TeacherSignals,
    needed: dict[str, np.ndarray],
) -> None:
    """Write of one batch what the store lacks; `needed` is bool over all texts, by signal."""
    new = needed["sentence"][rows]
    if new.any() and seen.sentence is not None:
        writer.add(keys[rows[new]], seen.sentence.numpy()[new])
    for name, signal in writers.items():
        at = np.flatnonzero(needed[name][rows])
        if len(at):
            signal.add(keys[rows[at]], [items[name][number] for number in at])


def unpadded(seen: TeacherSignals, wanted: Wanted) -> dict[str, list[np.ndarray]]:
    """Signals of a batch, item by item and without padding: name -> B arrays [length, width]."""
    signals: dict[str, list[np.ndarray]] = {}
    if seen.mask is not None:
        real = [row.nonzero()[:, 0] for row in seen.mask]
        for layer in wanted.tokens:
            signals[f"tokens-{layer}"] = [_take(state, at) for state, at in zip(seen.tokens[layer], real, strict=True)]
        for layer in wanted.attention:
            signals[f"attention-{layer}"] = [
                _take(grid, at)[:, at.numpy()].reshape(-1, 1)
                for grid, at in zip(seen.attention[layer], real, strict=True)
            ]
        if seen.ids is not None and seen.content is not None:
            signals["tokenids"] = [
                np.stack([_take(ids, at), _take(content, at)], axis=1).astype(np.int32)
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


def _take(values: Tensor, at: Tensor) -> np.ndarray:
    return values[at].numpy()
