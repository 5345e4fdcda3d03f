"""report.md, report.html, report.json and figures/ in a folder, each file whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from distilvec.errors import EnvironmentProblem
from distilvec.report.record import Record

FILES = ("report.md", "report.html")


def write_report(record: Record, folder: str | Path) -> Path:
    """Write the report of a run; an older one is replaced.

    Everything is made in a folder of its own first and then renamed into place, `report.json` last: if it is there, the
    rest is too. Other files in `figures/` stay.

    Returns:
        The path of `report.html`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    from distilvec.report.plots import save_figures
    from distilvec.report.render.markdown import render_markdown
    from distilvec.report.render.page import draw_figures, render_html

    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".report-") as place:
            made = Path(place)
            drawn = draw_figures(record)
            figures = save_figures(drawn, made / "figures")
            (made / "report.md").write_text(render_markdown(record, figures), encoding="utf-8")
            (made / "report.html").write_text(render_html(record, drawn), encoding="utf-8")
            (made / "report.json").write_text(record.to_json() + "\n", encoding="utf-8")
            (out / "figures").mkdir(exist_ok=True)
            for figure in figures:
                os.replace(figure, out / "figures" / figure.name)
            for name in _figures(out / "report.md") - {figure.name for figure in figures}:
                (out / "figures" / name).unlink(missing_ok=True)
            for file in (*FILES, "report.json"):
                os.replace(made / file, out / file)
    except OSError as error:
        raise EnvironmentProblem(
            f"the report cannot be written ({error.strerror or error})",
            where=str(out),
            remedy="Make room or choose another folder.",
        ) from error
    return out / "report.html"


def _figures(report: Path) -> set[str]:
    """Names of the figures that an older report shows. Texts of a corpus cannot write such a line: they are escaped."""
    try:
        lines = report.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    return set(re.findall(r"^!\[.*\]\(figures/(\w+\.svg)\)$", lines, re.MULTILINE))
