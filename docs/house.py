"""Draw docs/assets/house.svg: the packages of distilvec as rooms, one row per layer of the import contract.

    python docs/house.py            # write it
    python docs/house.py --check    # exit code 1 where it is out of date

A line is an import of one room from another, thicker from 5 and from 20 imports on; all lines lead downwards, because
the contract in pyproject.toml allows no others. `kinds/base.py`, which all may ask what an item is, is not drawn.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "assets" / "house.svg"
WIDTH, ROW, ROOM, HEIGHT, EDGE = 980, 58, 128, 30, 16
#: Rooms that everybody uses would cover the picture with lines.
QUIET = {"errors", "files", "late", "words"}


def layers() -> list[list[str]]:
    """Rooms from top to bottom, as the contracts list them; parts of a package are their package."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found: list[list[str]] = []
    seen: set[str] = set()
    for contract in contracts:
        for layer in contract.get("layers", ()):
            names = [name.strip().removeprefix("distilvec.").split(".")[0] for name in layer.split("|")]
            row = [name for name in dict.fromkeys(names) if name not in seen]
            seen |= set(row)
            if row:
                found.append(row)
    return found


def imports(rooms: set[str]) -> Counter[tuple[str, str]]:
    """(room, room that it imports from) -> number of imports between their files."""
    import grimp

    graph = grimp.build_graph("distilvec", include_external_packages=False)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module) - {"distilvec.kinds.base"}:
            ends = [[*name.split("."), ""][1] for name in (module, other)]
            if ends[0] != ends[1] and set(ends) <= rooms:
                found[ends[0], ends[1]] += 1
    return found


def draw() -> str:
    """The picture as SVG."""
    rows = layers()
    places = {}
    for number, row in enumerate(rows):
        gap = (WIDTH - 2 * EDGE) / len(row)
        for place, room in enumerate(row):
            places[room] = (EDGE + gap * (place + 0.5), EDGE + ROW * number + HEIGHT / 2)
    height = EDGE * 2 + ROW * (len(rows) - 1) + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13">',
        "<title>The packages of distilvec and what they import</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for (upper, lower), count in sorted(imports(set(places)).items()):
        if upper in QUIET or lower in QUIET:
            continue
        (x, y), (to_x, to_y) = places[upper], places[lower]
        start, end = y + HEIGHT / 2, to_y - HEIGHT / 2
        middle = (start + end) / 2
        parts.append(
            f'<path d="M{x:.0f} {start:.0f} C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {end:.0f}" '
            f'fill="none" stroke="#6b8cae" stroke-opacity="0.35" stroke-width="{_stroke(count)}"/>'
        )
    for room, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - ROOM / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{ROOM}" height="{HEIGHT}" rx="6" '
            f'fill="#eef3f8" stroke="#35618e"/><text x="{x:.0f}" y="{y + 4.5:.1f}" text-anchor="middle" '
            f'fill="#123">{escape(room)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _stroke(count: int) -> float:
    """Three widths, so that the picture does not change with every import."""
    return 0.8 if count < 5 else 2.0 if count < 20 else 4.0


def main() -> None:
    picture = draw()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == picture else 1)
    TARGET.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
