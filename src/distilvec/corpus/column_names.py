"""The options by which a source is read, and a check that they make sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, get_args

from distilvec.corpus.keys import Components
from distilvec.errors import DistilvecError, nearest
from distilvec.kinds.base import Kind, find_kind

_DEFAULT_TEXT = "text"


class ColumnOptions(TypedDict, total=False):
    """The columns of a source and how they are read; all may be left out. The recipe's section has the same keys.

    Attributes:
        text: the text column, or those of a pair (anchor, positive) or triplet (and negatives, which a row may lack).
            Pairs are flattened, unless they are `joint`; their rows share a group. "text" stands for "image" with
            images (in .npz: the only array of images) and for "smiles" with molecules.
        label: column of class names, class indices or scores. A folder of images has the columns "folder" (the
            sub-folder an image lies in) and "path".
        role: column that tells queries ("query", "anchor") from documents ("document", "passage", "positive").
        teacher_text: column that the teacher reads instead. Several text columns are then one text in several
            languages: all have this one lesson, later ones are positives of the first, and a row may lack the third.
        joint: make one item of a row's two texts, with `keys.PAIR` (U+001E) between them; student and teacher read
            it as their tokenizers encode a pair.
        max_characters: longer texts are rejected (20,000); images and molecules have limits of their own.
        modality: None = image for a folder of images and .npz, molecule for .smi, else text.
        components: of molecules made of several (salts, mixtures): "largest" is that with most heavy atoms.
        repeated: keep an item each time that it occurs, with its label there; a joint pair is one item. Pairs that are
            not joint are kept anyway.
        made: for each single text that is trained on, about so many more are made of the texts read around it: parts
            of them, and the beginning of one with the end of another of the same domain. They are trained on alone.
    """

    text: str | Sequence[str]
    label: str | None
    domain: str | None
    role: str | None
    teacher_text: str | None
    joint: bool
    max_characters: int
    modality: str | None
    components: Components
    repeated: bool
    made: float


@dataclass(frozen=True)
class ColumnNames:
    """`ColumnOptions` of one kind of item, complete and looked at together."""

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

    @classmethod
    def of(cls, kind: Kind, options: ColumnOptions) -> ColumnNames:
        """Fill in the options for items of a kind, and check them."""
        text = options.get("text", _DEFAULT_TEXT)
        texts = (text,) if isinstance(text, str) else tuple(text)
        given: dict[str, Any] = dict(options)
        given |= {"text": (kind.column,) if texts == (_DEFAULT_TEXT,) else texts, "modality": kind.name}
        names = cls(**given)
        names._check_columns()
        names._check_values()
        return names

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
        """The kind of the items."""
        return find_kind(self.modality)

    def options(self) -> dict[str, Any]:
        """By name; what cannot matter for these items is left out, and `repeated` and `made` where they are off."""
        options = {name: value for name, value in asdict(self).items() if name not in self.kind.unsaid}
        return {name: value for name, value in options.items() if value or name not in ("repeated", "made")}

    def _check_columns(self) -> None:
        if not self.text or len(set(self.text)) < len(self.text):
            found = f"text columns are one or more different names, not {list(self.text)}"
            raise DistilvecError(found, where="corpus.text")
        if len(self.text) > 1 and self.role:
            raise DistilvecError(
                f"role goes with one text column, not with {len(self.text)}",
                where="corpus.role",
                remedy="In a pair the order of the columns gives the roles.",
            )
        if self.joint and self.teacher_text:
            raise DistilvecError(
                "the teacher reads a joint pair as the student does, not another column",
                where="corpus.teacher_text",
                remedy="Leave joint or teacher_text out.",
            )
        given = {"joint": self.joint, "teacher_text": self.teacher_text, "made": self.made}
        if key := next((key for key, value in given.items() if value and key in self.kind.foreign), None):
            found = f"{key} is for texts, not for {self.kind.noun}"
            raise DistilvecError(found, where=f"corpus.{key}", remedy="Leave it out.")
        if self.joint and len(self.text) != 2:
            raise DistilvecError(
                f"a joint item is made of two text columns, not of {len(self.text)}",
                where="corpus.joint",
                remedy="Name two columns in corpus.text, or leave joint out.",
            )

    def _check_values(self) -> None:
        if self.made < 0:
            raise DistilvecError(f"made is at least 0, not {self.made:g}", where="corpus.made")
        if self.made and (len(self.text) > 1 or self.label or self.role or self.teacher_text):
            raise DistilvecError(
                "more is made of single texts alone, without labels, roles or texts for the teacher",
                where="corpus.made",
                remedy="Leave corpus.made out.",
            )
        if self.max_characters < 1:
            found = f"max_characters is at least 1, not {self.max_characters}"
            raise DistilvecError(found, where="corpus.max_characters")
        if self.components not in get_args(Components):
            raise DistilvecError(
                f'there is no way "{self.components}" to treat several components',
                where="corpus.components",
                remedy=nearest(self.components, get_args(Components)),
            )
