"""The budget of a student, and the shapes that use it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distilvec.choosing.candidates import Candidate, cut_candidate, layers_of
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer
from distilvec.students.shape import is_alike
from distilvec.students.sizes import FEWEST_PIECES, Sizes, behind_transformer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Numbers of blocks that are tried, and shares of the budget that the table of word pieces gets.
DEPTHS = (1, 2, 3, 4, 6, 8, 12)
TABLE_SHARES = (0.3, 0.45)
#: The same of narrower blocks, which leave more to the table.
NARROW_DEPTHS, NARROW_SHARES = (2, 3, 4), (0.5, 0.65)
#: Widths of static tables.
STATIC_WIDTHS = (128, 256)
_FLOAT = 4


@dataclass(frozen=True)
class Budget:
    """The limits on a student; None = no limit.

    Attributes:
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
    cut_limit = limit - mapped * (source.get_embedding_dimension() or 0) - behind_transformer(source, model)
    depths = [depth for depth in DEPTHS if depth <= count]
    if is_alike(model):
        sizes = Sizes.of(model, positions)
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


def _electra(of: str, sizes: Sizes, depth: int, share: float, most: int) -> Candidate | None:
    """The candidate of so many blocks whose table takes about that share; None where it does not fit."""
    cut = sizes.cut(depth, share, most)
    if cut is None:
        return None
    width = " of" if sizes.whole is None else f" of width {sizes.width},"
    units, rank = cut.get("inner", sizes.units), cut.get("embedding", sizes.rank)
    pieces = cut.get("vocabulary", sizes.pieces)
    blocks = f"{layers_of(depth)}{width} {units} units"
    return Candidate(f"{blocks}, {pieces:,} pieces of rank {rank}", {"shrink": {"of": of, **cut}})


def _plain(of: str, model: Any, blocks: Any, depth: int, most: int) -> Candidate | None:
    """The candidate of so many whole blocks and as many word pieces as fit."""
    rows, width = model.get_input_embeddings().weight.shape
    each = sum(parameter.numel() for parameter in blocks[0].parameters())
    rest = sum(parameter.numel() for parameter in model.parameters()) - len(blocks) * each - rows * width
    pieces = min((most - rest - depth * each) // width // 100 * 100, rows)
    if pieces < min(FEWEST_PIECES, rows):
        return None
    return cut_candidate(of, depth, pieces if pieces < rows else None)


def _tables(of: str, model: Any, most: int, mapped: int) -> list[Candidate]:
    rows, width = model.get_input_embeddings().weight.shape
    candidates = []
    for numbers in STATIC_WIDTHS:
        pieces = min((most // numbers - mapped) // 100 * 100, rows)
        if pieces >= min(FEWEST_PIECES, rows) and numbers <= width:
            section = {"of": of, "dimensions": numbers, "vocabulary": pieces if pieces < rows else None}
            candidates.append(Candidate(f"static, {numbers} numbers, {pieces:,} pieces", {"static": section}))
    return candidates
