"""A map of both embedding spaces: the same held-out items in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from distilvec.evenly import evenly_spaced
from distilvec.judging import TRAINED
from distilvec.judging.tasks import unit
from distilvec.report.blocks import Map
from distilvec.report.plots import GROUP_COLOURS, canvas
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Picture, clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP_POINTS = 400
MAP_TEXT = 200
MAX_GROUPS = 12
FEWEST = 20


class Spaces(Data):
    teacher: list[tuple[float, float]]
    student: list[tuple[float, float]]
    texts: list[str]
    groups: list[str] | None = None
    projection: str = ""

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Project the held-out items; None for fewer than 20."""
        teacher, student = outcome.vectors(outcome.teacher_name), outcome.vectors(TRAINED)
        if teacher is None or student is None or len(teacher) < FEWEST:
            return None
        corpus, groups = outcome.corpus, None
        names = corpus.domain_names
        if names and 1 < len(names) <= MAX_GROUPS:
            groups = [names[int(code)] for code in np.asarray(corpus.domains)[outcome.held_out]]
        return cls(**space_map(teacher, student, corpus.kind.shown(outcome.texts(), outcome.texts()), groups))

    def blocks(self) -> list[Block]:
        colours, names = self.colours(), self.names()
        meaning = "its group" if names else "its place in the teacher's space, left to right"
        how = f" ({self.projection})" if self.projection else ""
        caption = (
            f"{len(self.texts)} {self.items} in the plane{how}. Point at one to see where the other space has it. "
            + self.about(f"A text's colour is {meaning}, in both maps. ")
            + "A plane shows only part of a space with hundreds of dimensions."
        )
        shown = self.model_dump(include={"texts", "groups", "items"}) | {"colours": colours}
        for side in ("teacher", "student"):
            shown[side] = [[round(x, 4), round(y, 4)] for x, y in getattr(self, side)]
        legend = [(clip(name, 40), colour) for name, colour in zip(names, GROUP_COLOURS, strict=False)]
        return [Heading("Both spaces"), Map(Picture("map", caption, self.figure), shown, legend)]

    def names(self) -> list[str]:
        """The groups; empty if there are too many for a colour each."""
        names = list(dict.fromkeys(self.groups or []))
        return names if len(names) <= len(GROUP_COLOURS) else []

    def colours(self) -> list[str]:
        """A colour per text: of its group, else of its place in the teacher's space."""
        import matplotlib
        from matplotlib.colors import to_hex

        if names := self.names():
            colour = dict(zip(names, GROUP_COLOURS, strict=False))
            return [colour[name] for name in self.groups or []]
        order = np.argsort(np.argsort([x for x, _ in self.teacher], kind="stable"))
        ramp = matplotlib.colormaps["plasma"]
        return [to_hex(ramp(0.05 + 0.85 * place / max(len(order) - 1, 1))) for place in order]

    def figure(self) -> Figure:
        figure, colours = canvas(9.2, 4.4), self.colours()
        for position, (name, points) in enumerate((("teacher", self.teacher), ("student", self.student))):
            axes = figure.add_subplot(1, 2, position + 1)
            where = np.asarray(points)
            axes.scatter(where[:, 0], where[:, 1], c=colours, s=14, edgecolors="white", linewidths=0.3)
            axes.set_title(f"{name}'s space")
            axes.set(xticks=[], yticks=[])
            axes.set_aspect("equal", adjustable="datalim")
        return figure


def space_map(
    teacher: np.ndarray, student: np.ndarray, texts: Sequence[str], groups: Sequence[str] | None = None
) -> dict[str, Any]:
    """The fields of `Spaces`: the teacher's two main axes, and the student's turned onto them as well as it can be.

    Args:
        teacher: [n, D]; student: [n, d], same texts; at most `MAP_POINTS` are shown, evenly spaced.
    """
    from scipy.linalg import orthogonal_procrustes

    flat_teacher, flat_student = _plane(teacher), _plane(student)  # [n, 2] each
    turn, _ = orthogonal_procrustes(flat_student, flat_teacher)
    rows = evenly_spaced(len(texts), MAP_POINTS)
    return {
        "teacher": flat_teacher[rows].tolist(),
        "student": (flat_student @ turn)[rows].tolist(),
        "texts": [clip(texts[row], MAP_TEXT) for row in rows],
        "groups": [groups[row] for row in rows] if groups is not None else None,
        "projection": "principal axes of unit vectors; the student's are turned onto the teacher's",
    }


def _plane(vectors: np.ndarray) -> np.ndarray:
    """[n, D] -> [n, 2], centred, unit scale."""
    flat = on_main_axes(unit(vectors))
    return flat / max(float(flat.std()), 1e-12)


def on_main_axes(points: np.ndarray) -> np.ndarray:
    """[n, d] -> [n, 2], centred."""
    centred = points - points.mean(0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
