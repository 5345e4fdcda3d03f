"""Known families of embedders that were trained with a prompt, and what their authors put before the text."""

from __future__ import annotations

import re
from typing import NamedTuple


class Family(NamedTuple):
    """Models whose folder or hub id, in lower case, fits a pattern, and the prompt of their texts or queries."""

    name: str
    pattern: str
    prompt: str
    side: str


_INSTRUCT = "Instruct: DESCRIBE THE TASK\\nQuery: "
_SEARCHING = "Represent this sentence for searching relevant passages: "

# The first match counts: the more special pattern stands before the more general one.
FAMILIES = (
    Family("E5 instruct", r"(^|[-_/])e5[-_].*(instruct|mistral)|e5-mistral", _INSTRUCT, "queries"),
    Family("E5", r"(^|[-_/])e5[-_](small|base|large)", '"query: " or "passage: "', "every text"),
    Family("BGE English v1.5", r"bge-(small|base|large)-en", _SEARCHING, "queries"),
    Family("BGE Chinese", r"bge-(small|base|large)-zh", "为这个句子生成表示以用于检索相关文章：", "queries"),
    Family("gte-Qwen", r"gte-qwen", _INSTRUCT, "queries"),
    Family("Qwen3-Embedding", r"qwen3-embedding", "Instruct: DESCRIBE THE TASK\\nQuery:", "queries"),
    Family("nomic-embed", r"nomic-embed", '"search_query: ", "search_document: " or "clustering: "', "every text"),
    Family("Instructor", r"instructor-(base|large|xl)", "Represent the DOMAIN sentence: ", "every text"),
    Family("mxbai-embed", r"mxbai-embed", _SEARCHING, "queries"),
    Family("Arctic Embed 2", r"snowflake-arctic-embed.*v2", "query: ", "queries"),
    Family("Arctic Embed", r"snowflake-arctic-embed", _SEARCHING, "queries"),
    Family("EmbeddingGemma", r"embeddinggemma", '"task: TASK | query: " or "title: none | text: "', "every text"),
    Family("Stella", r"stella.*(1\.5b|400m)", _INSTRUCT, "queries"),
    Family("SFR-Embedding", r"sfr-embedding", _INSTRUCT, "queries"),
    Family("Linq-Embed", r"linq-embed", _INSTRUCT, "queries"),
    Family("NV-Embed", r"nv-embed", _INSTRUCT, "queries"),
    Family("GritLM", r"gritlm", "<|user|>\\nDESCRIBE THE TASK\\n<|embed|>\\n", "queries"),
    Family("UAE", r"uae-large", _SEARCHING, "queries"),
)


def family_of(source: str) -> Family | None:
    """The family that a folder's path or a hub id belongs to, None where no known one wants a prompt.

    >>> family_of("intfloat/multilingual-e5-base").name, family_of("BAAI/bge-m3")
    ('E5', None)
    """
    # Two last parts of the path: the hub's cache keeps the model's name above the snapshot.
    parts = source.replace("\\", "/").lower().rstrip("/").split("/")
    name = "/".join(parts[-2:])
    cached = next((part for part in parts if part.startswith("models--")), "")
    return next((each for each in FAMILIES if re.search(each.pattern, name) or re.search(each.pattern, cached)), None)
