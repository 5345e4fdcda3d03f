"""Where the data come from: the file of sources, and raw files from the net or from clones on this machine."""

from __future__ import annotations

import hashlib
import http.client
import io
import subprocess
import tarfile
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

#: Tries of one file. The pause before the second is `PAUSE` seconds and doubles each time.
TRIES = 5
PAUSE = 1.0
CHUNK = 1 << 16


class Missing(Exception):
    """A raw file or a set could not be had; the message says which and why."""


@dataclass(frozen=True)
class Repository:
    """A public repository at one commit. `checksums` has the sha256 of every file that is read from it alone."""

    name: str
    address: str
    commit: str
    licence: str
    checksums: dict[str, str]


@dataclass(frozen=True)
class DataSet:
    """What one builder makes: `files` (rows by name) in `folder`, from `repositories`, after the sets in `after`."""

    name: str
    folder: str
    licence: str
    repositories: tuple[str, ...]
    after: tuple[str, ...]
    files: dict[str, int]
    note: str


@dataclass(frozen=True)
class Sources:
    """The file of sources. `url` and `archive` are templates with {address}, {commit} and, `url` only, {path}."""

    url: str
    archive: str
    repositories: dict[str, Repository]
    sets: dict[str, DataSet]

    @classmethod
    def read(cls, file: Path) -> Sources:
        """Read a file of sources (TOML)."""
        named: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        repositories = {
            name: Repository(name, part["address"], part["commit"], part["licence"], part.get("files", {}))
            for name, part in named["repositories"].items()
        }
        sets = {
            name: DataSet(
                name,
                part.get("folder", "data"),
                part["licence"],
                tuple(part["repositories"]),
                tuple(part.get("after", ())),
                part["files"],
                part.get("note", ""),
            )
            for name, part in named["sets"].items()
        }
        return cls(named["url"], named["archive"], repositories, sets)


@dataclass(frozen=True)
class Raw:
    """Hands out raw files, each checked against its checksum.

    A file comes from `mirror`, where that is given (a folder with clones at `<owner>/<name>`), else from the net by way
    of `cache`, in which it stays. `made` is the folder of data being built, for sets that are cut from others.
    """

    sources: Sources
    cache: Path
    made: Path
    mirror: Path | None = None

    def bytes(self, repository: str, path: str) -> bytes:
        """One file of a repository."""
        source = self.sources.repositories[repository]
        if path not in source.checksums:
            raise KeyError(f"the file of sources lists no {path} of {source.address}")
        if self.mirror is not None:
            data = _git(self.mirror / source.address, "show", f"{source.commit}:{path}")
            if hashlib.sha256(data).hexdigest() != source.checksums[path]:
                raise Missing(f"{path} of {source.address} in the mirror has another checksum than the file of sources")
            return data
        place = {"address": source.address, "commit": source.commit, "path": urllib.parse.quote(path)}
        file = self.cache / source.address / source.commit[:12] / path
        download(self.sources.url.format(**place), file, source.checksums[path])
        return file.read_bytes()

    def text(self, repository: str, path: str) -> str:
        """One file of a repository, UTF-8, without a byte order mark."""
        return self.bytes(repository, path).decode("utf-8-sig")

    def members(self, repository: str, prefix: str) -> Iterator[tuple[str, bytes]]:
        """The files of a repository below a folder, as path and content, in the order of their paths."""
        source = self.sources.repositories[repository]
        if self.mirror is not None:
            packed: Any = io.BytesIO(_git(self.mirror / source.address, "archive", source.commit, prefix))
            top = ""
        else:
            packed = self.cache / source.address / f"{source.commit[:12]}.tar.gz"
            download(self.sources.archive.format(address=source.address, commit=source.commit), packed, None)
            packed = packed.open("rb")
            top = f"{source.address.split('/')[1]}-{source.commit}/"
        found = {}
        with packed, tarfile.open(fileobj=packed) as archive:
            for member in archive:
                if member.isfile() and member.name.startswith(top + prefix):
                    part = archive.extractfile(member)
                    found[member.name.removeprefix(top)] = part.read() if part is not None else b""
        if not found:
            raise Missing(f"{source.address} at {source.commit[:12]} has nothing below {prefix}")
        yield from sorted(found.items())


def download(url: str, target: Path, sha256: str | None) -> None:
    """Fetch a file unless it is there; a broken transfer continues where it stopped.

    Bytes go to `<target>.part`, which takes the target's name once it is whole and its checksum is right, so a file
    under its own name is never half a file.

    Raises:
        Missing: the server says that it has no such file, the file has another checksum, or all tries failed.
    """
    if target.exists() and (sha256 is None or _sha256(target) == sha256):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    why, wrong = "", 0
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _transfer(url, part)
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.reason}"
            if error.code in (401, 403, 404, 410):
                break
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
            continue
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            continue
        if sha256 is None or _sha256(part) == sha256:
            part.replace(target)
            return
        why = "the file has another checksum than the file of sources"
        part.unlink()
        wrong += 1
        if wrong == 2:
            break
    raise Missing(f"{url}: {why}")


def _transfer(url: str, part: Path) -> None:
    """One request: append to what is there if the server allows, else begin anew."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    columns = (TextColumn("  {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with urllib.request.urlopen(request, timeout=60) as answer, Progress(*columns) as progress:
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        length = answer.headers.get("Content-Length")
        total = int(length) + (start if goes_on else 0) if length else None
        name = urllib.parse.unquote(url.rsplit("/", 1)[-1])
        bar = progress.add_task(name, total=total, completed=start if goes_on else 0)
        with part.open("ab" if goes_on else "wb", buffering=0) as file:
            while chunk := answer.read1(CHUNK):
                file.write(chunk)
                progress.advance(bar, len(chunk))
        if total is not None and part.stat().st_size != total:
            raise OSError(f"{part.stat().st_size} of {total} bytes came")


def _git(clone: Path, *arguments: str) -> bytes:
    if not clone.is_dir():
        raise Missing(f"the mirror has no folder {clone}")
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise Missing(f"git {' '.join(arguments)} in {clone}: {done.stderr.decode().strip()}")
    return done.stdout


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
