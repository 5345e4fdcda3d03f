"""Making a smaller student out of a model: fewer blocks, fewer word pieces."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer, parameters
from distilvec.students.load import can_omit_pooler, drop_pooler, load_student
from distilvec.students.vocabulary import PrunedVocabulary, prune_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShrinkReport:
    """What a student lost on the way.

    Attributes:
        parameters_before, parameters_after: of the whole model.
        layers_before: number of blocks; `layers_kept`: the blocks kept, counted from 1.
        vocabulary_before, vocabulary_after: rows of the token embedding table.
        texts_unchanged: share of the texts that are encoded exactly as before, in [0, 1]; None = not pruned.
        tokens_before, tokens_after: mean tokens per text without special ones; None = not pruned.
    """

    parameters_before: int
    parameters_after: int
    layers_before: int
    layers_kept: tuple[int, ...]
    vocabulary_before: int
    vocabulary_after: int
    texts_unchanged: float | None = None
    tokens_before: float | None = None
    tokens_after: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def shrink(
    model: SentenceTransformer | str | Path,
    *,
    layers: int | Sequence[int] | None = None,
    vocabulary: int | None = None,
    texts: Iterable[str] | None = None,
) -> tuple[SentenceTransformer, ShrinkReport]:
    """A new model with some of the blocks and some of the word pieces of another; the other is left as it is.

    Args:
        model: what to shrink: a model, or a folder or hub id to load.
        layers: how many blocks to keep, evenly spaced from the first to the last (1 keeps the first), or which ones,
            counted from 1; None keeps all.
        vocabulary: at most this many word pieces, chosen by use in `texts`; None keeps all.
        texts: what the student will read; needed with `vocabulary`, read once.

    Returns:
        The smaller model, and what was kept.

    Raises:
        DistilvecError: no blocks can be found, the choice of blocks is empty, out of range or cannot stand alone
            (ModernBERT and T5 need block 1), `texts` is missing, or `vocabulary` is below the floor of single
            characters and special tokens.
    """
    source = load_student(model) if isinstance(model, str | Path) else model
    transformer = find_transformer(source)
    found = None if transformer is None else find_blocks(transformer.model)
    if transformer is None or found is None:
        raise DistilvecError(
            "this model has no list of transformer blocks that could be shortened",
            remedy="Shrink a BERT-like, ModernBERT-like or decoder model.",
        )
    before = parameters(source)
    inner = transformer.model
    path, blocks = found
    kept = choose_layers(layers, len(blocks))
    pruned: PrunedVocabulary | None = None
    rows = inner.get_input_embeddings().weight.shape[0]
    if vocabulary is not None:
        if texts is None:
            raise DistilvecError(
                "pruning the vocabulary needs the texts that the student will read",
                remedy="Give texts=, or leave vocabulary out.",
            )
        pruned = prune_tokenizer(
            transformer.tokenizer, texts, vocabulary, keep_ids=_config_ids(inner.config), rows=rows
        )
    smaller = _rebuild(transformer, path, kept, pruned)
    # Everything of the model but the transformer is copied; the transformer is replaced on the way.
    result: SentenceTransformer = copy.deepcopy(source, {id(inner): smaller})
    changed: Any = find_transformer(result)
    if pruned is not None:
        changed.processor = pruned.tokenizer
    drop_pooler(changed)
    report = ShrinkReport(
        parameters_before=before,
        parameters_after=parameters(result),
        layers_before=len(blocks),
        layers_kept=tuple(kept),
        vocabulary_before=rows,
        vocabulary_after=smaller.get_input_embeddings().weight.shape[0],
        texts_unchanged=None if pruned is None else pruned.texts_unchanged,
        tokens_before=None if pruned is None else pruned.tokens_before,
        tokens_after=None if pruned is None else pruned.tokens_after,
    )
    logger.info("shrunk from %d to %d parameters", report.parameters_before, report.parameters_after)
    return result, report


def choose_layers(layers: int | Sequence[int] | None, count: int) -> list[int]:
    """Block numbers counted from 1, in order.

    >>> choose_layers(3, 6), choose_layers([6, 1], 6), choose_layers(None, 2)
    ([1, 4, 6], [1, 6], [1, 2])
    """
    if layers is None:
        return list(range(1, count + 1))
    if isinstance(layers, int):
        if not 1 <= layers <= count:
            raise DistilvecError(f"layers is {layers}, the model has 1 to {count} blocks to keep")
        if layers == 1:
            return [1]
        return [1 + int(step * (count - 1) / (layers - 1) + 0.5) for step in range(layers)]
    chosen = sorted(set(layers))
    if not chosen or chosen[0] < 1 or chosen[-1] > count:
        raise DistilvecError(f"layers is {list(layers)}, the model's blocks are numbered 1 to {count}")
    return chosen


def _rebuild(transformer: Any, path: str, kept: list[int], pruned: PrunedVocabulary | None) -> Any:
    """A new transformers model of the smaller configuration, filled strictly with what is kept.

    Building it from the configuration, instead of cutting the old one, is what makes a reload exact: whatever the
    class derives from a block's number comes out as it will when the saved folder is opened.
    """
    model = transformer.model
    config = copy.deepcopy(model.config)
    _keep_in_config(config, kept)
    state = _keep_in_state(model.state_dict(), path, kept)
    if pruned is not None:
        _prune_config(config, pruned)
        _check_positions(model, config)
        for name in _token_tables(model):
            if name in state:
                state[name] = state[name][pruned.kept_ids.to(state[name].device)]
    if transformer.module_output_name == "token_embeddings" and can_omit_pooler(model):
        smaller = type(model)(config, add_pooling_layer=False)
        state = {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}
    else:
        smaller = type(model)(config)
    try:
        smaller.load_state_dict(state)
    except RuntimeError as problem:
        raise DistilvecError(
            f"blocks {kept} of {type(model).__name__} cannot stand alone: its first block is built differently",
            remedy="Keep block 1 too.",
        ) from problem
    parameter = next(model.parameters())
    return smaller.to(device=parameter.device, dtype=parameter.dtype).train(model.training)


def _keep_in_config(config: Any, kept: list[int]) -> None:
    """Number of blocks, and every list that has one entry per block (attention patterns)."""
    count = config.num_hidden_layers
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == count:
            setattr(config, name, [value[number - 1] for number in kept])
    config.num_hidden_layers = len(kept)
    # The list of layer types says it all; the old interval would contradict it.
    if hasattr(config, "global_attn_every_n_layers") and getattr(config, "layer_types", None):
        delattr(config, "global_attn_every_n_layers")


def _keep_in_state(state: dict[str, Tensor], path: str, kept: list[int]) -> dict[str, Tensor]:
    """The tensors of the kept blocks under their new numbers, and all that belongs to no block."""
    numbers = {old - 1: new for new, old in enumerate(kept)}
    prefix = path + "."
    result = {}
    for name, tensor in state.items():
        if not name.startswith(prefix):
            result[name] = tensor
            continue
        number, rest = name[len(prefix) :].split(".", 1)
        if int(number) in numbers:
            result[f"{prefix}{numbers[int(number)]}.{rest}"] = tensor
    return result


def _token_tables(model: Any) -> list[str]:
    """Names of the tensors with one row per word piece: input embeddings and, where present, the output layer."""
    owners: list[nn.Module | None] = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if any(module is owner for owner in owners)
        for name, _ in module.named_parameters(recurse=False)
    ]
    return sorted(tables)


def _config_ids(config: Any) -> list[int]:
    """Token ids that the configuration speaks of."""
    ids: list[int] = []
    for name, value in config.to_dict().items():
        if name.endswith("_token_id"):
            ids.extend(entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, int))
    return ids


def _prune_config(config: Any, pruned: PrunedVocabulary) -> None:
    config.vocab_size = len(pruned.kept_ids)
    new_ids = {old: new for new, old in enumerate(pruned.kept_ids.tolist())}
    for name, value in config.to_dict().items():
        if name.endswith("_token_id") and value is not None:
            several = isinstance(value, list)
            ids = [new_ids[entry] for entry in (value if several else [value]) if entry in new_ids]
            setattr(config, name, ids if several else next(iter(ids), None))


def _check_positions(model: nn.Module, config: Any) -> None:
    """RoBERTa-like models count positions from the padding id on: it must stay where it is."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and isinstance(padding, int) and config.pad_token_id != padding:
            raise DistilvecError(
                f"pruning would move the padding token from id {padding} to {config.pad_token_id}, "
                "and this model counts its positions from there",
                remedy="Keep the whole vocabulary of this model.",
            )
