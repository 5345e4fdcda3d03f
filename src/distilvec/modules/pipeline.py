"""The prompts, lengths and pooling of a sentence-transformers model, alike for teachers and students."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Literal

from distilvec.errors import DistilvecError

if TYPE_CHECKING:  # recipes import this file, and reading one takes no torch
    from sentence_transformers import SentenceTransformer
    from torch import nn

logger = logging.getLogger(__name__)
PoolingChoice = Literal["mean", "cls", "last"]
#: How a model that is too large is held: see `opening.open_model`.
Load = Literal["int8", "split"]
#: The words of a recipe -> those of sentence-transformers.
MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
#: Names of prompts that `encode_document` looks for.
DOCUMENT = ("document", "passage", "corpus")


def item_kinds(model: SentenceTransformer) -> list[str]:
    """Return what a model reads: text, image, molecule; several for models of several kinds."""
    first: Any = model[0]
    own = getattr(first, "item", None)
    if own is not None:
        return [own]
    return [kind for kind in getattr(first, "modalities", ["text"]) if isinstance(kind, str)] or ["text"]


def reads_texts(model: Any) -> bool:
    """Tell whether a model, or a route of one, reads texts, whatever else it reads."""
    return "text" in item_kinds(model)


def reads_only_texts(model: Any) -> bool:
    """Tell whether texts are all that a model reads."""
    return item_kinds(model) == ["text"]


def default_prompt(model: SentenceTransformer) -> str:
    """Return what a model puts before a text where nobody says otherwise; "" = nothing."""
    return (model.prompts or {}).get(getattr(model, "default_prompt_name", None) or "") or ""


def named_prompt(model: SentenceTransformer, prompt: str) -> str:
    """Return the model's prompt of this name, or `prompt` itself if there is no such name."""
    if prompt not in (model.prompts or {}):
        return prompt
    return model.prompts[prompt] or ""  # an empty one is a prompt, too: none for documents, say


def side_prompt(model: SentenceTransformer, side: str) -> str:
    """Return what `encode_query` or `encode_document` puts before a text; `side`: "query" or "document"; "" = nothing.

    An empty prompt of that name says something where another is the default; without one, the default holds.
    """
    prompts = model.prompts or {}
    names = (side,) if side == "query" else DOCUMENT
    found = next((name for name in names if name in prompts), None)
    return default_prompt(model) if found is None else prompts[found] or ""


def is_causal(model: nn.Module) -> bool:
    """Tell whether tokens see only those before them: decoders, unless their configuration says is_causal: false."""
    if getattr(getattr(model, "config", None), "is_causal", None) is False:
        return False
    return any(getattr(module, "is_causal", False) is True for module in model.modules())


def usable_positions(model: nn.Module) -> int | None:
    """Return how many tokens the position embeddings allow; None where positions are not learned.

    RoBERTa-like models count positions from `padding_idx + 1`, so their last rows are never reached.
    """
    from torch import nn

    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            padding = getattr(module, "padding_idx", None)
            return table.num_embeddings - (padding + 1 if isinstance(padding, int) else 0)
    return None


def set_length(model: SentenceTransformer, wanted: int | None, name: str) -> None:
    """Set the maximum length in tokens; without a wish, cut the model's own down to what its positions allow.

    Of a `Router`, whose length is the longest of its routes', each route of texts is set by its own positions.
    """
    for route, modules, first in text_routes(model):
        limit, where = usable_positions(modules), f"{name}, route {route}" if route else name
        if wanted is None:
            if limit is not None and ((own := getattr(first, "max_seq_length", None)) is None or own > limit):
                first.max_seq_length = limit
            continue
        if _bare_tokenizer(first) is not None:
            raise DistilvecError(
                f"max_length is {wanted}, and static embeddings read whole texts",
                where=where,
                remedy="Leave max_length out.",
            )
        least = _least_tokens(first)
        if wanted < least or (limit is not None and wanted > limit):
            raise DistilvecError(
                f"max_length is {wanted}, special tokens and positions allow {least} to {limit or 'any number'}",
                where=where,
                remedy="Choose a length within that range.",
            )
        first.max_seq_length = wanted


def free_name(modules: Container[str], name: str) -> str:
    """The name, longer where a module has it: a student that goes on from an earlier run keeps what it learnt there."""
    while name in modules:
        name += "_"
    return name


