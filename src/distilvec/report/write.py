"""report.md, report.html, report.json and figures/ in a folder, each file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from distilvec.report.record import Record
from distilvec.system_errors import system_problem

FILES = ("report.md", "report.html")


def write_report(record: Record, folder: str | Path) -> Path:
    """Write the report of a run; an older one is replaced.

    Everything is made in a folder of its own first and then renamed into place, `report.json` last: where it
    stands, the rest is there too. Files of somebody else's in `figures/` stay.

    Returns:
        The path of `report.html`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    from distilvec.report.html import render_html
    from distilvec.report.markdown import render_markdown
    from distilvec.report.plots import FIGURES, draw, save_figures

    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".report-") as name:
            made = Path(name)
            drawn = draw(record)
            figures = save_figures(drawn, made / "figures")
            (made / "report.md").write_text(render_markdown(record, figures), encoding="utf-8")
            (made / "report.html").write_text(render_html(record, drawn), encoding="utf-8")
            (made / "report.json").write_text(record.to_json() + "\n", encoding="utf-8")
            (out / "figures").mkdir(exist_ok=True)
            for figure in figures:
                os.replace(figure, out / "figures" / figure.name)
            kept = {figure.name for figure in figures}
            for old in out.glob("figures/*"):  # of an older report; other files there are somebody's own
                if old.stem in FIGURES and old.suffix in {".svg", ".png"} and old.name not in kept:
                    old.unlink()
            for file in (*FILES, "report.json"):
                os.replace(made / file, out / file)
    except OSError as error:
        raise system_problem(error, "the report cannot be written", out) from error
    return out / "report.html"
