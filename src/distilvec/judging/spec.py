"""The description of a task: what a file or a mapping may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from distilvec.judging.perceptron import Target

Source = str | list[dict[str, Any]]


class TaskSpec(BaseModel):
    """A description of one task; files are .jsonl, .json, .csv, .tsv (also .gz, .zst) and .parquet.

    Which keys a kind reads: classification and regression `train`, `test`, `validation`, `text` and `label`
    or `score`; pairs and similarity `test`, `text1`, `text2` and `label` or `score`; clustering `test`,
    `text`, `label`; retrieval `queries`, `corpus`, `qrels`, or `test` with the columns `query` and
    `document`; neighbours (retrieval without labels) `corpus` and `text`, `queries` and `query`, and `teacher` where no
    run brings one; perceptron (images, molecules) `train`, `text` and `label` or `score`, and `test` and
    `validation` where the split is not to be drawn.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    kind: Literal[
        "classification",
        "regression",
        "pairs",
        "similarity",
        "clustering",
        "retrieval",
        "neighbours",
        "perceptron",
    ]
    domain: Literal["in", "out"] | None = None
    train: Source | None = None
    validation: Source | None = None
    test: Source | None = None
    queries: Source | None = None
    corpus: Source | None = None
    qrels: Source | None = None
    text: str = "text"
    text1: str = "text1"
    text2: str = "text2"
    label: str = "label"
    score: str = "score"
    query: str = "query"
    document: str = "document"
    positive: str | int | bool | None = Field(None, description="pairs: the label that means alike")
    protocol: Literal["talas", "tuned"] = "talas"
    max_train: int | None = Field(None, gt=1, description="probes: cap on training rows, a seeded sample")
    max_items: int | None = Field(None, gt=1, description="clustering, neighbours: cap on items, a seeded sample")
    max_queries: int = Field(500, gt=0, description="neighbours: cap on queries, a seeded sample")
    depth: int = Field(10, gt=0, description="neighbours: how many of the teacher's nearest are right")
    teacher: str | None = Field(None, description="neighbours: folder or hub id; null = the run's teacher")
    target: Target = Field("classification", description="perceptron: what is predicted")
    probe: Literal["molecules", "images"] = Field("molecules", description="perceptron: the paper's settings for these")
    log: bool = Field(False, description="perceptron: regression on logarithms")
    seeds: int = Field(5, ge=1, description="perceptron: number of splits and start weights")
    seed: int = Field(0, ge=0)
    exclude: frozenset[str] = Field(frozenset(), description="test items with one of these texts are left out")
