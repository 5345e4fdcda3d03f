"""Frozen embedders that the student learns from: models, services, and vectors from elsewhere."""

from typing import TYPE_CHECKING

from distilvec.late import exports
from distilvec.teachers.describe import Example, TeacherReport, check_teacher, describe

if TYPE_CHECKING:
    from distilvec.teachers.base import Teacher
    from distilvec.teachers.callable import CallTeacher
    from distilvec.teachers.cards import TeacherCard
    from distilvec.teachers.invariance import InvarianceReport, batch_invariance
    from distilvec.teachers.load import load_teacher
    from distilvec.teachers.signals import TeacherInfo, TeacherSignals
    from distilvec.teachers.text import TextTeacher
    from distilvec.teachers.vectors import VectorsTeacher

__all__ = [
    "CallTeacher",
    "Example",
    "InvarianceReport",
    "Teacher",
    "TeacherCard",
    "TeacherInfo",
    "TeacherReport",
    "TeacherSignals",
    "TextTeacher",
    "VectorsTeacher",
    "batch_invariance",
    "check_teacher",
    "describe",
    "load_teacher",
]

__getattr__ = exports(__name__)
