"""Candidates for a student: a teacher cut to fewer layers and pieces, narrower ones, static ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distilvec.errors import DistilvecError, Interrupted
from distilvec.modules.blocks import find_blocks, find_transformer
from distilvec.progress import Ticker
from distilvec.recipe import Recipe, StudentSection
from distilvec.students.sizes import FEWEST_PIECES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: Parts of the blocks and of the word pieces that are kept where nothing is asked for.
LAYER_SHARES = (1 / 6, 1 / 3, 1 / 2, 1.0)
PIECE_SHARE = 1 / 6
#: Of a static student, beside the teacher's own.
STATIC_WIDTH = 256
#: Keys of a student section that stay whatever its source is, and where it is cut out of a model.
_KEPT = ("revision", "max_length", "pooling", "space", "router", "fold", "dropout", "trust_remote_code")
_OF_BLOCKS = ("lora", "router_balance", "aggregation", "normalize_weights")


@dataclass(frozen=True)
class Candidate:
    """A student that could be trained.

    Attributes:
        name: what it is, in a few words.
        source: the keys of the recipe's student section that make it: `shrink`, `fresh` ...
    """

    name: str
    source: dict[str, Any]

    def section(self, template: StudentSection) -> StudentSection:
        """The student section with this source; the template's other keys (length, space, pooling) stay.

        A static or a fresh student has no use for those of blocks that were there before.
        """
        kept = template.model_dump(include={*_KEPT, *(_OF_BLOCKS if "shrink" in self.source else ())})
        if "fresh" in self.source:
            kept["pooling"] = None  # it has mean pooling, whatever the source of the others has
        return StudentSection.model_validate(kept | self.source)


def candidates(
    of: str | None,
    source: SentenceTransformer | None,
    layers: Sequence[int] | None = None,
    vocabularies: Sequence[int] | None = None,
) -> list[Candidate]:
    """The candidates, small and large.

    Args:
        of: what students are cut from: a teacher's name, a folder or a hub id; None where there is no model.
        source: that model.
        layers: numbers of blocks to try; None: a sixth, a third, a half and all of them.
        vocabularies: numbers of word pieces to try; as many as there are, or more, means all. None: a sixth and all.
    """
    transformer = None if source is None else find_transformer(source)
    blocks = None if transformer is None else find_blocks(transformer.model)
    if of is None or source is None or transformer is None or blocks is None:
        return [_fresh(2, 256, None), _fresh(4, 384, None)]
    count = len(blocks[1])
    pieces = transformer.model.get_input_embeddings().weight.shape[0]
    depths = sorted({max(1, round(share * count)) for share in LAYER_SHARES} if layers is None else set(layers))
    tables = _tables(pieces, vocabularies)
    students = [
        cut_candidate(of, depth, table)
        for depth in depths
        for table in tables
        if depth < count or table is not None  # all of both is the model itself
    ]
    width = source.get_embedding_dimension()
    if width is not None and width >= 128:
        students.append(_fresh(max(2, round(count / 3)), width // 64 * 32, of))
    return [*students, *(_static(of, dimensions, table) for dimensions in (STATIC_WIDTH, None) for table in tables)]


def attempted(wanted: Sequence[Candidate], title: str, make: Callable[[Candidate], T]) -> tuple[list[T], list[str]]:
    """Return what is made of the candidates, and why some are left out."""
    made, notes = list[T](), list[str]()
    ticker = Ticker(title, "candidates", kept=False)
    for number, candidate in enumerate(wanted, start=1):
        ticker(number - 1, len(wanted), candidate.name)
        logger.info("candidate %d of %d: %s", number, len(wanted), candidate.name)
        try:
            made.append(make(candidate))
        except Interrupted:
            raise
        except DistilvecError as error:
            notes.append(f"{candidate.name}: left out, {error}")
    ticker(len(wanted), len(wanted))
    if not made:
        raise DistilvecError("no candidate fits or can be made", where="plan", remedy=" ".join(notes))
    return made, notes


def own_candidate(recipe: Recipe) -> Candidate | None:
    if recipe.student is None or recipe.student.auto is not None:
        return None
    return Candidate("the recipe's", recipe.student.model_dump(exclude_defaults=True))


def _tables(pieces: int, asked: Sequence[int] | None) -> list[int | None]:
    """Numbers of word pieces; None is all of them."""
    if asked is not None:
        fewer = sorted({number for number in asked if number < pieces})
        return [*fewer, *([None] if any(number >= pieces for number in asked) else [])]
    sixth = 100 * round(pieces * PIECE_SHARE / 100)
    return [sixth, None] if sixth >= FEWEST_PIECES else [None]


def cut_candidate(of: str, layers: int, vocabulary: int | None) -> Candidate:
    """A model cut to this number of blocks and word pieces; None keeps all pieces."""
    return Candidate(
        f"{layers_of(layers)}, {_pieces(vocabulary)}",
        {"shrink": {"of": of, "layers": layers, "vocabulary": vocabulary}},
    )


def layers_of(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"


def _static(of: str, dimensions: int | None, vocabulary: int | None) -> Candidate:
    name = f"static, {dimensions or 'all'} dimensions, {_pieces(vocabulary)}"
    return Candidate(name, {"static": {"of": of, "dimensions": dimensions, "vocabulary": vocabulary}})


def _pieces(vocabulary: int | None) -> str:
    return "all pieces" if vocabulary is None else f"{vocabulary:,} pieces"


def _fresh(layers: int, width: int, of: str | None) -> Candidate:
    section = {"layers": layers, "width": width, "vocabulary": 8192, "embeddings_from": of}
    return Candidate(f"fresh, {layers} layers of {width}", {"fresh": section})
