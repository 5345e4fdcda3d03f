"""A tiny folder in the layout of nomic-embed-text-v2-moe, and what it must compute, one number after the other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests import tiny_models
from torch import Tensor

WIDTH, HEADS, LAYERS, INNER, EXPERTS = 16, 2, 4, 24, 4
TEXTS = ["hello", "The train to Zürich leaves from platform 7 at 14:32.", "東京は今日も雨です。", ""]


def configuration(**changes: Any) -> dict[str, Any]:
    """The published fields, with small sizes."""
    return {
        "activation_function": "gelu",
        "add_pooling_layer": False,
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": {
            "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
        },
        "causal": False,
        "embd_pdrop": 0.1,
        "expert_choice_router": False,
        "ffn_div": 1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": True,
        "mlp_fc2_bias": True,
        "model_type": "nomic_bert",
        "moe_every_n_layers": 2,
        "moe_impl": "megablocks",
        "moe_normalize_expert_weights": False,
        "moe_resid_pdrop": 0.0,
        "moe_top_k": 2,
        "n_embd": WIDTH,
        "n_head": HEADS,
        "n_inner": INNER,
        "n_layer": LAYERS,
        "n_positions": 2048,
        "num_experts": EXPERTS,
        "num_shared_experts": 0,
        "pad_token_id": 1,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": True,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 10000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "router_aux_loss_coef": 0.1,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "torch_dtype": "float32",
        "type_vocab_size": 1,
        "use_flash_attn": True,
        "use_rms_norm": None,
        "vocab_size": 448,
        **changes,
    }


def weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random float32 weights under the published names."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    d, f, e = config["n_embd"], config["n_inner"], config["num_experts"]
    found = {
        "embeddings.word_embeddings.weight": some(config["vocab_size"], d),
        "embeddings.token_type_embeddings.weight": some(1, d),
        "emb_ln.weight": 1 + some(d),
        "emb_ln.bias": some(d),
    }
    for index in range(config["n_layer"]):
        shapes = {"attn.Wqkv": (3 * d, d), "attn.out_proj": (d, d)}
        if index % 2 == 0:
            shapes |= {"mlp.fc1": (f, d), "mlp.fc2": (d, f)}
        block = {}
        for name, shape in shapes.items():
            block |= {f"{name}.weight": some(*shape), f"{name}.bias": some(shape[0])}
        for name in ("norm1", "norm2"):
            block |= {f"{name}.weight": 1 + some(d), f"{name}.bias": some(d)}
        if index % 2 == 1:
            block |= {"mlp.router.layer.weight": 3 * some(e, d), "mlp.experts.bias": some(d)}
            block |= {"mlp.experts.mlp.w1": some(e * f, d), "mlp.experts.mlp.w2": some(e * f, d)}
        found |= {f"encoder.layers.{index}.{name}": tensor for name, tensor in block.items()}
    return found


def write(folder: Path, tensors: dict[str, Tensor] | None = None, shards: int = 1, **changes: Any) -> Path:
    """The folder as it is published: weights in one file or several, tokenizer, pooling, prompts."""
    folder.mkdir(parents=True)
    config = configuration(**changes)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = weights(config) if tensors is None else tensors
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    else:
        names = sorted(tensors)
        files = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
        for file in set(files.values()):
            part = {name: tensors[name] for name in names if files[name] == file}
            save_file(part, folder / file, {"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    tiny_models.KINDS["xlmr"]["tokenizer"]().save_pretrained(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config["n_embd"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "2_Normalize").mkdir()
    prompts = {"query": "search_query: ", "passage": "search_document: "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder


def states(tensors: dict[str, Tensor], ids: list[int], top_k: int = 2) -> Tensor:
    """Last states [S, d] of one text, float64, by loops over heads, tokens and experts."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    table = w["embeddings.word_embeddings.weight"]
    x = torch.stack([table[i] + w["embeddings.token_type_embeddings.weight"][0] for i in ids])
    x = _norm(x, w, "emb_ln")
    for index in range(LAYERS):
        at = f"encoder.layers.{index}."
        x = _norm(x + _attention(x, w, at + "attn."), w, at + "norm1")
        if index % 2 == 1:
            mixed = torch.stack([mixture(token, w, at + "mlp.", top_k) for token in x])
        else:
            inner = [_gelu(w[at + "mlp.fc1.weight"] @ token + w[at + "mlp.fc1.bias"]) for token in x]
            mixed = torch.stack([w[at + "mlp.fc2.weight"] @ y + w[at + "mlp.fc2.bias"] for y in inner])
        x = _norm(x + mixed, w, at + "norm2")
    return x


def mixture(token: Tensor, w: dict[str, Tensor], at: str, top_k: int) -> Tensor:
    """[d] -> [d]: probabilities of all experts, the best few not renormalised, one bias."""
    scores = [math.exp(float(row @ token)) for row in w[at + "router.layer.weight"]]
    experts = sorted(range(len(scores)), key=lambda e: -scores[e])[:top_k]
    rows = len(w[at + "experts.mlp.w1"]) // len(scores)
    total = torch.zeros_like(token)
    for e in experts:
        first, second = (w[at + f"experts.mlp.{name}"][e * rows : (e + 1) * rows] for name in ("w1", "w2"))
        hidden = first @ token + (w[at + "experts.mlp.b1"][e * rows : (e + 1) * rows] if _has_bias(w, at) else 0)
        total += scores[e] / sum(scores) * sum(_gelu(hidden[j]) * second[j] for j in range(rows))
    return total + w[at + "experts.bias"]


def _has_bias(w: dict[str, Tensor], at: str) -> bool:
    return at + "experts.mlp.b1" in w


def _attention(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    size = WIDTH // HEADS
    packed = x @ w[at + "Wqkv.weight"].mT + w[at + "Wqkv.bias"]
    query, key, value = packed[:, :WIDTH], packed[:, WIDTH : 2 * WIDTH], packed[:, 2 * WIDTH :]
    heads = []
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        turned = [[turn(row[part], p) for p, row in enumerate(side)] for side in (query, key)]
        rows = []
        for q in turned[0]:
            scores = torch.stack([q @ k for k in turned[1]]) / math.sqrt(size)
            rows.append(scores.softmax(0) @ value[:, part])
        heads.append(torch.stack(rows))
    return torch.cat(heads, -1) @ w[at + "out_proj.weight"].mT + w[at + "out_proj.bias"]


def turn(vector: Tensor, position: int, base: float = 10000.0) -> Tensor:
    """Components j and j + size / 2 turned by position * base^(-2j / size)."""
    half = len(vector) // 2
    found = vector.clone()
    for j in range(half):
        angle = position * base ** (-2 * j / len(vector))
        a, b = vector[j], vector[j + half]
        found[j] = a * math.cos(angle) - b * math.sin(angle)
        found[j + half] = a * math.sin(angle) + b * math.cos(angle)
    return found


def _gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def _norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name + ".weight"] + w[name + ".bias"]
