"""Pure, batched, differentiable mathematics: no model, no state, no loop over rows or tokens.

Every function takes float32, bfloat16 or float64, computes in at least float32 outside any autocast, and
returns that type. Masks are boolean, True = real; what is masked has exactly no effect on value and gradient.
"""

from typing import TYPE_CHECKING

from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.functional.cka import centred_gram, cka_distance, cka_distance_to_gram, linear_cka
    from distilvec.functional.contrastive import info_nce
    from distilvec.functional.gating import expert_similarity, gate_floor_penalty, load_balance, optimal_gate
    from distilvec.functional.likelihood import gaussian_nll, soft_cross_entropy, triangular_gaussian_nll
    from distilvec.functional.selection import smallest_mass_set, top_tokens
    from distilvec.functional.similarity import (
        cosine_distance,
        margin_gap,
        normalize,
        relation_gap,
        relation_matrix,
    )
    from distilvec.functional.sphere import spherical_aggregate
    from distilvec.functional.transport import sinkhorn, sorted_wasserstein, transport_cost

__all__ = [
    "centred_gram",
    "cka_distance",
    "cka_distance_to_gram",
    "cosine_distance",
    "expert_similarity",
    "gate_floor_penalty",
    "gaussian_nll",
    "info_nce",
    "linear_cka",
    "load_balance",
    "margin_gap",
    "normalize",
    "optimal_gate",
    "relation_gap",
    "relation_matrix",
    "sinkhorn",
    "smallest_mass_set",
    "soft_cross_entropy",
    "sorted_wasserstein",
    "spherical_aggregate",
    "top_tokens",
    "transport_cost",
    "triangular_gaussian_nll",
]

__getattr__ = exports(__name__)
