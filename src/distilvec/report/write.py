"""report.md, report.html, report.json and figures/ in a folder, each file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from distilvec.files import temporary, writing
from distilvec.folders import publish
from distilvec.report.plots import save_figures
from distilvec.report.record import Record
from distilvec.report.render.markdown import render_markdown
from distilvec.report.render.page import draw_figures, render_html


def write_report(record: Record, folder: str | Path) -> Path:
    """Write the report of a run; an older one is replaced.

    Everything is made in a folder of its own first and then renamed into place, `report.json` last: if it is there, the
    rest is too. Other files in `figures/` stay.

    Returns the path of `report.html`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    out = Path(folder)
    with writing("report", out):
        out.mkdir(parents=True, exist_ok=True)
        with temporary(out) as made:
            drawn = draw_figures(record)
            save_figures(drawn, made / "figures")
            (made / "report.md").write_text(render_markdown(record, drawn), encoding="utf-8")
            (made / "report.html").write_text(render_html(record, drawn), encoding="utf-8")
            (made / "report.json").write_text(record.to_json() + "\n", encoding="utf-8")
            publish(made / "figures", out / "figures", "report")
            for file in ("report.md", "report.html", "report.json"):
                os.replace(made / file, out / file)
    return out / "report.html"
