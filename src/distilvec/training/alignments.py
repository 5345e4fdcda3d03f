"""Which student tokens go with which teacher tokens, for every text of a corpus; made once and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distilvec.alignment import Aligner
from distilvec.training.ragged import Ragged, RaggedFile, writing

if TYPE_CHECKING:
    from distilvec.training.tokens import TokenizedCorpus

#: Corpus rows -> (ids of the teacher's content tokens, their positions in the text without padding) of each.
Contents = Callable[[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]
_CHUNK = 4096
#: Changes with what counts as a text's own tokens, so that older files are made again.
_CONTENTS = b"2"


def align_corpus(
    tokens: TokenizedCorpus,
    vocabulary: Sequence[str],
    contents: Contents,
    rows: np.ndarray,
    modes: Sequence[str],
    folder: Path,
    fingerprint: str,
) -> dict[str, Ragged]:
    """Align rows of a corpus in all modes, or reuse what equal tokenizers left in `folder`.

    Args:
        tokens: the corpus as the student reads it.
        vocabulary: the teacher's token strings by id.
        contents: the corpus as the teacher reads it.
        rows: corpus rows that are wanted; others get no pairs.
        modes: see `distilvec.alignment.align`, and "full".
        fingerprint: of what `contents` gives.

    Returns:
        mode -> int32 pairs (student position, teacher position) of each row, positions in the texts without padding.
    """
    digest = hashlib.blake2b(_CONTENTS, digest_size=8)
    for text in (tokens.name, fingerprint, *vocabulary):
        digest.update(text.encode() + b"\0")
    digest.update(np.asarray(rows, np.int64).tobytes())
    files = {mode: folder / f"{digest.hexdigest()}-{mode}" for mode in modes}
    missing = {mode: file for mode, file in files.items() if not RaggedFile.exists(file)}
    if missing:
        _write(tokens, vocabulary, contents, np.sort(np.asarray(rows)), missing)
    return {mode: Ragged(file, np.int32, 2) for mode, file in files.items()}


def _write(
    tokens: TokenizedCorpus, vocabulary: Sequence[str], contents: Contents, rows: np.ndarray, files: dict[str, Path]
) -> None:
    student = tokens.tokenizer
    aligner = Aligner([str(t) for t in student.convert_ids_to_tokens(range(len(student)))], vocabulary)
    with writing({mode: (file, np.int32) for mode, file in files.items()}, len(tokens.lengths)) as outputs:
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            ours, theirs = tokens.contents(chunk), contents(chunk)
            found = aligner.batch([(own[0], their[0]) for own, their in zip(ours, theirs, strict=True)], list(files))
            for mode, output in outputs.items():
                for row, pairs, own, their in zip(chunk, found[mode], ours, theirs, strict=True):
                    output.add(row, np.stack([own[1][pairs[:, 0]], their[1][pairs[:, 1]]], axis=1))
