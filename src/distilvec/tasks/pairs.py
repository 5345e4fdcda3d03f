"""Classification of pairs of texts: paraphrase, entailment."""

from __future__ import annotations

from typing import ClassVar

from distilvec.tasks.classification import Classification


class PairClassification(Classification):
    """Cross-entropy over C classes of a pair.

    The pair is one input (joint: both texts with the tokenizer's own separator) or two vectors u and v, classified
    from [u, v, |u - v|, u * v] (separate).
    """

    kind: ClassVar[str] = "pairs"
