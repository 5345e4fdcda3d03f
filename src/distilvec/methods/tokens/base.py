"""Methods on what stands inside: token states and attention, class logits, or the next token of a student that writes.

These were mostly made for language models that predict tokens. An embedding model predicts none, so many have two more
forms: on the class logits of a supervised task, and on states where there is no task and SimCSE takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, cast

from torch import Tensor, nn

from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Sample, Term, WantedOfStudent
from distilvec.methods.projected import PerTeacher
from distilvec.methods.tokens import class_logits, next_tokens, pairs
from distilvec.methods.tokens.maps import Sides
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals, Wanted

Form = Literal["auto", "logits", "embedding"]
FORM = "on class logits, on token states, or auto: logits where there is a task, token states where there is none [S]"
EMBEDDING_INSTEAD = "Set form: embedding, which needs token states only, or take dskd, emo or distillmoe."
ALPHA = "weight of SimCSE where there is no task [P, C]; 0 = none"


def has_task(student: StudentInfo) -> bool:
    """Tell whether a task's loss is added to the method's terms; if none is, SimCSE takes its place."""
    return student.classes is not None or student.regression or student.pieces is not None


class TokenMethod(PerTeacher):
    """A term or more per teacher, in one of three forms; subclasses say what the forms that they have need and compare.

    Terms are `TERM:TEACHER` where there are several teachers, which count by their weights. In the form `states` there
    is also `simcse` [B], where no task stands beside the method; of a student that writes `aligned`, for the log.

    Attributes:
        logits_instead: what to take where there are no class logits, a sentence.
        same_classes: whether class i of the logits has to be the same class on both sides.
        usual_form: the form of a method that has no option `form`; "embedding" means states.
        only_states: whether it compares states of a student that writes, too; its option `temperature` is SimCSE's.
    """

    inside = True
    logits_instead: ClassVar[str] = "Take a method on vectors or token states: cosine, dskd, emo or distillmoe."
    same_classes: ClassVar[bool] = True
    usual_form: ClassVar[str] = "embedding"
    only_states: ClassVar[bool] = False

    def form(self, student: StudentInfo) -> Literal["next", "logits", "states"]:
        """Choose what is compared: the next token of a student that writes; else logits or states, as `form` says."""
        if student.pieces is not None and not self.only_states:
            return "next"
        form = getattr(self.options, "form", self.usual_form)
        return "logits" if form == "logits" or (form == "auto" and has_task(student)) else "states"

    @property
    def positions(self) -> next_tokens.Positions:
        """Places at which the next token is compared: the option of that name, if there is one."""
        return cast(next_tokens.Positions, getattr(self.options, "positions", "ends"))

    def simcse(self, student: StudentInfo) -> float:
        """Weight of SimCSE: of the option `alpha`, if there is one."""
        return 0.0 if has_task(student) else float(getattr(self.options, "alpha", 0.0))

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        form = self.form(student)
        if form == "next":
            return next_tokens.needs(self.name, teachers, self.positions)
        if form == "logits":
            class_logits.check_class_logits(self.name, student, teachers, self.logits_instead, self.same_classes)
            wanted = Wanted(logits=True, same_classes=self.same_classes)
            return Needs(teachers=(wanted,) * len(teachers), sentence=False, states=False)
        needs = self.needs_of_states(student, teachers)
        if not self.simcse(student):
            return needs
        return needs._replace(student=needs.student._replace(views=2), coupled=True)

    def needs_of_states(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        """Say what the form on states needs, SimCSE left out. Default: the last states, and pairs of equal tokens."""
        own, theirs = pairs.last_layers(self.name, student, teachers)
        wanted = tuple(Wanted(tokens=(layer,), alignment=("strict",)) for layer in theirs)
        return Needs(WantedOfStudent(tokens=(own,)), wanted, sentence=False)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.chosen = form = self.form(student)
        self.simcse_weight = self.simcse(student) if form == "states" else 0.0
        self.suffixes, self.shares = parts.names("", teachers), parts.shares(teachers, 1 - self.simcse_weight)
        self.heads, self.standardize, self.maps = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        sides = [Sides(student, teacher, index, sample) for index, teacher in enumerate(teachers)]
        if form == "next":
            self.build_next(sides)
        elif form == "states":
            self.build_states(sides)

    def build_next(self, every: Sequence[Sides]) -> None:
        """Create what the form on the next token trains. Default: nothing."""

    def build_states(self, every: Sequence[Sides]) -> None:
        """Create what the form on states trains."""

    def build_last(self, every: Sequence[Sides], mode: str = "strict", backwards: bool = False) -> None:
        """Create a map between the last token states per teacher, whose states are standardised where a preset says."""
        for sides in every:
            standardize = sides.standardizer(sides.last[1], self.options.fixed.standardize)
            self.standardize.append(standardize)
            self.maps.append(sides.token_map([sides.last], [standardize], self.options.init, mode, backwards))
        self.last = [sides.last for sides in every]

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        if self.simcse_weight:
            temperature = self.options.temperature if self.only_states else parts.SIMCSE_TEMPERATURE
            terms["simcse"] = parts.simcse(student, batch, temperature, self.simcse_weight)
        return terms | super().forward(student, teachers, batch)

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        compare = {"next": self.compare_next, "logits": self.compare_logits, "states": self.compare_states}[self.chosen]
        return compare(index, student, signals, batch)

    def compare_next(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        """The terms of one teacher on the next token. Default: `next_divergence` under the method's name."""
        sides = next_tokens.compared(student, signals, self.positions)
        value = next_tokens.term(self.next_divergence(index, sides), sides.real, self.weight)
        return {self.name: value, "aligned": next_tokens.aligned_share(student, sides.real)}

    def next_divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        """[V, B, P], how far the student's next token is from one teacher's at each place."""
        raise NotImplementedError

    def compare_logits(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        """The terms of one teacher on class logits. Default: `class_divergence` under the method's name."""
        values = self.class_divergence(*class_logits.class_logits(student, signals))
        return {self.name: parts.counted(values, signals.present, self.weight)}

    def class_divergence(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """[V, B] of [V, B, C] and [B, C] class logits. Default: KL of the teacher's `top_k` classes."""
        return class_logits.class_divergence(ours, theirs, self.options.temperature, self.options.top_k)

    @property
    def weight(self) -> float:
        """Weight of the term on class logits or the next token: the constant of that name, if there is one."""
        return float(getattr(self.options.fixed, "weight", 1.0))

    def compare_states(
        self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch
    ) -> dict[str, Term]:
        """The terms of one teacher on states."""
        raise NotImplementedError
