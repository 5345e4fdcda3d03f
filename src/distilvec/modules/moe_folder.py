"""Opening nomic-embed-text-v2-moe as published, or a folder of its layout, without the code it asks for."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DataError, DistilvecError

if TYPE_CHECKING:  # recipes import files that import this one, and reading one takes no torch
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.moe_encoder import MoeEncoderConfig

__all__ = ["is_nomic_moe", "open_moe"]

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

#: Argument of `SentenceTransformer` about the hub -> the hub's word for it.
_HUB = {"cache_folder": "cache_dir", "revision": "revision", "token": "token", "local_files_only": "local_files_only"}


def is_nomic_moe(source: str | Path, **arguments: Any) -> bool:
    """Tell whether a folder or hub id is a model of nomic-embed-text-v2-moe's published type: `open_moe` opens it.

    transformers' own class for that type knows no mixtures and would make up most of the weights.

    Args:
        source: folder or hub id; what is neither is none.
        **arguments: of `SentenceTransformer`; those about the hub are used.
    """
    from transformers import PreTrainedConfig

    try:
        if Path(source).exists():
            config = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
        else:
            config = PreTrainedConfig.get_config_dict(str(source), **_of_the_hub(arguments))[0]
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "nomic_bert" and bool(config.get("num_experts"))


def open_moe(source: str | Path, **arguments: Any) -> SentenceTransformer:
    """A mixture-of-experts encoder with its tokenizer, pooling and prompts; no code that comes with it is run.

    Args:
        source: the published folder of nomic-embed-text-v2-moe or its hub id, one of its layout, or a folder that
            distilvec has saved.
        **arguments: of `SentenceTransformer`. Weights are read as float32 unless `model_kwargs` names another dtype.

    Raises:
        DistilvecError: no such folder, or not a mixture-of-experts encoder.
        DataError: the configuration asks for something that this encoder does not have, or a weight is missing,
            unknown, or of another shape than the configuration says; it is named.
    """
    from distilvec.modules.guarded import open_modules
    from distilvec.modules.moe_encoder import MoeEncoderConfig

    given: dict[str, Any] = dict(arguments.pop("model_kwargs", None) or {})
    given.pop("add_pooling_layer", None)  # what transformers' own class for that type would want to know
    arguments["model_kwargs"] = {"use_safetensors": True, "dtype": "float32", **given}
    place = Path(source).expanduser()
    if is_nomic_moe(source, **arguments):
        return _open_published(place if place.exists() else _download(str(source), arguments), str(source), arguments)
    if not (place / "config.json").is_file():
        raise DistilvecError("there is no model here: config.json is missing", where=str(place))
    own = json.loads((place / "config.json").read_text(encoding="utf-8"))
    if own.get("model_type") != MoeEncoderConfig.model_type:
        raise DistilvecError("this is no mixture-of-experts encoder", where=str(place))
    return open_modules(str(place), **arguments)


def _open_published(place: Path, name: str, arguments: dict[str, Any]) -> SentenceTransformer:
    from distilvec.modules.guarded import open_modules

    config = _translate(place / "config.json")
    _check_weights(place, config)
    with tempfile.TemporaryDirectory() as folder:
        # The same folder with our configuration in it. Code is left behind.
        for entry in place.iterdir():
            if entry.name != "config.json" and entry.suffix != ".py":
                os.symlink(entry.resolve(), Path(folder) / entry.name)
        config.save_pretrained(folder)
        model = open_modules(folder, **{key: value for key, value in arguments.items() if key not in _HUB})
    inner: Any = model[0]
    inner.model.name_or_path = inner.model.config._name_or_path = name
    return model


def _of_the_hub(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what `SentenceTransformer` was told about the hub, in the hub's words."""
    return {_HUB[name]: value for name, value in arguments.items() if name in _HUB and value is not None}


def _download(source: str, arguments: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt"]
    return Path(snapshot_download(source, allow_patterns=wanted, **_of_the_hub(arguments)))


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
    from safetensors import SafetensorError, safe_open

    from distilvec.modules.moe_encoder import MoeEncoder

    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in MoeEncoder(config).state_dict().items()}
    shapes: dict[str, list[int]] = {}
    for file in _shards(folder):
        try:
            with safe_open(file, framework="pt") as shard:
                shapes.update({name: shard.get_slice(name).get_shape() for name in shard.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as problem:
            raise DataError(f"the weights cannot be read: {problem}", where=str(file)) from problem
    for what, names in (("missing", expected.keys() - shapes), ("unknown", shapes.keys() - expected)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise DataError(f"weight {min(names)}{more} {'is' if not more else 'are'} {what}", where=str(folder))
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise DataError(f"weight {name} is {shapes[name]}, the configuration says {shape}", where=str(folder))


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(named.values()))]
