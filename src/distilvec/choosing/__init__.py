"""Choosing a student before any training: candidates, what they are worth for free, and what training will add."""

from typing import TYPE_CHECKING

from distilvec.choosing.settle_student import settle_student, write_plan
from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.choosing.budget import Budget
    from distilvec.choosing.candidates import Candidate
    from distilvec.choosing.choice import Choice
    from distilvec.choosing.compiled import Compiled, compile_budget
    from distilvec.choosing.measuring import Measured
    from distilvec.choosing.prediction import Prediction, predict

__all__ = [
    "Budget",
    "Candidate",
    "Choice",
    "Compiled",
    "Measured",
    "Prediction",
    "compile_budget",
    "predict",
    "settle_student",
    "write_plan",
]

__getattr__ = exports(__name__)
