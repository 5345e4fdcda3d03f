"""The key of an item: what two items share exactly when they are the same item; and which keys repeat."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from typing import Literal

import numpy as np

from distilvec.corpus.problem import Problem
from distilvec.errors import DataError
from distilvec.kinds.base import find_kind

#: What is done with a molecule of several components.
Components = Literal["largest", "keep", "reject"]

KEY_BYTES = 16
#: Stands between the two texts of an item that is a pair, read jointly (U+001E, "record separator").
PAIR = "\x1e"
_BOM = "\ufeff"
_UNSEEN = ("Cc", "Cf", "Mn", "Zs", "Zl", "Zp")
#: Letters and a symbol that fonts leave empty: Hangul's fillers, and Braille's cell without dots.
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"


def canonical(text: str) -> str:
    """The text as it is stored: without surrounding white space and byte order marks, otherwise untouched.

    >>> canonical("\\ufeff  two  words\\n")
    'two  words'
    """
    text = text.strip()
    while text[:1] == _BOM or text[-1:] == _BOM:
        text = text.strip(_BOM).strip()
    return text


def is_blank(text: str) -> bool:
    """Tell whether nothing of a text can be seen: white space, control and format characters, marks without a letter.

    >>> is_blank("\\u200b \\u3164"), is_blank("a\\u200b")
    (True, False)
    """
    return all(unicodedata.category(char) in _UNSEEN or char in _FILLERS for char in text)


def folded(text: str) -> str:
    """Return what texts share that differ in case and surrounding white space alone.

    >>> folded(" Two Words\\n")
    'two words'
    """
    return canonical(text).casefold()


def join_pair(first: str, second: str) -> str:
    """Two texts as the one text of a joint item. A separator within a text becomes a space.

    >>> join_pair("a question", "an answer")
    'a question\\x1ean answer'
    """
    return PAIR.join(text.replace(PAIR, " ") for text in (first, second))


def split_pair(text: str) -> str | tuple[str, str]:
    """Return what a tokenizer takes: the two texts of a joint item, any other text as it is.

    >>> split_pair(join_pair("a question", "an answer")), split_pair("one text")
    (('a question', 'an answer'), 'one text')
    """
    first, separator, second = text.partition(PAIR)
    return (first, second) if separator and PAIR not in second else text


def content_key(item: str, role: str = "", modality: str = "text") -> bytes:
    """The 128-bit key of one item (BLAKE2b over modality, role and canonical item, each with its length).

    >>> content_key("a b") == content_key(" a b ")
    True
    >>> content_key("b", role="a") == content_key("ab")
    False
    """
    return content_keys([item], role, modality).tobytes()


def content_keys(items: Iterable[str], role: str = "", modality: str = "text") -> np.ndarray:
    """Keys of many items of one role.

    Args:
        items: n texts (surrounding white space does not count), images (paths or data URIs; equal pixels have equal
            keys) or molecules (SMILES; every way to write a molecule has the same key).
        role: "" where the corpus tells no roles apart.
        modality: name of the items' kind.

    Returns:
        uint8 [n, 16].

    Raises:
        DataError: an image that cannot be read, or what is no molecule.
        EnvironmentProblem: Pillow or RDKit is not installed.
    """
    kind, canonical_items = find_kind(modality), []
    for item in items:
        try:
            canonical_items.append(kind.canonical(item))
        except Problem as problem:
            raise DataError(f"this is no usable {modality} ({problem})", where=item[:120]) from problem
    return canonical_keys(canonical_items, role, modality)


def canonical_keys(items: Iterable[str], role: str = "", modality: str = "text") -> np.ndarray:
    """Keys uint8 [n, 16] of items that `Kind.canonical` has been through."""
    start = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in (modality, role):
        start.update(_with_length(part))
    keys = bytearray()
    for item in items:
        state = start.copy()
        state.update(_with_length(item))
        keys += state.digest()
    return np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)


def _with_length(part: str) -> bytes:
    # Lone surrogates have no UTF-8, yet a key must exist for whatever a caller looks up.
    content = part.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(8, "little") + content


def first_of_equal(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return per row the position in `rows` of the first with the same first 8 bytes of its key [n, 16]: int64 [m]."""
    halves = np.ascontiguousarray(keys[rows, :8]).view(np.uint64)[:, 0]
    _, first, kind = np.unique(halves, return_index=True, return_inverse=True)
    return np.asarray(first[kind])


def distinct_rows(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Those of the rows, int64 [m], whose key, of uint8 [n, 16], no row before them has."""
    rows = np.asarray(rows)
    return np.asarray(rows[first_of_equal(keys, rows) == np.arange(len(rows))])


class SeenKeys:
    """A growing set of keys, kept as a few sorted arrays of 64-bit halves.

    Half a key is enough: among 100 million texts the chance that any two share it by accident is 3 in 10,000, and
    the harm would be one text fewer. Arrays are merged when they reach half the size of their neighbour, so that there
    are about log2(n) of them and memory stays at 8 bytes a key, 16 while merging.
    """

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Add keys uint8 [n, 16]; bool [n], True where a key was not there before, nor earlier in this call."""
        halves = np.ascontiguousarray(keys[:, :8]).view(np.uint64)[:, 0]
        fresh, first = np.unique(halves, return_index=True)
        known = np.zeros(len(fresh), bool)
        for older in self._sorted:
            place = np.searchsorted(older, fresh)
            place[place == len(older)] = 0
            known |= older[place] == fresh
        result = np.zeros(len(halves), bool)
        result[first[~known]] = True
        if not known.all():
            self._push(fresh[~known])
        return result

    def _push(self, fresh: np.ndarray) -> None:
        self._sorted.append(fresh)
        while len(self._sorted) > 1 and 2 * len(self._sorted[-1]) >= len(self._sorted[-2]):
            last, before = self._sorted.pop(), self._sorted.pop()
            merged = np.concatenate([before, last])
            del before, last
            merged.sort()
            self._sorted.append(merged)
