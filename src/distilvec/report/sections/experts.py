"""The vectors that each expert of the student's head gives for held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from distilvec.evenly import evenly_spaced, sampled_rows
from distilvec.report.plots import GROUP_COLOURS, LINE, canvas
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Picture
from distilvec.report.sections.spaces import on_main_axes
from distilvec.report.sections.tokens import features_of
from distilvec.students import StudentTap

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

EXPERT_TEXTS, FEWEST, BATCH = 150, 20, 32


class Experts(Data):
    """points[k][n]: what expert k makes of text n, on the two main axes of all experts' unit vectors."""

    names: list[str]
    points: list[list[tuple[float, float]]]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Look at the experts if the method trains any and there are 20 held-out texts."""
        losses = getattr(outcome.fitted.method, "expert_losses", None)
        texts = outcome.corpus.texts(sampled_rows(outcome.corpus.holdout_rows, 1000)) if losses else []
        if not losses or outcome.trained is None or len(texts) < FEWEST:
            return None
        points = expert_points(outcome.trained, [texts[row] for row in evenly_spaced(len(texts), EXPERT_TEXTS)])
        if points is None:
            return None
        names = list(losses[0].names)
        if len(names) != len(points):
            names = [f"expert {number}" for number in range(1, len(points) + 1)]
        return cls(names=names, points=points.tolist())

    def blocks(self) -> list[Block]:
        caption = "The vectors that each expert gives held-out texts, on the two main axes of all of them."
        return [Heading("What the experts say"), Picture("experts", caption, self.figure)]

    def figure(self) -> Figure:
        """A point per text and expert; if the clouds lie apart, the experts say different things."""
        figure = canvas(5.2, 4.2)
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(zip(self.names, self.points, strict=True)):
            x, y = np.asarray(points, dtype=float).T
            marker, colour = "osD^vP*X"[number % 8], GROUP_COLOURS[number % len(GROUP_COLOURS)]
            axes.scatter(x, y, s=14, color=colour, marker=marker, alpha=0.75, linewidths=0, label=name)
        axes.axhline(0, color=LINE, linewidth=0.7, zorder=0)
        axes.axvline(0, color=LINE, linewidth=0.7, zorder=0)
        axes.set(xticks=[], yticks=[])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
        return figure


@torch.no_grad()
def expert_points(student: SentenceTransformer, texts: Sequence[str]) -> np.ndarray | None:
    """Return what each expert of the student's head makes of some texts, [K, n, 2]; None if it has no such head."""
    tap, outputs = StudentTap(student.eval()), list[Tensor]()
    for start in range(0, len(texts), BATCH):
        features = features_of(student, texts[start : start + BATCH])
        expert_outputs = tap(features, views=1).extras.get("expert_outputs")  # [1, B, K, d]
        if expert_outputs is None:
            return None
        outputs.append(expert_outputs[0].float().cpu())
    vectors = torch.nn.functional.normalize(torch.cat(outputs), dim=-1)  # [n, K, d]
    points = on_main_axes(vectors.flatten(0, 1).numpy()).reshape(*vectors.shape[:2], 2)  # [n, K, 2]
    return np.round(points.swapaxes(0, 1), 4)
