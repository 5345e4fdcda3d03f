"""Which student tokens go with which teacher tokens, for every text of a corpus; made once and kept in a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from distilvec.alignment import Aligner

if TYPE_CHECKING:
    from distilvec.training.tokens import TokenizedCorpus

#: Corpus rows -> (ids of the teacher's content tokens, their positions in the text without padding) of each.
Contents = Callable[[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]
_CHUNK = 4096


class Pairs:
    """Pairs of token positions of every corpus row, in one flat array.

    Args:
        flat: int32 [P, 2] (student position, teacher position), positions in the texts without padding.
        offsets: int64 [n + 1], where each row begins.
    """

    def __init__(self, flat: np.ndarray, offsets: np.ndarray) -> None:
        self.flat, self.offsets = flat, offsets

    def padded(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        """int64 [B, P, 2], padded with -1; P is at least 1."""
        lengths = self.offsets[np.asarray(rows) + 1] - self.offsets[rows]
        table = np.full((len(lengths), max(1, int(lengths.max(initial=0))), 2), -1, np.int64)
        for number, row in enumerate(rows):
            table[number, : lengths[number]] = self.flat[self.offsets[row] : self.offsets[row + 1]]
        return torch.from_numpy(table)


def align_corpus(
    tokens: TokenizedCorpus,
    vocabulary: Sequence[str],
    contents: Contents,
    rows: np.ndarray,
    modes: Sequence[str],
    folder: Path,
    fingerprint: str,
) -> dict[str, Pairs]:
    """Align rows of a corpus in all modes, or reuse what equal tokenizers left in `folder`.

    Args:
        tokens: the corpus as the student reads it.
        vocabulary: the teacher's token strings by id.
        contents: the corpus as the teacher reads it.
        rows: corpus rows that are wanted; others get no pairs.
        modes: see `distilvec.alignment.align`, and "full".
        fingerprint: of what `contents` gives.
    """
    digest = hashlib.blake2b(digest_size=8)
    for text in (tokens.name, fingerprint, *vocabulary):
        digest.update(text.encode() + b"\0")
    digest.update(np.asarray(rows, np.int64).tobytes())
    files = {mode: folder / f"{digest.hexdigest()}-{mode}.npz" for mode in modes}
    missing = [mode for mode, file in files.items() if not file.exists()]
    if missing:
        _write(tokens, vocabulary, contents, rows, missing, files)
    return {mode: _read(file) for mode, file in files.items()}


def _read(file: Path) -> Pairs:
    with np.load(file, allow_pickle=False) as table:
        return Pairs(table["flat"], table["offsets"])


def _write(
    tokens: TokenizedCorpus,
    vocabulary: Sequence[str],
    contents: Contents,
    rows: np.ndarray,
    modes: Sequence[str],
    files: dict[str, Path],
) -> None:
    student = tokens.tokenizer
    aligner = Aligner([str(t) for t in student.convert_ids_to_tokens(range(len(student)))], vocabulary)
    lengths = {mode: np.zeros(len(tokens.lengths), np.int64) for mode in modes}
    flat: dict[str, list[np.ndarray]] = {mode: [] for mode in modes}
    rows = np.sort(np.asarray(rows))
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        ours, theirs = tokens.contents(chunk), contents(chunk)
        found = aligner.batch([(own[0], their[0]) for own, their in zip(ours, theirs, strict=True)], modes)
        for mode in modes:
            for row, pairs, own, their in zip(chunk, found[mode], ours, theirs, strict=True):
                lengths[mode][row] = len(pairs)
                flat[mode].append(np.stack([own[1][pairs[:, 0]], their[1][pairs[:, 1]]], axis=1).astype(np.int32))
    for mode in modes:
        file = files[mode]
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}.npz")
        every = np.concatenate(flat[mode]) if flat[mode] else np.zeros((0, 2), np.int32)
        try:
            np.savez(partial, flat=every, offsets=np.concatenate([[0], np.cumsum(lengths[mode])]))
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
