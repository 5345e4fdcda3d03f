"""A student's tokenizer under the keys of a GGUF file: WordPiece as "bert", Unigram as "t5"."""

from __future__ import annotations

import base64
import json
from typing import Any

from distilvec.errors import DistilvecError

_NORMAL, _UNKNOWN, _CONTROL, _OWN, _UNUSED = 1, 2, 3, 4, 5
#: What llama.cpp puts before a piece that starts a word.
_START = "\u2581"
#: Normalizers of Unigram that leave usual letters as they are; llama.cpp has no rule for others (Lowercase).
_OF_SPACES_AND_FORMS = {None, "NFC", "NFKC", "Nmt", "Precompiled", "Replace", "Strip"}


def write_vocabulary(writer: Any, tokenizer: Any, rows: int, where: str) -> list[str]:
    """Write a fast tokenizer of transformers for a word table of so many rows with a `gguf.GGUFWriter`.

    A tokenizer that llama.cpp has not is refused. Returns notes on what llama.cpp reads otherwise.
    """
    backend = tokenizer.backend_tokenizer
    content, read = json.loads(backend.to_str()), backend.encode("a").ids
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "unk", "pad", "mask")}
    kind = content["model"].get("type")
    fits = {"WordPiece": _is_of_bert, "Unigram": _starts_words}.get(kind, lambda content: False)
    if not fits(content) or ids["unk"] is None or (read[0], read[-1]) != (ids["cls"], ids["sep"]):
        raise DistilvecError(
            f"this {kind} tokenizer works otherwise than those of llama.cpp's BERT: WordPiece as BERT has it, or "
            "Unigram as XLM-R has it, with one piece before a text and one behind it",
            where=where,
            remedy="Export it as ONNX (without --to gguf).",
        )
    pieces, added = content["model"]["vocab"], content["added_tokens"]
    named = (
        enumerate(piece for piece, _ in pieces) if kind == "Unigram" else ((row, name) for name, row in pieces.items())
    )
    typed = {row: (piece, _NORMAL) for row, piece in named}
    typed |= {each["id"]: (each["content"], _CONTROL if each["special"] else _OWN) for each in added}
    tokens, types = zip(*(typed.get(row, (f"[PAD{row}]", _UNUSED)) for row in range(rows)))
    notes = (_unigram if kind == "Unigram" else _wordpiece)(writer, content, tokens, types)
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(1)
    writer.add_remove_extra_whitespaces(backend.encode("a  b").ids == backend.encode("a b").ids)
    writer.add_bos_token_id(ids["cls"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", ids["cls"])  # Ollama's name of it
    writer.add_eos_token_id(ids["sep"])
    for name in ("sep", "unk", "pad", "mask"):
        if ids[name] is not None:
            getattr(writer, f"add_{name}_token_id")(ids[name])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    return notes


def _is_of_bert(content: dict[str, Any]) -> bool:
    """Tell whether words are split as BERT splits them."""
    normalizer, before = content["normalizer"] or {}, content["pre_tokenizer"] or {}
    plain = normalizer.get("type") == "BertNormalizer" and before.get("type") == "BertPreTokenizer"
    whole = plain and normalizer["clean_text"] and normalizer["handle_chinese_chars"]
    return bool(whole and content["model"]["continuing_subword_prefix"] == "##")


def _wordpiece(writer: Any, content: dict[str, Any], tokens: tuple[str, ...], types: tuple[int, ...]) -> list[str]:
    writer.add_tokenizer_model("bert")
    words = [
        piece if type_ != _NORMAL else piece[2:] if piece.startswith("##") else _START + piece
        for piece, type_ in zip(tokens, types)
    ]
    writer.add_token_list(words)
    writer.add_token_types(types)
    lower, bare = content["normalizer"]["lowercase"], content["normalizer"]["strip_accents"]
    bare = lower if bare is None else bare
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lower)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", bare)
    if lower and bare:
        return []
    return ["Upper case and accents count in this model: older versions of llama.cpp, and Ollama, remove both."]


def _starts_words(content: dict[str, Any]) -> bool:
    """Tell whether words start with a space and keep their letters, as in XLM-R."""
    before = content["pre_tokenizer"] or {}
    kinds = {each.get("type") for each in before.get("pretokenizers", [before])}
    whole = {each.get("type") for each in _normalizers(content)} <= _OF_SPACES_AND_FORMS
    words = "Metaspace" in kinds <= {"Metaspace", "WhitespaceSplit"}
    return words and whole and not content["model"].get("byte_fallback")


def _normalizers(content: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = content["normalizer"] or {}
    return list(normalizer.get("normalizers", [normalizer]))


def _unigram(writer: Any, content: dict[str, Any], tokens: tuple[str, ...], types: tuple[int, ...]) -> list[str]:
    vocabulary, unknown = content["model"]["vocab"], content["model"]["unk_id"]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(tokens)
    writer.add_token_scores(
        [score for _, score in vocabulary][: len(tokens)] + [-1e4] * (len(tokens) - len(vocabulary))
    )
    writer.add_token_types([_UNKNOWN if row == unknown else type_ for row, type_ in enumerate(types)])
    writer.add_add_space_prefix(True)
    for each in _normalizers(content):
        if each.get("precompiled_charsmap"):
            writer.add_precompiled_charsmap(base64.b64decode(each["precompiled_charsmap"]))
            return []
    return ["Characters in unusual forms (full width, ligatures) are read as they are: llama.cpp has no rule for them."]
