"""The sizes of a model cut out of another, and the cut that uses a number of parameters up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import class_names, find_blocks, find_transformer, parameters
from distilvec.modules.pipeline import usable_positions
from distilvec.students.shape import feed_forward, heads_of, is_alike

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: A vocabulary below this many pieces is not worth pruning.
FEWEST_PIECES = 2000
#: A table of all pieces with fewer numbers each says less than one of some pieces with more.
WHOLE_RANK = 32
#: Shares of the heads that narrower blocks keep.
NARROW_HEADS = (2 / 3, 1 / 2, 5 / 12)
_FEWEST_UNITS, _UNITS, _FEWEST_SHARE = 16, 16, 8


@dataclass(frozen=True)
class Sizes:
    """The sizes of a BERT-like model: word pieces, positions, token types, width, heads and units of its blocks.

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

    def cut(self, depth: int, share: float, most: int, *, whole: bool = False) -> dict[str, Any] | None:
        """Keys of a `shrink` section: so many blocks, and a table that takes about that share of the parameters.

        Args:
            depth: blocks.
            share: of the table, 0 to 1; what full blocks leave goes to it as well.
            most: parameters at most.
            whole: keep all pieces where that leaves each a rank of at least `WHOLE_RANK`.

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
        even = (table - self.width) // (self.table(self.pieces, 1) - self.width)  # with the map to the blocks
        if not (whole and even >= WHOLE_RANK):
            even = max(int(math.sqrt(table / ratio)), table // self.pieces)
        rank = min(even // 4 * 4, self.rank)
        if self.whole is not None:  # a stock class has no map between a table and blocks of the same width
            rank = min(rank, self.width - 4)
        if rank < 4:
            return None
        pieces = (table - self.table(0, rank)) // rank
        pieces = self.pieces if pieces >= self.pieces else pieces // 100 * 100
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


#: Share of the blocks that a default cut keeps, and of its parameters that its table gets.
DEPTH, TABLE = 2 / 3, 0.35
#: The same of models whose table keeps its width, and of the units of their blocks.
PLAIN_DEPTH, PLAIN_UNITS = 1 / 3, 1 / 3


def behind_transformer(source: SentenceTransformer, model: Any) -> int:
    """Parameters of a model's layers behind its transformer (Dense), which every student cut out of it keeps."""
    return parameters(source) - parameters(model)


def cut_of(source: SentenceTransformer, at_most: int | None = None) -> dict[str, Any]:
    """The sizes of a student that is cut out of a model, without trying any.

    BERT-like ones keep all pieces in a factorised table and two thirds of their blocks, as far as they fit.

    Args:
        source: the model.
        at_most: so many parameters; None = a quarter, and half of the blocks of a model too small for that.

    Raises:
        DistilvecError: nothing is as small as that.
    """
    transformer = find_transformer(source)
    blocks = None if transformer is None else find_blocks(transformer.model)
    if transformer is None or blocks is None:
        raise DistilvecError(
            f"no student can be cut out of this model ({class_names(source)}), which has no list of blocks",
            where="student",
            remedy="Name another: student: {model: ...}.",
        )
    model, alike = transformer.model, is_alike(transformer.model)
    most = parameters(source) // 4 if at_most is None else at_most
    left = most - behind_transformer(source, model)
    for depth in range(max(1, round((DEPTH if alike else PLAIN_DEPTH) * len(blocks[1]))), 0, -1):
        if alike:
            sizes = Sizes.of(model, None)
            cut = sizes.cut(depth, TABLE, left, whole=True)
            if cut is not None and cut.get("inner", sizes.units) < sizes.units // _FEWEST_SHARE and depth > 1:
                continue  # a shallower one with feed-forward networks that deserve the name
        else:
            cut = _plain_cut(model, blocks[1], depth, left)
        if cut is not None:
            return {name: size for name, size in cut.items() if name != "positions"}
    if at_most is None:
        return {"layers": max(1, len(blocks[1]) // 2)}
    raise DistilvecError(
        f"no student cut out of this model has at most {most:,} parameters",
        where="student.shrink.parameters",
        remedy="Allow more, or take a table of word vectors: student: {static: {of: ...}}.",
    )


def _plain_cut(model: Any, blocks: Any, depth: int, most: int) -> dict[str, Any] | None:
    """So many blocks with a part of their units and as many pieces as fit, where the table is as wide as the blocks."""
    rows, width = model.get_input_embeddings().weight.shape
    network = feed_forward(blocks[0], type(model).__name__)
    units = max(_UNITS, int(PLAIN_UNITS * network.width) // _UNITS * _UNITS)
    unit = width * (1 + sum(times for _, times in network.inputs))  # parameters of one, without biases
    block = sum(parameter.numel() for parameter in blocks[0].parameters())
    rest = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("pooler."))
    rest -= len(blocks) * block + rows * width
    pieces = min((most - rest - depth * (block - (network.width - units) * unit)) // width // 100 * 100, rows)
    if pieces < min(FEWEST_PIECES, rows):
        return None
    return {"layers": depth, "inner": units} | ({"vocabulary": pieces} if pieces < rows else {})
