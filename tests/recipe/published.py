"""What the papers, and where they are silent their published code, say about the settings of each `paper-*` recipe.

A setting that a paper does not name is off: no warm-up, no clipping. "[P]" is the paper, "[C]" published code.
"""

from __future__ import annotations

from typing import Any

#: Recipe -> key of the resolved recipe -> value. `schedule`, `warmup` (a share of all steps, or steps) and `clip` (0 is
#: none) are those that the trainer gets; `batch` is the effective one; `options.*` are the method's, preset included.
PUBLISHED: dict[str, dict[str, Any]] = {}


def _add(names: str, *parts: dict[str, Any], **given: Any) -> None:
    for name in names.split():
        PUBLISHED[name] = {key.replace("__", "."): value for part in (*parts, given) for key, value in part.items()}


#: TALAS [P] Table 5 and section D: one unified protocol. Position 0 of the student [C]; AdamW's own weight decay.
_TALAS = {
    "schedule": "cosine",
    "warmup": 0,
    "clip": 0,
    "lr": 2e-5,
    "heads_lr": 2e-5,
    "weight_decay": 0.01,
    "batch": 32,
    "epochs": 5,
    "pooling": "cls",
    "max_length": 256,
}
_add(
    "paper-talas",
    _TALAS,
    options__preset="paper",
    options__simcse_weight=0.001,
    options__tamd_weight=0.75,
    options__lasd_weight=1.0,
    options__anchored_layers=2,
    options__layers=None,
    options__from_embeddings=False,
    options__guide="coupled",
    sharpness="asam",
)
# [C] distiller.py and config: heads at five times the rate, 6 % warm-up, floor of 2e-6, ASAM of 0.05 with |w|, tau 0.1.
_add(
    "paper-talas-code",
    PUBLISHED["paper-talas"],
    schedule="cosine_with_min_lr",
    floor=2e-6,
    warmup=0.06,
    heads_lr=1e-4,
    options__preset="code",
    options__temperature=0.1,
    options__from_embeddings=True,
    rho=0.05,
    eta=0.0,
)
_add("paper-cosine paper-mse paper-relational", _TALAS)
_add("paper-jasper-stella", _TALAS, epochs=7, options__heads_share=0.2857)  # [P] 2 + 5 epochs, two stages
# [P] Table 5 for the rate; the projection's 1e-3 is that of EMO's own code [C].
_add("paper-emo", _TALAS, heads_lr=1e-3, options__alpha=0.5, options__layers=2, options__ira_weight=1.0)
# [C] emo_config.py: 5e-5 for student and projection, 10 % warm-up, one layer, attention weighed by 0.1.
_add(
    "paper-emo-code",
    _TALAS,
    schedule="cosine_with_min_lr",
    floor=2e-6,
    warmup=0.1,
    lr=5e-5,
    heads_lr=5e-5,
    options__alpha=0.5,
    options__layers=1,
    options__ira_weight=0.1,
    options__epsilon=0.1,
    options__iterations=100,
    options__temperature=0.05,
)
#: EMO [P] Table 7 and DistillMoE [P] Table 4: AdamW 1e-5, cosine, batch 4, 5 epochs.
_LABELS = {
    "schedule": "cosine",
    "warmup": 0,
    "clip": 0,
    "lr": 1e-5,
    "heads_lr": 1e-5,
    "weight_decay": 0.01,
    "batch": 4,
    "epochs": 5,
    "pooling": "cls",
}
#: [C] A classifier as BERT's own: dropout of 0.1 before one linear map.
_HEAD = {"task_dropout": 0.1}
_add("paper-sft paper-uld paper-mined paper-multilevel-ot paper-cdm", _LABELS, _HEAD)
_add("paper-dskd", _LABELS, _HEAD, heads_lr=1e-3)  # [C] projectors
_add("paper-emo-supervised", _LABELS, _HEAD, heads_lr=1e-3, options__layers=2, options__share=1 / 3)
_MOE = {
    "options.moe_weight": 0.8,
    "options.layers": 3,
    "options.mass": 0.9,
    "options.width": 1024,
    "options.gate": "linear",
    "options.dropout": 0.1,
    "options.floor_weight": 1.0,
}
_add("paper-distillmoe", _LABELS, _MOE)
_add("paper-distillmoe-supervised", _LABELS, _HEAD, _MOE)
# [P] Table 16: "identical hyperparameter choices where possible". The experts read the answer's last token.
_add("paper-distillmoe-writing", _LABELS, _MOE, pooling=None, max_length=512)

