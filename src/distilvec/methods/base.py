"""The contract between a method and the rest of the library.

A method is a module that turns what the student and the teachers say about a batch into named loss terms.
It owns its heads, says what it needs, and knows nothing of files, devices, optimisers or other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from distilvec.corpus.batch import Batch
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import NOTHING, Digest, TeacherInfo, TeacherSignals, Wanted

__all__ = [
    "Batch",
    "Digest",
    "Method",
    "Needs",
    "Options",
    "Sample",
    "StudentInfo",
    "StudentOutput",
    "TeacherInfo",
    "TeacherSignals",
    "Term",
    "Wanted",
    "WantedOfStudent",
]


class WantedOfStudent(NamedTuple):
    """Wishes of a method for the student's forward pass besides its vectors.

    Attributes:
        views: V, dropout passes over the batch.
        layers: whether the pooled states of every block are wanted.
        tokens: layers whose token states are wanted, 0 (embedding output) to L.
        attention: layers, 1 to L, whose head-averaged maps are wanted.
    """

    views: int = 1
    layers: bool = False
    tokens: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()


class Needs(NamedTuple):
    """All that a method wants to find in a step.

    Attributes:
        student: of the student's forward pass.
        teachers: of each teacher besides its sentence vectors, one entry per teacher; empty = nothing of any.
        sentence: whether the teachers' sentence vectors are needed at all.
        coupled: whether rows of a batch enter each other's loss, so that ranks must see the whole batch.
        companions: how many further texts of its pair or triplet each item brings into the batch: 0 = none, every
            text is an item; 1 = an anchor and its positive; None = its negatives too. A batch of B items then holds
            the B anchors and all their companions.
        same_pieces: whether the student has to cut texts into its teacher's pieces.
        states: whether any term looks at the student's vectors or token states; False where all are about class
            logits or attention, or there is none. A prefix of the vector changes nothing then.
        scores: whether the scorers' numbers for an anchor and its documents are needed.
    """

    student: WantedOfStudent = WantedOfStudent()
    teachers: tuple[Wanted, ...] = ()
    sentence: bool = True
    coupled: bool = False
    companions: int | None = 0
    states: bool = True
    scores: bool = False
    same_pieces: bool = False

    def of(self, teacher: int) -> Wanted:
        """Give what is asked of one teacher besides its sentence vectors."""
        return self.teachers[teacher] if self.teachers else NOTHING

    @property
    def inside(self) -> bool:
        """Tell whether any teacher is asked for token states, attention or an alignment."""
        return any(wanted.tokens or wanted.attention or wanted.alignment for wanted in self.teachers)

    @property
    def logits(self) -> bool:
        """Tell whether any teacher is asked for class logits."""
        return any(wanted.logits for wanted in self.teachers)


class Term(NamedTuple):
    """One named, unweighted part of the loss.

    Attributes:
        values: [B] or [V, B] per item, or [] for a whole-batch value.
        counted: of the shape of `values`, or [B] for all views: bool, False = left out of the mean; or float >= 0, how
            much each value weighs in it. None = all count alike.
        weight: factor in the total loss.
        summed: whether the loss is the mean times the number of items that count, over all processes; of batches that
            are accumulated for a step it is the mean of these sums.
    """

    values: Tensor
    counted: Tensor | None = None
    weight: float = 1.0
    summed: bool = False

    @property
    def weights(self) -> Tensor:
        """Weights of the values in the mean, float32, of the shape of `values`."""
        if self.counted is None:
            return torch.ones_like(self.values).float()
        return self.counted.float().expand_as(self.values)

    @property
    def items(self) -> Tensor:
        """[], how many items count; of [V, B] the mean over V."""
        counted = (self.weights > 0).float()
        return counted.mean(0).sum() if counted.dim() == 2 else counted.sum()

    @property
    def weighed(self) -> Tensor:
        """The values, float32, each times how much it counts; 0 for those left out, whatever they are."""
        values, weights = self.values.float(), self.weights
        return values if self.counted is None else (values * weights).where(weights > 0, 0.0)


@dataclass
class Sample:
    """Held-in items seen by the untrained student in eval mode (V = 1), and the teachers' signals for them.

    At most 10,000 items; what ridge starts and statistics are computed from.

    Attributes:
        student: embeddings and, where asked for, pooled layers of all of them.
        teachers: sentence vectors of all of them.
        batches: at most 1,024 of them in batches padded each to its own length, with the token states, attention,
            alignments and logits that the method's needs name; empty where it needs none.
        pairs: at most 1,024 items in batches of anchors with all their documents; empty where no scores are needed.
    """

    student: StudentOutput
    teachers: list[TeacherSignals]
    batches: list[tuple[StudentOutput, list[TeacherSignals]]] = field(default_factory=list)
    pairs: list[tuple[StudentOutput, Batch]] = field(default_factory=list)


class Options(BaseModel):
    """Options of a method. A preset changes defaults; what is given explicitly wins.

    Attributes:
        constants: what no recipe sets and some preset changes: name -> value of `sound`.
        presets: name -> what it changes, options and constants.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)
    constants: ClassVar[dict[str, Any]] = {}
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    preset: Literal["paper", "code", "sound"] = Field(
        "sound", description="paper = as published, code = as the published code does it, sound = our reading"
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        changed = cls.presets.get(given.get("preset", "sound"), {})
        return {**{name: value for name, value in changed.items() if name not in cls.constants}, **given}

    @property
    def fixed(self) -> SimpleNamespace:
        """The constants of the preset, as attributes."""
        changed = self.presets.get(self.preset, {})
        return SimpleNamespace(**{name: changed.get(name, value) for name, value in self.constants.items()})


BaseOptions = Options


class Method(nn.Module):
    """Base of all methods. Subclasses set the class attributes and implement `needs`, `build`, `forward`.

    Attributes:
        name: the word in recipes and on the command line, and in tables; the only one without a default.
        summary: one line for `distilvec methods`.
        paper: where it comes from.
        Options: what a recipe may set.
        implied_space: the space in which its student ships where the recipe does not say.
        trains_on_pairs: whether its items are pairs or triplets, not single texts.
        prefixes: those of the student's vector that it trains, too; such a student lives in its own space, as a map
            behind its vector would mix them.
        needs_teacher: False where it learns nothing from a teacher, so that a recipe need not name one.
        inside: whether it may ask the teachers for more than sentence vectors; without, they are not asked.
        writes: whether it can teach a student that writes.
        ranks: whether it can teach a student that is a cross-encoder.
        lookup: (teacher index, keys uint8 [n, 16]) -> [n, D] sentence vectors; set before training where the
            signals come from stores, so that a method can keep keys instead of vectors.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    Options: ClassVar[type[BaseOptions]] = BaseOptions
    implied_space: Literal["own", "teacher"] = "own"
    trains_on_pairs: bool = False
    needs_teacher: bool = True
    prefixes: tuple[int, ...] = ()
    inside: bool = False
    writes: bool = False
    ranks: bool = False
    lookup: Callable[[int, Tensor], Tensor] | None = None

    def __init__(self, options: BaseOptions | None = None) -> None:
        super().__init__()
        self.options: Any = options if options is not None else self.Options()

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        """Say what the method wants to find in a step.

        Raises:
            DistilvecError: where student or teachers cannot give it.
        """
        raise NotImplementedError

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        """Create the heads. Called once, before the optimiser is made."""

    def attach(self, student: Any) -> None:
        """Append modules that ship with the student. Default: none."""

    def attached(self, student: StudentOutput) -> StudentOutput:
        """Pass an output through the modules that `attach` appends, in eval mode. Default: the same."""
        return student

    def rates(self) -> dict[nn.Module, float]:
        """Modules that train at another rate: module -> its learning rate over the student's. Default: none."""
        return {}

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        """The loss terms of one batch, by name."""
        raise NotImplementedError

    def keep(self, folder: Path) -> None:
        """Write what ships beside the student into its folder, for `distilvec.load`. Default: nothing."""

    def teacher_map(self) -> nn.Linear | None:
        """The linear map from student to teacher space that `student.space: teacher` folds into a Dense."""
        return None

    @property
    def has_map(self) -> bool:
        """Tell whether there can be such a map."""
        return type(self).teacher_map is not Method.teacher_map

    def trains_student(self, progress: float) -> bool:
        """Tell whether the student itself is trained at this point (0 = start, 1 = end); heads always are."""
        return True


def foreign_classes(method: Method) -> list[type[Method]]:
    """The classes of a method, and of those that it holds, that do not come with distilvec."""
    classes = {type(module) for module in method.modules() if isinstance(module, Method)}
    return [each for each in classes if each.__module__.split(".")[0] != "distilvec"]
