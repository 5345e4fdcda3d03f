"""The mixtures of experts in teachers and student: load, router, norms and angles."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import torch

from distilvec.evenly import evenly_spaced
from distilvec.judging import TRAINED
from distilvec.judging.geometry import mixture_geometry
from distilvec.report.sections.base import Block, Data, Outcome, RecordPart, table

MIXTURE_TEXTS, FEWEST = 200, 20


class MixtureLayer(RecordPart):
    """One mixture of experts.

    Attributes:
        layer: its block, 1 to L.
        load: each expert's share of the assignments.
        entropy: of the router's probabilities, in nats.
        norm_ratio, angle: medians, of the two most probable experts' outputs; degrees.
    """

    model: str
    layer: int
    load: list[float]
    entropy: float
    norm_ratio: float
    angle: float


class Mixtures(Data):
    """Every mixture of each model, over the tokens of some texts."""

    texts: int
    layers: list[MixtureLayer]

    @classmethod
    @torch.no_grad()
    def measure(cls, outcome: Outcome) -> Self | None:
        """Measure on held-out texts or, if these are few, on others."""
        if outcome.trained is None:
            return None
        corpus = outcome.corpus
        rows = np.asarray(corpus.holdout_rows if len(corpus.holdout_rows) >= FEWEST else corpus.train_rows)
        rows = rows[evenly_spaced(len(rows), MIXTURE_TEXTS)]
        teachers = [each.teacher for each in outcome.taught]
        for each in teachers:
            each.wake()
        models = [(each.card.name, each.model, each.prompt, corpus.teacher_texts) for each in teachers]
        layers = []
        for name, model, prompt, read in [*models, (TRAINED, outcome.trained, None, corpus.texts)]:
            for found in mixture_geometry(model, read(rows), prompt=prompt)[1:] if model is not None else ():
                medians = {"norm_ratio": found.norm_ratio.median, "angle": found.angle.median}
                layers.append(
                    MixtureLayer(model=name, layer=found.layer, load=found.load, entropy=found.entropy, **medians)
                )
        return cls(texts=len(rows), layers=layers) if layers else None

    def blocks(self) -> list[Block]:
        rows = [
            [
                f"{each.model}, layer {each.layer}",
                " ".join(f"{100 * share:.0f}" for share in each.load),
                f"{each.entropy:.2f} of {math.log(len(each.load)):.2f}",
                f"{each.norm_ratio:.2f}",
                f"{each.angle:.0f}°",
            ]
            for each in self.layers
        ]
        note = (
            f"Over the tokens of {self.texts:,} texts. Norm ratio and angle are medians, of the outputs of a token's "
            "two most probable experts. A router whose entropy is the largest possible prefers no expert."
        )
        return [table(["mixture", "load of each expert, %", "router's entropy", "norm ratio", "angle"], rows, note)]
