"""A student's tokenizer under the keys of a GGUF file: WordPiece as "bert", Unigram as "t5"."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from distilvec.errors import DistilvecError

_NORMAL, _UNKNOWN, _CONTROL, _OWN, _UNUSED = 1, 2, 3, 4, 5
#: What llama.cpp puts before a piece that starts a word.
_START = "\u2581"
_ONNX = "Export it as ONNX (without --to gguf)."


def write_vocabulary(writer: Any, tokenizer: Any, rows: int, where: str) -> list[str]:
    """Write a tokenizer into a GGUF file; returns notes on what llama.cpp reads otherwise.

    Args:
        writer: `gguf.GGUFWriter`.
        tokenizer: of transformers, with a fast backend.
        rows: of the word table; what has no piece is marked as unused.
        where: what errors call the model.

    Raises:
        DistilvecError: llama.cpp has no tokenizer like this one.
    """
    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    kind = content["model"].get("type")
    if kind not in _KINDS:
        raise DistilvecError(
            f"llama.cpp's BERT reads WordPiece and Unigram tokenizers, and this one is {kind}",
            where=where,
            remedy=_ONNX,
        )
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "unk", "pad", "mask")}
    read = backend.encode("a").ids
    if ids["unk"] is None or (read[0], read[-1]) != (ids["cls"], ids["sep"]):
        raise DistilvecError(
            "llama.cpp puts one piece before a text and one behind it, and needs one for unknown words; this tokenizer "
            "does otherwise",
            where=where,
            remedy=_ONNX,
        )
    together = backend.encode("a  b").ids == backend.encode("a b").ids
    writer.add_remove_extra_whitespaces(together)
    notes = _KINDS[kind](writer, content, rows, where)
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(1)
    writer.add_bos_token_id(ids["cls"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", ids["cls"])  # Ollama's name of it
    writer.add_eos_token_id(ids["sep"])
    writer.add_sep_token_id(ids["sep"])
    writer.add_unk_token_id(ids["unk"])
    for name in ("pad", "mask"):
        if ids[name] is not None:
            getattr(writer, f"add_{name}_token_id")(ids[name])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    return notes


def _wordpiece(writer: Any, content: dict[str, Any], rows: int, where: str) -> list[str]:
    model, normalizer, before = content["model"], content["normalizer"] or {}, content["pre_tokenizer"] or {}
    plain = normalizer.get("type") == "BertNormalizer" and before.get("type") == "BertPreTokenizer"
    whole = normalizer.get("clean_text") and normalizer.get("handle_chinese_chars")
    if not (plain and whole and model["continuing_subword_prefix"] == "##"):
        raise DistilvecError(
            "llama.cpp splits words as BERT's own tokenizer does, and this tokenizer has other rules",
            where=where,
            remedy=_ONNX,
        )
    pieces = {number: piece for piece, number in model["vocab"].items()}
    tokens, types = zip(*_typed(pieces, content["added_tokens"], rows))
    words = [
        piece if type_ not in (_NORMAL, _UNKNOWN) else piece[2:] if piece.startswith("##") else _START + piece
        for piece, type_ in zip(tokens, types)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types(types)
    lower, bare = normalizer["lowercase"], normalizer["strip_accents"]
    bare = lower if bare is None else bare
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lower)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", bare)
    if lower and bare:
        return []
    return ["Upper case and accents count in this model: older versions of llama.cpp, and Ollama, remove both."]


def _unigram(writer: Any, content: dict[str, Any], rows: int, where: str) -> list[str]:
    before, model = content["pre_tokenizer"] or {}, content["model"]
    kinds = [each.get("type") for each in before.get("pretokenizers", [before])]
    if "Metaspace" not in kinds or not set(kinds) <= {"Metaspace", "WhitespaceSplit"} or model.get("byte_fallback"):
        raise DistilvecError(
            "llama.cpp reads Unigram tokenizers whose words start with a space, and this tokenizer has other rules",
            where=where,
            remedy=_ONNX,
        )
    pieces = {number: piece for number, (piece, _) in enumerate(model["vocab"])}
    scores = {number: score for number, (_, score) in enumerate(model["vocab"])}
    tokens, types = zip(*_typed(pieces, content["added_tokens"], rows))
    unknown = model["unk_id"]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(list(tokens))
    writer.add_token_scores([float(scores.get(number, -10_000.0)) for number in range(rows)])
    writer.add_token_types([_UNKNOWN if number == unknown else type_ for number, type_ in enumerate(types)])
    writer.add_add_space_prefix(True)
    normalizer = content["normalizer"] or {}
    charsmap = [each.get("precompiled_charsmap") for each in normalizer.get("normalizers", [normalizer])]
    found = next((each for each in charsmap if each), None)
    if found is not None:
        writer.add_precompiled_charsmap(base64.b64decode(found))
        return []
    return ["Characters in unusual forms (full width, ligatures) are read as they are: llama.cpp has no rule for them."]


def _typed(pieces: dict[int, str], added: list[dict[str, Any]], rows: int) -> Iterator[tuple[str, int]]:
    """Piece and type of each row of the word table."""
    extra = {each["id"]: (each["content"], _CONTROL if each["special"] else _OWN) for each in added}
    for number in range(rows):
        if number in extra:
            yield extra[number]
        elif number in pieces:
            yield pieces[number], _NORMAL
        else:
            yield f"[PAD{number}]", _UNUSED


_KINDS = {"WordPiece": _wordpiece, "Unigram": _unigram}
