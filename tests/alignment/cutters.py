"""Small tokenizers of each kind, trained on English sentences with accents, other scripts and emoji."""

from __future__ import annotations

from typing import Any

from tests.english import sentences

MORE = [
    "Das Café in Zürich öffnet um 9 Uhr. 東京は大きい。",
    "Emoji 😀 and 👩‍🚀 everywhere 🎉🎉",
    "Ångström, naïve, Ġgantija ﬁne ½",
]
KINDS = ("uncased wordpiece", "cased wordpiece", "byte_level", "sentencepiece", "bytes after sentencepiece")


def train(kind: str, vocabulary: int = 600) -> Any:
    """A `tokenizers.Tokenizer` without special tokens in its output."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    texts = [*sentences(200), *MORE]
    common: dict[str, Any] = {"vocab_size": vocabulary, "show_progress": False}
    if kind.endswith("wordpiece"):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=kind.startswith("uncased"), strip_accents=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(special_tokens=["[CLS]", "[UNK]"], **common))
    elif kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, **common))
    elif kind == "sentencepiece":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(special_tokens=["<s>", "<unk>"], unk_token="<unk>", **common)
        tokenizer.train_from_iterator(texts, trainer)
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        ascii_alphabet = [chr(byte) for byte in range(33, 127)]
        trainer = trainers.BpeTrainer(
            special_tokens=["<unk>", *fallback], initial_alphabet=ascii_alphabet, limit_alphabet=95, **common
        )
        tokenizer.train_from_iterator([text for text in texts if text.isascii()], trainer)
    return tokenizer


def strings(tokenizer: Any) -> list[str]:
    """The token string of every id."""
    return [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
