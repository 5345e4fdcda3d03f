"""Scorers: what says a number for a query and a document, beside the teachers, which say a vector for a text."""

from distilvec.scorers.base import Scorer, pair_keys
from distilvec.scorers.load import load_scorer

__all__ = ["Scorer", "load_scorer", "pair_keys"]
