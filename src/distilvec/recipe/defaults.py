"""Defaults for what is trained, how and for how long: one table, a row per kind of student.

Each row names the committed experiment that it comes from. Values that a recipe gives always stand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Default:
    """Settings of one kind of student.

    Attributes:
        kind: what the student is, as messages say it.
        lr: learning rate of the student and of the heads.
        student: further keys of the student's section.
        batch_size: items a step.
        reads: texts read in training, repetitions counted, that a small corpus is repeated for.
        evidence: page or results of the experiment behind the row.
    """

    kind: str
    lr: float
    method: list[dict[str, Any]]
    evidence: str
    student: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 32
    reads: int = 24_000
    least: int = 3
    most: int = 20

    def epochs(self, texts: int) -> int:
        """Passes over a corpus of so many texts: many over a small one, a few over a large one.

        >>> [DEFAULTS["cut"].epochs(texts) for texts in (300, 4_000, 100_000)]
        [20, 6, 3]
        """
        return min(self.most, max(self.least, math.ceil(self.reads / max(1, texts))))


#: The runs behind the rows: teacher and texts, nothing else.
EVIDENCE = "experiments/results/defaults"
_COSINE: list[dict[str, Any]] = [{"name": "cosine"}]
_STATES: list[dict[str, Any]] = [{"name": "cosine", "map": False}, {"name": "token_states"}]
_SAME_SPACE = {"space": "teacher"}
_CUT = {**_SAME_SPACE, "dropout": 0.0}
#: Kind of student -> its settings.
DEFAULTS = {
    "cut": Default("cut out of the teacher", 1e-3, _STATES, EVIDENCE, _CUT),
    "wide": Default("cut out of a teacher whose table keeps its width", 3e-4, _STATES, EVIDENCE, _CUT),
    "embedder": Default("an embedder already", 1e-4, _COSINE, EVIDENCE, _SAME_SPACE),
    "same space": Default(
        "an embedder whose vectors are like its teacher's already",
        1e-4,
        [{"name": "cosine", "map": False}],
        f"{EVIDENCE}; measured with a map, not without one",
        _SAME_SPACE,
    ),
    "words": Default("a small pretrained model that is not an embedder yet", 1e-3, _COSINE, EVIDENCE, _SAME_SPACE),
    "wide words": Default(
        "a pretrained model with a hidden size of 512 or more that is not an embedder yet",
        1e-4,
        _COSINE,
        f"{EVIDENCE}; measured on embedders, not on such a model",
        _SAME_SPACE,
    ),
    "fresh": Default("a student with random weights", 1e-3, _COSINE, EVIDENCE, _SAME_SPACE, reads=60_000),
    "static": Default("a table of word vectors", 3e-3, _COSINE, "docs/static.md", _SAME_SPACE),
    "network": Default(
        "a network of images or molecules with random weights",
        1e-3,
        [{"name": "gaussian"}],
        "docs/images.md",
        batch_size=128,
        reads=200_000,
        least=5,
    ),
    "writer": Default("a language model", 1e-4, [{"name": "mined"}], "docs/writing.md", batch_size=16),
    "cross-encoder": Default("a cross-encoder", 1e-4, [{"name": "margin_mse"}], "docs/reranker.md", batch_size=16),
}
