"""What is read out of a source, and what of that makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from distilvec.corpus.keys import MODALITIES, Modality
from distilvec.corpus.molecules import Components
from distilvec.errors import DistilvecError, nearest

_LONGEST_IMAGE = 8 << 20  # readers take 12 bytes for a character: 96 MiB hold the largest image as a data URI
_DEFAULT_TEXT = "text"
#: By modality, the column of the items where none is named.
USUAL: dict[str, str] = {"text": "text", "image": "image", "molecule": "smiles"}


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
    modality: Modality = "text"
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
        """Characters that a reader has to hold; a limit on texts says nothing about images and molecules."""
        return max(self.max_characters, _LONGEST_IMAGE) if self.modality == "image" else self.max_characters

    def options(self) -> dict[str, Any]:
        """By name; what has no meaning for texts is there for the other modalities only, `repeated` and `made` where
        they are."""
        options = asdict(self)
        if self.modality == "text":
            del options["modality"], options["components"]
        return {name: value for name, value in options.items() if value or name not in ("repeated", "made")}


def check_modality(modality: str | None) -> None:
    """Refuse a modality that does not exist.

    Raises:
        DistilvecError: it names the nearest.
    """
    if modality is not None and modality not in MODALITIES:
        raise DistilvecError(
            f'there is no modality "{modality}"', where="corpus.modality", remedy=nearest(modality, MODALITIES)
        )


def named_columns(
    text: str | Sequence[str],
    *,
    label: str | None,
    domain: str | None,
    role: str | None,
    teacher_text: str | None,
    max_characters: int,
    joint: bool,
    modality: Modality,
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
        texts = (USUAL[modality],)
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
    if modality != "text" and (joint or teacher_text):
        key = "joint" if joint else "teacher_text"
        raise DistilvecError(f"{key} is for texts, not for {modality}s", where=f"corpus.{key}", remedy="Leave it out.")
    if joint and len(texts) != 2:
        raise DistilvecError(
            f"a joint item is made of two text columns, not of {len(texts)}",
            where="corpus.joint",
            remedy="Name two columns in corpus.text, or leave joint out.",
        )
    if made < 0:
        raise DistilvecError(f"made is at least 0, not {made:g}", where="corpus.made")
    if made and (modality != "text" or len(texts) > 1 or label or role or teacher_text):
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
        texts, label, domain, role, teacher_text, max_characters, joint, modality, components, repeated, made
    )
