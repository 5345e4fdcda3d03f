"""The head of a model card that hubs read: licence, data sets, base model, and the scores as a model-index."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from distilvec.kinds.base import find_kind
from distilvec.report.record import Record
from distilvec.report.sections.corpus import CorpusFacts
from distilvec.report.sections.lineage import Lineage
from distilvec.report.sections.scores import Scores

#: Kind of task -> how the field's largest benchmark names it.
_KINDS = {
    "classification": "Classification",
    "regression": "Regression",
    "clustering": "Clustering",
    "pairs": "PairClassification",
    "similarity": "STS",
    "retrieval": "Retrieval",
    "supervised": "Classification",
    "generation": "text-generation",
    "reranking": "Reranking",
}
#: Licences that the Hugging Face Hub knows by these words; any other is named next to the word "other".
_LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research intel-research isc lgpl lgpl-2.1
lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1
open-mdw openrail openrail++ osl-3.0 pddl postgresql unlicense wtfpl zlib
"""
_HUB = "hub:"
_WRITER = {
    "library_name": "transformers",
    "pipeline_tag": "text-generation",
    "tags": ["text-generation", "distilvec"],
}

_RANKER = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "text-ranking",
    "tags": ["sentence-transformers", "cross-encoder", "reranker", "distilvec"],
}


def front_matter(record: Record) -> str:
    """The YAML block that a new card begins with.

    A licence is given only if all teachers, scorers and the model that the student was made from state the same.
    """
    lineage, corpus = record.find(Lineage) or Lineage(), record.find(CorpusFacts)
    student = lineage.student
    data: dict[str, Any] = dict(_RANKER if student.ranks else _WRITER)
    data = data if student.ranks or student.writes else _embedder(record.items)
    if student.base:
        data["base_model"] = student.base
    data |= _licence(lineage)
    if corpus is not None and corpus.source.startswith(_HUB):
        data["datasets"] = [re.split(r"[@:]", corpus.source.removeprefix(_HUB))[0]]
    results = evaluations(record.find(Scores) or Scores())
    if results:
        from huggingface_hub.repocard_data import eval_results_to_model_index

        data["model-index"] = eval_results_to_model_index(record.title, results)
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n"


def _embedder(items: str) -> dict[str, Any]:
    task = find_kind(items.removesuffix("s")).task
    named = {"pipeline_tag": task} if task else {}
    tags = ["sentence-transformers", "feature-extraction", *([task] if task else []), "distilvec"]
    return {"library_name": "sentence-transformers", **named, "tags": tags}


def evaluations(scores: Scores) -> list[Any]:
    """The student's scores as `huggingface_hub.EvalResult`s, as fractions; NaN is left out."""
    from huggingface_hub import EvalResult

    row = scores.model("student")
    # A teacher is perfect by its own search: the nDCG of other models on the hub is of another kind.
    chosen = {
        name: score
        for name, score in (row.scores if row is not None else {}).items()
        if score.metric and math.isfinite(score.value) and score.kind != "neighbours"
    }
    types = _own_types([name for name, score in chosen.items() if not score.dataset])
    return [
        EvalResult(
            task_type=_KINDS.get(score.kind, "feature-extraction"),
            dataset_name=name,
            dataset_type=score.dataset or types[name],
            metric_type=_slug(score.metric.replace("@", "_at_")),
            metric_name=score.metric_name,
            metric_value=round(score.value, 6),
        )
        for name, score in chosen.items()
    ]


def _own_types(names: Sequence[str]) -> dict[str, str]:
    """Task of one's own -> its data set's type, by its name. Equal types would be taken for one data set: names that
    are alike as words, as those without a Latin letter are, get a number."""
    types: dict[str, str] = {}
    for name in names:
        word, number = _slug(name), 1
        while (new := word if number == 1 else f"{word}-{number}") in types.values():
            number += 1
        types[name] = new
    return types


def _licence(lineage: Lineage) -> dict[str, str]:
    stated = [each.card.licence for each in lineage.teachers] + [each.card.licence for each in lineage.scorers]
    student = lineage.student
    if student.licence or student.derived or not stated:
        stated.append(student.licence)
    licences = {(licence or "").lower() for licence in stated}
    if len(licences) != 1 or "" in licences:
        return {}
    licence = licences.pop()
    return (
        {"license": licence} if licence in _LICENCES.split() else {"license": "other", "license_name": _slug(licence)}
    )


def _slug(name: str) -> str:
    """Small letters, digits, dots, hyphens and underscores: what a hub takes as a word."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "unnamed"
