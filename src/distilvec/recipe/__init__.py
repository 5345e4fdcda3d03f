"""The recipe: what a run is made of, as typed models of its YAML file."""

from distilvec.recipe.method_section import MethodEntry, MethodSection
from distilvec.recipe.recipe import Recipe, given
from distilvec.recipe.score_sections import MiningSection, ScorerSection
from distilvec.recipe.sections import (
    ApiSection,
    CorpusSection,
    JudgingSection,
    OptimizerSection,
    Section,
    SharpnessSection,
    TeacherSection,
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

__all__ = [
    "ApiSection",
    "AutoSection",
    "CorpusSection",
    "FreshSection",
    "JudgingSection",
    "LoraSection",
    "MethodEntry",
    "MethodSection",
    "MiningSection",
    "MoleculeSection",
    "OptimizerSection",
    "Recipe",
    "ResnetSection",
    "ScorerSection",
    "Section",
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
