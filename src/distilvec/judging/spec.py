"""The description of a task: what a file or a mapping may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from distilvec.corpus.tables import given_rows, is_dataset, is_table
from distilvec.judging.perceptron_fit import Target
from distilvec.judging.retrieval import DEPTH

Source = str | list[dict[str, Any]]

_PROBE = {"train", "validation", "test", "exclude", "text"}
#: What each kind reads beside `name`, `kind`, `domain` and `seed`.
READ_BY: dict[str, set[str]] = {
    "classification": {*_PROBE, "label", "protocol", "max_train"},
    "regression": {*_PROBE, "score", "protocol", "max_train"},
    "pairs": {"test", "exclude", "text1", "text2", "label", "positive"},
    "similarity": {"test", "exclude", "text1", "text2", "score"},
    "clustering": {"test", "exclude", "text", "label", "max_items"},
    "retrieval": {"test", "exclude", "query", "document", "queries", "corpus", "qrels", "text"},
    "neighbours": {"queries", "corpus", "text", "query", "teacher", "depth", "max_items", "max_queries"},
    "generation": {"test", "exclude", "prompt", "answer", "separator", "longest", "samples"},
    "perceptron": {*_PROBE, "label", "score", "target", "probe", "log", "seeds"},
}


class TaskSpec(BaseModel):
    """A description of one task; files are .jsonl, .json, .csv, .tsv (also .gz, .zst) and .parquet.

    Which keys a kind reads is in `READ_BY`; another one is refused. Retrieval takes `queries`, `corpus` and `qrels`, or
    `test` with the columns `query` and `document`; neighbours (retrieval without labels) needs `teacher` where no run
    brings one; perceptron (images, molecules) takes `test` and `validation` where the split is not to be drawn.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, description="of its column and of its line in the report")
    kind: Literal[
        "classification",
        "regression",
        "pairs",
        "similarity",
        "clustering",
        "retrieval",
        "neighbours",
        "perceptron",
        "generation",
    ]
    domain: Literal["in", "out"] | None = Field(
        None, description="whether its texts are like the corpus; these have averages of their own"
    )
    train: Source | None = Field(None, description="probes: what they are fitted to")
    validation: Source | None = Field(None, description="probes: what settings are chosen on")
    test: Source | None = Field(None, description="what is scored; of retrieval, a query and its document per row")
    queries: Source | None = Field(None, description="retrieval (BEIR) and neighbours")
    corpus: Source | None = Field(None, description="retrieval (BEIR) and neighbours: the documents")
    qrels: Source | None = Field(None, description="retrieval (BEIR): which documents are right")
    text: str = Field("text", description="column of the text")
    text1: str = Field("text1", description="pairs, similarity: column of the first text")
    text2: str = Field("text2", description="pairs, similarity: column of the second text")
    label: str = Field("label", description="column of the label")
    score: str = Field("score", description="regression, similarity: column of the number")
    query: str = Field("query", description="retrieval, neighbours: column of the query")
    document: str = Field("document", description="retrieval: column of the document")
    positive: str | int | bool | None = Field(
        None, description="pairs: the label that means alike; null = labels are 0 and 1, or true and false"
    )
    protocol: Literal["talas", "tuned"] = Field(
        "talas", description="classification, regression: how the probe is fitted"
    )
    max_train: int | None = Field(None, gt=1, description="probes: cap on training rows, a seeded sample")
    max_items: int | None = Field(None, gt=1, description="clustering, neighbours: cap on items, a seeded sample")
    max_queries: int = Field(500, gt=0, description="neighbours: cap on queries, a seeded sample")
    depth: int = Field(10, gt=0, le=DEPTH, description="neighbours: how many of the teacher's nearest are right")
    teacher: str | None = Field(None, description="neighbours: folder or hub id; null = the run's teacher")
    target: Target = Field("classification", description="perceptron: what is predicted")
    probe: Literal["molecules", "images"] = Field(
        "molecules", description="perceptron: settings for these, after the paper's"
    )
    log: bool = Field(False, description="perceptron: regression on logarithms")
    seeds: int = Field(5, ge=1, description="perceptron: number of splits and start weights")
    prompt: str = Field("prompt", description="generation: column of the prompt")
    answer: str = Field("answer", description="generation: column of the answer")
    separator: str | None = Field(
        None, max_length=100, description="generation: text between the two; null = the run's, else a line end"
    )
    longest: int = Field(64, ge=1, le=4096, description="generation: tokens of an answer, at most")
    samples: int = Field(3, ge=0, le=100, description="generation: answers drawn for each prompt, one seed each")
    seed: int = Field(0, ge=0, lt=2**32, description="of samples, splits and clusters")
    exclude: frozenset[str] = Field(frozenset(), description="rows of `test` with one of these texts are left out")

    @field_validator("train", "validation", "test", "queries", "corpus", "qrels", mode="before")
    @classmethod
    def _rows_of_python(cls, source: Any) -> Any:
        if is_dataset(source) or is_table(source):
            return list(given_rows(source))
        if isinstance(source, Path):
            return str(source)
        if source is None or isinstance(source, str | list):
            return source
        raise ValueError("the rows are a file, a list of dictionaries, a frame, an Arrow table or a datasets.Dataset")

    @model_validator(mode="after")
    def _reads_what_is_set(self) -> TaskSpec:
        unread = self.model_fields_set - READ_BY[self.kind] - {"name", "kind", "domain", "seed"}
        if unread:
            raise ValueError(
                f"a task of kind {self.kind} does not read {', '.join(sorted(unread))}; "
                f"it reads {', '.join(sorted(READ_BY[self.kind]))}"
            )
        if self.kind == "perceptron":
            regression = self.target == "regression"
            for key in ("label",) if regression else ("score", "log"):
                if key in self.model_fields_set:
                    raise ValueError(f"a perceptron with target: {self.target} does not read {key}")
        if self.kind == "retrieval" and "text" in self.model_fields_set and self.test is not None:
            raise ValueError("retrieval with test reads the columns query and document, not text")
        if self.kind == "retrieval" and self.test is not None and (self.queries or self.corpus or self.qrels):
            raise ValueError("retrieval takes test, or queries, corpus and qrels")
        if self.exclude and self.test is None:
            raise ValueError("exclude is for the rows of test: name the test file")
        return self
