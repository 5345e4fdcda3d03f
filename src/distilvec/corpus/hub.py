"""Data sets of the hub, read as a stream: nothing is fetched but the rows that are wanted, and they are fetched once.

What has come is kept beside the corpus until the corpus is whole: parts of rows, each with the place in the stream
after it. Whoever was killed, or lost the network, goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.corpus.rows import Row, require_columns
from distilvec.corpus.tables import chosen_split
from distilvec.errors import DataError, EnvironmentProblem, nearest
from distilvec.files import locked, read_record, whole, write_record

logger = logging.getLogger(__name__)
HUB = "hub:"
#: Folders of rows that have come, in a corpus' folder.
KEPT = ".streamed-"
_PART = re.compile(r"rows-\d{5}\.(parquet|json)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: A part is written after so many rows, or so many seconds.
ROWS, _SECONDS = 20_000, 20.0


@dataclass(frozen=True)
class HubAddress:
    """hub:NAME[@CONFIG][:SPLIT], and the revision asked for."""

    text: str
    name: str
    config: str | None
    split: str | None
    revision: str | None

    @classmethod
    def read(cls, text: str, revision: str | None = None) -> HubAddress:
        name, _, split = text.removeprefix(HUB).partition(":")
        name, _, config = name.partition("@")
        return cls(text, name, config or None, split or None, revision)


def fingerprint(address: HubAddress) -> str:
    """Equal where the data are: by the commit where one is known or asked for, else by the files' own marks.

    Raises:
        DataError: there is no such data set.
        EnvironmentProblem: the hub cannot be reached, and no commit is asked for.
    """
    origin = pinned(address) or _origin(_builder(address))
    content = json.dumps([address.name, address.config, address.split, origin], default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def pinned(address: HubAddress) -> str | None:
    """The commit that is asked for, where it is one and no branch or tag."""
    return address.revision if _COMMIT.fullmatch(address.revision or "") else None


def commit_of(address: HubAddress) -> str | None:
    """The commit that the address means today; None of data that lie elsewhere."""
    origin = pinned(address) or _origin(_builder(address))
    return origin if isinstance(origin, str) else None


def stream(
    address: HubAddress, columns: Sequence[str], prepare: Callable[[Any], Any], folder: Path | None, key: str
) -> Iterator[Row]:
    """The rows of a data set, from those that are kept and then from the hub.

    Args:
        columns: that are wanted; others are not kept, and of parquet files not fetched.
        prepare: changes the data set before it is read.
        folder: where rows are kept; None = nowhere.
        key: equal for equal data and columns.
    """
    with ExitStack() as stack:
        place = None if folder is None else folder / f"{KEPT}{key}"
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(locked(place.with_name(f"{place.name}.lock"), wait=False)):
                place = None  # another process keeps these rows
        kept = _KeptRows(place)
        number = 0
        for value in kept.rows():
            number += 1
            yield Row(address.text, number, value)
        if kept.ended:
            return
        if number:
            logger.info("%s: %s rows are here already", address.text, f"{number:,}")
        try:
            for value in _fetched(address, columns, prepare, kept):
                number += 1
                yield Row(address.text, number, value)
        except (OSError, ValueError) as error:  # of which every connection error is one
            raise EnvironmentProblem(
                f"the stream broke off after {number:,} rows ({error})",
                where=address.text,
                remedy="What has come is kept; the same command goes on from it.",
            ) from error


def forget(folder: Path, key: str, read: int) -> None:
    """Remove the rows that were kept, of which a corpus holds the first `read` now.

    They stay where there are more of them, for a reading without a limit, and while another process keeps its own.
    """
    place = folder / f"{KEPT}{key}"
    if not place.exists():
        return
    with locked(place.with_name(f"{place.name}.lock"), wait=False) as own:
        if own and _KeptRows(place).count <= read:
            with suppress(OSError):
                for file in (each for each in place.iterdir() if _PART.fullmatch(each.name)):
                    file.unlink()
                place.rmdir()


def _fetched(
    address: HubAddress, columns: Sequence[str], prepare: Callable[[Any], Any], kept: _KeptRows
) -> Iterator[dict[str, Any]]:
    """Rows from where the kept ones end; written as they come, and what is not written yet when it ends in any way."""
    dataset = prepare(_opened(address, columns))
    if kept.state is not None:
        dataset.load_state_dict(kept.state)
    try:
        for value in dataset:
            # The place after this very row: when reading the next one fails, nobody knows what a later one would say.
            kept.add({name: value.get(name) for name in columns}, dataset.state_dict())
            yield value
        kept.ended = True
    finally:
        kept.write()


class _KeptRows:
    """Parts of rows on disk: rows-N.parquet, and rows-N.json with the place after it, without which it does not exist.

    Args:
        place: their folder; None = nothing is kept.
    """

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._waiting: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self._parts: list[Path] = []
        self.state: dict[str, Any] | None = None
        self.ended, self.count = False, 0
        if place is None:
            return
        while (record := _record(about := place / f"rows-{len(self._parts):05}.json")) is not None:
            self._parts.append(about.with_suffix(".parquet"))
            self.state, self.ended, self.count = record["state"], record["ended"], record.get("rows", 0)
        # What lies behind a gap was kept from another place on, and would be joined to what comes now.
        known = {file for part in self._parts for file in (part, part.with_suffix(".json"))}
        for file in place.glob("rows-*"):
            if file not in known and _PART.fullmatch(file.name):
                file.unlink(missing_ok=True)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Those of all parts."""
        import pyarrow.parquet as pq

        for part in self._parts:
            for batch in pq.ParquetFile(part).iter_batches(1000):
                yield from batch.to_pylist()

    def add(self, row: dict[str, Any], state: dict[str, Any]) -> None:
        """Take a row and the place after it."""
        if self._place is None:
            return
        self._waiting.append(row)
        self.state = state
        if len(self._waiting) >= ROWS or time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Write what has come since the last part, the place last."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._place is None or not (self._waiting or self.ended):
            return
        part = self._place / f"rows-{len(self._parts):05}.parquet"
        with whole(part) as temporary:
            pq.write_table(pa.Table.from_pylist(self._waiting), temporary, compression="zstd")
        self.count += len(self._waiting)
        record = {"state": self.state, "ended": self.ended, "rows": self.count}
        write_record(part.with_suffix(".json"), record)
        self._parts.append(part)
        self._waiting, self._written = [], time.monotonic()