def width_of(modules: Iterable[Any]) -> int | None:
    """Width of the vectors that modules in a row give: the last one that says a width knows."""
    asks = (getattr(module, "get_embedding_dimension", None) for module in reversed(list(modules)))
    return next((int(size) for ask in asks if callable(ask) and (size := ask()) is not None), None)


def text_routes(model: SentenceTransformer) -> list[tuple[str, nn.Module, Any]]:
    """Name, modules and first module of each of a `Router`'s routes of texts; of another model, ("", it, first)."""
    from sentence_transformers.base.modules import Router

    router: Any = model[0]
    if not isinstance(router, Router):
        return [("", model, router)]
    routes: Any = router.sub_modules.items()
    return [(name, route, route[0]) for name, route in routes if reads_texts(route)]


def _least_tokens(first: Any) -> int:
    """One token of the text beside the special ones; below that, tokenizers give up cutting."""
    count = getattr(getattr(first, "tokenizer", None), "num_special_tokens_to_add", None)
    return 1 + int(count() if count is not None and _bare_tokenizer(first) is None else 0)


def token_limit(model: SentenceTransformer) -> int | None:
    """Tokens that a model reads of a text; None = all."""
    bare = _bare_tokenizer(model[0])
    if bare is not None:
        return None if bare.truncation is None else int(bare.truncation["max_length"])
    length = model.max_seq_length
    return None if length is None or length > 10**9 else int(length)


def limit_length(model: SentenceTransformer, tokens: int) -> None:
    """Limit the tokens that a model reads of a text; a lower limit that it has stays."""
    if tokens < (least := _least_tokens(model[0])):
        raise DistilvecError(
            f"of {tokens} tokens none is left for the text; the special ones take {least - 1}",
            where="student.max_length",
            remedy=f"Choose {least} or more.",
        )
    limit = token_limit(model)
    if limit is not None and tokens > limit:
        logger.warning("the student reads %d tokens of a text at most, not %d", limit, tokens)
        tokens = limit
    bare = _bare_tokenizer(model[0])
    if bare is None:
        model.max_seq_length = tokens
    else:
        # The tokenizer's file keeps this, so whoever opens the model reads as much.
        bare.enable_truncation(tokens)


def _bare_tokenizer(first: Any) -> Any | None:
    """The `tokenizers.Tokenizer` of static embeddings, which know of no length; None of any other module."""
    from tokenizers import Tokenizer

    tokenizer = getattr(first, "tokenizer", None)
    return tokenizer if isinstance(tokenizer, Tokenizer) else None


def puts_into_template(model: SentenceTransformer) -> bool:
    """Tell whether every text is put into the chat template of the model's tokenizer."""
    return item_kinds(model) == ["text", "message"]


def read_plainly(model: SentenceTransformer) -> bool:
    """Leave out the chat template of a bare model's tokenizer, which sentence-transformers would put around every text.

    Returns:
        Whether there was one.
    """
    if not puts_into_template(model):
        return False
    first: Any = model[0]
    first.modality_config.pop("message", None)
    first.input_formatter.supported_modalities = list(first.modality_config)
    return True


def set_pooling(model: SentenceTransformer, wanted: PoolingChoice | None, *, bare: bool, name: str) -> None:
    """Choose the pooling of a model whose folder says nothing about it; a folder that does is right.

    Args:
        model: as sentence-transformers opened it; a bare one has mean pooling then.
        wanted: None = last-token pooling where the attention is causal, mean pooling elsewhere.
        bare: whether this was a transformers folder, without modules.json.
        name: what the person called the model, for messages.
    """
    from sentence_transformers.sentence_transformer.modules import Pooling

    poolings = [(place, module) for place, module in model.named_children() if isinstance(module, Pooling)]
    if bare:
        inner = getattr(model[0], "model", None)
        last = inner is not None and is_causal(inner)
        mode = MODES[wanted or ("last" if last else "mean")]
        for place, module in poolings:
            setattr(model, place, Pooling(module.embedding_dimension, pooling_mode=mode))
    elif wanted is not None and [_mode(module) for _, module in poolings] != [MODES[wanted]]:
        own = " and ".join(_mode(module) for _, module in poolings) or "no"
        raise DistilvecError(
            f"this folder has {own} pooling of its own, and pooling: {wanted} asks for another",
            where=name,
            remedy="Leave pooling out; it is for transformers folders, which say nothing about it.",
        )


def _mode(module: Any) -> str:
    mode = module.pooling_mode
    return mode if isinstance(mode, str) else "+".join(mode)
