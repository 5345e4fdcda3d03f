"""Numbers as people write them: 5.67M, 22 MB, 5ms."""

from __future__ import annotations

import math
import re

_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{0,18})?(?:e\d{1,2})?)\s*([kmgb]?)", re.I)


def amount(text: str, unit: str = "") -> float:
    """A positive number, with k, M, G (or B) behind it, and perhaps its unit.

    >>> amount("5.67M"), amount("22 MB", "MB"), amount("5ms", "ms")
    (5670000.0, 22.0, 5.0)

    Raises:
        ValueError: it is none, or not above 0.
    """
    bare = text.strip()
    if unit and bare.lower().endswith(unit.lower()):
        bare = bare[: -len(unit)].strip()
    found = _AMOUNT.fullmatch(bare)
    value = float(found[1]) * _SUFFIX[found[2].lower()] if found else 0.0
    if not 0 < value < math.inf:
        example = f"5 {unit}" if unit else "5.67M"
        raise ValueError(f'"{text[:100]}" is no amount, for example {example}')
    return value
