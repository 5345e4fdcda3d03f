"""Token strings as text: the tokenizer's marks taken off, bytes decoded, Unicode and case made alike."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

Kind = Literal["wordpiece", "byte_level", "sentencepiece", "unmarked"]

_CONTINUES, _SPACE, _BYTE_SPACE = "##", "\u2581", "\u0120"
#: A byte that SentencePiece falls back to: <0xE2>.
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: [UNK], <s>, <|im_end|>: names, whose capitals say nothing about the text's.
_NAME = re.compile(r"\[[^\[\]\s]+\]|<[^<>\s]+>")
#: Added words may bring a few capitals into an uncased vocabulary; a cased one has them in every fifth entry or so.
_CAPITALS_OF_UNCASED = 0.005


def _byte_alphabet() -> dict[str, int]:
    """The character by which byte-level BPE writes each byte: itself where it prints, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


#: Character of byte-level BPE -> byte.
ALPHABET = _byte_alphabet()


def kind_of(tokens: Iterable[str]) -> Kind:
    """Return which marks a vocabulary, or the tokens of one text, are written with.

    The commonest mark decides: `##` wordpiece, `Ġ` byte_level, `▁` sentencepiece. Without any mark, tokens that spell
    valid UTF-8 beyond ASCII in the byte alphabet are byte_level, others unmarked.

    >>> kind_of(["un", "##believ", "##able"]), kind_of(["un", "believable", "Ġstory"]), kind_of(["▁story"])
    ('wordpiece', 'byte_level', 'sentencepiece')
    """
    tokens = list(tokens)
    marks = Counter(token[:2] if token.startswith(_CONTINUES) else token[:1] for token in tokens if token != _CONTINUES)
    kinds: dict[str, Kind] = {_CONTINUES: "wordpiece", _BYTE_SPACE: "byte_level", _SPACE: "sentencepiece"}
    mark = max(kinds, key=lambda each: marks[each])
    if marks[mark]:
        return kinds[mark]
    joined = "".join(tokens)
    if joined.isascii() or not all(character in ALPHABET for character in joined):
        return "unmarked"
    try:
        bytes(ALPHABET[character] for character in joined).decode()
    except UnicodeDecodeError:
        return "unmarked"
    return "byte_level"


def plain(token: str, kind: Kind) -> str:
    """The text of a token without its tokenizer's marks and without white space at its ends.

    Bytes that are not whole characters become the lone surrogates U+DC80 to U+DCFF: different pieces of one
    character stay different, and equal pieces equal.

    >>> plain("##able", "wordpiece"), plain("ĠcafÃ©", "byte_level"), plain("▁story", "sentencepiece")
    ('able', 'café', 'story')
    """
    if kind == "byte_level":
        if not token.isascii() and all(character in ALPHABET for character in token):
            token = bytes(ALPHABET[character] for character in token).decode(errors="surrogateescape")
        return token.strip()
    byte = BYTE.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)]).decode(errors="surrogateescape").strip()
    if kind == "wordpiece" and len(token) > len(_CONTINUES):
        token = token.removeprefix(_CONTINUES)
    elif kind == "sentencepiece":
        token = token.replace(_SPACE, " ")
    return token.strip()


def alike(texts: Sequence[str], *, lower: bool) -> list[str]:
    """Each text in Unicode's compatibility form NFKC, and in lower case if `lower`.

    >>> alike(["ﬁne", "Story"], lower=True)
    ['fine', 'story']
    """
    normal = (text if text.isascii() else unicodedata.normalize("NFKC", text).strip() for text in texts)
    return [text.lower() for text in normal] if lower else list(normal)


def is_uncased(texts: Sequence[str], *, vocabulary: bool = False) -> bool:
    """Tell whether no text holds a capital letter; names like [CLS] do not count.

    Args:
        texts: what `plain` gives.
        vocabulary: these are all entries of a tokenizer, of which 1 in 200 may hold a capital.

    >>> is_uncased(["[UNK]", "story"]), is_uncased(["Story"])
    (True, False)
    """
    capitals = sum(text != text.lower() and not _NAME.fullmatch(text) for text in texts)
    return capitals <= (_CAPITALS_OF_UNCASED * len(texts) if vocabulary else 0)
