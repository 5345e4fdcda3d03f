"""The recipe: what a run is made of, as typed models of its YAML file."""

from distilvec.recipe.recipe import Recipe, given
from distilvec.recipe.sections import (
    CallScorerSection,
    CorpusSection,
    MiningSection,
    ModelScorerSection,
    OptimizerSection,
    PartSection,
    ScorerSection,
    SharpnessSection,
)
from distilvec.recipe.student_sections import AutoSection, ShrinkSection, StudentSection
from distilvec.recipe.training_section import TrainingSection
from distilvec.tasks.section import TaskSection
from distilvec.teachers.sections import CallSection, ModelSection, TeacherSection

__all__ = [
    "AutoSection",
    "CallScorerSection",
    "CallSection",
    "CorpusSection",
    "MiningSection",
    "ModelScorerSection",
    "ModelSection",
    "OptimizerSection",
    "PartSection",
    "Recipe",
    "ScorerSection",
    "SharpnessSection",
    "ShrinkSection",
    "StudentSection",
    "TaskSection",
    "TeacherSection",
    "TrainingSection",
    "given",
]
