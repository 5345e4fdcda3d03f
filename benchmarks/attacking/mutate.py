"""Seeded ways to spoil bytes, trees of values, tables and folders."""

from __future__ import annotations

import copy
import datetime
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIECES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"{",
    b"[" * 3000,
    b'"',
    b"\r\n",
    b"\n\n",
    b"\\ud800",
    b"\x1b[31m",
)
TEXTS = (
    "",
    " ",
    "null",
    "x" * 300,
    "x" * 20_000,
    "../../x",
    "/nowhere/at/all",
    "/dev/null",
    "~",
    "a\x00b",
    "\x1b[2J\x1b[31mred",
    "\u202eright to left",
    "🎉" * 50,
    "e\u0301" * 10,
    "\ufeffmark",
    "hub:no/such",
    "s3://no/such",
    "file:///nowhere",
    "http://127.0.0.1:9/",
    "@x",
    "&a",
    "*a",
    "!!python/object/apply:os.system [id]",
    "os:system",
    "nan",
    "1e999",
    "-",
    "--help",
    "a: b",
    "%s{}$HOME`id`",
)
NUMBERS = (0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 10**5000, 0.0, -0.0, 0.5, 1e-300, 1e308)
OTHERS = (None, True, False, float("nan"), float("inf"), -float("inf"), [], {}, [[]], [None], {"a": {"b": {}}})


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, repeats and insertions: one to four of them."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(BYTES)(data, rng)[: 4 << 20]
    return data


def _at(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = _at(data, rng)
    return start, min(len(data), start + round(2 ** rng.uniform(0, 12)))


def _flip(data: bytes, rng: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30)) if data else 0):
        spoilt[rng.randrange(len(spoilt))] = rng.choice((0, 255, rng.randrange(256)))
    return bytes(spoilt)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _at(data, rng)]


def _behead(data: bytes, rng: random.Random) -> bytes:
    return data[_at(data, rng) :]


def _drop(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]


def _zero(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = _at(data, rng)
    return data[:place] + rng.choice((*PIECES, rng.randbytes(20))) + data[place:]


def _replace(data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", rng.randbytes(200), bytes(200), b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"PAR1", b"ARROW1"))


def _digits(data: bytes, rng: random.Random) -> bytes:
    """Another number where one stands."""
    places = [place for place, byte in enumerate(data[:100_000]) if 48 <= byte < 58]
    if not places:
        return data
    place = rng.choice(places)
    return data[:place] + rng.choice((b"9" * 30, b"-1", b"0", b"1e999", b"9" * 6000)) + data[place + 1 :]


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _flip,
    _cut,
    _behead,
    _drop,
    _repeat,
    _zero,
    _insert,
    _replace,
    _digits,
)


def wild(rng: random.Random) -> Any:
    """A value that nobody expects."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(TEXTS)
    if kind < 0.7:
        return rng.choice(NUMBERS)
    if kind < 0.95:
        return copy.deepcopy(rng.choice(OTHERS))
    if kind < 0.97:
        return datetime.date(2026, 1, 1)
    value: Any = rng.choice(("deep", []))
    for _ in range(rng.choice((5, 60, 400))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _nodes(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a tree."""
    found, open_ends = [], [tree]
    while open_ends:
        here = open_ends.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else []
        found += [(here, key) for key in keys]
        open_ends += [here[key] for key in keys]
    return found


def spoil_tree(tree: Any, rng: random.Random) -> Any:
    """Other values, keys lost, renamed or added, parts swapped or wrapped: one to four changes."""
    holder = [copy.deepcopy(tree)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        here, key = rng.choice(_nodes(holder))
        change = rng.random()
        if change < 0.55:
            here[key] = wild(rng)
        elif change < 0.67 and here is not holder:
            del here[key]
        elif change < 0.75 and isinstance(here, dict):
            here[rng.choice((f"{key}x", str(key)[:-1], "", "extra", 7, None))] = here.pop(key)
        elif change < 0.83:
            other, place = rng.choice(_nodes(holder))
            here[key] = copy.deepcopy(other[place])
        elif change < 0.9:
            here[key] = [copy.deepcopy(here[key])] * rng.choice((1, 2, 50))
        else:
            here[key] = {rng.choice(("a", "path", "name", "")): here[key]}
    return holder[0]


def spoil_folder(folder: Path, rng: random.Random, spoil_file: Callable[[Path, random.Random], None]) -> None:
    """Files spoilt, lost, doubled, emptied, or replaced by folders, links and loops: one to three changes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            return
        file, kind = rng.choice(files), rng.random()
        if kind < 0.62:
            spoil_file(file, rng)
        elif kind < 0.72:
            file.unlink()
        elif kind < 0.78:
            rng.choice(files).write_bytes(file.read_bytes())
        elif kind < 0.82:
            file.unlink()
            file.mkdir()
        elif kind < 0.86:
            file.unlink()
            file.symlink_to(rng.choice((file.name, "/dev/null", "/nowhere", "..", "/etc/hostname")))
        elif kind < 0.9:
            file.write_bytes(b"")
        elif kind < 0.93:
            shutil.copyfile(file, file.with_name(f"{file.stem}-copy{file.suffix}"))
        elif kind < 0.95:
            file.chmod(0)
        else:
            link = file.parent / rng.choice(("loop", ".hidden", "x" * 200, "a\nb", "\x1b[31m"))
            if not link.is_symlink():
                link.symlink_to("..")
