"""Students that the experiment on images compares: their teachers, losses and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEACHERS = ("resnet20", "resnet32", "resnet44", "resnet56", "mlperf", "imagenet", "birds", "vww")
WEAK = "vww"


def single_rows() -> list[str]:
    """The rows with one teacher, in the order of `TEACHERS`."""
    return [f"gaussian from {name}" for name in TEACHERS]


@dataclass(frozen=True)
class Row:
    """A student: what it is made of where that is not the default.

    Attributes:
        method: None = not trained; sft = by labels.
        vit: a vision transformer instead of the residual network, in a quarter of the epochs.
        options: further options of the method.
    """

    method: str | None = "gaussian"
    teachers: tuple[str, ...] = TEACHERS
    preset: str = "sound"
    vit: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_KERNELS = {"init": "ridge", "width": 1024}
GROUPS: dict[str, dict[str, Row]] = {
    "main": {
        "untrained": Row(None),
        "labels": Row("sft", ("resnet20",)),
        "gaussian": Row(),
        "multi_mse": Row("multi_mse"),
        "multi_cosine": Row("multi_cosine"),
    },
    "weak": {
        "gaussian without vww": Row(teachers=tuple(name for name in TEACHERS if name != WEAK)),
        "gaussian from resnet56+vww": Row(teachers=("resnet56", WEAK)),
        "gaussian from resnet56+vww per_dim": Row(teachers=("resnet56", WEAK), options={"teacher_weight": "per_dim"}),
        "multi_mse from resnet56+vww": Row("multi_mse", ("resnet56", WEAK)),
    },
    "single": {row: Row(teachers=(name,)) for name, row in zip(TEACHERS, single_rows(), strict=True)},
    "presets": {"gaussian paper": Row(preset="paper")},
    # What `sound` adds to the likelihood on standardised vectors: clipped coordinates, and beta-NLL with beta 1.
    "robust": {
        "gaussian beta 0.5": Row(options={"beta_nll": 0.5}),
        "gaussian beta 0": Row(options={"beta_nll": 0}),
        "gaussian unclipped": Row(options={"clip": None}),
        "gaussian unclipped beta 0": Row(options={"clip": None, "beta_nll": 0}),
        "multi_mse unclipped": Row("multi_mse", options={"clip": None}),
    },
    # The method's own defaults, instead of what the other rows have as published (narrow kernels that start at random),
    # and each of the two changes alone.
    "kernels": {
        "gaussian default kernels": Row(options=DEFAULT_KERNELS),
        "multi_mse default kernels": Row("multi_mse", options=DEFAULT_KERNELS),
        "gaussian wide kernels": Row(options={"width": DEFAULT_KERNELS["width"]}),
        "gaussian ridge start": Row(options={"init": DEFAULT_KERNELS["init"]}),
    },
    "vit": {
        "vit untrained": Row(None, vit=True),
        "vit gaussian": Row(vit=True),
        "vit labels": Row("sft", ("resnet20",), vit=True),
        "vit multi_mse": Row("multi_mse", vit=True),
        "vit multi_cosine": Row("multi_cosine", vit=True),
    },
    "vit-single": {f"vit gaussian from {name}": Row(teachers=(name,), vit=True) for name in TEACHERS},
}
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}
#: Rows with all seeds; of the single teachers the best one with seed 0 gets them, too.
REPEATED = (
    *GROUPS["main"],
    *GROUPS["weak"],
    *GROUPS["robust"],
    *GROUPS["kernels"],
    "gaussian from resnet32",
    "gaussian from resnet56",
)
