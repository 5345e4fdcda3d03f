"""The output of `distilvec geometry`: numbers, a page of tables, pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from distilvec.files import temporary, writing
from distilvec.folders import check, publish, read
from distilvec.judging.geometry import MODES, Geometry, MixtureGeometry, Spread
from distilvec.report.blocks import Chapter, Text, Warnings, facts, table
from distilvec.report.geometry_plots import mixture_figures
from distilvec.report.grid import escape_markdown
from distilvec.report.plots import style
from distilvec.report.render.markdown import blocks_markdown, chapters_markdown

FILES = ("geometry.md", "geometry.json")


def geometry_markdown(found: Geometry, name: str) -> str:
    space = found.space
    rank = f"{space['effective_rank']:.1f} ({100 * space['rank_share']:.0f} % of the possible)"
    numbers = facts(
        ("anisotropy", f"{space['mean_cosine']:.3f}", "mean cosine of two texts; 1 = collapsed"),
        ("effective rank", rank, "how many directions carry the differences"),
        ("hubness", f"{space['hubness']:.2f}", "skewness of how often a text is among others' nearest; 0 = even"),
    )
    parts = [
        f"# Geometry of {escape_markdown(name)}",
        f"Over {found.items:,} texts, vectors of {found.width} dimensions.",
        *blocks_markdown([numbers, Warnings("Alarm", space.get("alarms", []))]),
        *chapters_markdown(_mixtures(found.mixtures) if found.mixtures else [], {}),
    ]
    return "\n\n".join(parts) + "\n"


def _mixtures(mixtures: list[MixtureGeometry]) -> list[Chapter]:
    active, output = [], []
    for each in mixtures:
        load = f"{100 * max(each.load):.0f} %" if each.load else ""
        wide = f"{100 * each.wide:.0f} %"
        cells = [_layer(each), f"{each.tokens:,}", _spread(each.norm_ratio), _spread(each.angle, 0), wide]
        active.append([*cells, _spread(each.mass), f"{each.entropy:.2f}", load])
        lengths = [f"{each.output[mode].median:.2f} ({each.angular[mode].median:.2f})" for mode in MODES]
        output.append([_layer(each), *lengths])
    header = ["tokens", "norm ratio", "angle, degrees", "above 40", "mass", "router entropy", "largest load"]
    about_active = (
        "Medians over tokens, with the middle nine tenths. Norm ratio: the most probable expert's length over the "
        "second's. Mass: sum of the router weights of the active experts. Load is the largest share of a layer's "
        "assignments that one expert has."
    )
    about_output = (
        "Over the active experts' mean length; in brackets the angular factor, what cancelling directions leave of the "
        "weighted sum of lengths once the router's mass is taken out."
    )
    return [
        Chapter("active", "Active experts", [Text(about_active), table(["layer", *header], active)]),
        Chapter("length", "Length of the output", [Text(about_output), table(["layer", *MODES], output)]),
    ]


def _layer(each: MixtureGeometry) -> str:
    return "all" if each.layer == 0 else str(each.layer)


def _spread(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def check_place(folder: Path, names: Sequence[str] = (*FILES, "figures")) -> None:
    """Refuse to write if files that are not ours have the names of what `write_geometry` writes.

    Raises:
        DistilvecError: naming them.
        EnvironmentProblem: the folder cannot be written.
    """
    again = "geometry" in read(folder).get("files", {})  # in its own figures, files that are not ours are no hindrance
    check(folder, "geometry", FILES if again else names)


def write_geometry(found: Geometry, name: str, folder: str | Path) -> Path:
    """Write `geometry.json`, `geometry.md` and, of mixtures, `figures/*.svg` and `.png`; returns the page.

    Raises:
        DistilvecError: files of these names are not distilvec's.
        EnvironmentProblem: the folder cannot be written.
    """
    place = Path(folder)
    check_place(place, [*FILES, *(["figures"] if found.mixtures else [])])
    with writing("folder", place):
        place.mkdir(parents=True, exist_ok=True)
        with temporary(place) as made:
            made.mkdir()
            text = geometry_markdown(found, name)
            if found.mixtures:
                (made / "figures").mkdir()
            with style():
                for title, figure in mixture_figures(found.mixtures).items() if found.mixtures else ():
                    figure.savefig(made / "figures" / f"{title}.svg", facecolor="white")
                    figure.savefig(made / "figures" / f"{title}.png", dpi=144, facecolor="white")
                    text += f"\n![{title.replace('-', ' ')}](figures/{title}.svg)\n"
            (made / FILES[0]).write_text(text, encoding="utf-8")
            (made / FILES[1]).write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
            publish(made, place, "geometry")
    return place / FILES[0]
