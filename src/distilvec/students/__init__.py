"""Where a student comes from, how it is watched while it learns, and how it ships."""

from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.students.tap import StudentTap

__all__ = ["StudentInfo", "StudentOutput", "StudentTap"]
