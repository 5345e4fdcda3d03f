"""The ownership of folders: one rule for all commands.

An output is new or empty, or it carries our manifest, `.distilvec.json`. What the manifest lists is ours to replace and
to remove; nothing else is touched. How a file becomes visible, and how a process holds a folder, is in `files.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.files import TEMPORARY_NAME, check_regular, held, read_object, try_place, write_text, writing
from distilvec.system_errors import system_problem

logger = logging.getLogger(__name__)
MANIFEST = ".distilvec.json"
_LOCK = ".distilvec.lock"
#: What several runs can share, and all that a run, a comparison, a mining or a plan writes into its output.
CACHE = ("alignments", "corpus", "pieces", "stores", "tokens")
OUTPUT = (
    *CACHE,
    *("baselines", "checkpoints", "checkpoints-before", "data", "figures", "given", "mining", "router", "runs"),
    *("start", "student", "tuning", "baselines.json", "compare.json", "compare.md", "compression.json"),
    *("compression.md", "mined.jsonl", "mining.json", "mining.md", "mining.yaml", "plan.json", "plan.svg"),
    *("ranks.svg", "recipe.yaml", "rejected.jsonl", "report.html", "report.json", "report.md", "run.jsonl"),
    "scores.json",
)
#: What systems, shells and killed processes put into folders that hold nothing.
_NOTHING = re.compile(
    rf"{TEMPORARY_NAME.pattern}|{re.escape(_LOCK)}|run\.lock|.+\.log|\.DS_Store|\.git(ignore|keep)|lost\+found"
    r"|\.ipynb_checkpoints|Thumbs\.db|\.nfs\w+"
)


def read(place: Path) -> dict[str, Any]:
    """The manifest of a folder: `files` (kind of output -> names) and what else `update` was given; {} without one.

    A manifest that is a link, or that another program wrote, is none.
    """
    content = read_object(place / MANIFEST)
    if isinstance(roles := content.get("roles"), list) and "files" not in content:  # of a version before the lists
        names = {"output": list(OUTPUT), "cache": list(CACHE)}
        content |= {"files": {kind: names[kind] for kind in names if kind in roles}, "alone": "output" in roles}
    files = content.get("files")
    if content.get("made_by") != "distilvec" or not isinstance(files, dict):
        return {}
    whole = all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in files.values())
    return content if whole else {}


def update(place: Path, files: dict[str, Iterable[str]] | None = None, *, more: bool = False, **changes: Any) -> None:
    """Change the manifest of a folder, and write it if there is none.

    Args:
        files: kind of output -> what it consists of; other kinds stay.
        more: add to what is listed as these kinds.
    """
    about = "distilvec wrote what is listed here, and may replace and remove it."
    with writing("folder", place), held(place / _LOCK, wait=True):
        known = read(place)
        listed = dict(known.get("files", {}))
        for kind, names in (files or {}).items():
            listed[kind] = sorted({*names, *(listed.get(kind, ()) if more else ())})
        listed = {kind: names for kind, names in listed.items() if names}
        content = {"made_by": "distilvec", "about": about, **known, **changes, "files": listed}
        write_text(place / MANIFEST, json.dumps(content, indent=1) + "\n")


def check(place: Path, kind: str, names: Collection[str], *, alone: bool = False) -> None:
    """Refuse to write where something that is not ours would be replaced, or where nothing can be written.

    Args:
        place: a folder, which need not exist; nothing is changed in it.
        kind: of output; what is listed as another kind is in the way too, except a run's.
        names: what would be written there; names of files have a dot.
        alone: whether nothing may lie in the folder that is not ours.

    Raises:
        DistilvecError: naming what is in the way.
        EnvironmentProblem: the folder cannot be read or written.
    """
    with writing("folder", place):
        if place.exists() and not place.is_dir():
            raise DistilvecError("expected a folder, found a file", where=str(place)[:300], remedy="Choose another.")
        there = {entry.name for entry in place.iterdir()} if place.is_dir() else set()
        manifest = read(place)
        listed = [name for each in (kind, "output", "cache") for name in manifest.get("files", {}).get(each, ())]
        others = there - {MANIFEST, *(name.partition("/")[0] for name in listed)}
        if alone and not manifest.get("alone"):
            others = {name for name in others if not _NOTHING.fullmatch(name)}
        else:
            others &= set(names)
        # A disk that fails leaves folders that were made, and no list of what was to come into them.
        foreign = sorted(name for name in others if not _is_hollow(place / name))
        if foreign:
            shown = ", ".join(name[:60] for name in foreign[:3])
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise DistilvecError(
                f"this folder holds what this command did not write: {shown}{more}",
                where=str(place.absolute())[:300],
                remedy="Choose an empty or a new folder (output, or -o); nothing was changed.",
            )
        _check_kinds(place, names)
        try_place(place)


def _is_hollow(path: Path) -> bool:
    """Tell a folder without any file in it, or in a folder below, but what a killed process had not finished."""

    def is_nothing(each: Path) -> bool:
        left = any(TEMPORARY_NAME.fullmatch(part) for part in each.relative_to(path).parts)
        return left or (each.is_dir() and not each.is_symlink())

    return path.is_dir() and not path.is_symlink() and all(map(is_nothing, path.rglob("*")))


def _check_kinds(place: Path, names: Collection[str]) -> None:
    """Refuse a file where a folder is needed, something else where a file is, and what may have no end."""
    for name in sorted(names):
        check_regular(place / name, deep=True)
    stores = (place / "stores").glob("*") if "stores" in names else ()
    for path in [*(place / name for name in sorted(names)), *(each for each in stores if "." not in each.name)]:
        folder = path.parent != place or path.name in CACHE or "." not in path.name
        if os.path.lexists(path) and not (path.is_dir() if folder else path.is_file()):
            needed, found = ("folder", "file") if folder else ("file", "folder")
            raise DistilvecError(
                f"expected a {needed}, found a {found} or a broken link",
                where=str(path),
                remedy="Move it away, or choose another output or cache.",
            )


def claim(folder: str | Path, kind: str = "output", names: Collection[str] | None = None) -> Path:
    """Make a folder ours for one kind of output, or find that it is.

    Args:
        kind: "output" of a run, where nothing else may lie; "cache", which may lie among other files; or any other,
            which may so too, and says its names.
        names: what may be written there.
    """
    place, alone = Path(folder), kind == "output"
    names = sorted(names or (OUTPUT if alone else CACHE))
    check(place, kind, names, alone=alone)
    known = read(place)
    if known.get("files", {}).get(kind) != names:
        with writing("folder", place):
            place.mkdir(parents=True, exist_ok=True)
        update(place, {kind: names}, **({"alone": True} if alone else {}))
    return place


def check_file(file: Path, ours: Callable[[dict[str, Any]], bool]) -> None:
    """Refuse to replace a file that a command did not write, or to write where nothing can be written.

    Args:
        ours: whether the command wrote this content (a JSON object).
    """
    if os.path.lexists(file) and not ours(read_object(file)):
        raise DistilvecError(
            "this command did not write the file that is here",
            where=str(file)[:300],
            remedy="Choose another file (-o); nothing was changed.",
        )
    check(file.parent, "file", ())


# folders whose files are all ours; what cannot be moved or removed is an OSError


def seal(folder: Path, kind: str, later: Collection[str] = (), *, hashed: bool = False) -> None:
    """List the files of a folder that is whole now, and those that will come to it `later`.

    Args:
        hashed: list also how large each file is, and its hash; `differing` compares them.
    """
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} - {MANIFEST}
    changes: dict[str, Any] = {"hashes": {name: _print_of(folder / name) for name in sorted(files)}} if hashed else {}
    update(folder, {kind: files.union(later)}, **changes)


def sealed(folder: Path, kind: str | None = None) -> list[Path] | None:
    """The listed files that are there, and the manifest last; None without one. Links, and files behind one, are none.

    Args:
        kind: the kind of output that is meant; None = all that the manifest lists.
    """
    files = {} if folder.is_symlink() else read(folder).get("files", {})
    names = {name for each, listed in files.items() if kind in (None, each) for name in listed}
    if not names:
        return None
    return [*(folder / name for name in sorted(names) if _is_own(folder, name)), folder / MANIFEST]


def differing(folder: Path, kind: str) -> list[str] | None:
    """The listed files that are not as they were, or not there; None if no hashes are listed."""
    content = {} if folder.is_symlink() else read(folder)
    hashes = content.get("hashes")
    if not isinstance(hashes, dict) or sorted(hashes) != sorted(content["files"].get(kind, ())):
        return None
    try:
        return [name for name, was in hashes.items() if not _is_own(folder, name) or _print_of(folder / name) != was]
    except OSError as error:
        raise system_problem(error, "a file cannot be read", folder) from error


def _print_of(file: Path) -> dict[str, Any]:
    """Return how large a file is, and its hash."""
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "blake2b": hashlib.file_digest(content, "blake2b").hexdigest()}


def _is_own(folder: Path, name: str) -> bool:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    try:
        steps = [folder / each for each in (path, *path.parents)]
        return (folder / path).is_file() and not any(each.is_symlink() for each in steps)
    except (OSError, ValueError):  # no name that a file can have
        return False


def strangers(folder: Path) -> list[Path]:
    """The files in a folder that its manifest does not list; what Python and systems put there is left out."""
    own = set(sealed(folder) or ())
    there = (file for file in folder.rglob("*") if file.is_symlink() or not file.is_dir())
    return [file for file in there if file not in own and not {"__pycache__", ".DS_Store"}.intersection(file.parts)]


def remove(folder: Path, kind: str | None = None) -> None:
    """Remove the files that the manifest lists, and the folders that are empty by that; other files stay."""
    own = sealed(folder, kind) or []
    others = read(folder).get("files", {}).keys() - {kind} if kind else ()
    if others and own:
        kept = {folder / MANIFEST, *(file for each in others for file in sealed(folder, each) or ())}
        own = [file for file in own if file not in kept]
    for file in own:
        file.unlink(missing_ok=True)
    if others:
        update(folder, {str(kind): []})
    holders = {holder for file in own for holder in file.parents if holder.is_relative_to(folder)}
    for holder in sorted(holders, key=lambda each: len(each.parts), reverse=True):
        if holder.is_dir() and not any(holder.iterdir()):
            holder.rmdir()


def remove_all(folder: Path) -> None:
    """Remove what the manifests in a folder and below it list, and the folders that are empty by that."""
    for manifest in sorted(folder.rglob(MANIFEST), key=lambda each: len(each.parts), reverse=True):
        remove(manifest.parent)
        for holder in manifest.parents:
            if holder.is_relative_to(folder):
                with suppress(OSError):  # something is left in it, or it is gone
                    holder.rmdir()


def publish(made: Path, out: Path, kind: str, last: str = "") -> None:
    """Move the files of a folder into another one, in the place of an earlier output of this kind.

    The list goes first, so that what a killed process leaves is known as ours, and the file `last` goes last: while it
    is missing, the rest is not read. A file that is in the way and is not listed is moved aside.
    """
    names = sorted(file.relative_to(made).as_posix() for file in made.rglob("*") if file.is_file())
    if out / last in (sealed(out, kind) or ()):
        (out / last).unlink()
    remove(out, kind)
    out.mkdir(parents=True, exist_ok=True)
    reserve(out, kind, names)
    for name in sorted(names, key=lambda name: name == last):
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, place)


def reserve(folder: Path, kind: str, names: Iterable[str], *, more: bool = False) -> None:
    """List names as ours before they are written; a file that has one of them and is not listed is moved aside."""
    names = set(names)
    listed = {folder / name for each in read(folder).get("files", {}).values() for name in each}
    for place in (folder / name for name in names):
        if os.path.lexists(place) and not listed & {place, *place.parents}:
            aside = aside_name(place)
            place.rename(aside)
            logger.warning("%s was not written by distilvec, and is now %s", place, aside.name)
    if names:
        update(folder, {kind: names}, more=more)


def aside_name(path: Path) -> Path:
    """The first of NAME.before-1, NAME.before-2 ... that nothing has."""
    return next(each for n in count(1) if not os.path.lexists(each := path.with_name(f"{path.name}.before-{n}")))


# models and runs


def holds_student(folder: Path) -> bool:
    """Tell whether a folder holds a shipped student: with modules.json, or a model that writes with its settings."""
    writes = (folder / "config.json").is_file() and (folder / "generation_config.json").is_file()
    return writes or (folder / "modules.json").is_file()


def check_model(target: Path, *, new: bool = False) -> None:
    """Refuse to put a model where something else lies, or where nothing can be written.

    Args:
        new: refuse a model as well: what a command makes in a minute never replaces one that took hours.

    Raises:
        DistilvecError: the place holds something.
        EnvironmentProblem: the place cannot be read or written.
    """
    with writing("model", target):
        model = holds_student(target)
        foreign = os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())) and not model
        if foreign and sealed(target, "student") is None:
            raise DistilvecError(
                "this place holds something that is not a model, and it would be lost",
                where=str(target)[:300],
                remedy="Choose another folder, or empty this one.",
            )
        if new and model:
            raise DistilvecError(
                "this folder holds a model, and it would be lost",
                where=str(target)[:300],
                remedy="Choose another folder (-o), or remove this one.",
            )
        try_place(target.parent)


def is_finished(place: Path) -> bool:
    """Tell whether the newest run in this folder went to its end, with report and student."""
    there = holds_student(place / "student") and (place / "report.json").is_file()
    return there and bool(read(place).get("finished"))


def set_aside(place: Path) -> None:
    """Move student, exports and report of an earlier run out of the way of another recipe's, or of another corpus'."""
    if not (place / "student").exists():
        return
    before = next(each for n in count(1) if not (each := place / f"before-{n}").exists())
    before.mkdir()
    exports = [file.parent.name for file in place.glob("*/distilvec_onnx.json")]  # of the student that goes
    reports = ("report.md", "report.html", "report.json", "run.jsonl")
    names = ("router", "figures", *exports, *reports, "student", "recipe.yaml")
    update(before, {"output": names})
    for name in names:  # the student late and the recipe last: after a kill the rest is still seen to be in the way
        if (place / name).exists():
            (place / name).rename(before / name)
    told = "Another recipe or corpus starts here; the student and the report of the run before are now in %s."
    logger.warning(told, before)
