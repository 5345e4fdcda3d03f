"""What a run leaves for people: the record, the table, the page and the model card."""

from distilvec.report.card import model_card, write_card
from distilvec.report.compare import CompareTable, compare_table
from distilvec.report.record import (
    CorpusFacts,
    CostFacts,
    LayerSimilarity,
    Machine,
    ModelRow,
    Record,
    ScoreDifference,
    ScoreEntry,
    SpaceMap,
    StudentFacts,
    TeacherFacts,
)
from distilvec.report.table import markdown_table, show_scores, show_table, terminal_table
from distilvec.report.write import write_report

__all__ = [
    "CompareTable",
    "CorpusFacts",
    "CostFacts",
    "LayerSimilarity",
    "Machine",
    "ModelRow",
    "Record",
    "ScoreDifference",
    "ScoreEntry",
    "SpaceMap",
    "StudentFacts",
    "TeacherFacts",
    "compare_table",
    "markdown_table",
    "model_card",
    "show_scores",
    "show_table",
    "terminal_table",
    "write_card",
    "write_report",
]
