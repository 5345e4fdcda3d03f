"""What a student may be at most, and the shapes that use it up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distilvec.choosing.candidates import FEWEST_PIECES, Candidate
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer
from distilvec.modules.pipeline import usable_positions
from distilvec.students.electra import is_alike
from distilvec.students.shape import heads_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Numbers of blocks that are tried, and shares of the budget that the table of word pieces gets.
DEPTHS = (1, 2, 3, 4, 6, 8, 12)
TABLE_SHARES = (0.3, 0.45)
#: The same of narrower blocks, which leave more to the table, and the shares of the heads that they keep.
NARROW_DEPTHS, NARROW_SHARES = (2, 3, 4), (0.5, 0.65)
NARROW_HEADS = (2 / 3, 1 / 2, 5 / 12)
#: Widths of static tables.
STATIC_WIDTHS = (128, 256)
_FEWEST_UNITS, _UNITS = 16, 16
_FLOAT = 4


@dataclass(frozen=True)
class Budget:
    """What the student may be at most; None = no limit.

    Attributes:
        parameters: their number.
        megabytes: of float32 weights, 10^6 bytes each.
        latency: milliseconds that the median text takes, one at a time, on this machine.
    """

    parameters: int | None = None
    megabytes: float | None = None
    latency: float | None = None

    @property
    def most(self) -> int | None:
        """Parameters, whichever of the two limits is smaller."""
        limits = [self.parameters, None if self.megabytes is None else int(self.megabytes * 1e6 / _FLOAT)]
        return min((each for each in limits if each is not None), default=None)

    def __bool__(self) -> bool:
        return (self.parameters, self.megabytes, self.latency) != (None, None, None)

    def __str__(self) -> str:
        parts = [
            "" if self.parameters is None else f"{self.parameters / 1e6:.2f} M parameters",
            "" if self.megabytes is None else f"{self.megabytes:g} MB",
            "" if self.latency is None else f"{self.latency:g} ms a text",
        ]
        return ", ".join(filter(None, parts))


def shapes(
    of: str,
    source: SentenceTransformer,
    most: int | None,
    positions: int | None = None,
    mapped: int = 0,
) -> list[Candidate]:
    """Students cut out of a model that have nearly as many parameters as they may have: deep and shallow ones, with
    large and small tables, and static tables.

    Of BERT-like models the table is factorised, blocks are as wide as they are or narrower, and feed-forward networks
    take what the table leaves; of others, the table takes what the blocks leave.

    Args:
        of: what the recipe calls the model.
        most: parameters; None: as many as half of the model.
        positions: tokens of a text at most.
        mapped: numbers of a vector behind the map that ships with every student; 0: there is none.

    Raises:
        DistilvecError: the model has no blocks, or nothing is as small as that.
    """
    transformer = find_transformer(source)
    blocks = None if transformer is None else find_blocks(transformer.model)
    if transformer is None or blocks is None:
        raise DistilvecError(
            "a budget is met by cutting a transformer, and this model is none",
            where=of,
            remedy="Name a text encoder in student.auto.of.",
        )
    model, count = transformer.model, len(blocks[1])
    whole = sum(parameter.numel() for name, parameter in model.named_parameters() if not name.startswith("pooler."))
    limit = whole // 2 if most is None else most
    rows = int(model.get_input_embeddings().weight.shape[0])
    cut_limit = limit - mapped * (source.get_embedding_dimension() or 0)
    depths = [depth for depth in DEPTHS if depth <= count]
    if is_alike(model):
        sizes = _Sizes.of(model, positions)
        cuts = [(sizes, depth, share) for depth in depths for share in TABLE_SHARES]
        deep = [depth for depth in depths if depth in NARROW_DEPTHS]
        cuts += [(narrow, depth, share) for narrow in sizes.narrowed() for depth in deep for share in NARROW_SHARES]
        candidates = [each for cut in cuts if (each := _electra(of, *cut, cut_limit)) is not None]
    else:
        candidates = [each for depth in depths if (each := _plain(of, model, blocks[1], depth, cut_limit)) is not None]
    candidates += _tables(of, model, limit, mapped)
    if not candidates:
        pieces, numbers = min(FEWEST_PIECES, rows), STATIC_WIDTHS[0]
        table = f"A table of {pieces:,} word pieces with {numbers} numbers has {pieces * numbers:,}."
        raise DistilvecError(
            f"no student cut out of this model has at most {limit:,} parameters",
            where="parameters",
            remedy=f"Allow more. {table if numbers <= model.get_input_embeddings().weight.shape[1] else ''}".strip(),
        )
    return list({candidate.name: candidate for candidate in candidates}.values())


@dataclass(frozen=True)
class _Sizes:
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
    def of(cls, model: Any, positions: int | None) -> _Sizes:
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

    def narrowed(self) -> list[_Sizes]:
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


def _electra(of: str, sizes: _Sizes, depth: int, share: float, most: int) -> Candidate | None:
    """The candidate of so many blocks whose table takes about that share; None where it does not fit."""
    units, most = sizes.units, most - sizes.back
    if most <= 0:
        return None
    table = max(int(share * most), most - depth * sizes.block(units))  # what full networks leave goes to the table
    # Three times as many pieces for each number of the rank as the model has: both are cut, the rank more. What the
    # pieces do not take goes to the rank.
    ratio = 3 * sizes.pieces / (sizes.whole or sizes.width)
    rank = min(max(int(math.sqrt(table / ratio)), table // sizes.pieces) // 4 * 4, sizes.rank)
    if sizes.whole is not None:  # a stock class has no map between a table and blocks of the same width
        rank = min(rank, sizes.width - 4)
    if rank < 4:
        return None
    fixed = sizes.table(0, rank)
    pieces = min((table - fixed) // rank // 100 * 100, sizes.pieces)
    if pieces < min(FEWEST_PIECES, sizes.pieces):
        return None
    left = most - sizes.table(pieces, rank) - depth * sizes.block(0)
    units = min(left // (depth * (2 * sizes.width + 1)) // _UNITS * _UNITS, sizes.units)
    if units < _FEWEST_UNITS:
        return None
    cut: dict[str, Any] = {"of": of, "layers": depth}
    cut |= {"vocabulary": pieces} if pieces < sizes.pieces else {}
    cut |= {"embedding": rank} if rank < sizes.rank else {}
    cut |= {"inner": units} if units < sizes.units else {}
    cut |= {"positions": sizes.positions}
    cut |= {"width": sizes.width} if sizes.whole is not None else {}
    width = " of" if sizes.whole is None else f" of width {sizes.width},"
    blocks = f"{depth} layer{'s' if depth > 1 else ''}{width} {units} units"
    return Candidate(f"{blocks}, {pieces:,} pieces of rank {rank}", {"shrink": cut})


def _plain(of: str, model: Any, blocks: Any, depth: int, most: int) -> Candidate | None:
    """The candidate of so many whole blocks and as many word pieces as fit."""
    rows, width = model.get_input_embeddings().weight.shape
    each = sum(parameter.numel() for parameter in blocks[0].parameters())
    rest = sum(parameter.numel() for parameter in model.parameters()) - len(blocks) * each - rows * width
    pieces = min((most - rest - depth * each) // width // 100 * 100, rows)
    if pieces < min(FEWEST_PIECES, rows):
        return None
    some = {} if pieces >= rows else {"vocabulary": pieces}
    shown = f"{pieces:,} pieces" if some else "all pieces"
    return Candidate(
        f"{depth} layer{'s' if depth > 1 else ''}, {shown}", {"shrink": {"of": of, "layers": depth, **some}}
    )


def _tables(of: str, model: Any, most: int, mapped: int) -> list[Candidate]:
    """Static students that fit."""
    rows, width = model.get_input_embeddings().weight.shape
    candidates = []
    for numbers in STATIC_WIDTHS:
        pieces = min((most // numbers - mapped) // 100 * 100, rows)
        if pieces >= min(FEWEST_PIECES, rows) and numbers <= width:
            section = {"of": of, "dimensions": numbers, "vocabulary": pieces if pieces < rows else None}
            candidates.append(Candidate(f"static, {numbers} numbers, {pieces:,} pieces", {"static": section}))
    return candidates
