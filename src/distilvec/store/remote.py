"""A store's copy on object storage or another machine's disk, through fsspec: s3://, gs://, az://, sftp://, file://.

A store is always worked on in a local folder. `pull` fetches the parts that it lacks, `push` adds its own to the copy.
There a part has its checksum for a name, `<signal>-<checksum>-000000`, so that machines which do not know one another
never use a name twice, and the same part is never there twice. Vectors go before their record, as on disk: a part
without its record does not exist.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.files import locked, temporary, whole
from distilvec.storage import opened_storage
from distilvec.store.axes import AXES
from distilvec.store.files import disk_problems, write_json
from distilvec.store.layout import (
    VOCABULARY,
    add_signal,
    check_same_teacher,
    make_format,
    read_contents,
    read_format,
    read_signals,
    understood,
    write_format,
    write_vocabulary,
)
from distilvec.store.part import BadPart, verify_part
from distilvec.store.scan import part_names

logger = logging.getLogger(__name__)

FORMAT = "store.json"
SECONDS = 20.0
_NAME_DIGITS = 32


def pull(url: str, folder: str | Path) -> int:
    """Fetch the parts that a local store lacks; how many. Nothing happens where there is no copy yet.

    One process at a time fetches into a folder: shards of one machine begin together.

    Args:
        url: of the copy.
        folder: the local store; made where there is none.

    Raises:
        DistilvecError: the copy is of another teacher, has another width or dtype, or token states on other axes.
        EnvironmentProblem: the storage cannot be reached, or the disk is full.
    """
    folder = Path(folder)
    with opened_storage(url, "a copy") as (system, root), disk_problems(folder):
        content = _contents(system, root)
        if content is None:
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "pull.lock", wait=True):
            _enter(folder, content, url)
            vocabulary = _read(system, f"{root}/{VOCABULARY}")
            if vocabulary is not None:
                write_vocabulary(folder, vocabulary)
            _fetch_axes(system, root, folder, url)
            here = set(_remote_names(folder))
            new = [name for name in _names(system, root) if name not in here]
            return sum(_fetch(system, root, folder, name) for name in new)


def push(folder: str | Path, url: str) -> int:
    """Add the complete parts of a local store to its copy; how many were new there.

    Raises:
        DistilvecError: the copy is of another teacher, or has another width or dtype.
        EnvironmentProblem: the storage cannot be reached or written.
    """
    folder = Path(folder)
    own = read_contents(folder)
    with opened_storage(url, "a copy") as (system, root):
        system.makedirs(root, exist_ok=True)
        there = _contents(system, root)
        if there is not None:
            _check(folder, there, url)
        signals = {**(there or own)["signals"], **own["signals"]}
        if there is None or there["signals"] != signals:
            _write(system, f"{root}/{FORMAT}", {**own, "signals": signals})
        if (folder / VOCABULARY).exists() and not system.exists(f"{root}/{VOCABULARY}"):
            _write(system, f"{root}/{VOCABULARY}", json.loads((folder / VOCABULARY).read_text(encoding="utf-8")))
        _send_axes(system, root, folder, url)
        known = set(_names(system, root))
        new = {name: part for name, part in _remote_names(folder).items() if name not in known}
        return sum(_send(system, root, folder, part, name) for name, part in new.items())


@contextmanager
def mirrored(folder: Path, url: str) -> Iterator[None]:
    """Pull before the block; while it runs and after it, however it ends, push what it adds.

    Raises:
        DistilvecError, EnvironmentProblem: as `pull` and `push`. While the block runs, what cannot be pushed is
            only warned of, and tried again.
    """
    fetched = pull(url, folder)
    if fetched:
        logger.info("%s: %s %s fetched from %s", folder, f"{fetched:,}", "part" if fetched == 1 else "parts", url)
    ended = threading.Event()

    def keep_pushing() -> None:
        while not ended.wait(SECONDS):
            if not (folder / FORMAT).exists():
                continue
            try:
                push(folder, url)
            except Exception as error:  # a copy that cannot be reached for a while is no reason to end copying
                logger.warning("%s", error)

    thread = threading.Thread(target=keep_pushing, name="distilvec-push", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if (folder / FORMAT).exists():
            push(folder, url)


def _enter(folder: Path, content: dict[str, Any], url: str) -> None:
    """Make a local store of the copy's kind, or check that it is one, and enter the copy's signals."""
    signal = content["signals"]["sentence"]
    if not (folder / FORMAT).exists():
        made = make_format(content["teacher"], signal["width"], signal["dtype"])
        write_format(folder, made, identity=str(content.get("identity", "")))
    _check(folder, content, url)
    for name, entry in content["signals"].items():
        add_signal(folder, name, entry["width"], entry["dtype"], entry.get("fingerprint"))


def _check(folder: Path, content: dict[str, Any], url: str) -> None:
    check_same_teacher(str(content["teacher"]["fingerprint"]), read_format(folder).fingerprint, Path(url))
    own = read_signals(folder)
    for name, entry in content["signals"].items():
        if own.get(name, entry) != entry:
            raise DistilvecError(
                f"the copy has {name} as {entry}, the local store as {own[name]}",
                where=url,
                remedy="Use another address, or the storage that the copy has.",
            )


def _remote_names(folder: Path) -> dict[str, str]:
    """Name on the storage -> name here, of all complete parts of all signals."""
    names = {}
    for signal in read_signals(folder):
        for part in part_names(folder, signal):
            try:
                checksum = str(json.loads((folder / f"{part}.json").read_bytes())["checksum"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # whoever opens the store sets it aside
            names[f"{signal}-{checksum[:_NAME_DIGITS]}-000000"] = part
    return names


def _matching(system: Any, root: str, pattern: str) -> list[str]:
    """Names of files on the storage."""
    return sorted(fnmatch.filter((str(path).rsplit("/", 1)[-1] for path in system.ls(root, detail=False)), pattern))


def _names(system: Any, root: str) -> list[str]:
    """Names of the parts on the storage that have a record."""
    return [name.removesuffix(".json") for name in _matching(system, root, "*-000000.json")]


def _fetch_axes(system: Any, root: str, folder: Path, url: str) -> None:
    """Copy the axes that the copy's token states lie on, before any of these."""
    for name in _matching(system, root, AXES):
        content = system.cat_file(f"{root}/{name}")
        if not (folder / name).exists():
            with whole(folder / name) as partial:
                partial.write_bytes(content)
        elif (folder / name).read_bytes() != content:
            raise _other_axes(folder, name, url)


