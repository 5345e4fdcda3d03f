"""Tokenisation of each domain or language by a reduced tokenizer, compared with the teacher's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from distilvec.judging.scripts import UNSPACED
from distilvec.judging.slices import reduced_backends
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Text, table
from distilvec.words import share

#: Scripts that do not separate words by spaces: each of their characters counts as a word.
_WORD = re.compile(rf"(?=\w){UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\w)+")
#: Vowel signs, accents and joiners, which are no letters to `re` and would cut words in pieces.
_INSIDE = ("Mn", "Mc", "Me", "Cf")
#: At most this many texts per domain.
_MOST = 1_000


@dataclass(frozen=True)
class DomainPieces:
    """The tokenisation of the held-out texts of one domain.

    Attributes:
        unchanged: share of the texts with exactly the teacher's pieces, 0 to 1.
        student, teacher: pieces per word.
        unknown: share of the student's pieces that are the unknown token, 0 to 1.
    """

    domain: str
    texts: int
    unchanged: float
    student: float
    teacher: float
    unknown: float


class Tokenisation(Data):
    """One row per domain, the one with the fewest unchanged texts first."""

    domains: list[DomainPieces]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        first, corpus = outcome.first, outcome.corpus
        if first is None or not corpus.kind.tokenized or corpus.domains is None:
            return None
        tokenizer = getattr(outcome.shipped, "tokenizer", None)
        backends = reduced_backends(tokenizer, getattr(first.teacher.model, "tokenizer", None))
        if tokenizer is None or backends is None:
            return None
        numbers = np.asarray(corpus.domains)[outcome.held_out]
        measured = []
        for number, name in enumerate(corpus.domain_names or ()):
            rows = outcome.held_out[numbers == number][:_MOST]
            if len(rows):
                measured.append(_pieces(name, corpus.texts(rows), backends, tokenizer.unk_token_id))
        return cls(domains=sorted(measured, key=lambda domain: domain.unchanged)) if measured else None

    def blocks(self) -> list[Block]:
        header = ["domain", "held-out texts", "unchanged", "pieces per word", "teacher's", "unknown pieces"]
        rows = [
            [
                *(row.domain, f"{row.texts:,}", share(row.unchanged)),
                *(f"{row.student:.2f}", f"{row.teacher:.2f}", f"{row.unknown:.2%}"),
            ]
            for row in self.domains
        ]
        lead = (
            "The student keeps a part of the teacher's word pieces. Unchanged: texts with the teacher's own pieces. "
            "The worst domain comes first."
        )
        return [Heading("Tokenisation by domain"), Text(lead, "lead"), table(header, rows, kind="")]


def count_words(text: str) -> int:
    """Return the number of words; in scripts without spaces between them, of characters.

    >>> [count_words(text) for text in ("two words", "हिन्दी में", "東京")]
    [2, 2, 2]
    """
    return len(_WORD.findall("".join(each for each in text if unicodedata.category(each) not in _INSIDE)))


def _pieces(name: str, texts: Sequence[str], backends: tuple[Any, Any], unknown: int | None) -> DomainPieces:
    student, teacher = (backend.encode_batch(list(texts), add_special_tokens=False) for backend in backends)
    words = max(1, sum(count_words(text) for text in texts))
    pieces = sum(len(encoding.ids) for encoding in student)
    return DomainPieces(
        domain=name,
        texts=len(texts),
        unchanged=sum(one.tokens == other.tokens for one, other in zip(student, teacher, strict=True)) / len(texts),
        student=pieces / words,
        teacher=sum(len(encoding.ids) for encoding in teacher) / words,
        unknown=sum(encoding.ids.count(unknown) for encoding in student) / max(1, pieces),
    )
