"""Turning a dense encoder into a mixture of experts that starts where the dense one is."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_transformer
from distilvec.modules.moe_encoder import MoeEncoder, MoeEncoderConfig
from distilvec.modules.opening import open_pipeline
from distilvec.students.electra import bert_setting, bert_state
from distilvec.students.load import load_student

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

#: Types whose blocks are BERT's -> whether positions count from the row after padding's.
_TYPES = {
    "bert": False,
    "roberta": True,
    "xlm-roberta": True,
    "camembert": True,
    "electra": False,
    "distilbert": False,
}
_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)
_ROUTER_SPREAD = 0.02


def upcycle(
    model: str | Path | SentenceTransformer,
    experts: int = 8,
    top_k: int = 2,
    every: int = 2,
    noise: float = 0.01,
    seed: int = 0,
) -> SentenceTransformer:
    """A mixture-of-experts encoder whose experts are copies of a dense encoder's feed-forward blocks.

    The weights of a token's experts are renormalised, so without noise it gives exactly the dense model's vectors; the
    noise and the fresh router (normal, standard deviation 0.02) are what lets the experts part. Train it with a loss
    for load balance (`distilvec.modules.routing.router_balance`).

    Args:
        model: BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, DistilBERT or ELECTRA, as a folder, a hub id or a loaded
            sentence-transformers model, which stays as it is.
        experts: E >= 1, in each mixture.
        top_k: experts per token, 1 to E.
        every: a mixture in every so manieth block, counted from the end of each group: 2 = blocks 2, 4, 6, as in
            nomic-embed-text-v2-moe; 1 = in all.
        noise: standard deviation of what is added to an expert's weight matrices, in units of their own.
        seed: of noise and router.

    Raises:
        DistilvecError: an architecture whose blocks are not BERT's, sizes that cannot be, or fewer than `every` blocks.
    """
    dense = load_student(model) if isinstance(model, str | Path) else model
    transformer = find_transformer(dense)
    source: Any = None if transformer is None else transformer.model
    _refuse(source)
    settings, weights = _as_bert(source)
    count = settings["num_hidden_layers"]
    if not 1 <= top_k <= experts or not 1 <= every <= count or noise < 0:
        raise DistilvecError(
            f"experts {experts}, top_k {top_k}, every {every}, noise {noise}: this cannot be made of {count} blocks",
            remedy="Choose 1 <= top_k <= experts, 1 <= every <= number of blocks, noise >= 0.",
        )
    config = MoeEncoderConfig(
        **settings,
        embedding_dropout=settings["hidden_dropout_prob"],
        positions="absolute",
        position_padding=settings["pad_token_id"] if _TYPES[source.config.model_type] else None,
        layer_kinds=["dense" if number % every else "mixture" for number in range(1, count + 1)],
        num_experts=experts,
        experts_per_token=top_k,
        normalize_weights=True,
        expert_bias=True,
    )
    mixture = MoeEncoder(config)
    mixture.load_state_dict(_weights(weights, config, noise, seed))
    return _beside_its_modules(dense, transformer, mixture)


def _refuse(encoder: Any) -> None:
    """Refuse an encoder without blocks like BERT's, or with a layer that a mixture of experts has no place for."""
    from transformers.activations import ACT2FN

    config: Any = getattr(encoder, "config", None)
    kind = getattr(config, "model_type", None)
    activation = None if kind not in _TYPES else bert_setting(config, "hidden_act")
    if getattr(config, "is_decoder", False) or activation not in ACT2FN:
        raise DistilvecError(
            f"an encoder of type {kind} cannot be turned into a mixture of experts",
            remedy=f"Start from an encoder of one of these types: {', '.join(sorted(_TYPES))}.",
        )
    if kind == "electra" and config.embedding_size != config.hidden_size:
        raise DistilvecError(
            f"an ELECTRA that projects embeddings of width {config.embedding_size} to blocks of width "
            f"{config.hidden_size} cannot be turned into a mixture of experts, which has no layer for it",
            remedy="Start from one whose embedding_size is its hidden_size, as the base and large ones' are.",
        )


