"""The parts of a model that can be cut: which sizes it can have, and where its blocks keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks

#: Classes with BERT's arithmetic: learned absolute positions, norms behind attention and feed-forward network.
ALIKE = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "DistilBertModel", "ElectraModel")


def is_alike(model: Any) -> bool:
    """Tell whether a transformers model can be written as an `ElectraModel` with the same outputs."""
    config = model.config
    return (
        type(model).__name__ in ALIKE
        and not getattr(config, "is_decoder", False)
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
    )


@dataclass(frozen=True)
class Shape:
    """Sizes of what is cut besides blocks and pieces; None = stays whole.

    With one of them BERT, RoBERTa, XLM-R and DistilBERT become a stock `ElectraModel`.

    Attributes:
        embedding: rank of the table of word pieces, 2 to its width: a narrow table and a linear map to the blocks.
        inner: units of each block's feed-forward network.
        heads: attention heads of each block. BERT-like ones stay as wide together; of decoders, heads are dropped.
        positions: keep the first n, so that the student reads at most n tokens.
        width: numbers of the states of each block, whole heads of them; a linear map behind the pooling leads back to
            the source's space.
    """

    embedding: int | None = None
    inner: int | None = None
    heads: int | None = None
    positions: int | None = None
    width: int | None = None

    @property
    def whole(self) -> bool:
        return self == Shape()


@dataclass(frozen=True)
class Kept:
    """The share of the layers' work that the cuts keep, before any training.

    Attributes:
        energy: of the table's directions, see `NarrowTables`; `embedding` its R². None = not cut.
        inner, heads: R² of the output of each kept block's feed-forward network and attention; empty = not cut.
        states: R² of the states behind each block that was made narrower; `vectors`: of what the map behind the
            pooling makes of them. Empty, None = as wide as before.
    """

    energy: float | None = None
    embedding: float | None = None
    inner: tuple[float, ...] = ()
    heads: tuple[float, ...] = ()
    states: tuple[float, ...] = ()
    vectors: float | None = None


def reshapable(model: Any, shape: Shape) -> Any:
    """The model that the cuts work on: an `ElectraModel` for BERT-like ones, others themselves."""
    from distilvec.students.electra import as_electra

    model = as_electra(model) if is_alike(model) else model
    found = find_blocks(model)
    assert found is not None
    kind, block = type(model).__name__, found[1][0]
    if not is_electra(model):
        for name, instead in (("embedding", "vocabulary"), ("positions", "student.max_length"), ("width", "layers")):
            if getattr(shape, name) is not None:
                raise DistilvecError(
                    f"{kind} has no {name} that a stock class could hold at another size",
                    where=f"shrink.{name}",
                    remedy=f"Use {instead}; BERT, RoBERTa, XLM-R, DistilBERT and ELECTRA can be cut so.",
                )
    elif shape.embedding is not None:
        _check_size("embedding", shape.embedding, model.config.embedding_size, least=2)
    if shape.positions is not None:
        _check_size("positions", shape.positions, model.config.max_position_embeddings)
    if shape.inner is not None:
        _check_size("inner", shape.inner, feed_forward(block, kind).width)
    if shape.heads is not None:
        choices = [heads for heads in range(1, heads_of(model) + 1) if heads % shared_heads(model, block, kind) == 0]
        if is_electra(model):
            choices = [heads for heads in choices if heads_of(model) % heads == 0]
        if shape.heads not in choices:
            raise DistilvecError(
                f"{shape.heads} heads cannot be made of this model's {heads_of(model)}",
                where="shrink.heads",
                remedy=f"Choose one of {', '.join(map(str, choices))}.",
            )
    if shape.width is not None:
        _check_width(shape.width, heads_of(model) if shape.heads is None else shape.heads, model, shape.embedding)
    return model


def _check_width(width: int, heads: int, model: Any, embedding: int | None) -> None:
    """Refuse a width that whole heads do not add up to, and that of the table: the class has no map between these."""
    whole, rank = model.config.hidden_size, embedding or model.config.embedding_size
    size = whole // heads
    choices = [times * size for times in range(1, heads) if times * size != rank]
    if width in choices:
        return
    if width == rank and width < whole:
        raise DistilvecError(
            f"blocks and table of word pieces would both be {width} wide, which a stock class has no map for",
            where="shrink.width",
            remedy="Give embedding another rank.",
        )
    raise DistilvecError(
        f"width is {width}, and blocks become narrower by whole heads, of {size} each",
        where="shrink.width",
        remedy=f"Choose one of {', '.join(map(str, choices))}." if choices else "Cut heads less.",
    )


def _check_size(name: str, size: int, most: int, least: int = 1) -> None:
    if not least <= size <= most:
        raise DistilvecError(
            f"{name} is {size}, and the model's own is {most}",
            where=f"shrink.{name}",
            remedy=f"Choose {least} to {most}.",
        )


@dataclass(frozen=True)
class Network:
    """A feed-forward network: names of the layers into its units, how many rows each has per unit, and out of them."""

    inputs: tuple[tuple[str, int], ...]
    output_name: str
    output: nn.Linear

    @property
    def width(self) -> int:
        return int(self.output.in_features)


def feed_forward(block: nn.Module, kind: str) -> Network:
    """The feed-forward network of a block."""
    named = dict(block.named_modules())
    for inputs, output in (
        ((("intermediate.dense", 1),), "output.dense"),
        ((("mlp.gate_proj", 1), ("mlp.up_proj", 1)), "mlp.down_proj"),
        ((("mlp.Wi", 2),), "mlp.Wo"),
    ):
        layers = [named.get(name) for name in (*(name for name, _ in inputs), output)]
        if all(isinstance(layer, nn.Linear) for layer in layers):
            last = layers[-1]
            assert isinstance(last, nn.Linear)
            return Network(inputs, output, last)
    raise DistilvecError(
        f"the feed-forward networks of {kind} cannot be cut", where="shrink.inner", remedy="Cut layers instead."
    )


def is_electra(model: Any) -> bool:
    return type(model).__name__ == "ElectraModel"


def heads_of(model: Any) -> int:
    return int(model.config.num_attention_heads)


def shared_heads(model: Any, block: Any, kind: str) -> int:
    """Query heads that share keys and values, so that they stay or go together."""
    if is_electra(model):
        return 1
    attention = getattr(block, "self_attn", None)
    if not all(hasattr(attention, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim")):
        raise DistilvecError(
            f"the attention heads of {kind} cannot be cut: its class fixes their width by their number",
            where="shrink.heads",
            remedy="Cut layers or inner units instead.",
        )
    return heads_of(model) // int(getattr(model.config, "num_key_value_heads", None) or heads_of(model))
