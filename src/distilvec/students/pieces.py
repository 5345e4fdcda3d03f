"""The vectors that a model gives for its word pieces, each read alone."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.errors import DistilvecError
from distilvec.files import whole
from distilvec.folders import update
from distilvec.modules.blocks import class_names, find_transformer, without_dropout
from distilvec.modules.promised_tokens import around
from distilvec.modules.task_head import sentence_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

#: Pieces of a forward pass.
_BATCH = 512
#: Places that a tokenizer keeps free, as BERT, T5 and Gemma name them: no text holds them.
_FREE = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>|<\|?reserved.*\d+\|?>")


def is_free(piece: str) -> bool:
    """Tell whether a piece is a place that its tokenizer keeps free."""
    return _FREE.fullmatch(piece) is not None


def readable_pieces(tokenizer: Any) -> npt.NDArray[np.int64]:
    """Ids, ascending, of the pieces that a text can hold: neither special tokens nor places kept free.

    Args:
        tokenizer: a fast transformers tokenizer.
    """
    backend = tokenizer.backend_tokenizer
    special = set(tokenizer.all_special_ids)
    special |= {index for index, token in backend.get_added_tokens_decoder().items() if token.special}
    pieces = backend.get_vocab(with_added_tokens=True)
    ids = sorted(index for piece, index in pieces.items() if index not in special and not is_free(piece))
    return np.asarray(ids, dtype=np.int64)


def piece_vectors(
    model: SentenceTransformer,
    ids: npt.NDArray[np.int64],
    *,
    cache: str | Path | None = None,
) -> npt.NDArray[np.float32]:
    """The sentence vector of each piece, read alone between the special tokens that go around a text.

    The whole model is run, up to but excluding a final `Normalize`, in eval mode, without a prompt.

    Args:
        model: a text transformer with a fast tokenizer.
        ids: [n] of the tokenizer, for example `readable_pieces(model.tokenizer)`.
        cache: folder in which the vectors are kept, and found again by the model, its tokenizer and the ids.

    Returns:
        [n, D].

    Raises:
        DistilvecError: the model has no transformer with a fast tokenizer.
        EnvironmentProblem: the cache cannot be written.
    """
    tokenizer = fast_tokenizer_of(model)
    before, after = around(tokenizer)
    read = tokenizer("a")["input_ids"]
    if read != [*before, *tokenizer("a", add_special_tokens=False)["input_ids"], *after]:
        raise DistilvecError("this tokenizer changes a text when it puts special tokens around it")
    file = None if cache is None else Path(cache) / f"pieces-{_fingerprint(model, before, after, ids)}.npz"
    if file is not None and (kept := _kept(file)) is not None:
        return kept
    logger.info("reading %d word pieces one by one", len(ids))
    with without_dropout(model):
        parts = [_read(model, ids[start : start + _BATCH], before, after) for start in range(0, len(ids), _BATCH)]
    vectors = np.concatenate(parts)
    if file is not None:
        with whole(file) as partial, partial.open("wb") as out:  # several processes may do so at once
            update(file.parent, {"tokens": [file.name]}, more=True)
            np.savez(out, vectors=vectors)  # with checksums
    return vectors


def fast_tokenizer_of(model: SentenceTransformer) -> Any:
    """The transformers tokenizer of a text transformer."""
    tokenizer = getattr(find_transformer(model), "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "backend_tokenizer"):
        raise DistilvecError(
            "only a text transformer with a fast tokenizer has word pieces that can be read one by one, "
            f"this model is {class_names(model)}",
            remedy="Make the static student of a BERT-like, ModernBERT-like or decoder model.",
        )
    return tokenizer


@torch.inference_mode()
def _read(
    model: SentenceTransformer, pieces: npt.NDArray[np.int64], before: list[int], after: list[int]
) -> npt.NDArray[np.float32]:
    """Ids [n] -> vectors [n, D]; all rows are equally long, so there is no padding."""
    rows = np.array([[*before, piece, *after] for piece in pieces.tolist()], dtype=np.int64)
    ids = torch.from_numpy(rows).to(model.device)
    vectors = sentence_vectors(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)


def _fingerprint(model: SentenceTransformer, before: list[int], after: list[int], ids: npt.NDArray[np.int64]) -> str:
    """32 hex digits over weights, modules and ids: what decides the vectors."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{model}|{before}|{after}".encode())
    digest.update(ids.astype(np.int64).tobytes())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _kept(file: Path) -> npt.NDArray[np.float32] | None:
    """Return the vectors in a file; None where there is none, or where it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays["vectors"], dtype=np.float32)
    except Exception:  # no such file; numpy and zipfile meet damaged bytes with errors of many kinds
        return None