def _as_bert(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of an encoder of `_TYPES` under BERT's names."""
    config, weights, own = model.config, bert_state(model), {}
    if config.model_type == "distilbert":
        # Two types of token as in BERT, for tokenizers that tell a second text from the first; both add nothing.
        # In training the mixture also drops after the attention, as BERT does and DistilBERT does not.
        own = {"type_vocab_size": 2}
        weights["embeddings.token_type_embeddings.weight"] = torch.zeros(2, config.dim)
    return own | {name: bert_setting(config, name) for name in _SETTINGS if name not in own}, weights


def _weights(dense: dict[str, Tensor], config: MoeEncoderConfig, noise: float, seed: int) -> dict[str, Tensor]:
    """BERT's state dict under our names, its feed-forward layers repeated for the experts."""
    weights = {
        f"embeddings.{name}.weight": dense[f"embeddings.{name}.weight"]
        for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
    }
    generator = torch.Generator().manual_seed(seed)

    def both(theirs: str, ours: str) -> None:
        weights.update({f"{ours}.{part}": dense[f"{theirs}.{part}"] for part in ("weight", "bias")})

    both("embeddings.LayerNorm", "emb_ln")
    for index, kind in enumerate(config.layer_kinds or ()):
        old, new = f"encoder.layer.{index}", f"encoder.layers.{index}"
        for part in ("weight", "bias"):
            joined = [dense[f"{old}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            weights[f"{new}.attn.Wqkv.{part}"] = torch.cat(joined)
        both(f"{old}.attention.output.dense", f"{new}.attn.out_proj")
        both(f"{old}.attention.output.LayerNorm", f"{new}.norm1")
        both(f"{old}.output.LayerNorm", f"{new}.norm2")
        if kind == "dense":
            both(f"{old}.intermediate.dense", f"{new}.mlp.fc1")
            both(f"{old}.output.dense", f"{new}.mlp.fc2")
            continue
        first, second = dense[f"{old}.intermediate.dense.weight"], dense[f"{old}.output.dense.weight"].mT
        experts = f"{new}.mlp.experts"
        weights[f"{experts}.mlp.w1"] = _copies(first, config.num_experts, noise, generator)
        weights[f"{experts}.mlp.w2"] = _copies(second, config.num_experts, noise, generator)
        weights[f"{experts}.mlp.b1"] = dense[f"{old}.intermediate.dense.bias"].repeat(config.num_experts)
        # The weights sum to 1, so one bias after the sum is the dense layer's.
        weights[f"{experts}.bias"] = dense[f"{old}.output.dense.bias"]
        router = torch.randn(config.num_experts, config.hidden_size, generator=generator)
        weights[f"{new}.mlp.router.layer.weight"] = _ROUTER_SPREAD * router
    return weights


def _copies(weight: Tensor, count: int, noise: float, generator: torch.Generator) -> Tensor:
    """[F, d] -> [count * F, d], each copy with noise of its own."""
    copies = weight.detach().float().cpu().repeat(count, 1)
    return copies + noise * weight.detach().float().std().cpu() * torch.randn(copies.shape, generator=generator)


def _beside_its_modules(dense: SentenceTransformer, transformer: Any, mixture: MoeEncoder) -> SentenceTransformer:
    """The dense model's tokenizer, pooling and what follows, around another encoder; opened as after any saving."""
    name = transformer.model.config._name_or_path
    with tempfile.TemporaryDirectory() as folder:
        dense.save_pretrained(folder, create_model_card=False)
        place = Path(folder)
        for old in [*place.glob("*.safetensors"), *place.glob("*.safetensors.index.json")]:
            old.unlink()
        mixture.save_pretrained(folder)
        settings = place / "sentence_bert_config.json"
        kept: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
        kept.get("model_kwargs", {}).pop("add_pooling_layer", None)
        settings.write_text(json.dumps(kept), encoding="utf-8")
        student = open_pipeline(folder, device=str(dense.device), model_kwargs={"dtype": torch.float32})
    inner: Any = student[0]
    inner.model.name_or_path = inner.model.config._name_or_path = name
    logger.info("%s is a mixture of %d experts now", name or "the model", mixture.config.num_experts)
    return student.train(dense.training)
