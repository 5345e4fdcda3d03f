"""A student from nothing: a size, a tokenizer, and, where wanted, what a teacher knows of the words."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from distilvec.corpus.keys import PAIR
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_transformer
from distilvec.modules.guarded import open_tokenizer, open_transformer
from distilvec.modules.text_ids import check_unknown, id_count
from distilvec.students.shrink import choose_layers
from distilvec.students.vocabulary import fast_tokenizer, plain_backend

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


#: Tokens per text of a student that nothing else is said of.
FRESH_LENGTH = 256


def fresh(
    *,
    layers: int,
    width: int,
    heads: int | None = None,
    intermediate: int | None = None,
    tokenizer: str | Path | None = None,
    vocabulary: int = 8192,
    texts: Iterable[str] | None = None,
    init_from: SentenceTransformer | None = None,
    max_length: int = FRESH_LENGTH,
) -> SentenceTransformer:
    """A BERT-like student with random weights (torch's global generator) and mean pooling.

    Args:
        layers: number of blocks.
        width: d, width of the states and of the embeddings.
        heads: attention heads, a divisor of `width`; default is those of `init_from` at equal width, else one per 64
            (or, where that does not divide, per 32 or per whole width).
        intermediate: width of the feed-forward layers; default that of `init_from` at equal width, else 4 * width.
        tokenizer: folder or hub id of a tokenizer; None trains a byte-level BPE on `texts`.
        vocabulary: pieces of the new tokenizer; of no meaning with `tokenizer`.
        texts: what the new tokenizer learns from, read once.
        init_from: a teacher; the table of word pieces then starts from the mean of the teacher's rows of each piece's
            tokens, reduced by truncated SVD where the student is narrower. Where the teacher is a BERT of equal
            width, heads and feed-forward width, positions and evenly spaced blocks are copied too.
        max_length: tokens per text.

    Raises:
        DistilvecError: neither tokenizer nor texts, `heads` does not divide `width`, the tokenizer cannot be loaded
            or has no padding token, or the student is wider than the teacher's table.
    """
    from transformers import BertConfig, BertModel

    words = _load_tokenizer(tokenizer) if tokenizer is not None else train_tokenizer(texts, vocabulary)
    words.model_max_length = max_length
    words.padding_side = "right"  # a BERT counts positions from the first column
    source = None if init_from is None else find_transformer(init_from)
    like: Any = getattr(source, "config", None)
    same = like is not None and like.hidden_size == width
    usual = next((width // size for size in (64, 32) if width % size == 0), 1)
    config = BertConfig(
        vocab_size=id_count(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads or (like.num_attention_heads if same else usual),
        intermediate_size=intermediate or (same and _inner(like)) or 4 * width,
        max_position_embeddings=max_length,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    if width % config.num_attention_heads:
        raise DistilvecError(f"{config.num_attention_heads} heads do not divide a width of {width}")
    model = BertModel(config, add_pooling_layer=False)
    if init_from is not None:
        if source is None:
            raise DistilvecError("init_from needs a teacher with a transformer; this one has none")
        _start_from(model, words, source)
    return _wrap(model, words, f"fresh-{layers}x{width}")


def train_tokenizer(texts: Iterable[str] | None, vocabulary: int) -> Any:
    """A byte-level BPE tokenizer with BERT's special tokens, learnt from the texts.

    Args:
        texts: read once.
        vocabulary: number of pieces; at least the 256 bytes and 5 special tokens.

    Returns:
        A transformers tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    if texts is None:
        raise DistilvecError(
            "a fresh student needs a tokenizer, or texts to learn one from", remedy="Give tokenizer= or texts=."
        )
    floor = 256 + len(_SPECIAL)
    if vocabulary < floor:
        raise DistilvecError(f"vocabulary is {vocabulary}; bytes and special tokens alone are {floor}")
    special = list(_SPECIAL.values())
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((part for text in texts for part in text.split(PAIR)), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return fast_tokenizer(backend, **_SPECIAL)


def averaged_embeddings(words: Any, teacher_words: Any, table: Tensor) -> tuple[Tensor, Tensor]:
    """For each piece of one tokenizer, the mean of another's rows for the same text.

    Args:
        words: the student's transformers tokenizer, whose ids are below n.
        teacher_words: the teacher's.
        table: [m, D], the teacher's embedding table.

    Returns:
        float32 [n, D], and bool [n]: False where a piece has no text of its own (a part of a character), or an id no
        piece; its row is the mean of the others. Special tokens take the row of the teacher's token of the same role. A
        piece that the teacher's tokenizer of the same kind has too takes its row.
    """
    backend, teacher_backend = plain_backend(words), plain_backend(teacher_words)
    pieces = backend.get_vocab(with_added_tokens=True)
    shared = (
        teacher_backend.get_vocab(with_added_tokens=True)
        if tokenizer_kind(backend) == tokenizer_kind(teacher_backend)
        else {}
    )
    roles = {
        getattr(words, role): getattr(teacher_words, role + "_id")
        for role in _SPECIAL
        if getattr(words, role) is not None and getattr(teacher_words, role + "_id") is not None
    }
    texts = [_text_of(backend, index) for index in pieces.values()]
    spelled = teacher_backend.encode_batch(texts, add_special_tokens=False)
    count = id_count(words)
    covered = torch.zeros(count, dtype=torch.bool)
    numbers: list[int] = []
    owners: list[int] = []
    for (piece, index), encoding in zip(pieces.items(), spelled, strict=True):
        ids = [roles[piece]] if piece in roles else [shared[piece]] if piece in shared else encoding.ids
        numbers.extend(ids)
        owners.extend([index] * len(ids))
        covered[index] = bool(ids)
    rows = torch.zeros(count, table.shape[1])
    rows.index_add_(0, torch.tensor(owners), table.float()[torch.tensor(numbers)])
    rows /= torch.bincount(torch.tensor(owners), minlength=count).clamp_min(1)[:, None]
    rows[~covered] = rows[covered].mean(0)
    return rows, covered


def tokenizer_kind(backend: Any) -> str:
    """WordPiece, Unigram, BPE, byte-level BPE or WordLevel, from a `tokenizers.Tokenizer`."""
    kind = type(backend.model).__name__
    byte_level = "ByteLevel" in repr(backend.pre_tokenizer) or "ByteLevel" in repr(backend.normalizer)
    return f"byte-level {kind}" if kind == "BPE" and byte_level else kind


def _text_of(backend: Any, index: int) -> str:
    """Return what a piece stands for, without the marks of its place in a word; empty for parts of characters."""
    text: str = backend.decode([index], skip_special_tokens=False).removeprefix("##").strip()
    return "" if "\N{REPLACEMENT CHARACTER}" in text else text


def _start_from(model: Any, words: Any, teacher: Any) -> None:
    inner, width = teacher.model, model.config.hidden_size
    table = inner.get_input_embeddings().weight.detach().cpu().float()
    if width > table.shape[1]:
        raise DistilvecError(
            f"the student is {width} wide, the teacher's table of word pieces only {table.shape[1]}",
            remedy="Choose a narrower student, or leave init_from out.",
        )
    rows, covered = averaged_embeddings(words, teacher.tokenizer, table)
    if width < table.shape[1]:
        rows = _narrow(rows, width)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.copy_(rows)
    logger.info("%d of %d pieces start from the teacher's table", int(covered.sum()), len(covered))
    sizes = ("model_type", "hidden_size", "num_attention_heads", "intermediate_size")
    if all(getattr(model.config, size) == getattr(inner.config, size, None) for size in sizes):
        _copy_blocks(model, inner)


def _narrow(rows: Tensor, width: int) -> Tensor:
    """Rows [n, D] in the best subspace of d dimensions, [n, d], with the spread per dimension that they had.

    Fewer than d rows span n dimensions; the others are zero.
    """
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    narrow: Tensor = rows @ directions[:width].T
    narrow = functional.pad(narrow, (0, width - narrow.shape[1]))
    spread = rows.square().mean().sqrt() / narrow.square().mean().sqrt()
    return narrow * spread


def _copy_blocks(model: Any, teacher: Any) -> None:
    """Positions, types, norms and evenly spaced blocks of a BERT of the same shape."""
    own, theirs = model.embeddings, teacher.embeddings
    with torch.no_grad():
        for name in ("position_embeddings", "token_type_embeddings"):
            to, source = getattr(own, name).weight, getattr(theirs, name).weight
            shared = min(len(to), len(source))
            to[:shared] = source[:shared]
    own.LayerNorm.load_state_dict(theirs.LayerNorm.state_dict())
    count, available = len(model.encoder.layer), len(teacher.encoder.layer)
    for position, number in enumerate(choose_layers(min(count, available), available)):
        model.encoder.layer[position].load_state_dict(teacher.encoder.layer[number - 1].state_dict())
    logger.info("%d of %d blocks start from the teacher's", min(count, available), count)


def _inner(config: Any) -> int | None:
    """Inner units of a configuration's blocks, by the names of BERT's, DistilBERT's and GPT-2's."""
    found = (getattr(config, name, None) for name in ("intermediate_size", "hidden_dim", "n_inner"))
    return next((size for size in found if size), None)


def _load_tokenizer(tokenizer: str | Path) -> Any:
    try:
        words = open_tokenizer(tokenizer)
    except (OSError, ValueError) as problem:
        raise DistilvecError(
            f"the tokenizer cannot be opened ({str(problem).splitlines()[0]})",
            where=str(tokenizer),
            remedy="Give a folder that holds tokenizer.json, or a model id.",
        ) from problem
    check_unknown(words, str(tokenizer))
    if words.pad_token_id is None:
        raise DistilvecError(
            "the tokenizer has no padding token",
            where=str(tokenizer),
            remedy='Name it in tokenizer_config.json beside tokenizer.json, for example "pad_token": "[PAD]".',
        )
    return words


def _wrap(model: Any, words: Any, name: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        transformer = open_transformer(folder, {"add_pooling_layer": False})
    transformer.model.config._name_or_path = name
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[transformer, pooling])
