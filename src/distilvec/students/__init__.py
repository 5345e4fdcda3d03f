"""Students: their start, their outputs while they learn, and how they ship."""

from typing import TYPE_CHECKING

from distilvec.late import exports
from distilvec.students.ship import in_teacher_space, router, ship
from distilvec.students.shrink import ShrinkReport, shrink

if TYPE_CHECKING:
    from distilvec.students.fit_texts import PassCache
    from distilvec.students.fold import fold_head
    from distilvec.students.fresh_models import fresh
    from distilvec.students.load import describe_student, load_student
    from distilvec.students.output import StudentInfo, StudentOutput
    from distilvec.students.static_tables import static
    from distilvec.students.tap import StudentTap
    from distilvec.students.upcycling import upcycle

__all__ = [
    "PassCache",
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

__getattr__ = exports(__name__)