#: Many teachers [P] appendices B and G: Adam, which has no decay; no schedule.
_ADAM = {"schedule": "constant", "warmup": 0, "weight_decay": 0.0, "clip": 0}
_IMAGES = {**_ADAM, "lr": 1e-3, "heads_lr": 1e-3, "batch": 128, "epochs": 50}
_add("paper-gaussian-images paper-multi-mse paper-multi-cosine", _IMAGES)
_add(
    "paper-gaussian-molecules",
    _ADAM,
    lr=1e-4,
    heads_lr=1e-4,
    batch=256,
    epochs=400,
    options__depth=3,
    options__width=1024,
)
# [C] AdamW, clipping at 0.5, kernels 1.4 times as wide as the teacher, bounded deviation.
_add(
    "paper-gaussian-text",
    _ADAM,
    weight_decay=0.01,
    clip=0.5,
    lr=5e-5,
    heads_lr=5e-5,
    batch=2048,
    options__depth=3,
    options__width_factor=1.4,
    options__bound="tanh",
)
# SBA [P] section B: AdamW 2e-6, linear with 10 % warm-up, three epochs, effective batch 64, tau 0.05.
_add(
    "paper-sba",
    schedule="linear",
    warmup=0.1,
    clip=0,
    lr=2e-6,
    batch=64,
    epochs=3,
    aggregation="sba",
    options__temperature=0.05,
)
# SimCSE and DistillCSE [C]: transformers' trainer with its defaults (linear decay, no decay of weights, clipping at 1).
_TRAINER = {
    "schedule": "linear",
    "warmup": 0,
    "clip": 1.0,
    "lr": 3e-5,
    "weight_decay": 0.0,
    "batch": 64,
    "pooling": "cls",
    "max_length": 32,
    "options.mlp": True,
    "options.temperature": 0.05,
}
_add("paper-simcse", _TRAINER, epochs=1)
_add("paper-distillcse", _TRAINER, max_steps=5000, options__group_p=0.1)
# DistilCSE [C]: a tenth of an epoch of warm-up in 20, betas 0.9 and 0.98, clipping at 1.
_add(
    "paper-distilcse",
    schedule="cosine",
    warmup=0.005,
    clip=1.0,
    lr=2e-4,
    batch=512,
    epochs=20,
    pooling="cls",
    max_length=64,
    adam_beta2=0.98,
    options__queue=65_536,
)
# LEAF [P]: 1e-4, batch 32, three cycles of ten epochs, unit targets, mean pooling.
_add(
    "paper-leaf",
    schedule="cosine_with_restarts",
    warmup=0,
    clip=0,
    lr=1e-4,
    batch=32,
    epochs=30,
    pooling="mean",
    options__unit_target=True,
)

# [C] matchmaker, config/train/defaults.yaml: Adam at 7e-6 without decay, 32 triplets, passages of 200 pieces. [P] Dot
# products, the scorers' margins as they are.
_add(
    "paper-margin-mse",
    schedule="constant",
    warmup=0,
    clip=0,
    lr=7e-6,
    weight_decay=0.0,
    batch=32,
    pooling="cls",
    max_length=200,
    options__preset="paper",
    options__similarity="dot",
    options__raw=True,
)
# [P] Dot products of mean-pooled BERT, scores as they are; rate and batch are ours, and the recipe says so.
_add(
    "paper-score-kl",
    schedule="linear",
    warmup=0,
    clip=0,
    lr=7e-6,
    batch=16,
    pooling="mean",
    options__preset="paper",
    options__similarity="dot",
    options__raw=True,
)
