"""The description of a teacher that a person reads before hours are spent on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from distilvec.kinds.base import find_kind
from distilvec.modules.invariance import IGNORED, InvarianceReport, probe_items, probe_texts, tolerance_of
from distilvec.modules.promised_tokens import ENDS_BARE, ends_bare
from distilvec.teachers.base import Teacher
from distilvec.teachers.cards import TeacherCard
from distilvec.teachers.families import family_of

_NON_COMMERCIAL = ("-nc", "noncommercial", "non-commercial", "research")


class Example(NamedTuple):
    """A text exactly as the teacher reads it, with prompt and special tokens, and their number (0 = not known)."""

    rendered: str
    tokens: int


@dataclass(frozen=True)
class TeacherReport:
    """A teacher seen on a sample of texts.

    Attributes:
        card: who it is.
        examples: a short, a middling and a long text as it reads them.
        texts: size of the sample.
        truncated: share of the sample that is longer than the maximum length; None where it cannot be known.
        longest: tokens of the longest text before it is cut; None where it cannot be known.
        warnings: what is worth a second look.
    """

    card: TeacherCard
    examples: list[Example]
    texts: int
    truncated: float | None
    longest: int | None
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        card = self.card
        length = "any length" if card.max_length is None else f"at most {card.max_length} tokens"
        prompt = f'prompt "{card.prompt}"' if card.prompt else "no prompt"
        lines = [
            f"{card.name}: {card.source} ({card.kind}), {card.width} dimensions, "
            f"{card.pooling or 'unknown'} pooling, {length}, {prompt}, "
            f"licence {card.licence or 'unknown'}"
        ]
        if self.truncated is not None:
            lines.append(f"  {self.truncated:.1%} of {self.texts} texts are cut; the longest has {self.longest} tokens")
        lines += [f"  reads ({each.tokens} tokens): {_shorten(each.rendered)}" for each in self.examples]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def describe(teacher: Teacher, texts: Sequence[str]) -> TeacherReport:
    """Look at a teacher on a sample of texts, of which a few hundred are enough, without encoding them."""
    ordered = sorted(set(texts), key=len)
    picked = [ordered[place] for place in sorted({0, len(ordered) // 2, len(ordered) - 1})] if ordered else []
    examples = [Example(*teacher.rendered(text)) for text in picked]
    truncated = longest = None
    if teacher.tokens is not None and len(texts):
        lengths, limit = teacher.tokens.lengths(texts), teacher.tokens.limit
        longest = int(lengths.max())
        truncated = float(np.mean(lengths > limit)) if limit is not None else 0.0
    return TeacherReport(teacher.card, examples, len(texts), truncated, longest, _warnings(teacher, texts, truncated))


def check_teacher(teacher: Teacher, texts: Sequence[str], modality: str = "text") -> TeacherReport:
    """`describe`, and `batch_invariance` with its advice among the warnings."""
    report = describe(teacher, texts)
    invariance = batch_invariance(teacher, items=None if find_kind(modality).tokenized else texts)
    return dataclasses.replace(report, warnings=[*report.warnings, *filter(None, [invariance.warning])])


def _warnings(teacher: Teacher, texts: Sequence[str], truncated: float | None) -> list[str]:
    card, own, warnings = teacher.card, teacher.prompts, []
    family = None if teacher.model is None else family_of(card.source)
    open_question = card.prompt is None and not teacher.prompt_chosen
    if family is not None and open_question:
        warnings.append(
            f"no prompt is set, and {family.name} was trained with one for {family.side}: {family.prompt}"
            + (f". Prompts that this model brings: {', '.join(sorted(own))}" if own else "")
        )
    elif own and open_question:
        warnings.append(
            f"this model brings prompts ({', '.join(sorted(own))}) and none is set; prompt: NAME chooses one, "
            'prompt: "" says that none is meant'
        )
    if teacher.assumed_pooling:
        warnings.append(
            f"the folder says nothing about pooling; {card.pooling} was assumed from the kind of model; "
            "pooling: mean, cls or last chooses another"
        )
    if teacher.model is not None and card.pooling == "lasttoken" and ends_bare(teacher.model):
        warnings.append(ENDS_BARE)
    if truncated is not None and truncated > 0.05:
        warnings.append(f"{truncated:.0%} of the texts are longer than {card.max_length} tokens and are cut")
    licence = (card.licence or "").lower()
    if any(word in licence for word in _NON_COMMERCIAL):
        warnings.append(f"its licence ({card.licence}) forbids commercial use, of the student too as far as it reaches")
    missing = int((~teacher.has(texts)).sum())
    if missing:
        warnings.append(f"it has no vector for {missing} of {len(texts)} texts")
    return warnings


def batch_invariance(teacher: Teacher, items: Sequence[str] | None = None) -> InvarianceReport:
    """Encode short texts alone, and once more in a batch with longer ones, and compare.

    A callable or a service is asked four times with few texts. Vectors from elsewhere pass: nothing is computed for
    them.

    Args:
        items: what is encoded where the teacher does not read texts; the first three alone, too.
    """
    card, can = teacher.card, teacher.can
    tolerance = 1e-3 if can.paid else tolerance_of(card.dtype)  # services answer in half precision
    if can.made:
        return InvarianceReport(True, 0.0, tolerance, "")
    if items is not None:
        return probe_items(teacher.together, list(items)[:12], tolerance=tolerance, dtype=card.dtype, gaps=can.gaps)
    remedy = "It gives a text another vector when others stand beside it. Set batch_size to 1."
    if not can.paid:
        remedy = IGNORED.format("set token_budget to 1 so that every text is encoded alone.")
    return probe_texts(
        teacher.together,
        tolerance=tolerance,
        dtype=card.dtype,
        side=None if teacher.tokens is None else teacher.tokens.side,
        remedy=remedy,
        gaps=can.gaps,
    )


def _shorten(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 240 else f"{shown[:120]} ... {shown[-120:]}"
