"""What the parts of a model cut out of another take, and the cut that uses a number of parameters up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distilvec.modules.pipeline import usable_positions
from distilvec.students.shape import heads_of

if TYPE_CHECKING:
    pass

#: A vocabulary below this many pieces is not worth pruning.
FEWEST_PIECES = 2000
#: Shares of the heads that narrower blocks keep.
NARROW_HEADS = (2 / 3, 1 / 2, 5 / 12)
_FEWEST_UNITS, _UNITS = 16, 16


@dataclass(frozen=True)
class Sizes:
    """Of a BERT-like model: word pieces, positions, token types, width, heads and units of its blocks.

    `whole` is the width of the model where its blocks are narrower: a map leads there behind the pooling.
    """

    pieces: int
    positions: int
    types: int
    width: int
    heads: int
    units: int
    rank: int
    whole: int | None = None

    @classmethod
    def of(cls, model: Any, positions: int | None) -> Sizes:
        config = model.config
        there = usable_positions(model) or int(config.max_position_embeddings)
        units = getattr(config, "hidden_dim", None) or config.intermediate_size
        width = int(getattr(config, "dim", None) or config.hidden_size)
        return cls(
            pieces=model.get_input_embeddings().weight.shape[0],
            positions=min(positions or there, there),
            types=int(getattr(config, "type_vocab_size", 1) or 1),
            width=width,
            heads=heads_of(model),
            units=units,
            rank=min(int(getattr(config, "embedding_size", None) or width), width),
        )

    def narrowed(self) -> list[Sizes]:
        """With fewer heads, and as much less width."""
        kept = dict.fromkeys(round(share * self.heads) for share in NARROW_HEADS)
        each = self.width // self.heads
        fewer = [heads for heads in kept if 0 < heads < self.heads]
        return [replace(self, width=heads * each, heads=heads, whole=self.width) for heads in fewer]

    @property
    def back(self) -> int:
        """Parameters of the map behind the pooling."""
        return 0 if self.whole is None else self.whole * (self.width + 1)

    def table(self, pieces: int, rank: int) -> int:
        """Parameters of the tables, their norm, and the map to the blocks."""
        rows = pieces + self.positions + self.types
        mapped = min(rank, self.rank) < self.width
        return rows * rank + 2 * rank + (rank * self.width + self.width if mapped else 0)

    def block(self, units: int) -> int:
        """Parameters of a block: attention, feed-forward network, two norms."""
        return 4 * (self.width**2 + self.width) + 2 * units * self.width + units + self.width + 4 * self.width

    def cut(self, depth: int, share: float, most: int) -> dict[str, Any] | None:
        """Keys of a `shrink` section: so many blocks, and a table that takes about that share of the parameters.

        Args:
            depth: blocks.
            share: of the table, 0 to 1; what full blocks leave goes to it as well.
            most: parameters at most.

        Returns:
            layers and positions, and of vocabulary, embedding, inner and width what is smaller than the model's;
            None where it does not fit.
        """
        units, most = self.units, most - self.back
        if most <= 0:
            return None
        table = max(int(share * most), most - depth * self.block(units))
        # Three times as many pieces for each number of the rank as the model has: both are cut, the rank more. What the
        # pieces do not take goes to the rank.
        ratio = 3 * self.pieces / (self.whole or self.width)
        rank = min(max(int(math.sqrt(table / ratio)), table // self.pieces) // 4 * 4, self.rank)
        if self.whole is not None:  # a stock class has no map between a table and blocks of the same width
            rank = min(rank, self.width - 4)
        if rank < 4:
            return None
        pieces = min((table - self.table(0, rank)) // rank // 100 * 100, self.pieces)
        if pieces < min(FEWEST_PIECES, self.pieces):
            return None
        left = most - self.table(pieces, rank) - depth * self.block(0)
        units = min(left // (depth * (2 * self.width + 1)) // _UNITS * _UNITS, self.units)
        if units < _FEWEST_UNITS:
            return None
        cut: dict[str, Any] = {"layers": depth}
        cut |= {"vocabulary": pieces} if pieces < self.pieces else {}
        cut |= {"embedding": rank} if rank < self.rank else {}
        cut |= {"inner": units} if units < self.units else {}
        cut |= {"positions": self.positions}
        return cut | ({"width": self.width} if self.whole is not None else {})
