"""Opening the tokenizer of a model, or a tokenizer by itself, from whatever files it comes in."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from distilvec.alignment.strings import is_uncased
from distilvec.errors import DistilvecError

#: Where sentence-transformers keeps a model's tokenizer.
_FOLDERS = (".", "0_Transformer")

#: Of a tokenizer's file, unpacked: large ones have some tens.
MOST_BYTES = 512 << 20


def load_tokenizer(name: str | Path) -> Any:
    """The `tokenizers.Tokenizer` of a model or tokenizer, without padding and truncation.

    Args:
        name: a model's or tokenizer's folder, a tokenizer.json (or .json.gz), or a hub id. A folder without
            tokenizer.json may hold vocab.json and merges.txt (byte-level BPE) or vocab.txt (WordPiece).

    Raises:
        DistilvecError: there is no such thing, or it has no fast tokenizer.
    """
    path = Path(name)
    try:
        tokenizer = _read(path) if path.exists() else _by_transformers(name)
    except Exception as error:  # whatever the libraries find wrong with the files
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DistilvecError(
            f"No tokenizer can be opened here: {first}",
            where=str(name),
            remedy="Give the folder of a model or tokenizer, a tokenizer.json, or a hub id",
        ) from error
    return unlimited(tokenizer)


def unlimited(tokenizer: Any) -> Any:
    """A copy of a `tokenizers.Tokenizer` without padding and truncation."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def vocabulary_of(tokenizer: Any) -> list[str]:
    """The token string of every id of a `tokenizers.Tokenizer`, empty where an id has none."""
    strings = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    return [strings.get(index, "") for index in range(max(strings, default=-1) + 1)]


def _by_transformers(name: str | Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(name), trust_remote_code=False).backend_tokenizer


def _read(path: Path) -> Any:
    """The tokenizer in these files."""
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer

    if path.is_file():
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
        return Tokenizer.from_buffer(content)
    for folder in (path / name for name in _FOLDERS):
        for file in (folder / "tokenizer.json", folder / "tokenizer.json.gz"):
            if file.is_file():
                return _read(file)
        if (folder / "tokenizer_config.json").is_file():
            return _by_transformers(folder)
        if (folder / "merges.txt").is_file() and (folder / "vocab.json").is_file():
            return ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
        if (words := folder / "vocab.txt").is_file():
            lower = is_uncased(words.read_text(encoding="utf-8").split("\n"), vocabulary=True)
            return BertWordPieceTokenizer(str(words), lowercase=lower)
    return _by_transformers(path)
