"""Replacing a student's expert head by a module that sentence-transformers brings along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.modules.blocks import class_names, without_dropout

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_RIDGE = 1e-4
_HELD_OUT = 5  # every fifth text


def fold_head(student: SentenceTransformer, texts: Sequence[str], batch_size: int = 64) -> float:
    """Put a residual `Dense`, y = s + W s + b, in the place of the student's expert head, so that it opens anywhere.

    The map is the ridge fit to what the head does to four fifths of the texts.

    Args:
        student: with an expert head; changed in place.
        texts: at least 10, of the kind that will be embedded; some thousand give a good fit.

    Returns:
        Mean cosine between the head's and the map's vectors on the other fifth: 1 = nothing is lost.

    Raises:
        DistilvecError: the student has no expert head.
        DataError: fewer than 10 texts.
    """
    from distilvec.modules.expert_head import ExpertHead
    from distilvec.modules.projection import dense

    names = [key for key, module in student.named_children() if type(module).__name__ == ExpertHead.__name__]
    if not names:
        raise DistilvecError(
            f"this student ({class_names(student)}) has no expert head to fold", remedy="Leave out fold: true."
        )
    if len(texts) < 2 * _HELD_OUT:
        raise DataError(f"a map is fitted to at least {2 * _HELD_OUT} texts, not to {len(texts)}")
    name = names[-1]
    head: Any = student.get_submodule(name)
    before, after = _observe(student, head, texts, batch_size)
    held_out = torch.arange(len(before)) % _HELD_OUT == 0
    weight, bias = _residual_fit(before[~held_out], after[~held_out])
    folding = dense(weight.to(student.dtype), bias.to(student.dtype), use_residual=True)
    setattr(student, name, folding.to(student.device).train(student.training))
    folded = before[held_out] + before[held_out] @ weight.double().mT + bias.double()
    return float(nn.functional.cosine_similarity(folded, after[held_out]).mean())


def _observe(
    student: SentenceTransformer, head: nn.Module, texts: Sequence[str], batch_size: int
) -> tuple[Tensor, Tensor]:
    """float64 [N, d] what goes into the head, and what comes out, over all texts, in any order."""
    before: list[Tensor] = []
    after: list[Tensor] = []

    def keep(module: nn.Module, args: Any, features: dict[str, Tensor]) -> None:
        before.append(features["sentence_vector"].cpu().double())
        after.append(features["sentence_embedding"].cpu().double())

    with without_dropout(student), head.register_forward_hook(keep):
        student.encode([split_pair(text) for text in texts], batch_size=batch_size, show_progress_bar=False)
    return torch.cat(before), torch.cat(after)


def _residual_fit(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """W [d, d] and b [d] of after - before, as float32; the mean is fitted exactly, the rest with a small ridge."""
    from distilvec.modules.projection import ridge_map

    centre, change = before.mean(0), (after - before).mean(0)
    weight = ridge_map(before - centre, after - before - change, _RIDGE)
    return weight.float(), (change - weight @ centre).float()
