"""Lists of (name, value, what it means), which the page and the markdown dress in their own way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from distilvec.report.record import Record
from distilvec.report.record_parts import CorpusFacts, ScorerFacts, StudentFacts, TeacherFacts, clip, short_source
from distilvec.report.sentences import about, by_chance
from distilvec.words import duration, millions, number, share, size

RECIPE_LENGTH = 20_000


@dataclass(frozen=True)
class Fact:
    """One line of a list of facts."""

    name: str
    value: str
    meaning: str = ""


def agreement_facts(agreement: dict[str, Any], items: str = "texts") -> list[Fact]:
    """What `judging.agreement` found, with what each number says."""
    origin = {
        "head": "after the trained linear head",
        "space": "the student lives in the teacher's space",
        "ridge": "after a ridge map fitted on the other half: what a linear map could reach",
    }.get(str(agreement.get("cosine_from")), "")
    lines = [
        ("cosine", "mean cosine with the teacher", f"1 = same direction; {origin}" if origin else "1 = same direction"),
        ("similarity_spearman", "order of similarities", "Spearman over pairs of texts: 1 = both rank all pairs alike"),
        ("similarity_pearson", "size of similarities", "Pearson over the same pairs"),
        (
            "neighbours",
            "shared nearest neighbours",
            "of the teacher's 10 nearest texts, the share that the student has too",
        ),
        ("cka", "linear CKA, debiased", "similarity of the two geometries up to rotation and scale"),
        (
            "index_recall",
            "on the teacher's index",
            "student's queries against teacher's vectors: share of the 10 nearest found",
        ),
    ]
    shares = ("neighbours", "index_recall")
    chance = f"; {told}" if (told := by_chance(agreement)) else ""
    return [
        Fact(name, share(agreement[key]), about(items, meaning) + chance)
        if key in shares
        else Fact(name, f"{agreement[key]:.3f}", about(items, meaning))
        for key, name, meaning in lines
        if isinstance(agreement.get(key), int | float)
    ]


def corpus_facts(corpus: CorpusFacts) -> list[Fact]:
    """What was read, kept and cut."""
    rejected = sum(corpus.rejected.values())
    of = f" ({share(rejected / corpus.read)} of what was read)" if corpus.read else ""
    lines: list[tuple[str, str | None]] = [
        ("source", corpus.source or None),
        ("rows read", _count(corpus.read)),
        (f"{corpus.modality}s kept", _count(corpus.kept)),
        ("of these made of others", _count(corpus.made or None)),
        ("trained on", _count(corpus.trained_on)),
        ("held out", _count(corpus.held_out)),
        ("duplicates", _count(corpus.duplicates)),
        ("rejected", f"{rejected:,}{of}" if corpus.read is not None or rejected else None),
        ("texts the teacher reads only in part", _share(corpus.truncated_teacher)),
        ("texts the student reads only in part", _share(corpus.truncated_student)),
        (
            "training texts that are also texts of a task, over all tasks",
            _count(sum(corpus.overlap.values())) if corpus.overlap else None,
        ),
        ("fingerprint", corpus.fingerprint or None),
    ]
    return [Fact(about(f"{corpus.modality}s", name), value) for name, value in lines if value is not None]


def cost_facts(record: Record) -> list[Fact]:
    """Time, memory and disk."""
    cost = record.cost
    if cost is None:
        return []
    rate = (
        f" ({number(cost.teacher_texts_per_second)} {record.items} per second)" if cost.teacher_texts_per_second else ""
    )
    taught = f", {cost.texts_taught:,} {record.items}" if cost.texts_taught is not None else ""
    steps = f", {cost.steps:,} steps" if cost.steps is not None else ""
    per = (
        f" ({1e3 * cost.training_seconds / cost.steps:,.0f} ms a step)" if cost.steps and cost.training_seconds else ""
    )
    lines: list[tuple[str, str | None]] = [
        ("teaching", None if cost.teaching_seconds is None else duration(cost.teaching_seconds) + taught + rate),
        ("training", None if cost.training_seconds is None else duration(cost.training_seconds) + steps + per),
        ("judging", None if cost.judging_seconds is None else duration(cost.judging_seconds)),
        ("peak memory", None if cost.peak_memory_bytes is None else size(cost.peak_memory_bytes)),
        ("stores of teachers' vectors", None if cost.store_bytes is None else size(cost.store_bytes)),
    ]
    return [Fact(name, value) for name, value in lines if value is not None]


def teacher_facts(teacher: TeacherFacts) -> list[Fact]:
    """The teacher's card."""
    prompt = f"“{clip(teacher.prompt, 300)}”" if teacher.prompt else "none"
    normalized = {True: "yes", False: "no", None: None}[teacher.normalized]
    lines: list[tuple[str, str | None]] = [
        ("source", teacher.source or None),
        ("licence", _licence(teacher.licence)),
        ("parameters", millions(teacher.parameters) if teacher.parameters else None),
        ("dimensions", _count(teacher.width)),
        ("layers", _count(teacher.layers)),
        ("pooling", teacher.pooling),
        ("prompt", prompt),
        ("longest input, tokens", _count(teacher.max_length)),
        ("normalised", normalized),
        ("computed in", teacher.dtype),
        ("stored as", teacher.storage),
        ("token states", teacher.token_states),
        ("fingerprint", teacher.fingerprint),
    ]
    return [Fact(name, value) for name, value in lines if value]


