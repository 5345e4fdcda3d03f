"""The origin of the student: teachers, scorers, and the student itself, with their licences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from distilvec.recipe import given
from distilvec.report.blocks import Warnings
from distilvec.report.sections.base import (
    Block,
    Cards,
    Data,
    Heading,
    Listing,
    Outcome,
    RecordPart,
    Table,
    TaughtTeacher,
    clip,
    facts,
    short_source,
)
from distilvec.report.surroundings import folder_bytes, unused_pooler
from distilvec.store.axes import axes_of
from distilvec.teachers import TeacherCard
from distilvec.teachers.cards import licence_of
from distilvec.teachers.sections import models_of
from distilvec.words import millions, size


class TeacherFacts(RecordPart):
    """A teacher: how its store keeps what it said, examples of what it reads, and warnings.

    `pooler` counts the parameters of a pooler that the vectors do not pass.
    """

    card: TeacherCard
    pooler: int = 0
    storage: str | None = None
    token_states: str | None = None
    examples: list[str] = Field([])
    warnings: list[str] = Field([])

    def facts(self) -> Table:
        card, parameters = self.card, millions(self.card.parameters) if self.card.parameters else ""
        if card.parameters and self.pooler:
            parameters += (
                f", {millions(card.parameters - self.pooler)} without the pooler, which the vectors do not pass"
            )
        return facts(
            ("source", card.source),
            ("licence", _licence(card.licence)),
            ("parameters", parameters),
            ("dimensions", card.width),
            ("layers", card.layers),
            ("pooling", card.pooling),
            ("prompt", f"“{clip(card.prompt, 300)}”" if card.prompt else "no prompt"),
            ("longest input, tokens", card.max_length),
            ("normalised", {True: "yes", False: "no", None: None}[card.normalized]),
            ("computed in", card.dtype),
            ("stored as", self.storage),
            ("token states", self.token_states),
            ("fingerprint", card.fingerprint),
        )


class ScorerFacts(RecordPart):
    """A scorer, and how many pairs it scored."""

    card: TeacherCard
    pairs: int | None = None
    absent: int | None = None

    def facts(self) -> Table:
        return facts(
            ("source", self.card.source),
            ("licence", _licence(self.card.licence)),
            ("parameters", millions(self.card.parameters) if self.card.parameters else ""),
            ("longest pair, tokens", self.card.max_length),
            ("pairs of query and document", self.pairs),
            ("of these without a score", self.absent or None),
            ("fingerprint", self.card.fingerprint),
        )


class StudentFacts(RecordPart):
    """The student that was built: sizes, and where its weights and vocabulary come from.

    `writes`, `ranks`: whether it is a causal language model, a cross-encoder. `derived`: whether it was made from a
    model that is not one of the teachers; `base` is that model's hub id, `licence` its licence as far as it is known.
    """

    provenance: str = ""
    parameters: int | None = None
    size_bytes: int | None = None
    layers: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    max_length: int | None = None
    space: Literal["own", "teacher"] = "own"
    remote_code: bool = False
    writes: bool = False
    ranks: bool = False
    base: str | None = None
    licence: str | None = None
    derived: bool = False

    def facts(self) -> Table:
        loads = "with trust_remote_code=True" if self.remote_code else "with plain sentence-transformers"
        loads = "as a CrossEncoder of sentence-transformers" if self.ranks else loads
        space = "the teacher's" if self.space == "teacher" else "its own"
        return facts(
            ("provenance", self.provenance),
            ("licence of what it was trained from", self.licence),
            ("parameters", millions(self.parameters) if self.parameters else ""),
            ("on disk", size(self.size_bytes) if self.size_bytes else ""),
            ("layers", self.layers),
            ("dimensions", None if self.ranks else self.width),
            ("vocabulary", self.vocabulary),
            ("longest input, tokens", self.max_length),
            ("space", "" if self.writes or self.ranks else space),
            ("loads", "with plain transformers" if self.writes else loads),
        )


class Lineage(Data):
    teachers: list[TeacherFacts] = Field([])
    scorers: list[ScorerFacts] = Field([])
    student: StudentFacts = Field(StudentFacts())

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        from distilvec.students import describe_student
        from distilvec.students.ship import brings_its_code

        shipped, sizes = outcome.shipped, describe_student(outcome.shipped)
        models = models_of(outcome.recipe.teachers)
        named = {each.name: getattr(models.get(each.name), "model", None) for each in outcome.recipe.teachers}
        made = given(outcome.recipe.student, "student").model_dump(mode="json")
        student = StudentFacts(
            provenance=provenance(made),
            space=made["space"] or "own",
            **origin(made, named),
            **{key: sizes[key] for key in ("parameters", "layers", "width", "vocabulary", "max_length")},
            size_bytes=folder_bytes(outcome.folder / "student"),
            writes=outcome.corpus.kind.writes,
            ranks=outcome.corpus.kind.ranks,
            remote_code=any(brings_its_code(module) for module in shipped.children()),
        )
        scorers = [
            ScorerFacts(card=_shown(each.scorer.card), pairs=each.filled.distinct, absent=each.filled.absent)
            for each in outcome.scored
        ]
        return cls(teachers=[_teacher(each) for each in outcome.taught], scorers=scorers, student=student)

    def blocks(self) -> list[Block]:
        cards = []
        for teacher in self.teachers:
            card: list[Block] = [Heading(title("Teacher", teacher)), teacher.facts()]
            if teacher.warnings:
                card.append(Warnings("Warning", teacher.warnings))
            if teacher.examples:
                texts = [clip(each, 600) for each in teacher.examples[:3]]
                card.append(Listing("What the teacher really reads", texts))
            cards.append(card)
        cards += [[Heading(title("Scorer", each)), each.facts()] for each in self.scorers]
        return [Cards([*cards, [Heading("Student"), self.student.facts()]])]


def title(kind: str, model: TeacherFacts | ScorerFacts) -> str:
    """A heading that does not repeat the word if that is the model's name."""
    return kind if model.card.name == kind.lower() else f"{kind} {model.card.name}"


