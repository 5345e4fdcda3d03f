"""Kinds of held-out items, and how much of the teacher's view the student shares on each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.corpus import Corpus
from distilvec.evenly import sampled_rows
from distilvec.judging.shared import shared_neighbours

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
#: Items of a slice, and items outside it, at least.
FEWEST = 20
#: Training texts whose word pieces are counted, at most; a piece of fewer of them than one of these numbers is rare:
#: than the largest that at most half of the items fall under.
COUNTED, RARE = 100_000, (30, 10, 3, 1)
#: Beginnings of the names of two slices that something can be done about.
OTHER_PIECES, RARE_PIECE = "cut into other pieces than the teacher's", "with a word piece that"
#: Slices by domain, at most: the largest.
DOMAINS = 12


@dataclass(frozen=True)
class Slice:
    """One kind of items.

    Attributes:
        share: of all items, 0 to 1.
        neighbours: mean share of the teacher's nearest neighbours that the student finds for them, 0 to 1.
        low, high: its 95 % interval over the items.
        others: the same of all other items.
        behind: whether it is below that of the others by more than chance: 95 %, two sides, for all kinds together
            (Bonferroni).
    """

    name: str
    items: int
    share: float
    neighbours: float
    low: float
    high: float
    others: float
    behind: bool


def slices(
    masks: Mapping[str, Mask], teacher_vectors: Array, student_vectors: Array, *, sample: int = 2_000, seed: int = 0
) -> list[Slice]:
    """Return how much of the teacher's neighbourhoods the student shares, by kind of item.

    Neighbours are looked for among all items, as in `agreement`, whose `neighbours` is the mean over all of them.

    Args:
        masks: name -> bool [n]. Those with fewer than 20 items, or with fewer than 20 outside, are left out.
        teacher_vectors, student_vectors: [n, D], [n, d], in the same order.
        sample: a seeded sample of so many items is looked at, the same as `agreement`'s.

    Returns:
        In the order of `masks`.

    Raises:
        DataError: different numbers of rows.
    """
    shared = shared_neighbours(teacher_vectors, student_vectors, sample=sample, seed=seed)
    parts = {name: mask[shared.rows] for name, mask in masks.items()}
    parts = {name: mask for name, mask in parts.items() if FEWEST <= mask.sum() <= len(mask) - FEWEST}
    clear = NormalDist().inv_cdf(1 - 0.025 / max(len(parts), 1))
    found = []
    for name, mask in parts.items():
        error, apart = shared.error_of(mask)
        mean, others = (float(shared.shares[side].mean()) for side in (mask, ~mask))
        found.append(
            Slice(
                name=name,
                items=int(mask.sum()),
                share=float(mask.mean()),
                neighbours=mean,
                low=max(0.0, mean - 1.96 * error),
                high=min(1.0, mean + 1.96 * error),
                others=others,
                behind=mean - others < -clear * apart,
            )
        )
    return found


def item_masks(
    corpus: Corpus, rows: Array, student_tokenizer: Any = None, teacher_tokenizer: Any = None
) -> dict[str, Mask]:
    """Kinds of items: how a tokenizer cuts them, how long they are, and their domains.

    Of texts: those that a reduced vocabulary cuts otherwise than the teacher's; those with a word piece of the
    student's that fewer than 30, 10, 3 or 1 of (at most 100,000) training texts have; the quarter with the fewest
    pieces and the quarter with the most. Of all items: each domain of the corpus.

    Args:
        rows: int64 [n], the items.
        student_tokenizer, teacher_tokenizer: of transformers or `tokenizers`; None, or one that is written in Python,
            leaves out what needs it.

    Returns:
        name -> bool [n].
    """
    masks: dict[str, Mask] = {}
    ours = _backend(student_tokenizer)
    if corpus.kind.tokenized and ours is not None:
        cut = _cut(ours, corpus.texts(rows))
        if (both := reduced_backends(student_tokenizer, teacher_tokenizer)) is not None:
            names = zip(cut, _cut(both[1], corpus.texts(rows)), strict=True)
            masks[OTHER_PIECES] = np.array([one.tokens != other.tokens for one, other in names])
        counted = sampled_rows(corpus.train_rows, COUNTED)
        counts = _counts(ours, corpus.texts(counted))
        rarest = np.array([min((counts[index] for index in each.ids), default=RARE[0]) for each in cut])
        limit = next((each for each in RARE if (rarest < each).mean() <= 0.5), RARE[-1])
        few = f"fewer than {limit} of" if limit > 1 else "none of"
        verb = "have" if limit > 1 else "has"
        masks[f"{RARE_PIECE} {few} {len(counted):,} training texts {verb}"] = rarest < limit
        lengths = np.array([len(each.ids) for each in cut])
        low, high = np.quantile(lengths, [0.25, 0.75]).astype(int)
        masks |= {f"of at most {low} pieces": lengths <= low, f"of {high} pieces and more": lengths >= high}
    if corpus.domains is not None and corpus.domain_names is not None:
        domains = corpus.domains[rows]
        largest = np.argsort(-np.bincount(domains, minlength=len(corpus.domain_names)), kind="stable")[:DOMAINS]
        masks |= {f"of the domain {corpus.domain_names[each]}": domains == each for each in largest}
    return masks


def reduced_backends(student_tokenizer: Any, teacher_tokenizer: Any) -> tuple[Any, Any] | None:
    """Plain copies of both `tokenizers.Tokenizer`; None unless the student's pieces are a part of the teacher's."""
    ours, theirs = _backend(student_tokenizer), _backend(teacher_tokenizer)
    if ours is None or theirs is None or not ours.get_vocab().keys() < theirs.get_vocab().keys():
        return None
    return ours, theirs


def _counts(backend: Any, texts: Sequence[str]) -> Array:
    """In how many of the texts each piece is, int64 [pieces]."""
    counts = np.zeros(max(backend.get_vocab(with_added_tokens=True).values()) + 1, dtype=np.int64)
    for start in range(0, len(texts), 2_000):
        for each in _cut(backend, texts[start : start + 2_000]):
            counts[list(set(each.ids))] += 1
    return counts


def _cut(backend: Any, texts: Sequence[str]) -> list[Any]:
    return list(backend.encode_batch(list(texts), add_special_tokens=False))


def _backend(tokenizer: Any) -> Any:
    """A plain copy of the `tokenizers.Tokenizer` behind a tokenizer; None where there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    from distilvec.alignment.loading import unlimited

    return unlimited(backend) if hasattr(backend, "encode_batch") else None
