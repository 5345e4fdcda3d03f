"""What is read out of a source, and what of that makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from distilvec.corpus.keys import Components
from distilvec.errors import DistilvecError, nearest
from distilvec.kinds.base import Kind, find_kind

_DEFAULT_TEXT = "text"


@dataclass(frozen=True)
class ColumnNames:
    """Which columns are read as what; see `read_corpus`."""

    text: tuple[str, ...]
    label: str | None = None
    domain: str | None = None
    role: str | None = None
    teacher_text: str | None = None
    max_characters: int = 20_000
    joint: bool = False
    modality: str = "text"
    components: Components = "largest"
    repeated: bool = False
    made: float = 0.0

    @property
    def columns(self) -> list[str]:
        """All columns asked for."""
        others = (self.label, self.domain, self.role, self.teacher_text)
        return list(dict.fromkeys([*self.text, *(name for name in others if name)]))

    @property
    def longest(self) -> int:
        """Characters that a reader has to hold."""
        return self.kind.longest(self.max_characters)

    @property
    def kind(self) -> Kind:
        """What the items are."""
        return find_kind(self.modality)

    def options(self) -> dict[str, Any]:
        """By name; what cannot matter for these items is left out, and `repeated` and `made` where they are off."""
        options = {name: value for name, value in asdict(self).items() if name not in self.kind.unsaid}
        return {name: value for name, value in options.items() if value or name not in ("repeated", "made")}


def named_columns(
    text: str | Sequence[str],
    *,
    label: str | None,
    domain: str | None,
    role: str | None,
    teacher_text: str | None,
    max_characters: int,
    joint: bool,
    kind: Kind,
    components: Components,
    repeated: bool,
    made: float,
) -> ColumnNames:
    """The arguments of `read_corpus`, looked at together.

    Raises:
        DistilvecError: they make no sense.
    """
    texts = (text,) if isinstance(text, str) else tuple(text)
    if texts == (_DEFAULT_TEXT,):
        texts = (kind.column,)
    if not texts or len(set(texts)) < len(texts):
        raise DistilvecError(f"text columns are one or more different names, not {list(texts)}", where="corpus.text")
    if len(texts) > 1 and role:
        raise DistilvecError(
            f"role goes with one text column, not with {len(texts)}",
            where="corpus.role",
            remedy="In a pair the order of the columns gives the roles.",
        )
    if joint and teacher_text:
        raise DistilvecError(
            "the teacher reads a joint pair as the student does, not another column",
            where="corpus.teacher_text",
            remedy="Leave joint or teacher_text out.",
        )
    given = {"joint": joint, "teacher_text": teacher_text, "made": made}
    if key := next((key for key, value in given.items() if value and key in kind.foreign), None):
        raise DistilvecError(f"{key} is for texts, not for {kind.noun}", where=f"corpus.{key}", remedy="Leave it out.")
    if joint and len(texts) != 2:
        raise DistilvecError(
            f"a joint item is made of two text columns, not of {len(texts)}",
            where="corpus.joint",
            remedy="Name two columns in corpus.text, or leave joint out.",
        )
    if made < 0:
        raise DistilvecError(f"made is at least 0, not {made:g}", where="corpus.made")
    if made and (len(texts) > 1 or label or role or teacher_text):
        raise DistilvecError(
            "more is made of single texts alone, without labels, roles or texts for the teacher",
            where="corpus.made",
            remedy="Leave corpus.made out.",
        )
    if max_characters < 1:
        raise DistilvecError(f"max_characters is at least 1, not {max_characters}", where="corpus.max_characters")
    if components not in get_args(Components):
        raise DistilvecError(
            f'there is no way "{components}" to treat several components',
            where="corpus.components",
            remedy=nearest(components, get_args(Components)),
        )
    return ColumnNames(
        texts, label, domain, role, teacher_text, max_characters, joint, kind.name, components, repeated, made
    )
