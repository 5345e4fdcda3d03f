"""The sources that a corpus can be read from, and how to tell that one has not changed since."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from distilvec.corpus.readers import SUFFIXES, about_rows, file_kind, read_file
from distilvec.corpus.rows import Row, require_columns, shown, unchanged
from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.base import BY_SUFFIX, TABLE, Kind, find_kind

logger = logging.getLogger(__name__)
#: Files of a folder that are about the others, whatever their suffix.
_ABOUT = {"README", "LICENSE", "LICENCE", "NOTICE", "CHANGELOG", "COPYING", "CITATION"}


@dataclass(frozen=True)
class Source:
    """Rows that can be read.

    Attributes:
        name: for messages.
        fingerprint: equal where nothing has changed; None where that cannot be known.
        rows: (columns, longest text) -> rows.
        kind: of its items: the one asked for, or what the source says.
        forget: removes what reading these columns has kept, once the corpus holds it; None where nothing is kept.
        expected: about how many rows there are, for a bar; None if that cannot be known quickly.
        prompts: of several sources, by their domains: what stands before the text of each column.
    """

    name: str
    fingerprint: str | None
    rows: Callable[[Sequence[str], int], Iterator[Row]]
    kind: Kind
    forget: Callable[[Sequence[str]], None] | None = None
    expected: Callable[[], int | None] = lambda: None
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One source of several.

    Attributes:
        path: as `read_corpus` takes it.
        name: of its domain, and of its prompt in the student; None = the file's, without its suffixes.
        text: its text column or columns, where they are called otherwise than in the other parts.
        weight: how often an epoch reads each of its items, > 0.
        prompt: what stands before each text, or one for each text column; "" = nothing.
        limit: rows that are read of it; None = all.
        revision: of a data set of the hub.
    """

    path: Any
    name: str | None = None
    text: str | Sequence[str] | None = None
    weight: float = 1.0
    prompt: str | Sequence[str] = ""
    limit: int | None = None
    revision: str | None = None

    @property
    def called(self) -> str:
        """Its name, given or made of the path.

        >>> Part("data/faq.jsonl.gz").called, Part("hub:name/faq:train").called
        ('faq', 'faq')
        """
        if self.name is not None:
            return self.name
        if not isinstance(self.path, str | Path):
            return "items"
        path = str(self.path)
        address = path.removeprefix("hub:").partition("@")[0].partition(":")[0] if path.startswith("hub:") else path
        return Path(address).name.partition(".")[0] or path

    def prompts(self, columns: int) -> tuple[str, ...]:
        """Return what stands before the text of each column.

        Raises:
            DistilvecError: several prompts, and another number of columns.
        """
        if isinstance(self.prompt, str):
            return (self.prompt.lstrip(),) * columns  # texts are kept without white space around them
        if len(self.prompt) != columns:
            raise DistilvecError(
                f"{self.called} has {len(self.prompt)} prompts and {columns} text columns",
                where="corpus.parts",
                remedy="Give one prompt, or one for each column.",
            )
        return tuple(prompt.lstrip() for prompt in self.prompt)


def find_source(
    source: Any, modality: str | None = "text", *, folder: Path | None = None, revision: str | None = None
) -> Source:
    """Make out what was given.

    Args:
        source, revision: as for `read_corpus`; also a folder of a saved data set.
        modality: of the items, see `ColumnOptions`.
        folder: where rows of the hub are kept until all have come, and files of a storage lie while they are read;
            None = rows nowhere, files among the system's temporary ones.

    Raises:
        DistilvecError: it is none of these, may be read as images and as texts, or has no revisions.
        DataError: it is not there, or a data set has no split "train" and several others.
        EnvironmentProblem: the hub cannot be reached.
    """
    asked = None if modality is None else find_kind(modality)
    kind = asked or find_kind("text")
    if isinstance(source, str) and source.startswith("hub:"):
        return _hub(source, revision, kind, folder)
    if revision is not None:
        raise DistilvecError(
            "only a data set of the hub (hub:NAME) has revisions", where="corpus.revision", remedy="Leave it out."
        )
    if isinstance(source, str) and "://" in source:
        return _stored(source, asked, folder)
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not _exists(path) and set("*?") & set(str(path)):
            raise DataError(
                "this is a pattern, not a file", where=str(path), remedy="Give the folder: all files in it are read."
            )
        if not _exists(path) and not path.suffix and not path.is_symlink():
            raise DataError("there is no such file or folder", where=str(path), remedy="Check the path.")
        return _folder(path, asked) if path.is_dir() else _files([path], str(path), asked)
    return _given(source, kind)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # too long for a name
        raise DataError(f"this is no path ({error.strerror})", where=str(path)[:200], remedy="Check it.") from error


