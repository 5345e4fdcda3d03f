"""Object storage and other machines' disks, through fsspec: s3://, gs://, az://, sftp://, file://."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distilvec.errors import DistilvecError, EnvironmentProblem

#: Where files can be written, listed and read again. fsspec also opens archives, code hosting, caches and the web.
PROTOCOLS = {
    "file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "hf",
    "hdfs", "webhdfs", "webdav", "sftp", "ssh", "ftp", "smb",
}  # fmt: skip


def unfit(url: str) -> str | None:
    """Say why an address names no storage; None where it does."""
    protocol, found, _ = url.partition("://")
    if found and protocol in PROTOCOLS:
        return None
    named = f'"{protocol[:80]}" is none of {", ".join(sorted(PROTOCOLS))}' if found else f'"{url[:80]}" has no protocol'
    return f"is an address such as s3://bucket/folder or file:///folder; {named}"


@contextmanager
def opened_storage(url: str, what: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it.

    Args:
        what: is there, for messages: "a copy", "a corpus".

    Raises:
        DistilvecError: it is no address of a storage.
        EnvironmentProblem: the storage cannot be reached, refuses, or needs a package; also for what the block raises,
            unless that is an error of this package.
    """
    import fsspec

    if (told := unfit(url)) is not None:
        raise DistilvecError(f"{what} {told}", where=url[:200])
    remedy = "Check the address and your credentials."
    try:
        system, root = fsspec.core.url_to_fs(url)
        system.invalidate_cache()
        yield system, root.rstrip("/")
    except DistilvecError:
        raise
    except ImportError as error:
        raise EnvironmentProblem(
            f"this storage needs a package ({_line(error)})", where=url, remedy="Install it."
        ) from error
    except (
        Exception
    ) as error:  # botocore's and others' own, of which few are an OSError; ftp connects when it is opened
        raise EnvironmentProblem(f"the storage cannot be used ({_line(error)})", where=url, remedy=remedy) from error


def _line(error: Exception) -> str:
    """Return what an error says, in one line: some have a page of places where a library was looked for."""
    return " ".join(str(error).split())[:300] or type(error).__name__
