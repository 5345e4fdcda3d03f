"""The start of a mixture of experts: it gives the vector that it replaces, and no two experts are alike.

Kept apart from `expert_head.py`, which is copied into the folder of every model that has such a head.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from distilvec.modules.expert_head import ExpertHead

_OCTONIONS = 8


@torch.no_grad()
def start_as_identity(head: ExpertHead, vectors: Tensor) -> None:
    """Start where the mixture is the vector that came in, and no two experts say the same.

    Each expert says the whole vector, turned by a matrix of its own (`orthogonal_family`), and the gate is even: the
    experts of one text are orthogonal, as the loss wants them, those of two texts are as similar as the texts, and
    their mean is the vector. Each principal axis of the vectors takes two hidden units of each expert, one for either
    sign. Where a hidden layer is too narrow for all axes, the experts share the leading ones and deal out the next,
    and the least are left out. Further units start at random and add nothing yet.

    Args:
        head: changed in place.
        vectors: [N, head.width], N >= 1.
    """
    experts, width, room = head.experts, head.width, head.hidden // 2
    family = orthogonal_family(experts)
    size = family.shape[-1]
    axes = torch.linalg.eigh(vectors.double().T @ vectors.double())[1].flip(1).T
    # As many as leave room for each of the other axes in one expert.
    shared = width if width <= room else max(0, (room * experts - width) // max(1, experts - 1))
    shared -= shared % size  # they are turned in blocks of this size
    given = _in_blocks(family.sum(0), shared) @ axes[:shared]
    head.second.zero_()
    head.bias.zero_()
    for expert in range(experts):
        own = axes[shared + expert :: experts][: room - shared]
        read = torch.cat([_in_blocks(family[expert], shared) @ axes[:shared], own])
        says = torch.cat([given, experts * own])
        count, start = len(read), expert * head.hidden
        head.first.weight[start : start + 2 * count] = torch.cat([read, -read]).to(head.first.weight)
        head.first.bias[start : start + 2 * count] = 0
        head.second[expert, : 2 * count] = torch.cat([says, -says]).to(head.second)
    last = head.router[-1] if isinstance(head.router, nn.Sequential) else head.router
    for parameter in last.parameters():
        parameter.zero_()


def _in_blocks(block: Tensor, width: int) -> Tensor:
    """The block along the diagonal, [width, width]."""
    return torch.block_diag(*[block] * (width // len(block))) if width else block.new_zeros(0, 0)


@cache
def orthogonal_family(count: int) -> Tensor:
    """Matrices that turn any vector into `count` vectors at right angles: F_j^T F_k is antisymmetric for j != k.

    The left multiplications by the units of the complex numbers, quaternions or octonions, of size 1, 2, 4 or 8; beyond
    eight matrices the size doubles with each further one. Their sum over sqrt(count) is orthogonal, too.

    Args:
        count: >= 1.

    Returns:
        [count, size, size], float64; the first is the identity.

    Source: A. Hurwitz, Mathematische Annalen 88 (1923); J. Radon, Abh. Math. Sem. Hamburg 1 (1922).
    """
    size = min(_OCTONIONS, 1 << (count - 1).bit_length())
    units = torch.eye(size, dtype=torch.float64)
    # Column j of the left multiplication by a unit is its product with unit j.
    family = [torch.stack([_product(unit, other) for other in units], dim=1) for unit in units[:count]]
    flip = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    while len(family) < count:
        one, *rest = family
        family = [torch.block_diag(one, one), *(torch.kron(flip, each) for each in rest), torch.kron(turn, one)]
    return torch.stack(family)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply two numbers of an algebra of 1, 2, 4 or 8 dimensions, after Cayley and Dickson."""
    if len(x) == 1:
        return x * y
    (a, b), (c, d) = x.chunk(2), y.chunk(2)
    return torch.cat([_product(a, c) - _product(_conjugate(d), b), _product(d, a) + _product(b, _conjugate(c))])


def _conjugate(x: Tensor) -> Tensor:
    return torch.cat([x[:1], -x[1:]])
