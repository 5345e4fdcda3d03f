"""All that follows from a teacher's tokens and attention maps for one student; made once, kept in files."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from distilvec.alignment import Aligner
from distilvec.alignment.pieces import ENDS, end_pairs, spelt
from distilvec.errors import DistilvecError
from distilvec.modules.text_ids import id_count
from distilvec.store.files import disk_problems
from distilvec.teachers.signals import DIGEST, Digest, TeacherSignals
from distilvec.training.items import PreparedCorpus
from distilvec.training.row_numbers import Ragged, RaggedFile, beside, whole_table, writing

if TYPE_CHECKING:
    from distilvec.training.tokens import TokenizedCorpus

#: Ids of a text's content tokens, and their positions in it without padding.
Content = tuple[np.ndarray, np.ndarray]
#: Corpus rows -> what the teacher reads of each.
Contents = Callable[[np.ndarray], list[Content]]
_CHUNK = 4096
#: Texts whose attention maps are in memory at a time.
_MAPS = 64
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
    write = functools.partial(_write_pairs, tokens, teacher, np.sort(np.asarray(rows)))
    files = _kept(folder / digest.hexdigest(), dict.fromkeys(modes, np.int32), len(tokens.lengths), write)
    return {mode: Ragged(file, np.int32, 2) for mode, file in files.items()}


def _kept(
    stem: Path, types: Mapping[str, DTypeLike], count: int, write: Callable[[dict[str, RaggedFile]], None]
) -> dict[str, Path]:
    """Files of values for each of `count` corpus rows, by name; those that are not there are written."""
    files = {name: stem.with_name(f"{stem.name}-{name}") for name in types}
    places = {name: beside(file, types[name]) for name, file in files.items()}
    missing = {name: place for name, place in places.items() if whole_table(place) is None}
    if missing:
        with disk_problems(stem.parent), writing(missing, count) as outputs:
            write(outputs)
    return files


def _write_pairs(
    tokens: TokenizedCorpus, teacher: TeacherTokens, rows: np.ndarray, outputs: dict[str, RaggedFile]
) -> None:
    student, vocabulary = tokens.tokenizer, teacher.vocabulary
    own_words = [str(t or "") for t in student.convert_ids_to_tokens(range(id_count(student)))]
    aligner = Aligner(own_words, vocabulary)
    modes = [mode for mode in outputs if mode != ENDS]
    sides = [np.array(spelt(words, side), object) for side, words in enumerate((own_words, vocabulary))]
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        ours, theirs = tokens.contents(chunk), teacher.contents(chunk)
        for number in _cut(tokens, chunk, theirs, teacher.limit):
            ours[number], theirs[number] = _both_read(aligner, ours[number], theirs[number])
        aligned = aligner.batch([(own[0], their[0]) for own, their in zip(ours, theirs, strict=True)], modes)
        for mode in modes:
            for row, pairs, own, their in zip(chunk, aligned[mode], ours, theirs, strict=True):
                outputs[mode].add(row, np.stack([own[1][pairs[:, 0]], their[1][pairs[:, 1]]], axis=1))
        if ENDS in outputs:
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
        types = {DIGEST: np.int32, **dict.fromkeys((*digest.vectors, *digest.squares), np.float32)}
        write = functools.partial(_write_digests, digest, fetch, rows)
        files = _kept(folder / state.hexdigest(), types, count, write)
        self._pairs = Ragged(files.pop(DIGEST), np.int32, 2)
        self._values = {name: Ragged(file, np.float32, 1) for name, file in files.items()}

    def fetch(self, rows: np.ndarray, longest: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Pairs int64 [B, P, 2], padded with -1, and vectors [B, longest] and squares [B, P, P], padded with 0."""
        pairs = self._pairs.pairs(rows)
        values = {name: self._values[name].padded(rows, longest) for name in self._digest.vectors}
        values |= {name: self._values[name].squares(rows, pairs.shape[1]) for name in self._digest.squares}
        return pairs, values


@torch.no_grad()
def _write_digests(
    digest: Digest, fetch: Callable[[np.ndarray], dict[str, Any]], rows: np.ndarray, outputs: dict[str, RaggedFile]
) -> None:
    for start in range(0, len(rows), _MAPS):
        chunk = rows[start : start + _MAPS]
        signals = TeacherSignals(**fetch(chunk))
        assert signals.mask is not None
        pairs, values = digest.make(signals)
        chosen, tokens = (pairs[..., 0] >= 0).sum(-1).tolist(), signals.mask.sum(-1).tolist()
        for at, (row, most, length) in enumerate(zip(chunk, chosen, tokens, strict=True)):
            found = {DIGEST: pairs[at, :most]}
            found |= {name: values[name][at, :length, None].float() for name in digest.vectors}
            found |= {name: values[name][at, :most, :most].reshape(-1, 1).float() for name in digest.squares}
            for name, output in outputs.items():
                output.add(row, found[name].numpy())
