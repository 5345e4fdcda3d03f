"""A student without blocks: a table of word vectors made of a teacher, and their mean.

The idea of making such a table without any training text is Model2Vec's (Tulkens and van Dongen 2024): read every
word piece alone, keep the principal axes, weigh pieces by how frequent they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.errors import DistilvecError
from distilvec.students.load import load_student
from distilvec.students.pieces import fast_tokenizer_of, piece_vectors, readable_pieces
from distilvec.students.vocabulary import chunks, encode, plain_backend, prune_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

#: a of a / (a + p): pieces of this probability count half.
SIF = 3e-4
#: How many tokens of a corpus the order of the vocabulary is worth.
PRIOR = 1e6


def static(
    of: SentenceTransformer | str | Path,
    *,
    dimensions: int | None = 256,
    vocabulary: int | None = None,
    texts: Sequence[str] | None = None,
    domains: Iterable[int] | None = None,
    cache: str | Path | None = None,
) -> SentenceTransformer:
    """A student of stock `StaticEmbedding`: the weighted mean of its word pieces' vectors.

    1. Every readable piece is read alone by the whole teacher (`piece_vectors`), which gives x_i.
    2. Principal axes of the x_i, weighted by c_i + 1, c_i the piece's count in `texts` (equal weights without texts):
       centring with these weights removes what all texts share. Scaled to a mean squared length of 1.
    3. Weights a / (a + p_i), a = 3e-4: smooth inverse frequency (Arora, Liang and Ma 2017, algorithm 1), with
       p_i = (c_i + m z_i) / (N + m). N is the number of tokens of `texts`; z_i is Zipf's law by rank in the teacher's
       vocabulary, which most tokenizers sort by frequency, and counts as m = 10^6 tokens. Without texts p_i = z_i.

    Special tokens and places that a tokenizer keeps free have rows of zeros. A teacher that ends with `Normalize`
    gives a student that does.

    Args:
        of: teacher, as a model, folder or hub id; left as it is.
        dimensions: d, at most so many principal axes; None keeps all D of them.
        vocabulary: keep at most so many pieces, those used most in `texts`; None keeps all.
        texts: what the student will read; read twice.
        domains: number of each text's domain or language: `vocabulary` covers each of them alike.
        cache: folder in which the teacher's vectors of its pieces are kept (`piece_vectors`).

    Raises:
        DistilvecError: `of` has no transformer with a fast tokenizer, `texts` are missing or empty, or `vocabulary` is
            below the floor of single characters and special tokens (`prune_tokenizer`).
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    source = load_student(of) if isinstance(of, str | Path) else of
    original = fast_tokenizer_of(source)
    readable = readable_pieces(original)
    backend, old_ids = _tokenizer(original, vocabulary, texts, domains)
    ranks = np.searchsorted(readable, old_ids)
    kept = np.isin(old_ids, readable)
    vectors = piece_vectors(source, old_ids[kept], cache=cache)
    counts = None if texts is None else count_pieces(backend, texts, len(old_ids))[kept]
    table = np.zeros((len(old_ids), min(dimensions or vectors.shape[1], vectors.shape[1])), dtype=np.float32)
    weights = piece_weights(ranks[kept], counts)
    table[kept] = principal_axes(vectors, table.shape[1], counts) * weights[:, None]
    modules: list[Any] = [StaticEmbedding(backend, embedding_weights=torch.from_numpy(table))]
    if isinstance(list(source.children())[-1], Normalize):
        modules.append(Normalize())
    logger.info("static student of %d pieces and %d dimensions", *table.shape)
    return SentenceTransformer(modules=modules, device=str(source.device), similarity_fn_name=source.similarity_fn_name)


def count_pieces(tokenizer: Any, texts: Iterable[str], size: int) -> npt.NDArray[np.int64]:
    """Return how often each piece occurs in the texts, [size].

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        texts: read once; a joint item (`corpus.keys.PAIR`) is the pair that it is.
    """
    counts, seen = np.zeros(size, dtype=np.int64), False
    for chunk in chunks(texts):
        ids = [index for row in encode(tokenizer, chunk) for index in row]
        counts += np.bincount(np.asarray(ids, dtype=np.int64), minlength=size)
        seen = True
    if not seen:
        raise DistilvecError(
            "there are no texts to weigh word pieces by", where="texts", remedy="Give at least one text."
        )
    return counts


def piece_weights(ranks: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
    """a / (a + p_i), in (0, 1): step 3 of `static`.

    Args:
        ranks: [n], of the pieces in their teacher's vocabulary, the most frequent has 0.
        counts: [n], in the corpus; None = not known.

    >>> [round(float(weight), 4) for weight in piece_weights(np.array([0, 1, 2]))]
    [0.0005, 0.0011, 0.0016]
    """
    zipf = 1.0 / (1.0 + ranks)
    zipf /= zipf.sum()
    probability = zipf if counts is None else (counts + PRIOR * zipf) / (counts.sum() + PRIOR)
    return np.asarray(SIF / (SIF + probability))


def principal_axes(
    vectors: npt.NDArray[Any], dimensions: int, counts: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float64]:
    """Coordinates [n, d] on the main axes, centred, with a mean squared length of 1: step 2 of `static`.

    Args:
        vectors: [n, D].
        dimensions: d <= D.
        counts: [n], occurrences in the corpus; row i is weighted by counts[i] + 1. None = equal weights.
    """
    shares = np.ones(len(vectors)) if counts is None else counts + 1.0
    shares = shares / shares.sum()
    x = vectors.astype(np.float64)
    x -= shares @ x
    _, axes = np.linalg.eigh((x * shares[:, None]).T @ x)
    axes = axes[:, ::-1][:, :dimensions]
    # An axis has no sign of its own; its largest entry is made positive, so that all machines agree.
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dimensions)])
    coordinates = x @ axes
    length = np.sqrt((coordinates**2).sum(axis=1).mean())
    return np.asarray(coordinates / max(float(length), 1e-12))


def _tokenizer(
    original: Any, vocabulary: int | None, texts: Sequence[str] | None, domains: Iterable[int] | None
) -> tuple[Any, npt.NDArray[np.int64]]:
    """The student's `tokenizers.Tokenizer`, and the teacher's id of each of its ids."""
    if vocabulary is None:
        backend = plain_backend(original)
        return backend, np.arange(1 + max(backend.get_vocab(with_added_tokens=True).values()))
    if texts is None:
        raise DistilvecError(
            f"vocabulary {vocabulary} needs the texts that the student will read",
            where="texts",
            remedy="Give texts=, or leave vocabulary out.",
        )
    pruned = prune_tokenizer(original, texts, vocabulary, domains=domains)
    return plain_backend(pruned.tokenizer), pruned.kept_ids.numpy()
