"""A text encoder with mixtures of experts among its blocks, as a transformers model that brings its own code along.

The architecture is that of nomic-embed-text-v2-moe, its weights under the same names: post-norm blocks, rotary
positions, in every second block a mixture

    y = sum_e p_e f_e(x) + b,  f_e(x) = gelu(x W1_e^T) W2_e,  p = softmax(R x), e over the most probable experts

whose sum may be replaced by an aggregation on the sphere. Positions may be a learnt table and the experts' first layer
may have a bias, so that a BERT or a RoBERTa can be turned into such an encoder.

This file, `moe_experts.py` and `sphere.py` are copied into the folder of every such model, so they import nothing but
torch and transformers. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .moe_experts import ExpertLayers, Experts, MixtureOfExperts
from .sphere import AGGREGATIONS

__all__ = ["MoeEncoder", "MoeEncoderConfig"]

_POSITIONS = ("rotary", "absolute")
_KINDS = ("dense", "mixture")


class MoeEncoderConfig(PreTrainedConfig):
    """Sizes of the encoder; the defaults are those of nomic-embed-text-v2-moe.

    Args:
        embedding_dropout: after the normalised embeddings; `hidden_dropout_prob` is that of both halves of a block.
        positions: "rotary", or "absolute" for a learnt table.
        position_padding: of an absolute table, the row of padding; positions count from the next one on (RoBERTa).
            None: they count from 0, whatever is padding (BERT).
        rotary_base: of the rotation's wave lengths.
        layer_kinds: "dense" or "mixture" for each block; None = "mixture" for every second one.
        num_experts: E, in each mixture.
        experts_per_token: K, 1 <= K <= E.
        normalize_weights: whether the weights of a token's K experts are divided by their sum.
        aggregation: "linear", "sba", "norm_free", "unit" or "nlerp".
        expert_bias: whether the experts' first layer has a bias (nomic's has none).
    """

    model_type: ClassVar[str] = "distilvec_moe"

    vocab_size: int = 250048
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    embedding_dropout: float = 0.1
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 2048
    type_vocab_size: int = 1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    positions: str = "rotary"
    position_padding: int | None = None
    rotary_base: float = 10000.0
    layer_kinds: list[str] | None = None
    num_experts: int = 8
    experts_per_token: int = 2
    normalize_weights: bool = False
    aggregation: str = "linear"
    expert_bias: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.layer_kinds is None:
            self.layer_kinds = [_KINDS[index % 2] for index in range(self.num_hidden_layers)]
        if self.aggregation not in AGGREGATIONS or self.positions not in _POSITIONS:
            raise ValueError(f"aggregation is one of {AGGREGATIONS}, positions one of {_POSITIONS}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.num_attention_heads} heads do not divide a width of {self.hidden_size}")
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(f"{self.experts_per_token} of {self.num_experts} experts cannot be chosen")
        if len(self.layer_kinds) != self.num_hidden_layers or not set(self.layer_kinds) <= set(_KINDS):
            raise ValueError(f"each of {self.num_hidden_layers} blocks is one of {_KINDS}, not {self.layer_kinds}")


class Embeddings(nn.Module):
    def __init__(self, config: MoeEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.padding_idx = config.position_padding
        if config.positions == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width, padding_idx=self.padding_idx)
        self.absolute = config.positions == "absolute"

    def forward(self, input_ids: Tensor | None, token_type_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        words: Tensor = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:-1], dtype=torch.long, device=words.device)
        states = words + self.token_type_embeddings(token_type_ids)
        return states + self.position_embeddings(self._positions(input_ids, words)) if self.absolute else states

    def _positions(self, input_ids: Tensor | None, words: Tensor) -> Tensor:
        if self.padding_idx is None or input_ids is None:
            first = 0 if self.padding_idx is None else self.padding_idx + 1
            return torch.arange(first, first + words.shape[1], device=words.device).unsqueeze(0)
        real = input_ids.ne(-1 if self.word_embeddings.padding_idx is None else self.word_embeddings.padding_idx)
        return real.cumsum(1) * real + self.padding_idx


def rotary_tables(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, size / 2], float32, of position times base^(-2j / size)."""
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), base**-steps)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs (j, j + size / 2) of [..., S, size] by their position's angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return what transformers' `eager` means for this model."""
    scores = query @ key.mT * kwargs["scaling"]
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    dropped = functional.dropout(weights, kwargs.get("dropout", 0.0), module.training)
    return (dropped @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    is_causal = False

    def __init__(self, config: MoeEncoderConfig) -> None:
        super().__init__()
        self.config, self.heads = config, config.num_attention_heads
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)  # of the weights, where its share is read

    def forward(self, states: Tensor, mask: Tensor | None, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        parts = self.Wqkv(states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)  # [N, heads, S, size] each
        if rotary is not None:
            tables = rotary[0].to(query.dtype), rotary[1].to(query.dtype)
            query, key = rotate(query, *tables), rotate(key, *tables)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.dropout.p if self.training else 0.0
        mixed, _ = attend(self, query, key, value, mask, dropout=dropout, scaling=query.shape[-1] ** -0.5)
        return self.out_proj(mixed.flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: MoeEncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        return self.fc2(self.activation(self.fc1(states)))


class Block(GradientCheckpointingLayer):
    def __init__(self, config: MoeEncoderConfig, mixture: bool) -> None:
        super().__init__()
        self.attn = Attention(config)
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MixtureOfExperts(config) if mixture else FeedForward(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        real: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        states = self.norm1(hidden_states + self.dropout(self.attn(hidden_states, attention_mask, rotary)))
        return self.norm2(states + self.dropout(self.mlp(states, real)))


class Encoder(nn.Module):
    def __init__(self, config: MoeEncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config, kind == "mixture") for kind in config.layer_kinds or ())


class MoeEncoder(PreTrainedModel):
    """Token ids -> the states of the last block, [N, S, d], as transformers' text encoders."""

    config_class = MoeEncoderConfig
    base_model_prefix = "moe_encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ["Embeddings", "Block"]  # noqa: RUF012

    def __init__(self, config: MoeEncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.emb_drop = nn.Dropout(config.embedding_dropout)
        self.encoder = Encoder(config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ExpertLayers):
            initialization.normal_(module.w1, std=self.config.initializer_range)
            initialization.normal_(module.w2, std=self.config.initializer_range)
            if module.b1 is not None:
                initialization.zeros_(module.b1)
        elif isinstance(module, Experts):
            initialization.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput | tuple[Tensor, ...]:
        """Attention mask [N, S], 1 = real. Other arguments that tokenizers or wrappers send are of no meaning here."""
        config = self.config
        states = self.emb_drop(self.emb_ln(self.embeddings(input_ids, token_type_ids, inputs_embeds)))
        seen = [states]
        mask = create_bidirectional_mask(config=config, inputs_embeds=states, attention_mask=attention_mask)
        real = attention_mask.bool() if attention_mask is not None and attention_mask.dim() == 2 else None
        rotary = None
        if config.positions == "rotary":
            size = config.hidden_size // config.num_attention_heads
            rotary = rotary_tables(states.shape[1], size, config.rotary_base, states.device)
        for block in self.encoder.layers:
            states = block(states, mask, real, rotary)
            seen.append(states)
        wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = BaseModelOutput(last_hidden_state=states, hidden_states=tuple(seen) if wanted else None)
        return output.to_tuple() if return_dict is False else output


MoeEncoderConfig.register_for_auto_class()
MoeEncoder.register_for_auto_class("AutoModel")
if __name__.startswith("distilvec."):  # a copy in a model's folder is run by whoever named that folder, for it alone
    from transformers import AutoConfig, AutoModel

    AutoConfig.register(MoeEncoderConfig.model_type, MoeEncoderConfig)
    AutoModel.register(MoeEncoderConfig, MoeEncoder)
