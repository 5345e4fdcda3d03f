"""Where a student comes from, how it is watched while it learns, and how it ships."""

from distilvec.students.fit_texts import Seen
from distilvec.students.fold import fold_head
from distilvec.students.fresh import fresh
from distilvec.students.load import describe_student, load_student
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.students.ship import in_teacher_space, router, ship
from distilvec.students.shrink import ShrinkReport, shrink
from distilvec.students.static import static
from distilvec.students.tap import StudentTap
from distilvec.students.upcycle import upcycle

__all__ = [
    "Seen",
    "ShrinkReport",
    "StudentInfo",
    "StudentOutput",
    "StudentTap",
    "describe_student",
    "fold_head",
    "fresh",
    "in_teacher_space",
    "load_student",
    "router",
    "ship",
    "shrink",
    "static",
    "upcycle",
]
