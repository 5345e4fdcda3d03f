"""Scripts that put no spaces between words, cut into what a search by words can find."""

from __future__ import annotations

import re

_CHARACTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
#: A character of such a script: Thai, Lao, Burmese, Khmer, kana, Chinese.
UNSPACED = re.compile(f"[{_CHARACTERS}]")
#: The words that bm25s finds by itself, and the pairs of `in_pairs`, whose marks are no letters to it.
WORDS_OR_PAIRS = rf"(?u)[{_CHARACTERS}]{{1,2}}|\b\w\w+\b"
_RUN = re.compile(f"[{_CHARACTERS}]+")


def in_pairs(text: str) -> str:
    """Return a text with spaces between the overlapping pairs of characters of such scripts, the rest as it is.

    >>> in_pairs("iPhone手机壳 is new")
    'iPhone 手机 机壳  is new'
    """
    return _RUN.sub(lambda run: f" {_pairs(run.group())} ", text)


def _pairs(run: str) -> str:
    return " ".join(run[place : place + 2] for place in range(max(1, len(run) - 1)))
