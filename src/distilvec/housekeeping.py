"""What runs leave on the disk, how large it is, and what of it can go."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distilvec.errors import DistilvecError
from distilvec.report import words

Kind = Literal["student", "report", "checkpoints", "left over", "store", "derived", "corpus", "tokens"]

#: What each kind is, and what happens once it is gone; None = it is never removed here.
ABOUT: dict[Kind, tuple[str, str | None]] = {
    "student": ("the student as it ships", None),
    "report": ("report, figures, log, recipe and given texts", None),
    "store": ("teacher signals", "taught again when needed, which may take hours"),
    "corpus": ("prepared corpora", "read again when needed"),
    "tokens": ("token ids and alignments", "made again when needed"),
    "derived": ("indexes and what depends on a student's tokenizer", "made again when needed"),
    "checkpoints": ("checkpoints of the training", "a finished run needs none; an unfinished one starts anew"),
    "left over": ("half-written files, parts set aside, checkpoints of a run before", "nothing needs it"),
}
#: What `clean` takes where nothing is said, and only of finished runs.
USUAL: tuple[Kind, ...] = ("checkpoints", "left over")
#: What a run writes itself and never goes; `given` are texts from Python, `data` those of the demo.
_OWN = (
    "report.md",
    "report.html",
    "report.json",
    "run.jsonl",
    "recipe.yaml",
    "rejected.jsonl",
    "figures",
    "given",
    "data",
)
#: Seconds for which something half-written may still be in work.
YOUNG = 3600.0


@dataclass(frozen=True)
class Piece:
    """One thing on the disk.

    Attributes:
        kind: see `ABOUT`.
        path: a folder, or a file.
        size: in bytes.
        kept: why it stays even where its kind is to go: checkpoints of an unfinished run, and leftovers so young that
            a process may still be writing them; empty otherwise.
    """

    kind: Kind
    path: Path
    size: int
    kept: str = ""


def pieces(folder: str | Path) -> list[Piece]:
    """Everything under a folder that runs and teachings left there.

    Known by its own manifest or name, never by guess: what distilvec did not write is not listed.

    Raises:
        DistilvecError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DistilvecError("there is no such folder", where=str(root), remedy="Give the output folder of a run.")
    return sorted(_walk(root), key=lambda piece: str(piece.path))


def clean(folder: str | Path, kinds: Sequence[Kind] = USUAL, *, dry_run: bool = True) -> list[Piece]:
    """Remove what is of these kinds; checkpoints only where their run is finished.

    Args:
        folder: whatever `pieces` takes.
        kinds: of `ABOUT`.
        dry_run: only say what would go.

    Returns:
        What was, or would be, removed.

    Raises:
        DistilvecError: a kind that is never removed, no such folder, or something that cannot be removed.
    """
    for kind in kinds:
        if kind not in ABOUT or ABOUT[kind][1] is None:
            known = ", ".join(name for name, (_, after) in ABOUT.items() if after is not None)
            raise DistilvecError(f'"{kind}" is not removed', where="clean", remedy=f"What can go: {known}.")
    chosen = [piece for piece in pieces(folder) if piece.kind in kinds and not piece.kept]
    if dry_run:
        return chosen
    for piece in chosen:
        try:
            # A store is gone once its manifest is, so that a removal that is cut short leaves no store behind.
            (piece.path / "store.json").unlink(missing_ok=True) if piece.kind == "store" else None
            shutil.rmtree(piece.path) if piece.path.is_dir() else piece.path.unlink(missing_ok=True)
        except OSError as error:
            raise DistilvecError(f"this cannot be removed ({error.strerror})", where=str(piece.path)) from error
    return chosen


def text(found: Sequence[Piece], root: str | Path) -> str:
    """A table of pieces, largest kinds first, with what happens once they are gone."""
    if not found:
        return f"Nothing of distilvec's lies in {root}."
    totals: dict[Kind, int] = {}
    for piece in found:
        totals[piece.kind] = totals.get(piece.kind, 0) + piece.size
    lines = []
    for kind, total in sorted(totals.items(), key=lambda item: -item[1]):
        what, after = ABOUT[kind]
        lines.append(f"{words.size(total):>9}  {kind}: {what}" + (f"; {after}" if after else ""))
        for piece in found:
            if piece.kind == kind:
                note = f"  ({piece.kept}: kept)" if piece.kept else ""
                lines.append(f"{words.size(piece.size):>18}  {_shown(piece.path, root)}{note}")
    return "\n".join([*lines, f"{words.size(sum(totals.values())):>9}  in all"])


def _shown(path: Path, root: str | Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _walk(folder: Path) -> Iterator[Piece]:
    """Pieces in a folder; links are not followed, what is known is not looked into."""
    names = {entry.name for entry in os.scandir(folder)}
    if "store.json" in names:
        yield from _store(folder)
        return
    if "corpus.json" in names and "keys.bin" in names:
        yield Piece("corpus", folder, _size(folder))
        return
    is_run = "recipe.yaml" in names and ("run.jsonl" in names or "report.json" in names or "checkpoints" in names)
    if is_run:
        size = sum(_size(folder / name) for name in _OWN if name in names)
        yield Piece("report", folder, size)
    finished = (folder / "student" / "modules.json").is_file() and "report.json" in names
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        path = Path(entry.path)
        if entry.is_symlink():
            continue
        if not entry.is_dir():
            if is_run and path.suffix == ".partial":
                yield _left_over(path)
        elif is_run and entry.name == "student":
            yield Piece("student", path, _size(path))
        elif is_run and entry.name == "checkpoints":
            yield Piece("checkpoints", path, _size(path), "" if finished else "of an unfinished run")
        elif entry.name == "checkpoints-before" or ".partial-" in entry.name:
            yield _left_over(path)
        elif entry.name in ("tokens", "alignments") and ("corpus" in names or is_run):
            yield Piece("tokens", path, _size(path))
        elif not (is_run and entry.name in _OWN):
            yield from _walk(path)


def _store(folder: Path) -> Iterator[Piece]:
    """A store without what is derived from it and what was set aside in it."""
    bad = [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith((".bad", ".partial"))]
    derived = folder / "derived"
    for path in bad:
        yield _left_over(path)
    if derived.is_dir():
        yield Piece("derived", derived, _size(derived))
    yield Piece("store", folder, _size(folder) - sum(_size(path) for path in (derived, *bad)))


def _left_over(path: Path) -> Piece:
    young = time.time() - path.stat().st_mtime < YOUNG
    return Piece("left over", path, _size(path), "less than an hour old" if young else "")


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(_size(Path(entry.path)) for entry in os.scandir(path))
