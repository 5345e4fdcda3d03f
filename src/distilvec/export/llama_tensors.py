"""The weights of a BERT-shaped student under the names and in the form that llama.cpp reads.

llama.cpp's BERT adds word, position and type embeddings of the blocks' width and normalises the sum. A student with a
narrow table (ELECTRA: rank r < d) normalises r numbers and maps them to the blocks by x = P z + c, where z is the
norm's output, without a norm behind the map. This is written as one more block that computes the map. Its parts:

- The tables are rotated into d numbers by orthonormal columns without a mean, so that the norm over d numbers gives
  what the norm over r gave.
- Attention gives zero. The feed-forward network is linear: gelu(a) - gelu(-a) = a.
- The norm behind it must not act. Its input is P z + m, with a constant m that is long and orthogonal to all P z, so
  that the deviation it divides by is nearly the same for all z. What it gives is scaled back, and m is subtracted.
- It subtracts the mean of P z. The next norm would do so anyway; the next queries, keys and values, which see it, get
  it back as a linear map of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError

Weights = dict[str, npt.NDArray[np.float32]]
#: Parts of a block in llama.cpp, in BERT and its like, and in DistilBERT.
_BLOCK = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_output_norm", "ffn_up", "ffn_down", "layer_output_norm")
_BERT = ("query", "key", "value", "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense")
_DISTIL = ("q_lin", "k_lin", "v_lin", "out_lin", "sa_layer_norm", "lin1", "lin2", "output_layer_norm")
_PARTS = dict(zip((*_BERT, "output.dense", "output.LayerNorm", *_DISTIL), _BLOCK * 2, strict=True))
_EMBEDDINGS = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}
#: Programs on llama.cpp read so many tokens where they are not told otherwise, in steps, whatever a file says. Beyond
#: its last position they crash.
_POSITIONS, _STEP = 512, 256
#: Length of m in units of the numbers beside it: more rounds more, less leaves more of the norm.
_LONG = 1_500.0
#: gelu(a) is a or 0 beyond 10, where llama.cpp uses no table of rounded values.
_STEEP = 1e4
#: Tensors of the block that computes the map, which are kept in float32.
EXACT = ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight")


def llama_weights(model: Any, where: str) -> tuple[Weights, bool]:
    """Name -> float32 tensor as llama.cpp's BERT reads them, and whether a block was added for a narrow table.

    The model is one of transformers: BERT, ELECTRA, RoBERTa, XLM-R, CamemBERT or DistilBERT.

    Raises:
        DistilvecError: a narrow table for which the feed-forward networks have too few units.
    """
    state = {name: value.detach().cpu().float().numpy() for name, value in model.state_dict().items()}
    # RoBERTa and its like count positions from behind the padding.
    shifted = model.config.model_type in ("camembert", "roberta", "xlm-roberta")
    first = model.config.pad_token_id + 1 if shifted else 0
    weights: Weights = {}
    for name, value in state.items():
        group, _, rest = name.partition(".")
        if group == "embeddings" and rest in _EMBEDDINGS:
            weights[_EMBEDDINGS[rest]] = value
        elif ".layer." in f".{name}":
            number, _, part = name.split("layer.", 1)[1].partition(".")
            stem, _, kind = part.removeprefix("attention.self.").rpartition(".")
            stem = stem if stem in _PARTS else stem.rpartition(".")[2]
            weights[f"blk.{number}.{_PARTS[stem]}.{kind}"] = value
    table = weights["position_embd.weight"][first:]
    rows = max(_POSITIONS, -(-len(table) // _STEP) * _STEP)  # the last position stands for those behind it
    weights["position_embd.weight"] = np.concatenate([table, np.repeat(table[-1:], rows - len(table), axis=0)])
    types = weights.get("token_types.weight", np.zeros((1, weights["token_embd.weight"].shape[1]), np.float32))
    weights["token_types.weight"] = types[:1]  # a text is of type 0
    if "embeddings_project.weight" not in state:
        return weights, False
    map_ = state["embeddings_project.weight"], state["embeddings_project.bias"]
    return _with_map(weights, map_, where), True


def _with_map(weights: Mapping[str, Any], map_: tuple[Any, Any], where: str) -> Weights:
    """The weights with one more block in front, which maps a narrow table to the width of the others."""
    slope, shift = (each.astype(np.float64) for each in map_)
    (width, rank), inner = slope.shape, len(weights["blk.0.ffn_up.weight"])
    if 2 * rank > inner or rank + 2 > width:
        raise DistilvecError(
            f"llama.cpp has no narrow table; the block that would replace it needs {2 * rank} units in each "
            f"feed-forward network and a width of {rank + 2}, and this model has {inner} and {width}",
            where=where,
            remedy=f"Cut the student with `embedding` of {min(inner // 2, width - 2)} at most, or export it as ONNX.",
        )
    later = {name: re.sub(r"^blk\.(\d+)", lambda found: f"blk.{int(found[1]) + 1}", name) for name in weights}
    made = {later[name]: value for name, value in weights.items() if not name.startswith("token_embd_norm")}
    gain, bias = (weights[f"token_embd_norm.{kind}"].astype(np.float64) for kind in ("weight", "bias"))
    slope, shift = slope * gain, slope @ bias + shift
    mean = slope.mean(axis=0)  # [r], of P z over the d numbers
    slope -= mean
    start = np.random.default_rng(0).normal(size=(width, rank + 1))
    start[:, 0] = 1.0
    turn = np.linalg.qr(start).Q[:, 1:] * np.sqrt(width / rank)  # [d, r], orthogonal columns without a mean
    for name in ("token_embd.weight", "position_embd.weight", "token_types.weight"):
        table = weights[name].astype(np.float64)
        made[name] = (table - table.mean(axis=1, keepdims=True)) @ turn.T
    long = _away_from(slope) * _LONG * np.sqrt((slope**2).sum() / width)
    up, down = np.zeros((inner, width)), np.zeros((width, inner))
    up[:rank], up[rank : 2 * rank] = turn.T * (rank / width) * _STEEP, -turn.T * (rank / width) * _STEEP
    down[:, :rank], down[:, rank : 2 * rank] = (slope - turn) / _STEEP, (turn - slope) / _STEEP
    zeros, none, ones = np.zeros((width, width)), np.zeros(width), np.ones(width)
    scale = np.sqrt(((long**2).sum() + (slope**2).sum()) / width)
    block = {
        **{f"attn_{each}.weight": zeros for each in ("q", "k", "v", "output")},
        **{f"attn_{each}.bias": none for each in ("q", "k", "v", "output")},
        **{"attn_output_norm.weight": ones, "attn_output_norm.bias": none},
        **{"ffn_up.weight": up, "ffn_up.bias": np.zeros(inner), "ffn_down.weight": down, "ffn_down.bias": long},
        **{"layer_output_norm.weight": scale * ones, "layer_output_norm.bias": shift - long},
    }
    made |= {f"blk.0.{name}": value for name, value in block.items()}
    made |= {"token_embd_norm.weight": ones, "token_embd_norm.bias": none}
    read = slope @ np.linalg.pinv(slope.T @ slope) @ mean  # [d], gives the mean from P z without it
    for part in ("q", "k", "v"):
        matrix, offset = (made[f"blk.1.attn_{part}.{kind}"].astype(np.float64) for kind in ("weight", "bias"))
        total = matrix.sum(axis=1)  # what a mean of one adds
        made[f"blk.1.attn_{part}.weight"] = matrix + np.outer(total, read)
        made[f"blk.1.attn_{part}.bias"] = offset - total * (read @ shift)
    return {name: np.ascontiguousarray(value, np.float32) for name, value in made.items()}


def _away_from(slope: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A vector [d] of mean square 1, orthogonal to the columns of [d, r] and to the vector of ones."""
    known = np.linalg.qr(np.concatenate([np.ones((len(slope), 1)), slope], axis=1)).Q
    vector = np.where(np.arange(len(slope)) % 2, 1.0, -1.0)
    for _ in range(2):  # the second time removes what rounding left
        vector = vector - known @ (known.T @ vector)
    return vector * np.sqrt(len(slope)) / np.linalg.norm(vector)
