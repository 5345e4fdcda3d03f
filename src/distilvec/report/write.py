"""report.md, report.html, report.json and figures/ in a folder, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from distilvec.errors import EnvironmentProblem
from distilvec.report.record import Record

FILES = ("report.md", "report.html")


def write_report(record: Record, folder: str | Path) -> Path:
    """Write the report of a run; an older one is replaced.

    Everything is made in a folder of its own first and then renamed into place, `report.json` last: where it
    stands, the rest is there too.

    Returns:
        The path of `report.html`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    from distilvec.report.html import render_html
    from distilvec.report.markdown import render_markdown
    from distilvec.report.plots import save_figures

    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".report-") as name:
            made = Path(name)
            figures = save_figures(record, made / "figures")
            (made / "report.md").write_text(render_markdown(record, figures), encoding="utf-8")
            (made / "report.html").write_text(render_html(record), encoding="utf-8")
            (made / "report.json").write_text(record.to_json() + "\n", encoding="utf-8")
            if (out / "figures").is_dir():
                os.replace(out / "figures", made / "old-figures")
            os.replace(made / "figures", out / "figures")
            for file in (*FILES, "report.json"):
                os.replace(made / file, out / file)
            shutil.rmtree(made / "old-figures", ignore_errors=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"the report cannot be written ({error.strerror or error})",
            where=str(out),
            remedy="Make room or choose another folder.",
        ) from error
    return out / "report.html"
