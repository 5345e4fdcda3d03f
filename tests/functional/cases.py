"""One ordinary call of every function of distilvec.functional, for the tests that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from distilvec import functional as F

FEW = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)

_LATER = torch.tensor([1, 2, 0, 4, 3])
_EXCLUDED = torch.eye(5, dtype=torch.bool).roll(2, 1)
_MASK = torch.tensor([True] * 5 + [False])
_CHOSEN = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1]]).bool()


@dataclass(frozen=True)
class Case:
    """A call on tensors of these shapes.

    Attributes:
        function: its name.
        call: the call.
        shapes: of the tensors it takes.
        positive: whether they have to be distributions along the last dimension.
        stacked: whether it takes further leading dimensions.
        smooth: whether it has a gradient.
    """

    function: str
    call: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    positive: bool = False
    stacked: bool = True
    smooth: bool = True

    def tensors(self, seed: int = 0, dtype: torch.dtype = torch.float64, stack: int | None = None) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        leading = () if stack is None else (stack,)
        drawn = [torch.randn((*leading, *shape), generator=generator, dtype=torch.float64) for shape in self.shapes]
        return [(x.softmax(-1) if self.positive else x).to(dtype) for x in drawn]


def _wide(x: Tensor) -> Tensor:
    """What the tests derive from an input must not be rounded to its half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _lower(x: Tensor) -> Tensor:
    x = _wide(x)
    return x.tril(-1) + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).exp())


def _transport(x: Tensor) -> Tensor:
    # Without a tolerance: where an item stops early is a step in its value, and no gradient sees it.
    return F.sinkhorn(x, x.mean(-1).softmax(-1), x.mean(-2).softmax(-1), 0.3, 6, 0.0)


def _to_gram(x: Tensor, y: Tensor, mask: Tensor | None = None, debiased: bool = False) -> Tensor:
    return F.cka_distance_to_gram(x, F.centred_gram(y, mask), mask, debiased)


CASES: dict[str, Case] = {
    "normalize": Case("normalize", F.normalize, ((4, 3),)),
    "cosine distance": Case("cosine_distance", F.cosine_distance, ((4, 3), (4, 3))),
    "relation matrix": Case("relation_matrix", F.relation_matrix, ((4, 3),)),
    "relation gap": Case("relation_gap", F.relation_gap, ((4, 3), (4, 5))),
    "margin gap": Case("margin_gap", lambda x, y: F.margin_gap(x, y, 0.1), ((4, 3), (4, 5))),
    "info_nce": Case("info_nce", lambda q, k: F.info_nce(q, k, 0.5), ((4, 3), (6, 3)), stacked=False),
    "info_nce, targets": Case(
        "info_nce", lambda q, k: F.info_nce(q, k, 0.5, _LATER, _EXCLUDED), ((5, 3), (5, 3)), stacked=False
    ),
    "cka, few rows": Case("linear_cka", F.linear_cka, ((4, 6), (4, 7))),
    "cka, many rows": Case("linear_cka", F.linear_cka, ((9, 2), (9, 3))),
    "cka, masked": Case("linear_cka", lambda x, y: F.linear_cka(x, y, _MASK), ((6, 4), (6, 3))),
    "cka, debiased": Case("linear_cka", lambda x, y: F.linear_cka(x, y, _MASK, True), ((6, 4), (6, 3))),
    "cka, debiased, many rows": Case("linear_cka", lambda x, y: F.linear_cka(x, y, None, True), ((9, 2), (9, 3))),
    "cka distance": Case("cka_distance", F.cka_distance, ((5, 4), (5, 3))),
    "cka distance, debiased": Case("cka_distance", lambda x, y: F.cka_distance(x, y, None, True), ((5, 4), (5, 3))),
    "centred gram": Case("centred_gram", F.centred_gram, ((5, 4),)),
    "centred gram, masked": Case("centred_gram", lambda x: F.centred_gram(x, _MASK), ((6, 4),)),
    "cka distance to gram": Case("cka_distance_to_gram", _to_gram, ((5, 4), (5, 3))),
    "cka distance to gram, debiased": Case(
        "cka_distance_to_gram", lambda x, y: _to_gram(x, y, None, True), ((5, 4), (5, 3))
    ),
    "sinkhorn": Case("sinkhorn", lambda c: _transport(_wide(c)), ((3, 4),), True),
    "transport cost": Case("transport_cost", F.transport_cost, ((3, 4), (3, 4))),
    "sorted wasserstein": Case("sorted_wasserstein", F.sorted_wasserstein, ((3,), (5,)), True),
    "mass set": Case("smallest_mass_set", lambda p: F.smallest_mass_set(p, 0.7), ((6,),), True, smooth=False),
    "top tokens": Case("top_tokens", lambda s: F.top_tokens(s, _MASK.expand(s.shape), 0.4, 1), ((6,),), smooth=False),
    "gaussian": Case("gaussian_nll", F.gaussian_nll, ((3, 4), (3, 4), (3, 4))),
    "triangular gaussian": Case(
        "triangular_gaussian_nll",
        lambda t, m, f: F.triangular_gaussian_nll(t, m, _lower(f)),
        ((4,), (4,), (4, 4)),
    ),
    "expert similarity": Case("expert_similarity", F.expert_similarity, ((5, 3, 4),)),
    "gate floor": Case("gate_floor_penalty", lambda w: F.gate_floor_penalty(w, 0.2), ((5, 3),), True),
    "optimal gate": Case("optimal_gate", lambda x: F.optimal_gate(x, 0.5), ((5, 3),)),
    "load balance": Case("load_balance", lambda p: F.load_balance(p, _CHOSEN), ((4, 3),), True, stacked=False),
    "soft cross-entropy": Case(
        "soft_cross_entropy", lambda s, t: F.soft_cross_entropy(s, t, 2.0), ((4, 5), (4, 5)), stacked=False
    ),
    **{
        f"aggregate, {mode}, {experts}": Case(
            "spherical_aggregate",
            lambda v, mode=mode: F.spherical_aggregate(v, _wide(v).square().mean(-1), mode),
            ((3, experts, 4),),
        )
        for mode in ("linear", "sba", "norm_free", "unit", "nlerp")
        for experts in (1, 2, 3)
    },
}
