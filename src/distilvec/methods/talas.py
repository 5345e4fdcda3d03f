"""TALAS: anchor the top layers at the teacher's vector, and each layer's relations at those of the next.

    TAMD = mean over l = L-k..L of mean_i 1 - cos(e_{l,i} W_l, t_i)         (eq. 3)
    LASD = mean over l = 1..L-1 of ||R(E_{l+1}) - R(E_l)||_F^2 / N^2        (eq. 5)
    L    = 0.001 SimCSE + 0.75 TAMD + 1.0 LASD

e_l is block l's state under the student's own pooling, e_L the final embedding itself; R holds cosines. It needs
sentence vectors only. Sharpness-aware steps, the paper's fourth part, are the recipe's `optimizer.sharpness`.

The `code` preset differs from the published code in this: in-batch duplicates are not negatives, and the
optimiser's fault of leaving the weights perturbed after a non-finite step is not reproduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.functional import cosine_distance, relation_matrix
from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term, WantedOfStudent
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class TALASOptions(Options):
    """Options of TALAS.

    Constants: `from_embeddings`: LASD begins at the embedding output [C]; not [P, S]. It is pooled at the first token,
    which is the same vector for every text and pulls layer 1 to collapse. `average_views`: TAMD and LASD over both
    views [S], or the first only [C].
    """

    constants: ClassVar[dict[str, Any]] = {"from_embeddings": False, "average_views": True}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"init": "random"},
        "code": {
            "init": "random",
            "temperature": 0.1,
            "average_views": False,
            "from_embeddings": True,
        },
    }

    simcse_weight: float = Field(0.001, ge=0, description="lambda 1 [P, C]; 0 leaves SimCSE out")
    tamd_weight: float = Field(0.75, ge=0, description="lambda 2 [P, C]; 0 leaves the anchors out")
    lasd_weight: float = Field(1.0, ge=0, description="lambda 3 [P, C]; 0 leaves the layers' relations out")
    temperature: float = Field(0.05, gt=0, description="of SimCSE [S]; 0.1 [C], the paper is silent")
    anchored_layers: int = Field(2, ge=1, description="k + 1, counted from the last block [P, C]")
    layers: int | None = Field(None, ge=2, description="LASD over the top n blocks only; null = all [P, C]")
    guide: Literal["coupled", "detached"] = Field(
        "coupled", description="LASD's gradient in both layers [P, C], or stopped at the upper one"
    )
    init: parts.Init = Field("ridge", description="start of each W_l: ridge map [S] or N(0, 0.001^2) [C]")

    @model_validator(mode="after")
    def _consistent(self) -> TALASOptions:
        if not self.simcse_weight + self.tamd_weight + self.lasd_weight:
            raise ValueError("simcse_weight, tamd_weight and lasd_weight are 0, so there is nothing to train")
        if self.layers is not None and self.fixed.from_embeddings:
            raise ValueError("layers: n counts from the top, so it excludes preset: code, which begins at the bottom")
        return self


class TALAS(Method):
    """Terms: `simcse` [B], `tamd` [V, B] (`tamd:TEACHER` where there are several), `lasd` [V, B]."""

    name = "talas"
    summary = "anchors the top layers at the teacher and every layer at the next; sentence vectors only"
    paper = (
        "TALAS: Teacher-Anchored Layer Alignment with Adaptive Sharpness-Aware Minimization for Embedding Distillation"
    )
    Options = TALASOptions

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        layered = options.lasd_weight > 0 or (options.tamd_weight > 0 and options.anchored_layers > 1)
        if layered:
            self._check_depth(student)
        from_embeddings = options.lasd_weight > 0 and options.fixed.from_embeddings
        return Needs(
            WantedOfStudent(
                views=2 if options.simcse_weight > 0 else 1, layers=layered, tokens=(0,) if from_embeddings else ()
            ),
            sentence=options.tamd_weight > 0,
            coupled=options.simcse_weight > 0 or options.lasd_weight > 0,
        )

    def _check_depth(self, student: StudentInfo) -> None:
        options, depth = self.options, student.layers
        if depth is None:
            raise DistilvecError(
                "talas needs a student with layers",
                where=student.name,
                remedy="Take the method cosine, or set lasd_weight: 0 and anchored_layers: 1.",
            )
        if options.tamd_weight > 0 and options.anchored_layers > depth:
            raise DistilvecError(
                f"anchored_layers is {options.anchored_layers}, but the student has {depth}",
                where=student.name,
                remedy=f"Set method.anchored_layers to {depth} or fewer (compare: -m talas:anchored_layers={depth}).",
            )
        if options.lasd_weight > 0 and (options.layers or 2 - options.fixed.from_embeddings) > depth:
            raise DistilvecError(
                f"LASD over {options.layers or 2} layers, but the student has {depth}",
                where=student.name,
                remedy="Set layers to what it has, or lasd_weight: 0.",
            )

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.terms, self.shares = parts.names("tamd", teachers), parts.shares(teachers)
        self.anchors = nn.ModuleList()  # one list of maps per teacher, the final embedding's last
        if not self.options.tamd_weight:
            return
        sources = [states[0] for states in self._anchored(sample.student, 1)]
        for teacher, signals in zip(teachers, sample.teachers, strict=True):
            maps = [parts.teacher_head(source, teacher, signals, self.options.init) for source in sources]
            if self.options.init == "random":
                for linear in maps:
                    nn.init.normal_(linear.weight, std=1e-3)
            self.anchors.append(nn.ModuleList(maps))

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        views = student.views if options.fixed.average_views else 1
        terms: dict[str, Term] = {}
        if options.simcse_weight:
            terms["simcse"] = parts.simcse(student, batch, options.temperature, options.simcse_weight)
        if options.tamd_weight:
            anchored = self._anchored(student, views)
            for index, (name, signals) in enumerate(zip(self.terms, teachers, strict=True)):
                target = parts.sentence(signals)
                distances = [
                    cosine_distance(linear(states), target)
                    for linear, states in zip(self._maps(index), anchored, strict=True)
                ]
                values = torch.stack(distances).mean(0)
                terms[name] = parts.counted(values, signals.present, options.tamd_weight * self.shares[index])
        if options.lasd_weight:
            terms["lasd"] = Term(self._lasd(student, views), None, options.lasd_weight)
        return terms

    def _anchored(self, student: StudentOutput, views: int) -> list[Tensor]:
        """[V, B, d] of the anchored layers, from the lowest to the final embedding."""
        states = [student.embedding[:views]]
        if self.options.anchored_layers > 1:
            assert student.layers is not None
            lower = student.layers[:views, -self.options.anchored_layers : -1]
            states = [*lower.unbind(1), *states]
        return states

    def _lasd(self, student: StudentOutput, views: int) -> Tensor:
        """[V, B] row means of the squared differences between the relations of neighbouring layers."""
        assert student.layers is not None
        blocks = student.layers[:views]
        first = 0 if self.options.layers is None else blocks.shape[1] - self.options.layers
        chain = [relation_matrix(blocks[:, first:-1]), relation_matrix(student.embedding[:views, None])]
        if self.options.fixed.from_embeddings:
            # The first real token of layer 0; there may be padding before it.
            tokens = student.tokens[0][:views]
            first_token: int | Tensor = 0 if student.mask is None else student.mask.int().argmax(-1)
            states = tokens[:, torch.arange(tokens.shape[1], device=tokens.device), first_token]  # [V, B, d]
            chain.insert(0, relation_matrix(states[:, None]))
        relations = torch.cat(chain, dim=1)  # [V, layers, B, B]
        lower, upper = relations[:, :-1], relations[:, 1:]
        if self.options.guide == "detached":
            upper = upper.detach()
        return (upper - lower).square().mean(dim=(1, -1))

    def teacher_map(self) -> nn.Linear | None:
        return self._maps(0)[-1] if len(self.anchors) == 1 else None

    def _maps(self, teacher: int) -> list[nn.Linear]:
        return list(cast(nn.ModuleList, self.anchors[teacher]))  # type: ignore[arg-type]
