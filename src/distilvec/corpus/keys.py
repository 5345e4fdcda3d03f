"""The key of an item: what two items share exactly when they are the same item."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

KEY_BYTES = 16
#: Stands between the two texts of an item that is a pair, read jointly (U+001E, "record separator").
PAIR = "\x1e"
_BOM = "\ufeff"


def canonical(text: str) -> str:
    """The text as it is stored: without surrounding white space and byte order marks, otherwise untouched.

    >>> canonical("\\ufeff  two  words\\n")
    'two  words'
    """
    text = text.strip()
    while text[:1] == _BOM or text[-1:] == _BOM:
        text = text.strip(_BOM).strip()
    return text


def join_pair(first: str, second: str) -> str:
    """Two texts as the one text of a joint item. A separator within a text becomes a space.

    >>> join_pair("a question", "an answer")
    'a question\\x1ean answer'
    """
    return PAIR.join(text.replace(PAIR, " ") for text in (first, second))


def split_pair(text: str) -> str | tuple[str, str]:
    """What a tokenizer takes: the two texts of a joint item, any other text as it is.

    >>> split_pair(join_pair("a question", "an answer")), split_pair("one text")
    (('a question', 'an answer'), 'one text')
    """
    first, separator, second = text.partition(PAIR)
    return (first, second) if separator and PAIR not in second else text


def content_key(text: str, role: str = "", modality: str = "text") -> bytes:
    """The 128-bit key of one item (BLAKE2b over modality, role and canonical text, each with its length).

    >>> content_key("a b") == content_key(" a b ")
    True
    >>> content_key("b", role="a") == content_key("ab")
    False
    """
    return content_keys([text], role, modality).tobytes()


def content_keys(texts: Sequence[str], role: str = "", modality: str = "text") -> np.ndarray:
    """Keys of many items of one role.

    Args:
        texts: n texts; surrounding white space does not count.
        role: "" where the corpus tells no roles apart.
        modality: text, image or molecule.

    Returns:
        uint8 [n, 16].
    """
    start = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in (modality, role):
        start.update(_with_length(part))
    keys = bytearray()
    for text in texts:
        state = start.copy()
        state.update(_with_length(canonical(text)))
        keys += state.digest()
    return np.frombuffer(bytes(keys), np.uint8).reshape(-1, KEY_BYTES)


def _with_length(part: str) -> bytes:
    # Lone surrogates have no UTF-8, yet a key must exist for whatever a caller looks up.
    content = part.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(8, "little") + content
