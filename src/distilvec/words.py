"""Numbers as people read and write them: 5.67 M, 22 MB, 7 min 30 s, 4.2 s/step."""

from __future__ import annotations

import math
import re

ABSENT = "—"
_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{0,18})?(?:e\d{1,2})?)\s*([kmgb]?)", re.I)


def points(value: float | None) -> str:
    """A fraction in points of hundred: 0.7812 -> "78.1"."""
    return ABSENT if value is None or not math.isfinite(value) else _signless_zero(f"{100 * value:.1f}")


def signed(value: float) -> str:
    """A difference of fractions in points, with a true minus: "+3.2"."""
    return ABSENT if not math.isfinite(value) else f"{100 * value:+.1f}".replace("-", "−")


def comparison(where: str, a: str, b: str, value: float, interval: tuple[float, float] | None) -> str:
    """A sentence on how much better a is than b, a fraction; one is better or worse only if the interval supports it.

    >>> comparison("retrieval", "student", "teacher", -0.1, (-0.12, -0.08))
    'On retrieval, student is worse than teacher (−10.0 points, 95 % interval −12.0 to −8.0).'
    """
    low, high = interval or (value, value)
    verdict = "is better than" if low > 0 else "is worse than" if high < 0 else "cannot be told apart from"
    if interval is None and not low > 0:
        verdict = "is not shown to be better than"
    shown = "no interval" if interval is None else f"95 % interval {signed(low)} to {signed(high)}"
    return f"On {where}, {a} {verdict} {b} ({signed(value)} points, {shown})."


def percent(value: float | None, digits: int = 1) -> str:
    """A number that already is in percent."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.{digits}f} %"


def share(value: float | None) -> str:
    """A fraction as percent, with more digits where it is small."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return percent(100 * value, 2 if 0 < abs(value) < 0.01 else 1)


def millions(count: int | None) -> str:
    """Parameters: "5.46 M"; of a very small model "4,120"."""
    if count is None:
        return ABSENT
    if count < 1e4:
        return f"{count:,.0f}"
    return f"{count / 1e6:.2f} M" if count < 1e8 else f"{count / 1e6:,.0f} M"


def size(count: float | None) -> str:
    """Bytes with a decimal unit: "21.8 MB"."""
    if count is None:
        return ABSENT
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return f"{count:.0f} B"


def number(value: float | None) -> str:
    """A count or a rate: three figures, thousands separated."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """ "42 s", "7 min 30 s", "3 h 20 min", "5 d 2 h"."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} d {whole % 86400 // 3600} h"


def rough_duration(seconds: float) -> str:
    """Time left, in minutes from one minute on: "42 s", "14 min", "3 h 20 min"."""
    if seconds < 59.5:
        return f"{math.ceil(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 3570 else duration(60 * round(seconds / 60))


def per(rate: float, unit: str) -> str:
    """A rate as people say it, never 0: "1,200 texts/s", or "4.2 s/step" if less than one is done in a second.

    Args:
        rate: units per second, above 0.
        unit: plural.
    """
    if rate < 1:
        single = "query" if unit == "queries" else unit.removesuffix("s")
        return f"{1 / rate:,.0f} s/{single}" if rate <= 0.1 else f"{1 / rate:.1f} s/{single}"
    return f"{rate:,.0f} {unit}/s" if rate >= 9.95 else f"{rate:.1f} {unit}/s"


def milliseconds(value: float) -> str:
    """8.1, or 1,250."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def amount(text: str, unit: str = "") -> float:
    """A positive number, with k, M, G (or B) behind it, or with its unit if it has one.

    >>> amount("5.67M"), amount("22 MB", "MB"), amount("5ms", "ms")
    (5670000.0, 22.0, 5.0)

    Raises:
        ValueError: it is none, or not above 0.
    """
    bare = text.strip()
    if unit and bare.lower().endswith(unit.lower()):
        bare = bare[: -len(unit)].strip()
    found = _AMOUNT.fullmatch(bare)
    value = 0.0 if not found or (unit and found[2]) else float(found[1]) * _SUFFIX[found[2].lower()]
    if not 0 < value < math.inf:
        example = f"5 {unit}" if unit else "5.67M"
        raise ValueError(f'"{text[:100]}" is no amount, for example {example}')
    return value


def _signless_zero(text: str) -> str:
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text
