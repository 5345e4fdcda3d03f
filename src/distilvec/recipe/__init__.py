"""The recipe: what a run is made of, as typed models of its YAML file."""

from distilvec.recipe.method_section import MethodEntry, MethodSection
from distilvec.recipe.recipe import Recipe, given
from distilvec.recipe.sections import (
    CallScorerSection,
    CorpusSection,
    JudgingSection,
    MiningSection,
    ModelScorerSection,
    OptimizerSection,
    PartSection,
    ScorerSection,
    SharpnessSection,
)
from distilvec.recipe.student_sections import (
    AutoSection,
    FreshSection,
    LoraSection,
    MoleculeSection,
    ResnetSection,
    ShrinkSection,
    StaticSection,
    StudentSection,
    UpcycleSection,
)
from distilvec.recipe.training_section import TrainingSection
from distilvec.tasks.section import TaskSection
from distilvec.teachers.sections import ApiSection, CallSection, ModelSection, TeacherSection

__all__ = [
    "ApiSection",
    "AutoSection",
    "CallScorerSection",
    "CallSection",
    "CorpusSection",
    "FreshSection",
    "JudgingSection",
    "LoraSection",
    "MethodEntry",
    "MethodSection",
    "MiningSection",
    "ModelScorerSection",
    "ModelSection",
    "MoleculeSection",
    "OptimizerSection",
    "PartSection",
    "Recipe",
    "ResnetSection",
    "ScorerSection",
    "SharpnessSection",
    "ShrinkSection",
    "StaticSection",
    "StudentSection",
    "TaskSection",
    "TeacherSection",
    "TrainingSection",
    "UpcycleSection",
    "given",
]
