"""A list, in a folder, of the files that distilvec wrote there: what else lies in it is never removed with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from distilvec.files import read_object, refuse_foreign, write_text
from distilvec.system_errors import system_problem

SEAL = ".distilvec-files.json"


def seal(folder: Path, what: str, *, hashed: bool = False) -> None:
    """List the files of a folder that is whole now.

    Args:
        what: kind of folder: "checkpoint", "student", "export", "model2vec".
        hashed: also how large each file is, and its hash; `differing` looks at them.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    files = sorted(name for name in names if name != SEAL)
    content: dict[str, Any] = {"made_by": "distilvec", "what": what, "files": files}
    if hashed:
        content["hashes"] = {name: _print_of(folder / name) for name in files}
    write_text(folder / SEAL, json.dumps(content, indent=1) + "\n")


def sealed(folder: Path, what: str | None = None) -> list[Path] | None:
    """The listed files that are there, and the list; None without one. Links, and what lies behind one, are none.

    Args:
        what: the kind of folder that is meant; None = any.
    """
    file = folder / SEAL
    listing = read_object(file)
    names = listing.get("files") if listing.get("made_by") == "distilvec" else None
    if not isinstance(names, list) or folder.is_symlink() or what not in (None, listing.get("what")):
        return None
    return [*(folder / name for name in names if isinstance(name, str) and _is_own(folder, name)), file]


def differing(folder: Path, what: str) -> list[str] | None:
    """The listed files that are not as they were, or not there; None where the list has no hashes, or there is none.

    Raises:
        EnvironmentProblem: a file cannot be read.
    """
    listing = read_object(folder / SEAL) if sealed(folder, what) else {}
    hashes = listing.get("hashes")
    if not isinstance(hashes, dict) or sorted(hashes) != sorted(listing.get("files", [])):
        return None
    try:
        return [name for name, was in hashes.items() if not _is_own(folder, name) or _print_of(folder / name) != was]
    except OSError as error:
        raise system_problem(error, "a file cannot be read", folder) from error


def _print_of(file: Path) -> dict[str, Any]:
    """How large a file is, and its hash."""
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "blake2b": hashlib.file_digest(content, "blake2b").hexdigest()}


def _is_own(folder: Path, name: str) -> bool:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        return False
    try:
        steps = [folder / each for each in (path, *path.parents)]
        return (folder / path).is_file() and not any(each.is_symlink() for each in steps)
    except (OSError, ValueError):  # no name that a file can have
        return False


def refuse_unlisted(
    place: Path, names: Iterable[str], what: str, older: Callable[[Path], bool] = lambda _: False
) -> None:
    """Refuse to write where something would be replaced that the list does not name; nothing is changed.

    Args:
        place: a folder, which need not exist.
        names: what would be replaced in it.
        what: the kind of folder that is meant.
        older: whether distilvec wrote what lies in a folder without a list.

    Raises:
        DistilvecError: a file lies where the folder should be, or it holds such names, and they are not ours.
        EnvironmentProblem: nobody may look.
    """
    listed = sealed(place, what)
    if listed is None:
        refuse_foreign(place, names, older)
    else:
        own = {file.relative_to(place).parts[0] for file in listed}
        refuse_foreign(place, set(names) - own, lambda _: False)


def remove(folder: Path) -> None:
    """Remove what is listed, and the folders that are empty by that; nothing from a folder without a list.

    Raises:
        OSError: something cannot be removed.
    """
    files = sealed(folder) or []
    holders = {holder for file in files for holder in file.parents if holder.is_relative_to(folder)}
    for file in files:
        file.unlink(missing_ok=True)
    for holder in sorted(holders, key=lambda each: len(each.parts), reverse=True):
        if not any(holder.iterdir()):
            holder.rmdir()
