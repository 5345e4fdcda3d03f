"""Names and texts of others do nothing to any form of a report: no colours of a terminal, no direction of writing."""

from __future__ import annotations

import json

import pytest

from distilvec.export.page import _html
from distilvec.judging import HardItem
from distilvec.report import Record, show_table
from distilvec.report.grid import escape_markdown
from distilvec.report.render.markdown import render_markdown
from distilvec.report.render.page import render_html
from distilvec.report.render.terminal import brief_text

from .example import example

ODD = "a\x1b[31mb\u202ec\u2066\x9bd"
SHOWN = r"a\x1b[31mb\u202ec\u2066\x9bd"


def test_every_form_of_a_report_is_neutral(capsys: pytest.CaptureFixture[str]) -> None:
    """Mappings, as a file has them, and data classes, as a run measures them."""
    models = example()["scores"].model_dump()["models"]
    models[0]["name"] = ODD
    models[0]["scores"][ODD] = next(iter(models[0]["scores"].values()))
    record = example(
        title=ODD,
        scores={"models": models},
        notes={"lines": [ODD]},
        hardest={"texts": [HardItem(text=ODD, overlap=0.1, teacher=ODD, student=ODD)]},
        rerun={"recipe": {"output": ODD, ODD: [ODD]}},
    )
    assert Record.from_json(record.to_json()).to_json() == record.to_json(), "once is enough"
    assert json.loads(record.to_json())["sections"]["hardest"]["texts"][0]["text"] == SHOWN
    record.alarms = [ODD]
    show_table(record)
    forms = [render_html(record), render_markdown(record), brief_text(record)]
    for form in [*forms, capsys.readouterr().out]:
        assert not set("\x1b\u202e\u2066\x9b") & set(form)
    assert render_html(record).count(SHOWN) > 5 and SHOWN in brief_text(record)


def test_what_no_record_holds_is_neutral_too() -> None:
    assert escape_markdown(ODD) == SHOWN.replace("\\", "\\\\").replace("[", "\\[")
    assert _html("<title>{{title}}</title>", ODD, 1) == f"<title>{SHOWN}</title>"
