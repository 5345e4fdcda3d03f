"""A static student as a folder that the package model2vec opens, with equal vectors."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError
from distilvec.export.convert import begun, check_agreement, check_texts, left_behind, made_whole, row_cosines
from distilvec.export.graph import is_static
from distilvec.extras import need
from distilvec.modules.model2vec import WEIGHTS, unknown_piece
from distilvec.modules.pipeline import token_limit
from distilvec.progress import at_work

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LEAST_COSINE = 0.9999
_NAMES = (WEIGHTS, "config.json", "modules.json", "tokenizer.json", "README.md")
#: Texts of which a tokenizer of English knows little.
_STRANGE = ("漢字かな交じり文", "🚀🎉 to the moon", "مرحبا بالعالم")


@dataclass(frozen=True)
class Model2VecReport:
    """The outcome of `export_model2vec`.

    Attributes:
        folder: where it lies.
        pieces, width: of the table.
        cosine_min: of model2vec's vectors to the student's, over `texts` texts.
        folded: whether a linear map behind the mean went into the table.
        notes: what stays behind.
    """

    folder: Path
    pieces: int
    width: int
    cosine_min: float
    texts: int
    folded: bool
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return what a person reads."""
        map_ = "; the linear map behind its mean is part of the table" if self.folded else ""
        return (
            f"model2vec   {self.folder}: {self.pieces:,} pieces of {self.width} numbers{map_}\n"
            f"agreement   cosine {self.cosine_min:.6f} or more over {self.texts} texts, opened with model2vec"
            + "".join(f"\n{note}" for note in self.notes)
        )


@at_work
def export_model2vec(model_folder: str | Path, out_folder: str | Path) -> Model2VecReport:
    """Write a static student as a model2vec folder, and check it with model2vec itself.

    A linear map behind the mean (`space: teacher`) goes into the table: the mean of mapped rows is the mapped mean.
    model2vec also cuts a text after as many characters as `max_length` median pieces have, before it reads pieces.

    Args:
        model_folder: a sentence-transformers folder, or hub id, that starts with `StaticEmbedding`.
        out_folder: where it goes; an older export there is replaced.

    Raises:
        DistilvecError: it has a part that model2vec has no place for (a Dense with a bias or an activation, prompts, a
            vector for unknown pieces), model2vec's vectors differ, or the folder holds what no export wrote.
        EnvironmentProblem: the extra `model2vec` is not installed, or the folder cannot be written.
    """
    need("An export for model2vec, to be checked,", "model2vec", "model2vec")
    out, source, student = begun(model_folder, out_folder, "model2vec", _NAMES)
    table, normalized, folded = _parts(student, str(model_folder))
    texts = [*check_texts(student), *_STRANGE]
    with made_whole(out, "model2vec", "config.json") as made:
        _write(student, table, normalized, source, made)
        least = _agreement(student, made, texts, str(model_folder))
    return Model2VecReport(out, len(table), table.shape[1], least, len(texts), folded, left_behind(source))


def _parts(student: SentenceTransformer, where: str) -> tuple[npt.NDArray[np.float32], bool, bool]:
    """Table [n, d] with all linear maps in it, whether vectors are brought to length 1, and whether there was a map."""
    from sentence_transformers.base.modules import Dense, Normalize
    from torch import nn

    def refuse(what: str) -> DistilvecError:
        remedy = "Export it as ONNX (without --model2vec)."
        return DistilvecError(f"model2vec has no place for {what}", where=where, remedy=remedy)

    if not is_static(student):
        raise refuse(f"a model that starts with {type(student[0]).__name__}: it holds static tables alone")
    prompts = [name for name, text in student.prompts.items() if text]
    if prompts:
        raise refuse(f"prompts, and this model has {', '.join(prompts)}")
    first: Any = student[0]
    table = first.embedding.weight.detach().numpy().astype(np.float64)
    rest: list[Any] = list(student.children())[1:]
    normalized = bool(rest) and isinstance(rest[-1], Normalize)
    for part in rest[:-1] if normalized else rest:
        linear = isinstance(part, Dense) and isinstance(part.activation_function, nn.Identity)
        if not linear or part.linear.bias is not None or getattr(part, "use_residual", False):
            raise refuse(f"a {type(part).__name__} that is more than a linear map")
        table = table @ part.linear.weight.detach().numpy().astype(np.float64).T
    unknown = unknown_piece(first.tokenizer)
    if unknown is not None and np.abs(table[unknown]).max() > 0:
        raise refuse(
            f'a vector of unknown pieces, and that of "{first.tokenizer.id_to_token(unknown)}" is not zero: training '
            "has moved it",
        )
    pieces = first.tokenizer.get_vocab_size(with_added_tokens=True)
    if pieces != len(table):
        raise refuse(f"a table of {len(table):,} rows for {pieces:,} pieces")
    return table.astype(np.float32), normalized, len(rest) > normalized


def _write(
    student: SentenceTransformer, table: npt.NDArray[np.float32], normalized: bool, source: Path, made: Path
) -> None:
    """The files of a model2vec folder; sentence-transformers opens it too."""
    from model2vec.persistence import save_pretrained

    first: Any = student[0]
    config: Any = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": table.shape[1],
        "normalize": normalized,
        "max_length": token_limit(student),
    }
    save_pretrained(made, table, first.tokenizer, config, create_model_card=False)
    if (source / "README.md").is_file():
        shutil.copyfile(source / "README.md", made / "README.md")


def _agreement(student: SentenceTransformer, made: Path, texts: Sequence[str], where: str) -> float:
    """The least cosine between what model2vec gives and the student's own vectors."""
    from model2vec import StaticModel

    vectors = np.asarray(StaticModel.from_pretrained(made).encode(list(texts), use_multiprocessing=False))
    cosines = row_cosines(vectors, np.asarray(student.encode(list(texts), show_progress_bar=False)))
    check_agreement(cosines, texts, LEAST_COSINE, where)
    return float(cosines.min())