def _files(paths: Sequence[Path], name: str, asked: Kind | None) -> Source:
    kind = asked or _guessed(paths, name)
    state = hashlib.blake2b(digest_size=16)
    for path in paths:
        if path.suffix not in kind.suffixes:
            _check_suffix(path)
        if path.exists():  # where it does not, reading says so
            status = path.stat()
            state.update(f"{path.absolute()}|{unchanged(status)}\n".encode("utf-8", "surrogatepass"))

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        for path in paths:
            if path.suffix in kind.suffixes:
                yield from kind.rows(path, columns)
            else:
                yield from _with_columns(read_file(path, columns, longest, kind.binary), columns, kind)

    # Tables may hold names of files, which change without them.
    complete = not kind.binary or all(path.suffix in kind.suffixes or _holds_bytes(path) for path in paths)
    return Source(name, state.hexdigest() if complete else None, rows, kind, expected=lambda: about_rows(paths))


def _check_suffix(path: Path) -> None:
    """Refuse a file that no reader of tables and lines takes."""
    other = BY_SUFFIX.get(path.suffix)
    if other is not None and path.suffix not in SUFFIXES:
        what = f"a {path.suffix} file holds {other}s"
        raise DistilvecError(what, where=str(path), remedy=f"Set corpus.modality to {other}.")
    file_kind(path)


