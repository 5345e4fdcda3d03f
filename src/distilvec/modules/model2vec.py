"""Folders of the package model2vec: a table of word pieces, opened as stock `StaticEmbedding` (and `Normalize`).

model2vec leaves pieces that its tokenizer does not know out of the mean; a row of zeros does the same to the direction
of the vector. It keeps one row for several pieces and a weight for each where its vocabulary is quantised.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distilvec.errors import DataError
from distilvec.modules.layouts import MODEL2VEC
from distilvec.modules.settings import damaged, read_json
from distilvec.modules.text_ids import check_unknown
from distilvec.validation import first_problem

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

WEIGHTS, ROWS = MODEL2VEC
#: What model2vec reads of a text where its configuration says nothing.
LENGTH = 512


class _Settings(BaseModel):
    model_config = ConfigDict(strict=True)
    max_length: int | None = Field(LENGTH, lt=2**32)
    normalize: bool | None = None


def open_model2vec(folder: str | Path, *, name: str, device: str | None = None) -> SentenceTransformer:
    """The model in float32, made of stock modules: direction and, without unknown pieces, length as in model2vec.

    Args:
        folder: one that `is_model2vec`.
        name: what the person called it, for messages.

    Raises:
        DataError: table, mapping, weights and tokenizer do not belong together, or a file cannot be read.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    place = Path(folder)
    try:
        settings = _Settings.model_validate(read_json(place / "config.json"))
    except ValidationError as error:
        raise DataError(
            f"this is no configuration of model2vec ({first_problem(error)})", where=f"{name}/config.json"
        ) from error
    tokenizer = _tokenizer(place, name)
    table = _table(place, name)
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    if len(table) <= max(pieces.values(), default=-1):
        raise DataError(
            f"its tokenizer gives ids up to {max(pieces.values()):,}, and there are vectors for {len(table):,} pieces",
            where=name,
            remedy="Copy or download the model again.",
        )
    unknown = unknown_piece(tokenizer)
    if unknown is not None:
        table[unknown] = 0
    if settings.max_length and settings.max_length > 0:
        tokenizer.enable_truncation(settings.max_length)
    else:
        tokenizer.no_truncation()
    modules: list[Any] = [StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(table))]
    if settings.normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device=device)


def unknown_piece(tokenizer: Any) -> int | None:
    """The id of the piece that stands for what a `tokenizers.Tokenizer` does not know; None where there is none."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("type") == "Unigram":
        return None if model.get("unk_id") is None else int(model["unk_id"])
    token = model.get("unk_token")
    piece = None if token is None else tokenizer.token_to_id(token)
    return None if piece is None else int(piece)


def _tokenizer(place: Path, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(f"the tokenizer cannot be read ({error})", where=f"{name}/tokenizer.json") from error
    tokenizer.no_padding()
    check_unknown(tokenizer, f"{name}/tokenizer.json")
    return tokenizer


def _table(place: Path, name: str) -> npt.NDArray[np.float32]:
    """One row per piece: the row that the mapping names, times the piece's weight."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        parts = load_file(place / WEIGHTS)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise damaged(error, name) from error
    rows, mapping, weights = parts[ROWS], parts.get("mapping"), parts.get("weights")
    shapes = {key: list(value.shape) for key, value in parts.items()}
    whole = rows.ndim == 2 and (mapping is None or (mapping.ndim == 1 and mapping.dtype.kind in "iu"))
    count = len(rows) if mapping is None else len(mapping)
    whole = whole and (weights is None or weights.shape == (count,))
    if not whole or (mapping is not None and len(mapping) and not 0 <= mapping.min() <= mapping.max() < len(rows)):
        raise DataError(
            f"its table, mapping and weights do not belong together ({shapes})",
            where=f"{name}/{WEIGHTS}",
            remedy="Copy or download the model again.",
        )
    table = (rows if mapping is None else rows[mapping]).astype(np.float32)
    if weights is not None:
        table *= weights.astype(np.float32)[:, None]
    if not np.isfinite(table).all():
        raise DataError("its table holds numbers that are not finite", where=f"{name}/{WEIGHTS}")
    return table
