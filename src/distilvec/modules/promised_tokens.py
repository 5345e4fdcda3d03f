"""Start and end tokens that a folder promises by `add_bos_token` and `add_eos_token` in tokenizer_config.json.

transformers 4 put them where the tokenizer's class knew how to; transformers 5 reads tokenizer.json alone. Embedders
that pool their last token (e5-mistral and its kin) were trained with an end token which a text then lacks.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.modules.folder_checks import listed
from distilvec.modules.pipeline import text_routes
from distilvec.modules.settings import read_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
_CONFIG = "tokenizer_config.json"
_SIDES = ("bos", "eos")


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Find the special tokens that a tokenizer puts before and behind a text, as ids."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return list(whole[:start]), list(whole[start + len(bare) :])
    return [], []


def put_promised(model: SentenceTransformer, folder: Path, name: str) -> None:
    """Let the tokenizers of a model put the tokens that its folder promises, as `put_into` does."""
    for route, _, first in text_routes(model):
        if hasattr(getattr(first, "tokenizer", None), "all_special_ids"):
            put_into(first.tokenizer, folder / listed(folder)[0]["path"] / _first_of(folder, route), name)


def put_into(tokenizer: Any, folder: Path, name: str) -> None:
    """Let a tokenizer put the start and end tokens that its tokenizer_config.json promises, in place.

    An end where a special token of any kind stands is left as it is. What was put is kept as `tokens_put` of the
    tokenizer, for fingerprints.
    """
    file = folder / _CONFIG
    config = read_json(file) if file.is_file() else None
    promised = [side for side in _SIDES if isinstance(config, dict) and config.get(f"add_{side}_token") is True]
    promised = [side for side in promised if getattr(tokenizer, f"{side}_token_id") is not None]
    if not promised:
        return
    there = dict(zip(_SIDES, around(tokenizer), strict=True))
    lacking = [side for side in promised if not there[side]]
    if not lacking:
        return
    keys = " and ".join(f"add_{side}_token" for side in lacking)
    tokens = " and ".join(getattr(tokenizer, f"{side}_token") for side in lacking)
    others = [side for side in _SIDES if there[side] and there[side] != [getattr(tokenizer, f"{side}_token_id")]]
    if others or not hasattr(tokenizer, "update_post_processor"):
        logger.warning(
            "%s: %s promises %s (%s), and texts do not get it. If the model was trained with it, add it to the "
            "post_processor in tokenizer.json; otherwise take the key out",
            name, file.name, tokens, keys,
        )  # fmt: skip
        return
    for side in _SIDES:
        setattr(tokenizer, f"add_{side}_token", side in lacking or bool(there[side]))
    tokenizer.tokens_put = lacking
    logger.warning(
        "%s: texts get %s, as %s asks (%s), although tokenizer.json leaves it out. If the model was trained "
        "without, take the key out",
        name, tokens, file.name, keys,
    )  # fmt: skip


def tokens_put(model: Any) -> list[Any]:
    """List what a fingerprint needs of the tokens that were put; [] for a model whose tokenizer.json puts its own."""
    tokenizers = [getattr(first, "tokenizer", None) for _, _, first in text_routes(model)]
    put = [side for tokenizer in tokenizers for side in getattr(tokenizer, "tokens_put", [])]
    return [["put", put]] if put else []


def ends_bare(model: SentenceTransformer) -> bool:
    """Check whether a vector is the state of a text's last piece: last-token pooling without a special end token."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    for _, modules, first in text_routes(model):
        pooled = any(isinstance(each, Pooling) and "lasttoken" in each.pooling_mode for each in modules.children())
        tokenizer: Any = getattr(first, "tokenizer", None)
        if pooled and hasattr(tokenizer, "all_special_ids"):
            ids = first.preprocess(["a"])["input_ids"].flatten().tolist()
            if ids and ids[-1] not in tokenizer.all_special_ids:
                return True
    return False


#: The warning for a model that `ends_bare`.
ENDS_BARE = (
    "last-token pooling takes the state of a text's last word piece, for its tokenizer puts no special token at the "
    'end; if the model was trained with an end token, set "add_eos_token": true in its tokenizer_config.json'
)


def _first_of(folder: Path, route: str) -> str:
    """Find the sub-folder of the first module of a `Router`'s route; "" for another model."""
    files = (folder / "router_config.json", folder / "config.json")
    return str(read_json(next(file for file in files if file.is_file()))["structure"][route][0]) if route else ""