def _holds_bytes(path: Path) -> bool:
    """Tell whether this is a parquet file with a column of bytes, alone or as data sets keep images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() != ".parquet":
        return False
    try:
        kinds = [field.type for field in pq.read_schema(path)]
    except (OSError, pa.ArrowException):  # reading it says what is wrong
        return False
    kinds += [
        kind.field(number).type for kind in kinds if pa.types.is_struct(kind) for number in range(kind.num_fields)
    ]
    return any(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in kinds)


def _guessed(paths: Sequence[Path], name: str) -> Kind:
    """The kind that the suffixes tell."""
    suffixes = (path.suffix if path.suffix in BY_SUFFIX else file_kind(path) for path in paths)
    kinds = {BY_SUFFIX.get(suffix, "text") for suffix in suffixes}
    if len(kinds) > 1:
        raise DistilvecError(
            f"there are files of {' and '.join(f'{each}s' for each in sorted(kinds))} here",
            where=name,
            remedy="Give one file, or say which with corpus.modality.",
        )
    return find_kind(kinds.pop())


def _folder(path: Path, asked: Kind | None) -> Source:
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        from datasets import load_from_disk

        try:
            return _dataset(load_from_disk(str(path)), str(path), asked or find_kind("text"))
        except (OSError, ValueError) as error:
            raise DataError(f"the saved data set cannot be opened ({error})", where=str(path)) from error
    own = tuple(BY_SUFFIX) if asked is None else asked.suffixes
    files = sorted(file for file in path.iterdir() if file.is_file() and _is_read(file, own))
    kind = next((each for each in ([asked] if asked else map(find_kind, TABLE)) if each.holds(path)), None)
    if kind is not None:
        if files and asked is None:
            raise DistilvecError(
                f"this folder holds {kind.noun} and other files that can be read ({files[0].name})",
                where=str(path),
                remedy=f"Say which are meant with corpus.modality: {kind.name} or text.",
            )
        return Source(str(path), *kind.folder(path), kind)
    if not files:
        known = SUFFIXES if asked is None else sorted(asked.members) or SUFFIXES
        raise DataError("no file in this folder can be read", where=str(path), remedy=f"Known: {', '.join(known)}.")
    if not {file.suffix for file in files} & {*own}:
        _refuse_mixture(files, str(path))
    left = sorted(each.name for each in path.iterdir() if each not in files and not each.name.startswith("."))
    _tell_left_out(path, len(files), left)
    return _files(files, str(path), asked)


def _refuse_mixture(files: Sequence[Path], name: str) -> None:
    if len({file_kind(file) == ".txt" for file in files}) > 1:
        plain = next(file.name for file in files if file_kind(file) == ".txt")
        raise DataError(
            f"this folder mixes plain texts ({plain}) with files that have columns",
            where=name,
            remedy="Move the one or the other elsewhere, or give one file.",
        )


def _stored(url: str, asked: Kind | None, folder: Path | None) -> Source:
    """Files on object storage."""
    from distilvec.corpus.object_storage import fetched_rows, find_files

    files = find_files(url, lambda path: _is_read(path, ()))
    paths = [Path(address) for address in files.paths]
    kind = asked or _guessed(paths, url)
    if kind.binary:
        raise DistilvecError(
            f"{kind.noun} are read from files of this machine", where=url, remedy="Copy them here first."
        )
    _refuse_mixture(paths, url)

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        return fetched_rows(files, folder, lambda file: _with_columns(read_file(file, columns, longest), columns, kind))

    _tell_left_out(url, len(paths), files.left_out)
    return Source(url, files.state, rows, kind)


def _tell_left_out(where: str | Path, read: int, names: Sequence[str]) -> None:
    """Warn of what lies in a folder and is not read."""
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        logger.warning("%s: %d of its files are read; not %s", where, read, shown)


def _is_read(path: Path, own: Sequence[str]) -> bool:
    if path.name.startswith(".") or path.name.partition(".")[0].upper() in _ABOUT:
        return False
    try:
        return path.suffix in own or bool(file_kind(path))
    except DistilvecError:
        return False


def _given(items: Any, kind: Kind) -> Source:
    """Rows that Python gives: a data set, a table, or a sequence."""
    from distilvec.corpus.tables import check_iterable, is_dataset, is_table, no_files, table_rows

    if is_dataset(items):
        return _dataset(items, "the data set", kind)
    fingerprint = number = None
    if not (table := is_table(items)):
        check_iterable(items)
    if isinstance(items, Sequence) and not table:
        no_files(items)
        number = len(items)
    if number is not None and not kind.binary:  # paths, whose files change; arrays, which repr shortens
        state = hashlib.blake2b(digest_size=16)
        for item in items:
            content = item if isinstance(item, str) else _written(item)
            state.update(f"{type(item).__name__}{len(content)}:{content}".encode("utf-8", "surrogatepass"))
        fingerprint = state.hexdigest()

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        del longest
        given = enumerate(table_rows(items) if table else items, start=1)
        return _with_columns((Row("items", number, item) for number, item in given), columns, kind)

    return Source("the items given", fingerprint, rows, kind, expected=lambda: number)


def _written(item: Any) -> str:
    try:
        return json.dumps(item, sort_keys=True, default=shown)
    except (TypeError, ValueError, RecursionError):  # keys of several types, loops, great depth
        return shown(item)


def _with_columns(rows: Iterator[Row], columns: Sequence[str], kind: Kind) -> Iterator[Row]:
    """Refuse a source none of whose first rows has a column that is asked for."""
    start = list(islice(rows, kind.at_once))
    usable = [row for row in start if row.fault is None]
    names = dict.fromkeys(name for row in usable if isinstance(row.value, Mapping) for name in row.value)
    if names:
        kind.check_rows(usable, columns[0], start[0].file)
        # Of rows that name their own columns, a later one may have it.
        where = f"{start[0].file}, its first {kind.at_once:,} rows" if len(start) == kind.at_once else start[0].file
        require_columns(columns, [str(name) for name in names], where)
    elif len(columns) > 1 and any(isinstance(row.value, str) for row in usable):
        raise DataError(
            "plain texts have no columns",
            where=start[0].file,
            remedy=f"Columns asked for: {', '.join(columns)}. Use .jsonl, .csv, .tsv or .parquet for them.",
        )
    return chain(start, rows)


def _dataset(dataset: Any, name: str, kind: Kind) -> Source:
    from distilvec.corpus.tables import chosen_split

    dataset = chosen_split(dataset, name)
    # An iterable data set reads what it likes, whenever it is asked: only the table kind has a fingerprint.
    fingerprint = getattr(dataset, "_fingerprint", None) if hasattr(dataset, "__len__") else None
    if fingerprint and kind.binary and not _embeds(kind.dataset(dataset)):
        fingerprint = None  # files that it names change without it

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        del longest
        chosen = dataset
        if dataset.column_names:
            require_columns(columns, dataset.column_names, name)
            chosen = dataset.select_columns(list(columns))
        return _with_columns(_dataset_rows(kind.dataset(chosen), name, kind.at_once), columns, kind)

    number = len(dataset) if hasattr(dataset, "__len__") else None
    return Source(name, fingerprint, rows, kind, expected=lambda: number)


def _embeds(dataset: Any) -> bool:
    """Tell whether a data set holds bytes and not only names of files, by its first row."""
    first: Mapping[str, Any] = next(iter(dataset.with_format(None)), {})
    cells = (value.get("bytes") if isinstance(value, Mapping) else value for value in first.values())
    return any(isinstance(cell, bytes) for cell in cells)


def _dataset_rows(dataset: Any, name: str, at_once: int) -> Iterator[Row]:
    number = 0
    for batch in dataset.with_format(None).iter(batch_size=at_once):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield Row(name, number, dict(zip(names, values, strict=True)))


def _hub(named: str, revision: str | None, kind: Kind, folder: Path | None) -> Source:
    from distilvec.corpus import hub

    address = hub.HubAddress.read(named, revision)
    identity = hub.fingerprint(address)
    read = 0

    def rows(columns: Sequence[str], longest: int) -> Iterator[Row]:
        del longest
        streamed = hub.stream(address, columns, kind.dataset, folder, _key(identity, columns, kind.name))
        return _with_columns(counted(streamed), columns, kind)

    def counted(streamed: Iterator[Row]) -> Iterator[Row]:
        nonlocal read
        read = 0
        for row in streamed:
            read += 1
            yield row

    def forget(columns: Sequence[str]) -> None:
        if folder is not None:
            hub.forget(folder, _key(identity, columns, kind.name), read)

    return Source(address.text, identity, rows, kind, forget)


def _key(identity: str, columns: Sequence[str], modality: str) -> str:
    return hashlib.blake2b(json.dumps([identity, list(columns), modality]).encode(), digest_size=8).hexdigest()
