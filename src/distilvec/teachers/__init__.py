"""Frozen embedders that the student learns from: models, services, and vectors from elsewhere.

Nothing here takes torch: a recipe looks at the sections of teachers before one is opened.
"""

from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard
from distilvec.teachers.sections import Reading
from distilvec.teachers.signals import TeacherInfo, TeacherSignals
from distilvec.teachers.table import load_teacher

__all__ = ["Capabilities", "Reading", "Teacher", "TeacherCard", "TeacherInfo", "TeacherSignals", "load_teacher"]
