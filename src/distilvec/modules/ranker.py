"""A cross-encoder in the pipeline of all students.

While it is trained, a student that ranks is a `SentenceTransformer` of one module, `Ranker`, whose vector is one
number: what it says of the query and the document that it reads as one text. So distiller, loop, checkpoints and
methods on scores meet what they always meet. It ships as a `CrossEncoder` of stock modules.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import Transformer

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from torch import Tensor


class Ranker(Transformer):
    """A sequence classifier with one output."""

    #: What `StudentTap` knows it by, without importing this file.
    ranks = True

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Features of B texts -> these with `sentence_embedding` [B, 1].

        With `asked`, bool [B], only those rows are read, and all others have the number 0: a batch of queries with
        their documents has rows for the queries, too, of which there is nothing to say by themselves.
        """
        asked: Tensor | None = features.get("asked")
        given = {name: value for name, value in features.items() if name != "asked"}
        if asked is None:
            features["sentence_embedding"] = super().forward(given, **options)["scores"]
            return features
        rows = asked.nonzero().squeeze(1)
        numbers = torch.zeros(len(asked), 1, device=asked.device)
        if len(rows):
            part = {name: each[rows] if isinstance(each, torch.Tensor) else each for name, each in given.items()}
            scores = super().forward(part, **options)["scores"]
            numbers = numbers.to(scores.dtype).index_copy(0, rows, scores)
        features["sentence_embedding"] = numbers
        return features

    def get_embedding_dimension(self) -> int:
        """1."""
        return 1


def as_cross_encoder(student: SentenceTransformer) -> CrossEncoder:
    """The `CrossEncoder` that a student ships as; it shares the student's weights and predicts logits.

    Args:
        student: of one `Ranker`.
    """
    from sentence_transformers import CrossEncoder

    stock: Any = copy.copy(student[0])
    stock.__class__ = Transformer
    return CrossEncoder(modules=[stock], device=str(student.device), activation_fn=torch.nn.Identity())
