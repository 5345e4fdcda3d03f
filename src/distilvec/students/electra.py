"""BERT-like models as ELECTRA's class, the stock one whose tables may be narrower than its blocks.

ELECTRA computes what BERT does, block for block. RoBERTa and XLM-R differ in where positions begin, DistilBERT in its
names; all of them become the same model with the same outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distilvec.modules.pipeline import usable_positions

#: What DistilBERT calls by other names, settings and weights.
_SETTINGS = {
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_WEIGHTS = {
    "transformer.layer.": "encoder.layer.",
    "attention.q_lin.": "attention.self.query.",
    "attention.k_lin.": "attention.self.key.",
    "attention.v_lin.": "attention.self.value.",
    "attention.out_lin.": "attention.output.dense.",
    "sa_layer_norm.": "attention.output.LayerNorm.",
    "ffn.lin1.": "intermediate.dense.",
    "ffn.lin2.": "output.dense.",
    "output_layer_norm.": "output.LayerNorm.",
}


def as_electra(model: Any) -> Any:
    """An `ElectraModel` with the outputs of a model that `is_alike`; without its pooler, in float32, in eval mode.

    Equal outputs hold for texts that are padded on the right.
    """
    from transformers import ElectraConfig, ElectraModel

    old = model.config
    state = {name: tensor for name, tensor in bert_state(model).items() if not name.startswith("pooler.")}
    table = "embeddings.position_embeddings.weight"
    positions = usable_positions(model)
    state[table] = state[table][len(state[table]) - (positions or len(state[table])) :]
    types = "embeddings.token_type_embeddings.weight"
    if types not in state:
        state[types] = torch.zeros(1, old.hidden_size)
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps", *_SETTINGS)
    made: Any = ElectraConfig
    config = made(
        vocab_size=len(state["embeddings.word_embeddings.weight"]),
        embedding_size=state[types].shape[1],
        max_position_embeddings=len(state[table]),
        type_vocab_size=len(state[types]),
        **{name: bert_setting(old, name) for name in same},
        **{name: value for name, value in old.to_dict().items() if name.endswith("_token_id")},
    )
    config._name_or_path = getattr(old, "_name_or_path", "")
    smaller = ElectraModel(config)
    smaller.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return smaller.to(next(model.parameters()).device).eval()


def bert_setting(config: Any, name: str) -> Any:
    """A setting of a BERT-like model, by BERT's name for it."""
    if config.model_type != "distilbert":
        return getattr(config, name)
    return 1e-12 if name == "layer_norm_eps" else getattr(config, _SETTINGS.get(name, name))


def bert_state(model: Any) -> dict[str, Tensor]:
    """The weights of a BERT-like model under BERT's names."""

    def renamed(name: str) -> str:
        if name.startswith("transformer.layer."):
            for theirs, berts in _WEIGHTS.items():
                name = name.replace(theirs, berts)
        return name

    return {renamed(name): tensor for name, tensor in model.state_dict().items()}
