"""Choosing a student before any training: candidates, what they are worth for free, and what training will add."""

from distilvec.choosing.candidates import Candidate, candidates
from distilvec.choosing.choice import Choice
from distilvec.choosing.choose import KEEP, SAMPLE, choose, settle
from distilvec.choosing.measuring import Measured
from distilvec.choosing.prediction import Prediction, predict

__all__ = [
    "KEEP",
    "SAMPLE",
    "Candidate",
    "Choice",
    "Measured",
    "Prediction",
    "candidates",
    "choose",
    "predict",
    "settle",
]
