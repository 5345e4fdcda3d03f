"""What hubs read at the top of a model card: licence, data sets, base model, and the scores as a model-index."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from distilvec.report.record import Record
from distilvec.report.record_parts import ScoreEntry
from distilvec.report.sentences import METRIC_NAMES

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
}
#: Licences that the Hugging Face Hub knows by these words; any other is named beside the word "other".
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
#: Modality -> the task that hubs know its embedders by.
_TASKS = {"text": "sentence-similarity", "image": "image-feature-extraction"}
_WRITER = {
    "library_name": "transformers",
    "pipeline_tag": "text-generation",
    "tags": ["text-generation", "distilvec"],
}


def front_matter(record: Record) -> str:
    """The YAML block that a new card begins with.

    A licence is only given where all teachers, scorers and the model that the student was made from state the same.
    """
    modality = record.corpus.modality if record.corpus is not None else "text"
    writes = record.student is not None and record.student.writes
    data: dict[str, Any] = dict(_WRITER) if writes else _embedder(modality)
    if record.student is not None and record.student.base:
        data["base_model"] = record.student.base
    data |= _licence(record)
    if record.corpus is not None and record.corpus.source.startswith(_HUB):
        data["datasets"] = [re.split(r"[@:]", record.corpus.source.removeprefix(_HUB))[0]]
    results = evaluations(record)
    if results:
        from huggingface_hub.repocard_data import eval_results_to_model_index

        data["model-index"] = eval_results_to_model_index(record.title, results)
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n"


def _embedder(modality: str) -> dict[str, Any]:
    task = _TASKS.get(modality)
    named = {"pipeline_tag": task} if task else {}
    tags = ["sentence-transformers", "feature-extraction", *([task] if task else []), "distilvec"]
    return {"library_name": "sentence-transformers", **named, "tags": tags}


def evaluations(record: Record) -> list[Any]:
    """The student's scores as `huggingface_hub.EvalResult`s, as fractions; those that are no numbers are left out."""
    from huggingface_hub import EvalResult

    row = record.model("student")
    scores = {name: score for name, score in (row.scores if row is not None else {}).items() if _is_told(score)}
    types = _own_types([name for name, score in scores.items() if not score.dataset])
    return [
        EvalResult(
            task_type=_KINDS.get(score.kind, "feature-extraction"),
            dataset_name=name,
            dataset_type=score.dataset or types[name],
            metric_type=_slug(score.metric.replace("@", "_at_")),
            metric_name=METRIC_NAMES.get(score.metric, score.metric),
            metric_value=round(score.value, 6),
        )
        for name, score in scores.items()
    ]


def _own_types(names: Sequence[str]) -> dict[str, str]:
    """Task of one's own -> its data set's type, by its name. Equal types would be taken for one data set: names that
    are alike as words, as those without a Latin letter are, get a number."""
    types: dict[str, str] = {}
    for name in names:
        word, number = _slug(name), 1
        while (told := word if number == 1 else f"{word}-{number}") in types.values():
            number += 1
        types[name] = told
    return types


def _is_told(score: ScoreEntry) -> bool:
    # By a teacher's own search a teacher is perfect: nobody else's nDCG is of that kind.
    return bool(score.metric) and math.isfinite(score.value) and score.kind != "neighbours"


def _licence(record: Record) -> dict[str, str]:
    stated = [each.licence for each in record.teachers] + [each.licence for each in record.scorers]
    if record.student is not None and (record.student.licence or record.student.derived or not stated):
        stated.append(record.student.licence)
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
