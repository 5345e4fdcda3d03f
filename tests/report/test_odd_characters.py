"""Names and texts of others do nothing to any form of a report: no colours of a terminal, no direction of writing."""

from __future__ import annotations

from distilvec.export.page import _html
from distilvec.report import Record
from distilvec.report.grid import escape_markdown
from distilvec.report.html import render_html
from distilvec.report.markdown import render_markdown
from distilvec.report.record_parts import HardText, ModelRow, ScoreEntry
from distilvec.report.table import main_grid

ODD = "a\x1b[31mb\u202ec\u2066\x9bd"
SHOWN = r"a\x1b[31mb\u202ec\u2066\x9bd"


def test_every_form_of_a_report_is_neutral() -> None:
    score = ScoreEntry(metric=ODD, value=0.5, low=0.4, high=0.6)
    rows = [ModelRow(name=f"{ODD}{n}", role="student", scores={ODD: score}, note=ODD) for n in range(2)]
    record = Record(title=ODD, models=rows, alarms=[ODD], notes=[ODD], recipe={"output": ODD, ODD: [ODD]})
    record.hardest = [HardText(text=ODD, overlap=0.1, teacher=ODD, student=ODD)]
    grid = main_grid(record)
    forms = render_html(record), render_markdown(record), grid.text(), grid.latex(), grid.markdown(), record.to_json()
    for form in forms:
        assert not set("\x1b\u202e\u2066\x9b") & set(form)
    assert render_html(record).count(SHOWN) > 5 and SHOWN in grid.text()
    assert Record.from_json(record.to_json()) == record, "once is enough"


def test_what_no_record_holds_is_neutral_too() -> None:
    assert escape_markdown(ODD) == SHOWN.replace("\\", "\\\\").replace("[", "\\[")
    assert _html("<title>{{title}}</title>", ODD, 1) == f"<title>{SHOWN}</title>"