def _record(about: Path) -> dict[str, Any] | None:
    """Return what was written of a part; None where there is none, or it or its rows are damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    record = read_record(about)
    if not {"state", "ended"} <= record.keys():
        return None
    try:
        pq.read_metadata(about.with_suffix(".parquet"))
    except (OSError, pa.ArrowException):
        return None
    return record


def _opened(address: HubAddress, columns: Sequence[str]) -> Any:
    """The streamed columns of an address's split; of train, or the only one, where none is named."""
    builder = _builder(address)
    dataset = _split(builder, address)
    if not dataset.column_names:  # known only when rows are read
        return dataset
    require_columns(columns, dataset.column_names, address.text)
    if builder.name == "parquet":  # of which other columns need not be fetched
        builder.config.columns = list(columns)
        builder.info.features = None
        return _split(builder, address)
    return dataset.select_columns(list(columns))


def _split(builder: Any, address: HubAddress) -> Any:
    try:
        splits = builder.as_streaming_dataset()
    except (OSError, ValueError) as error:
        raise _problem(address, error) from error
    if address.split and address.split not in splits:
        raise DataError(
            f'there is no split "{address.split}"', where=address.text, remedy=nearest(address.split, list(splits))
        )
    return splits[address.split] if address.split else chosen_split(splits, address.text)


def _builder(address: HubAddress) -> Any:
    from datasets import load_dataset_builder

    try:
        return load_dataset_builder(address.name, address.config, revision=address.revision)
    except (OSError, ValueError) as error:
        raise _problem(address, error) from error


def _problem(address: HubAddress, error: Exception) -> DataError | EnvironmentProblem:
    from datasets.data_files import EmptyDatasetError
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError

    if isinstance(error, DataFilesNotFoundError | EmptyDatasetError):
        return DataError(f"there are no data in it ({error})", where=address.text)
    if isinstance(error, DatasetNotFoundError):
        return DataError(
            f"this data set is not on the hub, or needs a login ({error})",
            where=address.text,
            remedy="Check the name, and the revision where one is given.",
        )
    if isinstance(error, OSError):
        return EnvironmentProblem(
            f"the data set cannot be fetched ({error})",
            where=address.text,
            remedy="Without a network, download it first and give the file.",
        )
    return DataError(f"the data set cannot be loaded ({error})", where=address.text)


def _origin(builder: Any) -> Any:
    """The commit of a data set's files on the hub; of files elsewhere, what tells their versions apart."""
    marks = [mark for files in (builder.config.data_files or {}).values() for mark in files.origin_metadata]
    commits = {mark[1] for mark in marks if len(mark) == 2 and _COMMIT.fullmatch(str(mark[1]))}
    if len(commits) == 1 and all(len(mark) == 2 for mark in marks):
        return commits.pop()
    return [builder.hash, sorted(map(str, marks))]