# measured


def _shown(card: TeacherCard) -> TeacherCard:
    return replace(card, source=short_source(card.source))


def _teacher(taught: TaughtTeacher) -> TeacherFacts:
    return TeacherFacts(
        card=_shown(taught.teacher.card),
        pooler=unused_pooler(taught.teacher.model),
        storage=taught.store.dtype,
        token_states=_token_states(Path(taught.store.path)),
        examples=[example.rendered for example in taught.seen.examples],
        warnings=list(taught.seen.warnings),
    )


def _token_states(store: Path) -> str | None:
    """Return how much of the token states a store keeps; None if it keeps them whole, or has none."""
    axes = axes_of(store)
    if not axes:
        return None
    width, count = next(iter(axes.values())).matrix.shape
    kept = ", ".join(f"{100 * each.retained:.1f} % of layer {layer}'s" for layer, each in sorted(axes.items()))
    return f"on {count} of {width} principal axes, which keep {kept} variance"


_MADE = {
    "static": "table of the vectors that {of} gives its word pieces, reduced and weighted",
    "fresh": "fresh, {layers} layers of width {width}, {start}",
    "resnet": "fresh residual network, depth {depth}, {width} channels, {image_size} pixels",
    "molecule": "fresh graph network, {kind}, {layers} layers of width {width}",
}
_CUTS = {
    "vocabulary": "at most {:,} word pieces",
    "embedding": "table of rank {}",
    "inner": "{} inner units",
    "heads": "{} heads",
    "width": "blocks of width {}",
}


def provenance(student: Mapping[str, Any]) -> str:
    """Return what a student of the recipe's section is made of, in words."""
    if cut := student["shrink"]:
        layers = f"{cut['layers']} layers" if isinstance(cut["layers"], int) else f"layers {cut['layers']}"
        parts = [f"cut out of {short_source(cut['of'])}", *([layers] if cut["layers"] else [])]
        return ", ".join([*parts, *(words.format(cut[name]) for name, words in _CUTS.items() if cut.get(name))])
    for kind, words in _MADE.items():
        if parts := student[kind]:
            source = parts.get("embeddings_from")
            start = f"token embeddings averaged from {short_source(source)}" if source else "random start"
            return words.format(**parts | {"start": start, "of": short_source(parts.get("of") or "")})
    adapters = student.get("lora")
    trained = f", trained with low-rank adapters of rank {adapters['rank']}" if adapters else ""
    return short_source(str(student["model"])) + trained


def origin(student: Mapping[str, Any], teachers: Mapping[str, Any]) -> dict[str, Any]:
    """Hub id and licence of the model that a student was made from, and whether there is such a model.

    A teacher's licence is not given here: it is with the teacher.

    Args:
        student: the recipe's section.
        teachers: name -> model; None if the teacher is something else.
    """
    parts = (student.get("shrink"), student.get("static"))
    names = [part["of"] for part in parts if part]
    if student.get("fresh"):
        names.append(student["fresh"]["embeddings_from"])
    model = student["model"] or next((name for name in names if name and name not in teachers), None)
    if model is None:
        address = next((each for name in names if (each := teachers.get(name))), "")
        return {"base": address.partition("@")[0]} if address and not Path(address).expanduser().exists() else {}
    folder = Path(model).expanduser()
    if folder.is_dir():
        return {"licence": licence_of(folder), "derived": True}
    if folder.exists() or folder.suffix == ".safetensors":  # a path cannot be named as the base
        return {"derived": True}
    licence = _licence_on_hub(model, student.get("revision"))
    return {"base": model.partition("@")[0], "licence": licence, "derived": True}


def _licence_on_hub(model: str, revision: str | None) -> str | None:
    """The licence in the files that the run has fetched; the network is not asked."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, _, behind = model.partition("@")
    for file in ("README.md", "config.json"):
        try:
            kept = try_to_load_from_cache(name, file, revision=behind or revision)
        except HFValidationError:
            return None
        if isinstance(kept, str):
            return licence_of(Path(kept).parent)
    return None


# shown

#: Licences for research alone whose names on the Hugging Face Hub do not say so.
_RESEARCH = {"apple-amlr", "h-research", "intel-research"}


def forbids_commercial_use(licence: str | None) -> bool:
    """Tell whether a licence's name says so; nothing is assumed of an unknown licence.

    >>> [forbids_commercial_use(name) for name in ("cc-by-nc-4.0", "apache-2.0", "Research only", None)]
    [True, False, True, False]
    """
    words = r"(^|[-_ ])nc([-_ /)]|$)|non-?\s?commercial|research[- ](use[- ])?only|academic(?! free)"
    named = (licence or "").split("; ")  # several, of combined teachers
    return not _RESEARCH.isdisjoint(named) or bool(re.search(words, licence or "", re.IGNORECASE))


def _licence(licence: str | None) -> str:
    bound = ": commercial use is not allowed, and that may bind the student too"
    return (licence or "not stated") + (bound if forbids_commercial_use(licence) else "")
