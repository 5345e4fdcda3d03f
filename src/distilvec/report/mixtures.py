"""What the report says of the mixtures of experts in a run's models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distilvec.report.grid import Cell, Grid
from distilvec.report.record_parts import Part


class MixtureLayer(Part):
    """One mixture of experts, over the tokens of some texts.

    Attributes:
        layer: of its block, 1 to L.
        load: each expert's share of the assignments.
        entropy: of the router's probabilities, in nats.
        norm_ratio, angle: medians, of the two most probable experts' outputs; degrees.
    """

    layer: int
    load: list[float]
    entropy: float
    norm_ratio: float
    angle: float


class MixtureFacts(Part):
    """The mixtures of experts in a model, and on how many texts they were looked at."""

    model: str
    texts: int
    layers: list[MixtureLayer]


def mixture_grid(found: Sequence[MixtureFacts]) -> Grid:
    """One row per mixture of each model."""
    rows = []
    for facts in found:
        for each in facts.layers:
            cells = [
                f"{facts.model}, layer {each.layer}",
                " ".join(f"{100 * share:.0f}" for share in each.load),
                f"{each.entropy:.2f} of {math.log(len(each.load)):.2f}",
                f"{each.norm_ratio:.2f}",
                f"{each.angle:.0f}°",
            ]
            rows.append([Cell(cell) for cell in cells])
    note = (
        f"Over the tokens of {max(facts.texts for facts in found):,} texts. Norm ratio and angle are medians, of the "
        "outputs of a token's two most probable experts. A router whose entropy is the largest possible prefers no "
        "expert."
    )
    return Grid(["mixture", "load of each expert, %", "router's entropy", "norm ratio", "angle"], rows, [note])
