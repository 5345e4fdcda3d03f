"""Checks of methods: each mistake in one sentence, as early as it can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.methods.base import Method, Needs, StudentInfo, StudentOutput, Term

#: Fewer of the student's pieces among the teacher's than this, and they are two tokenizers.
_ALIKE = 0.9
_EXAMPLE = 'For example {"NAME": Term(values)}, with Term of distilvec.methods.'


def check_needs(method: Method, needs: Any, student: StudentInfo) -> None:
    """Refuse what `needs` asks for in vain.

    Raises:
        DistilvecError: it gives no `Needs`; it asks the teachers for more than sentence vectors without `inside`, so
            that nobody would ask them; or the student has no such layers.
    """
    if not isinstance(needs, Needs):
        raise DistilvecError(f"needs returns a Needs, not a {type(needs).__name__}", where=method.name)
    if not method.inside and any(wanted.signals for wanted in needs.teachers):
        asked = ", ".join(sorted({signal for wanted in needs.teachers for signal in wanted.signals}))
        raise DistilvecError(
            f"needs asks the teachers for more than sentence vectors ({asked}), and inside is not set",
            where=method.name,
            remedy="Set inside = True on the class.",
        )
    layers, tokens, attention = needs.student.layers, needs.student.tokens, needs.student.attention
    if not (layers or tokens or attention):
        return
    if student.layers is None:
        raise DistilvecError(
            f"{method.name} looks at the layers of its student, and this one has none that can be seen",
            where=student.name,
            remedy="Take a transformer, or a method on sentence vectors (`distilvec methods`).",
        )
    for what, asked_for, first in (("states", tokens, 0), ("maps", attention, 1)):
        wrong = [layer for layer in asked_for if not first <= layer <= student.layers]
        if wrong:
            raise DistilvecError(
                f"{method.name} asks for the {what} of layer {wrong[0]}, this student has {first} to {student.layers}",
                where=student.name,
                remedy="Let needs name layers by student.layers, or take a deeper student.",
            )


def check_pieces(method: Method, student: Sequence[str], teacher: Sequence[str], where: str) -> None:
    """Refuse two tokenizers, given by their pieces, for a method that needs equal ones."""
    known = set(teacher)
    share = sum(piece in known for piece in student) / max(len(student), 1)
    if share < _ALIKE:
        raise DistilvecError(
            f"{method.name} needs texts that both models cut alike, and {share:.0%} of the student's pieces are the "
            "teacher's",
            where=where,
            remedy="Cut the student out of its teacher (shrink), or take a method that aligns two tokenizers: emo, cdm "
            "or dskd.",
        )


def check_terms(method: Method, terms: Any, student: StudentOutput) -> dict[str, Term]:
    """Check that `forward` returned named terms of this batch; only types and shapes are looked at."""
    if not isinstance(terms, Mapping):
        raise DistilvecError(
            f"forward returns a dict of Term; this is a {type(terms).__name__}", where=method.name, remedy=_EXAMPLE
        )
    sizes = tuple(student.embedding.shape[:2])
    for name, term in terms.items():
        if not isinstance(term, Term):
            wrap = ": wrap it, Term(values)" if isinstance(term, Tensor) else ""
            raise DistilvecError(
                f"forward returns a dict of Term; `{name}` is a {type(term).__name__}{wrap}",
                where=method.name,
                remedy=None if wrap else _EXAMPLE,
            )
        _check_shapes(method.name, str(name), term, sizes)
    return dict(terms)


def _check_shapes(method: str, name: str, term: Term, sizes: tuple[int, ...]) -> None:
    where = f"{method}, term {name}"
    for part, value in (("values", term.values), ("counted", term.counted)):
        if not isinstance(value, Tensor) and not (part == "counted" and value is None):
            raise DistilvecError(f"{part} is a {type(value).__name__}, not a tensor", where=where)
    shape = tuple(term.values.shape)
    if shape not in ((), sizes[1:], sizes, (1, *sizes[1:])):  # views may have been averaged
        raise DistilvecError(
            f"values are {list(shape)}; of {sizes[0]} views of {sizes[1]} items they are [], [{sizes[1]}] or "
            f"{list(sizes)}",
            where=where,
            remedy="Take the mean over all other dimensions.",
        )
    if term.counted is None:
        return
    counted = tuple(term.counted.shape)
    fits = len(counted) <= len(shape) and all(own in (1, its) for own, its in zip(counted[::-1], shape[::-1]))
    if not fits:
        raise DistilvecError(
            f"counted is {list(counted)} and does not fit values of {list(shape)}",
            where=where,
            remedy="Give one for each value, or one for each item.",
        )
