"""The report of a run for people: the record, the table, the page and (in `card`) the model card."""

from typing import TYPE_CHECKING

from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.report.compare import CompareTable, compare_table
    from distilvec.report.outcome import Outcome
    from distilvec.report.record import Record, make_record
    from distilvec.report.render.terminal import show_scores, show_table
    from distilvec.report.rows import ModelRow, ScoreDifference, ScoreEntry
    from distilvec.report.write import write_report

__all__ = [
    "CompareTable",
    "ModelRow",
    "Outcome",
    "Record",
    "ScoreDifference",
    "ScoreEntry",
    "compare_table",
    "make_record",
    "show_scores",
    "show_table",
    "write_report",
]

__getattr__ = exports(__name__)
