"""Object storage and other machines' disks, through fsspec: s3://, gs://, az://, sftp://, file://."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from distilvec.errors import DistilvecError, EnvironmentProblem

#: Where files can be written, listed and read again. fsspec also opens archives, code hosting, caches and the web.
PROTOCOLS = {
    "file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "hf",
    "hdfs", "webhdfs", "webdav", "sftp", "ssh", "ftp", "smb",
}  # fmt: skip


def unfit(url: str) -> str | None:
    """Say why an address cannot be taken; None where it names a storage, without a password."""
    protocol, found, _ = url.partition("://")
    known = bool(found) and protocol in PROTOCOLS
    if known and urlsplit(url).password:
        return (
            "has an address with a password, which recipes and reports would keep; leave it out: the storage's package "
            "reads keys from the environment or from its own files"
        )
    if known:
        return None
    named = f'"{protocol[:80]}" is none of {", ".join(sorted(PROTOCOLS))}' if found else f'"{url[:80]}" has no protocol'
    return f"is an address such as s3://bucket/folder or file:///folder; {named}"


@contextmanager
def opened_storage(url: str, what: str, named: str | None = None) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it.

    Args:
        what: is there, for messages: "a copy", "a corpus".
        named: what errors name in place of the URL.

    Raises:
        DistilvecError: it is no address of a storage.
        EnvironmentProblem: the storage cannot be reached, refuses, or needs a package; also for what the block raises,
            unless that is an error of this package.
    """
    import fsspec

    if (told := unfit(url)) is not None:
        parts = urlsplit(url)
        raise DistilvecError(
            f"{what} {told}", where=f"{parts.scheme}://{parts.hostname}" if parts.password else url[:200]
        )
    remedy, where = "Check the address and your credentials.", named or url
    try:
        system, root = fsspec.core.url_to_fs(url)
        system.invalidate_cache()
        yield system, root.rstrip("/")
    except DistilvecError:
        raise
    except ImportError as error:
        raise EnvironmentProblem(
            f"this storage needs a package ({_line(error)})", where=where, remedy="Install it."
        ) from error
    except (
        Exception
    ) as error:  # botocore's and others' own, of which few are an OSError; ftp connects when it is opened
        raise EnvironmentProblem(f"the storage cannot be used ({_line(error)})", where=where, remedy=remedy) from error


def _line(error: Exception) -> str:
    """Return what an error says, in one line: some have a page of places where a library was looked for."""
    return " ".join(str(error).split())[:300] or type(error).__name__
