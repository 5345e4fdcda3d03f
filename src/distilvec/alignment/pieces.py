"""The bytes that a tokenizer's entries add to a text: where two have read the same, and which entries correspond."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from distilvec.alignment.strings import ALPHABET, BYTE, Kind, kind_of
from distilvec.modules.text_ids import id_count

#: The name of these pairs among the modes of alignment. They are numbers of tokens of the answer that have been read,
#: from 0, not positions in the padded text.
ENDS = "ends"
_SPACE = bytes(range(9, 14)) + b" "
#: No text is made of it: what an unknown token stands for is not known.
_UNKNOWN = re.compile(r"[<\[]\W*unk\W*[>\]]", re.IGNORECASE)
_ROWS = 256


@dataclass(frozen=True)
class Pieces:
    """The entries of a causal model's tokenizer.

    Attributes:
        content: by id, the bytes that an entry adds to a text, with the space that a mark stands for; empty for
            special tokens.
        end: id of the token that ends an answer.
    """

    content: tuple[bytes, ...]
    end: int

    @property
    def numbers(self) -> dict[bytes, int]:
        """The first id of each entry that adds something."""
        numbers: dict[bytes, int] = {}
        for number, content in enumerate(self.content):
            if content:
                numbers.setdefault(content, number)
        return numbers


def pieces_of(tokenizer: Any) -> Pieces:
    """The entries of a transformers tokenizer that has an end token."""
    special = set(tokenizer.all_special_ids)
    content = piece_bytes(tokenizer.convert_ids_to_tokens(list(range(id_count(tokenizer)))))
    entries = tuple(b"" if number in special else each for number, each in enumerate(content))
    return Pieces(entries, int(tokenizer.eos_token_id))


def piece_bytes(vocabulary: Sequence[str]) -> list[bytes]:
    """The bytes that each entry adds to a text; of token strings, as `convert_ids_to_tokens` gives them.

    >>> piece_bytes(["Ġthe", "Ã", "story"]), piece_bytes(["▁the", "<0xC3>", "story"])
    ([b' the', b'\\xc3', b'story'], [b' the', b'\\xc3', b'story'])
    """
    kind = kind_of(vocabulary)
    return [_bytes_of(token or "", kind) for token in vocabulary]


def _bytes_of(token: str, kind: Kind) -> bytes:
    if kind == "byte_level" and all(character in ALPHABET for character in token):
        return bytes(ALPHABET[character] for character in token)
    if byte := BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    if kind == "sentencepiece":
        token = token.replace("\u2581", " ")
    elif kind == "wordpiece":
        token = token[2:] if token.startswith("##") else f" {token}"
    return token.encode("utf-8", "surrogatepass")


def spelt(vocabulary: Sequence[str], side: int) -> list[bytes]:
    """The bytes of each entry without white space, to be compared with those of another tokenizer.

    An unknown token is unlike everything on the other `side`, which is 0 or 1.
    """
    content = piece_bytes(vocabulary)
    return [
        bytes([254 + side]) if _UNKNOWN.fullmatch(token or "") else each.translate(None, _SPACE)
        for token, each in zip(vocabulary, content, strict=True)
    ]


def end_pairs(student: Sequence[bytes], teacher: Sequence[bytes]) -> NDArray[np.int32]:
    """Return where both, whose tokens `spelt` gives, have read the same text: int32 [P, 2], tokens read, (0, 0) first.

    White space does not count, and of several places with the same text read the first is taken. Nothing is paired
    beyond the first byte that differs, as where a tokenizer has no entry for a character.

    >>> end_pairs([b"un", b"believable", b"story"], [b"unbe", b"lievable", b"st", b"ory"]).tolist()
    [[0, 0], [2, 2], [3, 4]]
    """
    same = _shared(b"".join(student), b"".join(teacher))
    ours, theirs = (np.cumsum([0, *map(len, side)]) for side in (student, teacher))
    _, rows, columns = np.intersect1d(ours[ours <= same], theirs[theirs <= same], return_indices=True)
    return np.stack([rows, columns], axis=1).astype(np.int32)


def _shared(first: bytes, second: bytes) -> int:
    """Return how many bytes two texts begin with alike."""
    count = min(len(first), len(second))
    unlike = np.flatnonzero(np.frombuffer(first, np.uint8, count) != np.frombuffer(second, np.uint8, count))
    return int(unlike[0]) if len(unlike) else count


def prefix_entries(source: Pieces, target: Pieces) -> NDArray[np.int64]:
    """For each entry of one tokenizer the longest of another that it begins with; the end for the end, -1 for none.

    >>> source = Pieces((b" household", b"<", b""), 2)
    >>> prefix_entries(source, Pieces((b"", b" house", b" h"), 0)).tolist()
    [1, -1, 0]
    """
    known = target.numbers
    longest = max(map(len, known), default=0)

    def find(content: bytes) -> int:
        lengths = range(min(len(content), longest), 0, -1)
        return next((known[content[:length]] for length in lengths if content[:length] in known), -1)

    entries = np.array([find(content) for content in source.content], np.int64)
    entries[source.end] = target.end
    return entries


def nearest_entries(source: Pieces, target: Pieces) -> NDArray[np.int64]:
    """For each entry of one tokenizer the nearest of another by edit distance, equal ones first; the end for the end,
    -1 for special tokens.

    Source: FuseLLM's mapping of vocabularies (arXiv:2401.10491).
    """
    known = target.numbers
    entries = np.array([known.get(content, -1) if content else -1 for content in source.content], np.int64)
    missing = [number for number, content in enumerate(source.content) if content and entries[number] < 0]
    names = [content.decode("latin-1") for content in known]
    numbers = np.fromiter(known.values(), np.int64, len(known))
    for start in range(0, len(missing), _ROWS):
        rows = missing[start : start + _ROWS]
        asked = [source.content[row].decode("latin-1") for row in rows]
        entries[rows] = numbers[cdist(asked, names, scorer=Levenshtein.distance, dtype=np.uint16).argmin(1)]
    entries[source.end] = target.end
    return entries