def teacher_title(teacher: TeacherFacts) -> str:
    """The heading of a teacher's facts; one that is called "teacher" is not called so twice."""
    return "Teacher" if teacher.name == "teacher" else f"Teacher {teacher.name}"


def scorer_facts(scorer: ScorerFacts) -> list[Fact]:
    """The scorer's card, and what it judged."""
    lines: list[tuple[str, str | None]] = [
        ("source", scorer.source or None),
        ("licence", _licence(scorer.licence)),
        ("parameters", millions(scorer.parameters) if scorer.parameters else None),
        ("longest pair, tokens", _count(scorer.max_length)),
        ("pairs of query and document", _count(scorer.pairs)),
        ("of these without a score", _count(scorer.absent) if scorer.absent else None),
        ("fingerprint", scorer.fingerprint),
    ]
    return [Fact(name, value) for name, value in lines if value]


def scorer_title(scorer: ScorerFacts) -> str:
    """The heading of a scorer's facts; one that is called "scorer" is not called so twice."""
    return "Scorer" if scorer.name == "scorer" else f"Scorer {scorer.name}"


def student_facts(student: StudentFacts) -> list[Fact]:
    """What was built, and where it comes from."""
    space = "the teacher's" if student.space == "teacher" else "its own"
    loads = "with trust_remote_code=True" if student.remote_code else "with plain sentence-transformers"
    loads = "with plain transformers" if student.writes else loads
    lines: list[tuple[str, str | None]] = [
        ("provenance", student.provenance or None),
        ("licence of what it was trained from", student.licence),
        ("parameters", millions(student.parameters) if student.parameters else None),
        ("on disk", size(student.size_bytes) if student.size_bytes else None),
        ("layers", _count(student.layers)),
        ("dimensions", _count(student.width)),
        ("vocabulary", _count(student.vocabulary)),
        ("longest input, tokens", _count(student.max_length)),
        ("space", None if student.writes else space),
        ("loads", loads),
    ]
    return [Fact(name, value) for name, value in lines if value]


#: Licences for research alone whose names on the Hugging Face Hub do not say so.
_RESEARCH = {"apple-amlr", "h-research", "intel-research"}


def forbids_commercial_use(licence: str | None) -> bool:
    """Whether a licence's name says so; an unknown licence is not accused.

    >>> [forbids_commercial_use(name) for name in ("cc-by-nc-4.0", "apache-2.0", "Research only", None)]
    [True, False, True, False]
    """
    told = r"(^|[-_ ])nc([-_ /)]|$)|non-?\s?commercial|research[- ](use[- ])?only|academic(?! free)"
    return licence in _RESEARCH or bool(re.search(told, licence or "", re.IGNORECASE))


def recipe_text(recipe: dict[str, Any]) -> str:
    """The recipe as YAML, without whole corpora given as lists and without places on this machine."""
    return clip(yaml.safe_dump(_shown(recipe), sort_keys=False, allow_unicode=True, width=100), RECIPE_LENGTH)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _shown(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        cut = [_shown(entry) for entry in value[:50]]
        return cut if len(value) <= 50 else [*cut, f"… and {len(value) - 50:,} more"]
    if isinstance(value, str):
        return clip(short_source(value), 500)
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _licence(licence: str | None) -> str:
    bound = ": commercial use is not allowed, and that may bind the student too"
    return (licence or "not stated") + (bound if forbids_commercial_use(licence) else "")


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _share(value: float | None) -> str | None:
    return None if value is None else share(value)
