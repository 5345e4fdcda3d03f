"""Digests of a teacher's attention maps, made once for every text of a corpus and kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distilvec.store.files import disk_problems
from distilvec.teachers.signals import DIGEST, Digest, TeacherSignals
from distilvec.training.row_numbers import Place, Ragged, beside, whole_table, writing

#: Maps of so many texts are in memory at a time.
_CHUNK = 64


class DigestedCorpus:
    """The digests of a corpus' texts; made here, or those that an equal run left in `folder`.

    Args:
        digest: what to make.
        fetch: corpus rows -> the fields of `TeacherSignals` with the maps, padded on the right on both sides.
        rows: corpus rows that are wanted; others get nothing.
        count: rows of the corpus.
        fingerprint: of what `fetch` gives.
    """

    def __init__(
        self,
        digest: Digest,
        fetch: Callable[[np.ndarray], dict[str, Any]],
        rows: np.ndarray,
        count: int,
        folder: Path,
        fingerprint: str,
    ) -> None:
        self._digest, rows = digest, np.sort(np.asarray(rows, np.int64))
        state = hashlib.blake2b(f"5|{digest.name}|{fingerprint}|".encode(), digest_size=8)
        state.update(rows.tobytes())
        names = (DIGEST, *digest.vectors, *digest.squares)
        files = {name: folder / f"{state.hexdigest()}-{name}" for name in names}
        types = {name: np.int32 if name == DIGEST else np.float32 for name in names}
        places = {name: beside(file, types[name]) for name, file in files.items()}
        if any(whole_table(place) is None for place in places.values()):
            with disk_problems(folder):
                _write(digest, fetch, rows, count, places)
        self._pairs = Ragged(files.pop(DIGEST), np.int32, 2)
        self._values = {name: Ragged(file, np.float32, 1) for name, file in files.items()}

    def fetch(self, rows: np.ndarray, longest: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Pairs int64 [B, P, 2], padded with -1, and vectors [B, longest] and squares [B, P, P], padded with 0."""
        pairs = self._pairs.pairs(rows)
        values = {name: self._values[name].padded(rows, longest) for name in self._digest.vectors}
        values |= {name: self._values[name].squares(rows, pairs.shape[1]) for name in self._digest.squares}
        return pairs, values


@torch.no_grad()
def _write(
    digest: Digest,
    fetch: Callable[[np.ndarray], dict[str, Any]],
    rows: np.ndarray,
    count: int,
    places: dict[str, Place],
) -> None:
    with writing(places, count) as outputs:
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            signals = TeacherSignals(**fetch(chunk))
            assert signals.mask is not None
            pairs, values = digest.make(signals)
            chosen, tokens = (pairs[..., 0] >= 0).sum(-1).tolist(), signals.mask.sum(-1).tolist()
            for at, row in enumerate(chunk):
                outputs[DIGEST].add(row, pairs[at, : chosen[at]].numpy())
                for name in digest.vectors:
                    outputs[name].add(row, values[name][at, : tokens[at], None].float().numpy())
                for name in digest.squares:
                    square = values[name][at, : chosen[at], : chosen[at]]
                    outputs[name].add(row, square.reshape(-1, 1).float().numpy())