def _send_axes(system: Any, root: str, folder: Path, url: str) -> None:
    """Copy the axes that token states lie on; they go before the states."""
    there = _matching(system, root, AXES)
    for file in sorted(folder.glob(AXES)):
        target = f"{root}/{file.name}"
        if file.name not in there:
            system.pipe_file(target, file.read_bytes())
        if system.cat_file(target) != file.read_bytes():
            raise _other_axes(folder, file.name, url)


def _other_axes(folder: Path, name: str, url: str) -> DistilvecError:
    return DistilvecError(
        f"the copy's token states lie on other axes than those in {folder} ({name})",
        where=url,
        remedy="Remove the local store and teach again: the copy's axes are fetched first.",
    )


def _send(system: Any, root: str, folder: Path, part: str, name: str) -> bool:
    try:
        verify_part(folder, part)
        system.put_file(str(folder / f"{part}.arrow"), f"{root}/{name}.arrow")
        _write(system, f"{root}/{name}.json", json.loads((folder / f"{part}.json").read_bytes()))
    except (BadPart, FileNotFoundError) as problem:
        logger.warning("%s: part %s is not copied: %s", folder, part, problem)
        return False
    return True


def _fetch(system: Any, root: str, folder: Path, name: str) -> bool:
    record = _read(system, f"{root}/{name}.json")
    if record is None:
        return False
    arrow = folder / f"{name}.arrow"
    with temporary(folder) as partial:
        system.get_file(f"{root}/{name}.arrow", str(partial))
        partial.replace(arrow)
    write_json(folder / f"{name}.json", record)
    return True


def _contents(system: Any, root: str) -> dict[str, Any] | None:
    """The copy's store.json, or None where there is none."""
    content = _read(system, f"{root}/{FORMAT}")
    return None if content is None else understood(content, f"{root}/{FORMAT}")


def _read(system: Any, path: str) -> dict[str, Any] | None:
    """An object in a JSON file, or None where there is none."""
    try:
        content = json.loads(system.cat_file(path))
        if not isinstance(content, dict):
            raise ValueError("no object is in it")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"this is not JSON ({error})", where=path, remedy="Remove it.") from error
    return content


def _write(system: Any, path: str, content: dict[str, Any]) -> None:
    """Write a JSON file under another name first: on a disk, a file appears before it is complete."""
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"  # other machines write the same file
    system.pipe_file(temporary, json.dumps(content, default=str).encode())
    system.mv(temporary, path)
