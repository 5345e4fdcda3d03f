"""Opening nomic-embed-text-v2-moe as published, or a folder of its layout, without the code it asks for."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DataError
from distilvec.modules.settings import shards, tensor_shapes

if TYPE_CHECKING:  # recipes import files that import this one, and reading one takes no torch
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.moe_encoder import MoeEncoderConfig

#: Field of the published configuration -> ours.
_SIZES = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "num_experts": "num_experts",
    "moe_top_k": "experts_per_token",
    "n_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "pad_token_id": "pad_token_id",
    "rotary_emb_base": "rotary_base",
    "embd_pdrop": "embedding_dropout",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
#: Fields whose other values mean another architecture. What is absent has this value; so have null and 0 where it is
#: false.
_FIXED: dict[str, Any] = {
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "causal": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "num_shared_experts": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": False,
    "rotary_scaling_factor": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}


def open_moe(folder: str | Path, **arguments: Any) -> SentenceTransformer:
    """A mixture-of-experts encoder with its tokenizer, pooling and prompts; no code that comes with it is run.

    Args:
        folder: one that `is_nomic_moe`.
        **arguments: of `SentenceTransformer`. Weights are read as float32 unless `model_kwargs` names another dtype.

    Raises:
        DataError: the configuration asks for something that this encoder does not have, or a weight is missing,
            unknown, or of another shape than the configuration says; it is named.
    """
    from distilvec.modules.guarded import open_modules

    given: dict[str, Any] = dict(arguments.pop("model_kwargs", None) or {})
    given.pop("add_pooling_layer", None)  # what transformers' own class for that type would want to know
    place = Path(folder)
    config = _translate(place / "config.json")
    _check_weights(place, config)
    with tempfile.TemporaryDirectory() as ours:
        # The same folder with our configuration in it. Code is left behind.
        for entry in place.iterdir():
            if entry.name != "config.json" and entry.suffix != ".py":
                os.symlink(entry.resolve(), Path(ours) / entry.name)
        config.save_pretrained(ours)
        model = open_modules(ours, model_kwargs={"use_safetensors": True, "dtype": "float32", **given}, **arguments)
    inner: Any = model[0]
    inner.model.name_or_path = inner.model.config._name_or_path = str(folder)
    return model


def _translate(file: Path) -> MoeEncoderConfig:
    """The published configuration in our words."""
    from distilvec.modules.moe_encoder import MoeEncoderConfig

    given: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    absent = [name for name in (*_SIZES, "moe_every_n_layers") if name not in given]
    if absent:
        raise DataError(f"the configuration does not say {absent[0]}", where=str(file))
    fixed = {**_FIXED, "moe_resid_pdrop": given["resid_pdrop"]}
    for name, value in fixed.items():
        if (given.get(name, value) or False) != (value or False):
            raise DataError(f"{name} is {given[name]!r}, this encoder knows {value!r} only", where=str(file))
    normalize = given.get("moe_normalize_expert_weights") or 0  # megablocks: the order of a norm, 0 = none
    if normalize not in (0, 1):
        raise DataError(f"moe_normalize_expert_weights is {normalize!r}, this encoder knows 0 and 1", where=str(file))
    every = given["moe_every_n_layers"]
    try:
        return MoeEncoderConfig(
            layer_kinds=["mixture" if every and index % every == 1 else "dense" for index in range(given["n_layer"])],
            normalize_weights=bool(normalize),
            **{ours: given[theirs] for theirs, ours in _SIZES.items()},
        )
    except (TypeError, ValueError) as problem:
        raise DataError(f"the configuration cannot be: {problem}", where=str(file)) from problem


def _check_weights(folder: Path, config: MoeEncoderConfig) -> None:
    """Exactly the tensors that the configuration asks for, in their shapes; only headers are read."""
    import torch

    from distilvec.modules.moe_encoder import MoeEncoder

    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in MoeEncoder(config).state_dict().items()}
    shapes: dict[str, list[int]] = {}
    for file in shards(folder):
        shapes |= tensor_shapes(file)
    for what, names in (("missing", expected.keys() - shapes), ("unknown", shapes.keys() - expected)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise DataError(f"weight {min(names)}{more} {'is' if not more else 'are'} {what}", where=str(folder))
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise DataError(f"weight {name} is {shapes[name]}, the configuration says {shape}", where=str(folder))
