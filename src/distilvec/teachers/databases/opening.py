"""Opening the database of an address: one small file per kind, each of which reads a table in pages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, nearest
from distilvec.teachers.databases.address import TableAddress

#: Rows that are held at once.
PAGE = 1000
Page = list[dict[str, Any]]
#: From the columns that are wanted (others may come along, None = all) to pages of rows, column -> value. The key of a
#: row is the column "id".
Pages = Callable[[Sequence[str] | None], Generator[Page]]
#: Kind -> its module, whose `connect` makes a context of an address that yields `Pages`; and what to do if it fails.
KINDS: dict[str, tuple[str, str]] = {
    "postgresql": (
        "distilvec.teachers.databases.postgres",
        "Check that it runs, the host, the port and the user; a password is read from PGPASSWORD or ~/.pgpass.",
    ),
    "qdrant": (
        "distilvec.teachers.databases.qdrant",
        "Check that it runs, and its address; a key is read from QDRANT_API_KEY.",
    ),
    "chroma": ("distilvec.teachers.databases.chroma", "Check that it runs, and its address."),
    "lancedb": ("distilvec.teachers.databases.lance", "Check the folder, or the address of the bucket."),
    "sqlite": (
        "distilvec.teachers.databases.sqlite",
        "Is it a database of SQLite? A virtual table of an extension has to be copied into a plain one.",
    ),
}


@contextmanager
def opened(address: TableAddress) -> Iterator[Callable[[Sequence[str] | None], Generator[dict[str, Any]]]]:
    """Connect to a database; yields a function from columns (None = all) to the rows of the table.

    Raises:
        DataError: there is no such folder or table.
        EnvironmentProblem: an extra is missing, or the database does not answer.
    """
    connect = import_module(KINDS[address.kind][0]).connect
    with ExitStack() as stack:
        with _client_errors(address):
            pages: Pages = stack.enter_context(connect(address))

        def rows(columns: Sequence[str] | None) -> Generator[dict[str, Any]]:
            with _client_errors(address), closing(pages(columns)) as found:
                for page in found:
                    yield from page

        yield rows


@contextmanager
def _client_errors(address: TableAddress) -> Iterator[None]:
    """Turn what a client raises into one line: each has classes of its own, and lets those of its libraries through."""
    try:
        yield
    except DistilvecError:
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise EnvironmentProblem(
            f"the database cannot be read: {told}", where=address.where, remedy=KINDS[address.kind][1]
        ) from error


def check_folder(address: TableAddress, holds: str) -> None:
    """See that there is such a folder with a database in it, because clients make one where there is none.

    Args:
        holds: pattern of a file that is in every such folder.

    Raises:
        DataError: there is not.
    """
    folder = Path(address.place).expanduser()
    if not any(folder.glob(holds)):
        told = f"there is no {holds} in this folder" if folder.is_dir() else "there is no such folder"
        raise DataError(told, where=address.where, remedy="Is it the folder that the database is kept in?")


def check_table(address: TableAddress, known: Iterable[str]) -> None:
    """See that the table is one of those that there are.

    Raises:
        DataError: it is not.
    """
    names = sorted(known)
    if address.table not in names:
        remedy = nearest(address.table, names) if names else "The database has no tables."
        raise DataError(f'there is no table or collection "{address.table}"', where=address.where, remedy=remedy)
