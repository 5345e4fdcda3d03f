"""The head of a supervised task: class logits or one number from sentence vectors, and its two files.

Beside a sentence-transformers model lie `task/head.safetensors` (the weights) and `task/task.json` (what the numbers
mean). The model alone stays a plain embedder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError
from torch import Tensor, nn

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.folder_checks import check_links
from distilvec.modules.layouts import TASK_HEAD, has_head
from distilvec.modules.settings import save_beside
from distilvec.validation import first_problem

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Encoding = Literal["single", "joint", "separate"]
_WEIGHTS, (_FOLDER, _CONFIG) = "head.safetensors", TASK_HEAD
#: Weights of a head, which a folder of somebody else's could ask memory for.
_MOST = 1 << 28


class _Saved(BaseModel):
    """The settings of a task head, as task.json has them."""

    model_config = ConfigDict(strict=True, extra="forbid")
    width: int
    kind: Literal["classification", "regression"] = "classification"
    labels: list[str] | None = None
    encoding: Encoding = "single"
    shift: FiniteFloat = 0.0
    scale: FiniteFloat = 1.0


class TaskHead(nn.Module):
    """A linear classifier or regressor on the sentence vector, before any final `Normalize`.

    Two texts encoded separately, u and v, are classified from [u, v, |u - v|, u * v] (Reimers & Gurevych 2019, with the
    product added), and their similarity is cos(u, v), which has no weights. All else reads one vector.

    Args:
        width: d of the sentence vectors.
        kind: "classification" or "regression".
        labels: names of the C >= 2 classes in order of their logits; None for a regression.
        encoding: "single" text, a pair read as one text ("joint"), or a pair of vectors ("separate").
        shift, scale: of a regression: the number that it means is shift + scale * logit.
        dropout: in [0, 1), of what the linear map reads, in training only; it is not kept with the head.

    Raises:
        DistilvecError: labels that do not go with the kind, a scale that is not positive, or a width that no embedder
            has.
    """

    def __init__(
        self,
        width: int,
        kind: Literal["classification", "regression"] = "classification",
        labels: Sequence[str] | None = None,
        encoding: Encoding = "single",
        *,
        shift: float = 0.0,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if (labels is not None) != (kind == "classification"):
            what = f"a classification has label names, a regression has none; this {kind} has {labels and list(labels)}"
            raise DistilvecError(what, where="task head")
        if labels is not None and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise DistilvecError(f"a classification has two or more different labels, not {list(labels)}")
        if not 1 <= width * max(len(labels or ()), 1) <= _MOST:
            raise DistilvecError(f"a head of width {width:,} is not one of an embedder", where="task head")
        if not scale > 0:
            raise DistilvecError(f"the scale of a regression is positive, not {scale}", where="task head")
        self.width, self.kind, self.encoding = width, kind, encoding
        self.labels = None if labels is None else [str(label) for label in labels]
        self.shift, self.scale = float(shift), float(scale)
        self.dropout = dropout
        self.linear: nn.Linear | None = None
        if self.labels is not None or encoding != "separate":
            inputs = 4 * width if encoding == "separate" else width
            self.linear = nn.Linear(inputs, 1 if self.labels is None else len(self.labels))
            nn.init.normal_(self.linear.weight, std=0.02)
            nn.init.zeros_(self.linear.bias)

    @property
    def classes(self) -> int | None:
        """C; None for a regression."""
        return None if self.labels is None else len(self.labels)

    def forward(self, embedding: Tensor, second: Tensor | None = None) -> Tensor:
        """Sentence vectors -> logits.

        Args:
            embedding: [..., d], of the text, of the joint pair, or of a pair's first text.
            second: [..., d], of a pair's second text where the encoding is separate.

        Returns:
            [..., C], or [..., 1] for a regression; at least float32.
        """
        if (second is not None) != (self.encoding == "separate"):
            needed = "two vectors" if second is None else "one vector"
            raise DistilvecError(f"a head with encoding {self.encoding} reads {needed}", where="task head")
        with torch.autocast(embedding.device.type, enabled=False):
            first = embedding if embedding.dtype == torch.float64 else embedding.float()
            if second is None:
                return self._linear(first)
            other = second.to(first.dtype)
            if self.linear is None:
                return torch.cosine_similarity(first, other, dim=-1)[..., None]
            return self._linear(torch.cat([first, other, (first - other).abs(), first * other], -1))

    def _linear(self, values: Tensor) -> Tensor:
        assert self.linear is not None
        values = nn.functional.dropout(values, self.dropout, self.training)
        return nn.functional.linear(values, self.linear.weight.to(values.dtype), self.linear.bias.to(values.dtype))

    def meaning(self, logits: Tensor) -> list[str] | list[float]:
        """Logits [n, C] -> label names; [n, 1] -> the numbers that they mean."""
        if self.labels is not None:
            return [self.labels[code] for code in logits.argmax(-1).tolist()]
        return (self.shift + self.scale * logits[..., 0].double()).tolist()

    def config(self) -> dict[str, Any]:
        """Return what it is made from, as JSON values."""
        names = ("width", "kind", "labels", "encoding", "shift", "scale")
        return {name: getattr(self, name) for name in names}

    def save(self, folder: str | Path) -> None:
        """Write `task/head.safetensors` and `task/task.json` into the folder of a model."""
        save_beside(self, Path(folder) / _FOLDER, _WEIGHTS, _CONFIG, self.config())

    @classmethod
    def load(cls, folder: str | Path) -> TaskHead:
        """Read what `save` wrote into the folder of a model.

        Raises:
            DataError: there is no head, or its files are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = Path(folder) / _FOLDER
        if not has_head(folder):
            raise DataError(
                "this model has no task head",
                where=str(folder),
                remedy="Give the student of a run with a task (out/student), or what `distilvec finetune` wrote.",
            )
        try:
            check_links(Path(folder), place)
            config = json.loads((place / _CONFIG).read_text(encoding="utf-8"))
            head = cls(**_Saved.model_validate(config).model_dump())
            head.load_state_dict(load_file(place / _WEIGHTS))
        except (OSError, ValueError, TypeError, RuntimeError, RecursionError, SafetensorError, DistilvecError) as error:
            told = first_problem(error) if isinstance(error, ValidationError) else error
            raise DataError(f"the task head cannot be read ({told})", where=str(place)) from error
        return head


def sentence_vectors(model: SentenceTransformer, features: dict[str, Any]) -> Tensor:
    """Return what a task head reads: the sentence vectors [B, d] before any final `Normalize`.

    Args:
        features: what `model.preprocess` gives, on the model's device.
    """
    from sentence_transformers.base.modules import Normalize

    modules = list(model.children())
    if isinstance(modules[-1], Normalize):
        modules = modules[:-1]
    features = dict(features)
    for module in modules:
        features = module(features)
    return features["sentence_embedding"]
