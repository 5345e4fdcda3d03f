"""The parts of a folder, and what happens to those that are not what they should be."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from distilvec.store.files import disk_problems
from distilvec.store.layout import SIGNAL
from distilvec.store.part import BadPart

logger = logging.getLogger(__name__)

PartT = TypeVar("PartT")


def part_names(folder: Path, signal: str) -> list[str]:
    """Names of the parts of a signal that have a record, in order."""
    pattern = re.compile(rf"({re.escape(signal)}-[A-Za-z0-9].*-\d{{6,}})\.json")
    matches = (pattern.fullmatch(file.name) for file in folder.iterdir())
    return sorted(match[1] for match in matches if match)


def clean_up(folder: Path, writer: str, signal: str = SIGNAL) -> int:
    """Remove what a killed writer of this name left unfinished; the number of its next part.

    The caller holds the name, so nobody else writes under it.
    """
    own = re.compile(rf"{re.escape(signal)}-{re.escape(writer)}-(\d{{6,}})\.(arrow|json)(\.bad)?")
    numbers = [-1]
    with disk_problems(folder):
        for file in sorted(folder.iterdir()):
            if not (match := own.fullmatch(file.name)):
                continue
            if match[2] == "arrow" and not match[3] and not file.with_suffix(".json").exists():
                logger.info("removing %s, which an interrupted writer left", file)
                file.unlink()
            else:
                numbers.append(int(match[1]))
    return max(numbers) + 1


def scan_parts(
    folder: Path, signal: str, opened: Callable[[str], PartT], known: Mapping[str, PartT] | None = None
) -> tuple[list[PartT], dict[str, str]]:
    """Open the parts of a signal and set aside the bad ones.

    Args:
        opened: name -> part; raises `BadPart`.
        known: parts that are open already, by name; they are taken as they are.

    Returns:
        The good parts in the order of their names, and the reason for each bad one.
    """
    parts, bad = [], {}
    for name in part_names(folder, signal):
        if known and name in known:
            parts.append(known[name])
            continue
        try:
            parts.append(opened(name))
        except BadPart as problem:
            bad[name] = str(problem)
            set_aside(folder, name, str(problem))
        except FileNotFoundError:
            continue  # another process has set it aside since the folder was listed
    return parts, bad


def set_aside(folder: Path, name: str, reason: str) -> None:
    """Rename a part to `<part>.arrow.bad` and `<part>.json.bad`, so that it no longer counts.

    Where the folder cannot be written, the part is only left out by this process.
    """
    logger.warning("%s: part %s is set aside: %s. The next teaching makes it again.", folder, name, reason)
    # The record first: without it the part does not exist, whatever happens next.
    for suffix in (".json", ".arrow"):
        file = folder / f"{name}{suffix}"
        try:
            file.rename(folder / f"{name}{suffix}.bad")
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s could not be renamed (%s)", file, error)
