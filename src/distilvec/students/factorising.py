"""A narrower table of word pieces: its leading directions in the space that the embeddings' norm sees.

A model reads LN(word + position + type), and LN subtracts the mean and divides by the deviation. So directions count
after centring and at unit length, weighed by how often a piece is used. The narrow tables go through a norm of their
own, and a linear map (ELECTRA's `embeddings_project`) leads back to the blocks' width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

#: Draws of a piece at a position that directions and map are fitted to, and further ones that the map is judged on.
FITTED, JUDGED = 60_000, 10_000
#: Use above this share of all tokens counts less and less; a piece that never occurs counts a little.
_SATURATION, _FLOOR = 1e-3, 1e-7
_RIDGE = 1e-6
_CHUNK = 10_000


@dataclass(frozen=True)
class NarrowTables:
    """Tables of rank r, and the map from their norm's output to the blocks.

    Attributes:
        words, positions, types: float32 [N, r], [n, r], [k, r].
        weight, bias: float32 [d, r], [d].
        energy: share of the variance of unit-length centred embeddings that the directions hold, 0 to 1.
        explained: R² of the embeddings behind the map, on draws that it was not fitted to.
    """

    words: Tensor
    positions: Tensor
    types: Tensor
    weight: Tensor
    bias: Tensor
    energy: float
    explained: float


def factorise(
    tables: tuple[Tensor, Tensor, Tensor],
    norm: tuple[Tensor, Tensor, float],
    rank: int,
    use: Tensor,
    lengths: Tensor,
) -> NarrowTables:
    """Tables of a smaller width that give the blocks nearly what the whole ones gave.

    Args:
        tables: word [N, d], position [n, d] and type [k, d] embeddings; type 0 is what texts have.
        norm: gain [d], bias [d] and epsilon of the embeddings' LayerNorm.
        rank: r, 2 to d; at d the embeddings are the same up to the norm's epsilon.
        use: float [N], how often each piece occurs in the corpus.
        lengths: int [T], tokens of its texts.
    """
    words, positions, types = (table.detach().cpu().double() for table in tables)
    gain, bias, eps = norm[0].detach().cpu().double(), norm[1].detach().cpu().double(), norm[2]
    draw = _Draws((words, positions, types), use, lengths)
    width = words.shape[1]
    second = torch.zeros(width, width, dtype=torch.float64)
    for part in draw(FITTED):
        unit = functional.normalize(part, dim=-1)
        second += unit.T @ unit
    values, vectors = torch.linalg.eigh(second)
    leading = vectors[:, -(rank - 1) :].flip(-1)
    # Rows of x B have mean zero, so that the narrow norm only rescales them.
    basis = leading @ without_mean(rank).T
    moments = torch.zeros(rank + 1, rank + 1, dtype=torch.float64)
    cross = torch.zeros(rank + 1, width, dtype=torch.float64)
    for part in draw(FITTED):
        seen = _with_one(functional.layer_norm(part @ basis, (rank,), eps=eps))
        moments += seen.T @ seen / FITTED
        cross += seen.T @ functional.layer_norm(part, (width,), gain, bias, eps) / FITTED
    solution = torch.linalg.solve(moments + _RIDGE * torch.eye(rank + 1, dtype=torch.float64), cross)
    judged = torch.cat(list(draw(JUDGED)))
    wanted = functional.layer_norm(judged, (width,), gain, bias, eps)
    missed = wanted - _with_one(functional.layer_norm(judged @ basis, (rank,), eps=eps)) @ solution
    return NarrowTables(
        words=(_centred(words) @ basis).float(),
        positions=(_centred(positions) @ basis).float(),
        types=(_centred(types) @ basis).float(),
        weight=solution[:-1].T.float().contiguous(),
        bias=solution[-1].float(),
        energy=float(values[-(rank - 1) :].sum() / values.sum()),
        explained=1 - float(missed.square().sum() / (wanted - wanted.mean(0)).square().sum()),
    )


class _Draws:
    """Centred embeddings of pieces drawn by use at positions drawn by the corpus' lengths, in chunks."""

    def __init__(self, tables: tuple[Tensor, Tensor, Tensor], use: Tensor, lengths: Tensor) -> None:
        self.tables = tables
        share = use.double() / use.sum()
        self.pieces = share * _SATURATION / (_SATURATION + share) + _FLOOR
        places = torch.arange(len(tables[1]))
        self.positions = (lengths[None, :] > places[:, None]).double().sum(1)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, count: int) -> Iterator[Tensor]:
        """Chunks [n, d] that add up to `count` rows."""
        words, positions, types = self.tables
        for start in range(0, count, _CHUNK):
            size = min(_CHUNK, count - start)
            piece = torch.multinomial(self.pieces, size, replacement=True, generator=self.generator)
            place = torch.multinomial(self.positions, size, replacement=True, generator=self.generator)
            yield _centred(words[piece] + positions[place] + types[0])


def without_mean(rank: int) -> Tensor:
    """[r, r - 1], orthonormal columns that are orthogonal to the vector of ones."""
    start = torch.eye(rank, dtype=torch.float64)
    start[:, 0] = 1.0
    return torch.linalg.qr(start).Q[:, 1:]


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
