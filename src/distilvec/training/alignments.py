"""Alignments of student tokens with teacher tokens, for every text of a corpus; made once and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distilvec.alignment import Aligner
from distilvec.alignment.pieces import ENDS, end_pairs, spelt
from distilvec.errors import DistilvecError
from distilvec.modules.text_ids import id_count
from distilvec.store.files import disk_problems
from distilvec.training.items import PreparedCorpus
from distilvec.training.row_numbers import Place, Ragged, beside, whole_table, writing

if TYPE_CHECKING:
    from distilvec.training.tokens import TokenizedCorpus

#: Ids of a text's content tokens, and their positions in it without padding.
Content = tuple[np.ndarray, np.ndarray]
#: Corpus rows -> what the teacher reads of each.
Contents = Callable[[np.ndarray], list[Content]]
_CHUNK = 4096
#: Changes with what counts as a text's own tokens, so that older files are made again.
_CONTENTS = b"5"


@dataclass(frozen=True)
class TeacherTokens:
    """A corpus as a teacher reads it.

    Attributes:
        vocabulary: token strings by id.
        contents: corpus rows -> what the teacher reads of each.
        fingerprint: of what `contents` gives.
        limit: tokens per text that the teacher reads, None = all. Where either side's text was cut, tokens of the other
            beyond the cut go with none; a path would tie them all to the last token.
    """

    vocabulary: Sequence[str]
    contents: Contents
    fingerprint: str
    limit: int | None = None


def align_corpus(
    tokens: TokenizedCorpus | PreparedCorpus,
    teacher: TeacherTokens,
    rows: np.ndarray,
    modes: Sequence[str],
    folder: Path,
) -> dict[str, Ragged]:
    """Align rows of a corpus in all modes, or reuse what equal tokenizers left in `folder`.

    Args:
        tokens: the corpus as the student reads it.
        rows: corpus rows that are wanted; others get no pairs.
        modes: see `distilvec.alignment.align`, and "full"; "ends" as `pieces.end_pairs` counts, of items whose contents
            are answers.

    Returns:
        mode -> int32 pairs (student position, teacher position) of each row, positions in the texts without padding.
    """
    if isinstance(tokens, PreparedCorpus):
        raise DistilvecError(
            "this method aligns tokens, and the student's items have none",
            where="method",
            remedy="Choose a method on sentence vectors (`distilvec methods`).",
        )
    digest = hashlib.blake2b(_CONTENTS, digest_size=8)
    for text in (tokens.name, teacher.fingerprint, str(teacher.limit), *teacher.vocabulary):
        digest.update(text.encode() + b"\0")
    digest.update(np.asarray(rows, np.int64).tobytes())
    files = {mode: folder / f"{digest.hexdigest()}-{mode}" for mode in modes}
    places = {mode: beside(file, np.int32) for mode, file in files.items()}
    missing = {mode: place for mode, place in places.items() if whole_table(place) is None}
    if missing:
        with disk_problems(folder):
            _write(tokens, teacher, np.sort(np.asarray(rows)), missing)
    return {mode: Ragged(file, np.int32, 2) for mode, file in files.items()}


def _write(tokens: TokenizedCorpus, teacher: TeacherTokens, rows: np.ndarray, places: dict[str, Place]) -> None:
    student, vocabulary = tokens.tokenizer, teacher.vocabulary
    own_words = [str(t or "") for t in student.convert_ids_to_tokens(range(id_count(student)))]
    aligner = Aligner(own_words, vocabulary)
    modes = [mode for mode in places if mode != ENDS]
    sides = [np.array(spelt(words, side), object) for side, words in enumerate((own_words, vocabulary))]
    with writing(places, len(tokens.lengths)) as outputs:
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            ours, theirs = tokens.contents(chunk), teacher.contents(chunk)
            for number in _cut(tokens, chunk, theirs, teacher.limit):
                ours[number], theirs[number] = _both_read(aligner, ours[number], theirs[number])
            aligned = aligner.batch([(own[0], their[0]) for own, their in zip(ours, theirs, strict=True)], modes)
            for mode in modes:
                for row, pairs, own, their in zip(chunk, aligned[mode], ours, theirs, strict=True):
                    outputs[mode].add(row, np.stack([own[1][pairs[:, 0]], their[1][pairs[:, 1]]], axis=1))
            if ENDS in places:
                for row, own, their in zip(chunk, ours, theirs, strict=True):
                    outputs[ENDS].add(row, end_pairs(sides[0][own[0]].tolist(), sides[1][their[0]].tolist()))


def _cut(
    tokens: TokenizedCorpus, rows: np.ndarray, theirs: Sequence[Content], limit: int | None
) -> NDArray[np.integer]:
    """Return which of some rows either side may not have read to the end."""
    if tokens.limit is None:
        return np.zeros(0, np.int64)
    ours = tokens.lengths[rows] >= tokens.limit
    # A special token may stand behind the last one.
    ends = np.array([places[-1] + 2 if len(places) else 0 for _, places in theirs])
    return np.flatnonzero(ours | (ends >= (limit or np.inf)))


def _both_read(aligner: Aligner, own: Content, their: Content) -> tuple[Content, Content]:
    """Return the tokens of either side that begin in what the other has read, counted in characters."""
    lengths = [characters[ids] for (ids, _), characters in zip((own, their), aligner.characters, strict=True)]
    read = min(int(each.sum()) for each in lengths)
    ours, others = (each.cumsum() - each < read for each in lengths)
    return (own[0][ours], own[1][ours]), (their[0][others], their[1][others])
