"""Choosing a student before any training: candidates, what they are worth for free, and what training will add."""

from distilvec.choosing.settle_student import settle_student, write_plan

__all__ = ["settle_student", "write_plan"]
