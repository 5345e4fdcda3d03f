"""Several sources read as one corpus: each is a domain, with a weight and a prompt of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from distilvec.corpus.column_names import ColumnOptions
from distilvec.corpus.keys import canonical, is_blank
from distilvec.corpus.rows import Row
from distilvec.corpus.sources import Part, Source, find_source
from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.base import Kind

#: The column that names the part; U+001F keeps it apart from any that a file has.
PART = "\x1fpart"


def prompts_of(parts: Sequence[Part], columns: Sequence[str]) -> dict[str, str]:
    """Return the prompts that a student of this corpus is shipped with: name -> what stands before a text.

    A part of single texts gives its name to its prompt; in pairs the first text is the query and others are documents,
    as `encode_query` and `encode_document` of sentence-transformers name them. Two prompts of one name are refused.
    """
    found: dict[str, str] = {}
    for part in parts:
        sides = (part.called,) if len(columns) == 1 else ("query", *("document" for _ in columns[1:]))
        for name, prompt in zip(sides, part.prompts(len(columns)), strict=True):
            if found.setdefault(name, prompt) != prompt:
                raise DistilvecError(
                    f'"{found[name]}" and "{prompt}" are both to be the prompt of {name}',
                    where="corpus.parts",
                    remedy="Pairs have one prompt for queries and one for documents, the same in all parts.",
                )
    if not any(found.values()):
        return {}
    other = next((found[name] for name in ("passage", "corpus") if name in found), None)
    # `encode_document` looks for these three, and sentence-transformers gives every model an empty one of the first.
    return found if other is None else {"document": other, **found}


def joined(parts: Sequence[Part], columns: ColumnOptions, folder: Path | None) -> Source:
    """One source of the rows of all parts, one part after the other.

    Args:
        columns: of the rows, and of parts that name no text column; the teacher's text has the prompt of the others.
        folder: as for `find_source`.
    """
    names = [part.called for part in parts]
    _check_names(names)
    modality, teacher_text = columns.get("modality"), columns.get("teacher_text")
    sources = [find_source(part.path, modality, folder=folder, revision=part.revision) for part in parts]
    kinds = {source.kind.name for source in sources}
    if len(kinds) > 1:
        raise DistilvecError(f"the parts hold {' and '.join(sorted(kinds))} items", where="corpus.parts")
    kind = sources[0].kind
    usual, read = _columns_of(parts, columns.get("text", "text"), kind)
    prompts = [part.prompts(len(usual)) for part in parts]
    begin = {name: each for name, each in zip(names, prompts, strict=True) if any(each)}
    if prompts_of(parts, usual) and not kind.folded:
        raise DistilvecError(f"prompts are for texts, not for {kind.noun}", where="corpus.parts")
    if teacher_text:
        _check_one_prompt(prompts)
    if teacher_text and teacher_text not in usual:
        read, prompts = [[*own, teacher_text] for own in read], [(*each, each[0]) for each in prompts]
        usual = [*usual, teacher_text]

    def asked(own: Sequence[str], columns: Sequence[str]) -> list[str]:
        return [*own, *(column for column in columns if column not in usual and column != PART)]

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        for part, source, own, put in zip(parts, sources, read, prompts, strict=True):
            empty = True
            for row in islice(source.rows(asked(own, columns), longest), part.limit):
                empty = False
                yield row if row.fault is not None else row._replace(value=_named(row.value, own, usual, put, part))
            if empty:
                raise DataError(f"part {part.called} has no rows", where=source.name, remedy="Is it the right file?")

    def forget(columns: Sequence[str]) -> None:
        for source, own in zip(sources, read, strict=True):
            if source.forget is not None:
                source.forget(asked(own, columns))

    name = ", ".join(source.name for source in sources)
    return Source(name, _fingerprint(parts, sources), rows, kind, forget, lambda: _expected(parts, sources), begin)


def _columns_of(parts: Sequence[Part], text: str | Sequence[str], kind: Kind) -> tuple[list[str], list[list[str]]]:
    """The text columns of the corpus, and those of each part."""
    usual = _named_columns(text, kind)
    read = [usual if part.text is None else _named_columns(part.text, kind) for part in parts]
    for part, own in zip(parts, read, strict=True):
        if len(own) != len(usual):
            raise DistilvecError(
                f"{part.called} has {len(own)} text columns, and the corpus has {len(usual)}",
                where="corpus.parts",
                remedy="All parts are single texts or all are pairs; name columns in corpus.text or in the part.",
            )
    return usual, read


def _check_names(names: Sequence[str]) -> None:
    """Refuse names of parts that no domain has, and equal ones."""
    if odd := [name for name in names if name != canonical(name) or is_blank(name)]:
        what = f"{odd[0]!r} cannot be the name of a part"
        raise DistilvecError(what, where="corpus.parts", remedy="Give it one without white space around it.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        found = f'two parts are called "{twice[0]}"'
        raise DistilvecError(found, where="corpus.parts", remedy="Give each a name of its own.")


def _check_one_prompt(prompts: Sequence[Sequence[str]]) -> None:
    if any(len(set(each)) > 1 for each in prompts):
        what = "the teacher reads one text for all columns, and they have several prompts"
        raise DistilvecError(what, where="corpus.teacher_text", remedy="Give each part one prompt.")


def _expected(parts: Sequence[Part], sources: Sequence[Source]) -> int | None:
    counts = [source.expected() for source in sources]
    known = [(count, part.limit) for count, part in zip(counts, parts, strict=True) if count is not None]
    limited = [count if limit is None else min(count, limit) for count, limit in known]
    return sum(limited) if len(limited) == len(counts) else None


def _named_columns(text: str | Sequence[str], kind: Kind) -> list[str]:
    columns = [text] if isinstance(text, str) else list(text)
    return [kind.column] if columns == ["text"] else columns


def _named(value: Any, own: Sequence[str], usual: Sequence[str], put: Sequence[str], part: Part) -> dict[str, Any]:
    """A row under the names of the corpus, with the part's prompts before its texts."""
    cells = value if isinstance(value, Mapping) else {own[0]: value}
    texts = (cells.get(column) for column in own)
    prompted = (
        prompt + canonical(text) if isinstance(text, str) and not is_blank(text) else text
        for prompt, text in zip(put, texts)
    )
    return {**cells, **dict(zip(usual, prompted, strict=True)), PART: part.called}


def _fingerprint(parts: Sequence[Part], sources: Sequence[Source]) -> str | None:
    if any(source.fingerprint is None for source in sources):
        return None
    made_of: list[Any] = [2] + [  # raised when the same parts give other rows
        [source.fingerprint, part.called, part.text, part.weight, part.prompt, part.limit]
        for part, source in zip(parts, sources, strict=True)
    ]
    return hashlib.blake2b(json.dumps(made_of).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
