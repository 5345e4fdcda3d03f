"""Making a smaller student out of a model: fewer blocks and word pieces, a narrower table, narrower blocks."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import class_names, find_blocks, find_transformer, parameters
from distilvec.modules.pipeline import default_prompt, limit_length
from distilvec.progress import at_work
from distilvec.students.fit_texts import PassCache
from distilvec.students.load import can_omit_pooler, drop_pooler, load_student
from distilvec.students.shape import Kept, Shape, reshapable
from distilvec.words import millions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.students.reshaping import Reshaping
    from distilvec.students.vocabulary import PrunedVocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShrinkReport:
    """The sizes of a student before and after shrinking, and what it kept.

    Attributes:
        parameters_before, parameters_after: of the whole model.
        layers_before: number of blocks; `layers_kept`: the blocks kept, counted from 1.
        vocabulary_before, vocabulary_after: rows of the token embedding table.
        texts_unchanged: share of the texts that are encoded exactly as before, in [0, 1]; None = not pruned.
        shape: sizes of what was cut besides.
        kept: how much of the layers' work those cuts keep.
    """

    parameters_before: int
    parameters_after: int
    layers_before: int
    layers_kept: tuple[int, ...]
    vocabulary_before: int
    vocabulary_after: int
    texts_unchanged: float | None = None
    shape: Shape = field(default_factory=Shape)
    kept: Kept = field(default_factory=Kept)

    def __str__(self) -> str:
        """Return what was kept, a line for each cut."""
        shape, kept = self.shape, self.kept
        lines = [
            f"parameters  {millions(self.parameters_before)} -> {millions(self.parameters_after)}",
            f"blocks      {self.layers_before} -> {len(self.layers_kept)} (kept {_listed(self.layers_kept)})",
            f"pieces      {self.vocabulary_before:,} -> {self.vocabulary_after:,}",
        ]
        if self.texts_unchanged is not None:
            lines.append(f"texts       {self.texts_unchanged:.1%} are encoded exactly as before")
        if kept.energy is not None:
            lines.append(
                f"embedding   rank {shape.embedding} keeps {kept.energy:.1%} of the table's energy, "
                f"R² {kept.embedding:.3f} of what the blocks read"
            )
        for name, explained in (("inner", kept.inner), ("heads", kept.heads)):
            if explained:
                rounded = _listed([f"{each:.3f}" for each in explained])
                lines.append(f"{name:<11} {getattr(shape, name)}: R² of each block's output {rounded}")
        if shape.positions is not None:
            lines.append(f"positions   {shape.positions}")
        if kept.states:
            rounded = _listed([f"{each:.3f}" for each in kept.states])
            lines.append(
                f"width       {shape.width}: R² of the states behind each block {rounded}; "
                f"of the vectors {kept.vectors:.3f}"
            )
        return "\n".join(lines)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


@at_work
def shrink(
    model: SentenceTransformer | str | Path,
    *,
    layers: int | Sequence[int] | None = None,
    vocabulary: int | None = None,
    texts: Iterable[str] | None = None,
    domains: Iterable[int] | None = None,
    seen: PassCache | None = None,
    **sizes: int | None,
) -> tuple[SentenceTransformer, ShrinkReport]:
    """A new model with a part of another's blocks, word pieces and widths; the other is left as it is.

    Args:
        model: what to shrink: a model, or a folder or hub id to load.
        layers: how many blocks to keep, evenly spaced from the first to the last (1 keeps the first), or which ones,
            counted from 1; None keeps all.
        vocabulary: at most this many word pieces, chosen by use in `texts`; None keeps all.
        texts: what the student will read; needed with all but `layers` and `positions`, read once.
        domains: number of each text's domain or language: `vocabulary` covers each of them alike.
        seen: where what the model gives for the texts is kept for further cuts of the same model, unchanged.
        sizes: of the table of pieces and of the blocks: embedding, inner, heads, positions and width, see `Shape`.

    Returns:
        The smaller model, and what was kept.

    Raises:
        DistilvecError: no blocks can be found, the choice of blocks is empty, out of range or cannot stand alone
            (ModernBERT and T5 need block 1), `texts` is missing, or a part cannot be cut to that size.
    """
    seen, shape = seen or PassCache(), Shape(**sizes)
    source = load_student(model) if isinstance(model, str | Path) else model
    transformer, found = _with_blocks(source)
    cut = transformer.model if shape.whole else reshapable(transformer.model, shape)
    path, blocks = find_blocks(cut) or found
    kept = choose_layers(layers, len(blocks))
    sample = _texts(texts, vocabulary, shape)
    pruned = None if vocabulary is None else _pruned(source, cut.config, sample, vocabulary, domains)
    reshaping: Reshaping | None = None
    if not shape.whole:
        from distilvec.students.reshaping import Reshaping

        tokenizer = transformer.tokenizer if pruned is None else pruned.tokenizer
        reshaping = Reshaping(source, cut, kept, shape, sample, tokenizer, seen)
    smaller = _rebuild(transformer, cut, path, kept, pruned, reshaping)
    result = _with_transformer(source, smaller, pruned)
    worth = _fit_shape(result, source, shape, sample, seen, reshaping.report if reshaping else Kept())
    report = ShrinkReport(
        parameters_before=parameters(source),
        parameters_after=parameters(result),
        layers_before=len(blocks),
        layers_kept=tuple(kept),
        vocabulary_before=_pieces(transformer.model),
        vocabulary_after=_pieces(smaller),
        texts_unchanged=None if pruned is None else pruned.texts_unchanged,
        shape=shape,
        kept=worth,
    )
    told = "the student has %s parameters, cut from a model with %s (poolers not counted)"
    logger.info(told, millions(report.parameters_after), millions(report.parameters_before))
    return result, report


def _with_blocks(source: SentenceTransformer) -> tuple[Any, tuple[str, nn.ModuleList]]:
    """The transformer of a model, and its blocks with their place in it."""
    transformer = find_transformer(source)
    found = None if transformer is None else find_blocks(transformer.model)
    if found is None:
        raise DistilvecError(
            f"this model ({class_names(source)}) has no list of transformer blocks that could be shortened",
            remedy="Shrink a BERT-like, ModernBERT-like or decoder model.",
        )
    return transformer, found


def _pieces(model: nn.Module) -> int:
    """Rows of the token embedding table."""
    table: Any = model
    rows: int = table.get_input_embeddings().weight.shape[0]
    return rows


def _pruned(
    source: SentenceTransformer, config: Any, texts: Sequence[str], vocabulary: int, domains: Iterable[int] | None
) -> PrunedVocabulary:
    """The pieces that stay, among them those that the configuration and the default prompt name."""
    from distilvec.students.vocabulary import prune_tokenizer

    transformer: Any = find_transformer(source)
    prompt = transformer.tokenizer(default_prompt(source), add_special_tokens=False)["input_ids"]
    ids, rows = [*_config_ids(config), *prompt], _pieces(transformer.model)
    return prune_tokenizer(transformer.tokenizer, texts, vocabulary, domains=domains, keep_ids=ids, rows=rows)


def _with_transformer(
    source: SentenceTransformer, smaller: nn.Module, pruned: PrunedVocabulary | None
) -> SentenceTransformer:
    """A copy of the source around the smaller transformer, with its tokenizer."""
    transformer: Any = find_transformer(source)
    # Everything of the model but the transformer is copied; the transformer is replaced on the way.
    result: SentenceTransformer = copy.deepcopy(source, {id(transformer.model): smaller})
    changed: Any = find_transformer(result)
    if pruned is not None:
        changed.processor = pruned.tokenizer
    elif type(smaller) is not type(transformer.model):
        from distilvec.students.vocabulary import plain_tokenizer

        # A tokenizer is opened by the model's kind where its own class is not named.
        changed.processor = plain_tokenizer(transformer.tokenizer)
    drop_pooler(changed)
    return result


def _fit_shape(
    result: SentenceTransformer,
    source: SentenceTransformer,
    shape: Shape,
    texts: Sequence[str],
    seen: PassCache,
    worth: Kept,
) -> Kept:
    """Take positions and width from the copy; returns what the blocks keep, with what the narrower ones do."""
    if shape.positions is not None:
        limit_length(result, shape.positions)
    if shape.width is None:
        return worth
    from distilvec.students.narrowing import narrow

    narrowed = narrow(result, source, shape.width, texts, seen)
    return replace(worth, states=narrowed.states, vectors=narrowed.vectors)


def _texts(texts: Iterable[str] | None, vocabulary: int | None, shape: Shape) -> Sequence[str]:
    """The texts, where a cut needs them."""
    cut = vocabulary is not None or replace(shape, positions=None) != Shape()
    if cut and texts is None:
        given = {"vocabulary": vocabulary, **vars(shape)}
        part = next(name for name, size in given.items() if size is not None and name != "positions")
        raise DistilvecError(
            f"{part} {given[part]} needs the texts that the student will read",
            where="texts",
            remedy=f"Give texts= (--corpus on the command line), or leave {part} out.",
        )
    if not cut or texts is None:
        return []
    return texts if isinstance(texts, Sequence) else list(texts)


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


def _rebuild(
    transformer: Any,
    model: Any,
    path: str,
    kept: list[int],
    pruned: PrunedVocabulary | None,
    reshaping: Reshaping | None,
) -> Any:
    """A new transformers model of the smaller configuration, filled strictly with what is kept.

    Building it from the configuration, instead of cutting the old one, is what makes a reload exact: whatever the
    class derives from a block's number comes out as it will when the saved folder is opened.
    """
    config = copy.deepcopy(model.config)
    _keep_in_config(config, kept)
    state = _keep_in_state(model.state_dict(), path, kept)
    if pruned is not None:
        _prune_config(config, pruned)
        _check_positions(model, config)
        for name in _token_tables(model):
            if name in state:
                state[name] = state[name][pruned.kept_ids.to(state[name].device)]
    if reshaping is not None:
        reshaping.apply(state, config)
    if transformer.module_output_name == "token_embeddings" and can_omit_pooler(model):
        smaller = type(model)(config, add_pooling_layer=False)
        state = {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}
    else:
        smaller = type(model)(config)
    try:
        smaller.load_state_dict(state)
    except RuntimeError as problem:
        name = type(model).__name__
        if kept[0] == 1:
            raise DistilvecError(
                f"what is left of this model does not fit into its class, {name}, whose parts have other sizes",
                remedy="Make another cut, or cut another model: BERT-like, ModernBERT-like or a decoder.",
            ) from problem
        raise DistilvecError(
            f"blocks {kept} of {name} cannot stand alone: its first block is built differently",
            remedy="Keep block 1 too.",
        ) from problem
    parameter = next(model.parameters())
    return smaller.to(device=parameter.device, dtype=parameter.dtype).train(model.training)


def _keep_in_config(config: Any, kept: list[int]) -> None:
    """Number of blocks, and every list that has one entry per block (attention patterns, Longformer's windows)."""
    count = config.num_hidden_layers
    for name, value in config.to_dict().items():
        of_blocks = "layer" in name or name == "attention_window"
        if of_blocks and isinstance(value, list) and len(value) == count:
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
    """Names of the tensors with one row per word piece: input embeddings and, where present, the output layer.

    A table that is shared has several (T5 names it twice).
    """
    owners: list[nn.Module | None] = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = {id(tensor) for owner in owners if owner is not None for tensor in owner.parameters(recurse=False)}
    named = model.named_parameters(remove_duplicate=False)
    return sorted(name for name, tensor in named if id(tensor) in tables)


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
