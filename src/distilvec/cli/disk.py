"""The files that runs leave on the disk, how large they are, and which of them can go."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distilvec import folders, words
from distilvec.errors import DistilvecError, printable
from distilvec.files import RUN_LOCK, TEMPORARY_NAME, is_locked, read_object

Kind = Literal["student", "report", "checkpoints", "left over", "store", "derived", "corpus", "tokens"]

#: What each kind is, and what happens once it is gone; None = it is never removed here.
ABOUT: dict[Kind, tuple[str, str | None]] = {
    "student": ("the student as it ships, or a fine-tuned model with its report", None),
    "report": ("report, figures, log, recipe and given texts", None),
    "store": ("teacher signals", "taught again when needed, which may take hours"),
    "corpus": ("prepared corpora", "read again when needed"),
    "tokens": ("token ids and alignments", "made again when needed"),
    "derived": ("indexes and what depends on a student's tokenizer", "made again when needed"),
    "checkpoints": (
        "checkpoints of the training and the untrained student",
        "a finished run needs none; an unfinished one starts anew",
    ),
    "left over": ("half-written files, parts set aside, checkpoints of a run before", "nothing needs it"),
}
#: What `clean` takes where nothing is said, and only of finished runs.
USUAL: tuple[Kind, ...] = ("checkpoints", "left over")
#: What of a run's output is no report, or is a piece of its own.
_OTHER = {*folders.CACHE, "checkpoints", "checkpoints-before", "router", "runs", "start", "student", "tuning"}
_SIGNAL = r"(sentence|logits|tokenids|next|nextids|tokens-[\w.-]+|attention-[\w.-]+)"
_PART = rf"{_SIGNAL}-[A-Za-z0-9][\w.-]*-\d{{6,}}\.(arrow|json)"
_STORE = re.compile(
    rf"{_PART}|store\.json|(store|pull|teaching)\.lock|writer-[\w.-]+\.lock|vocabulary\.json|axes-tokens-\d+\.safetensors"
)
_INDEX = re.compile(r"([a-z]+-(\d+-)?)?index-[0-9a-f]{16,24}\.npy|index\.lock")
_BAD = re.compile(rf"{_PART}\.bad")
_CHECKPOINT = re.compile(
    r"model\.safetensors|optimizer\.pt|ranks\.pt|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth|trainer_state\.json"
    r"|training_args\.bin|unlogged-\d+\.json|README\.md|data\.json"
)
_STREAMED = re.compile(r"rows-\d{5}\.(parquet|json)")
_ANY = re.compile(".*")
#: Seconds for which something half-written may still be in work.
YOUNG = 3600.0
#: Of what a process at work holds.
IN_USE = "in use"
#: File names that are shown of one folder.
_NAMES = 20


@dataclass(frozen=True)
class Piece:
    """One thing on the disk.

    Attributes:
        kind: see `ABOUT`.
        kept: why it stays even where its kind is to go: what a run or a teaching at work holds, checkpoints of an
            unfinished run, and leftovers so young that a process may still be writing them; empty otherwise.
        files: what goes with it: files that distilvec wrote, by their names and places. Links are none of them.
        strangers: files in it that distilvec did not write, and that stay.
    """

    kind: Kind
    path: Path
    size: int
    kept: str = ""
    files: tuple[Path, ...] = ()
    strangers: int = 0


def pieces(folder: str | Path) -> list[Piece]:
    """Everything under a folder that runs and teachings left there.

    Folders are known by their manifests, and files of a store by their names; what distilvec did not write is not
    listed.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DistilvecError("there is no such folder", where=str(root), remedy="Give the output folder of a run.")
    found = [replace(piece, kept=IN_USE) if _in_use(piece.path) else piece for piece in _walk(root)]
    return sorted(found, key=lambda piece: str(piece.path))


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
        _remove(piece)
    return chosen


def text(found: Sequence[Piece], root: str | Path, *, files: bool = False) -> str:
    """A table of pieces, largest kinds first, with what happens once they are gone; with `files`, of each its files."""
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
                stays = f"{piece.strangers} files that are not distilvec's stay" if piece.strangers else ""
                notes = [note for note in (f"{piece.kept}: kept" if piece.kept else "", stays) if note]
                note = f"  ({'; '.join(notes)})" if notes else ""
                place = piece.path.relative_to(root) if piece.path.is_relative_to(root) else piece.path
                lines.append(f"{words.size(piece.size):>18}  {place}{note}")
                lines += _listed(piece) if files else []
    return printable("\n".join([*lines, f"{words.size(sum(totals.values())):>9}  in all"]))


def _listed(piece: Piece) -> list[str]:
    """The files of a piece, one line for each folder."""
    by: dict[Path, list[str]] = {}
    for file in piece.files:
        by.setdefault(file.parent, []).append(file.name)
    lines = []
    for folder, names in by.items():
        place = folder.relative_to(piece.path) if folder.is_relative_to(piece.path) else Path()
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        shown = ", ".join(sorted(names)[:_NAMES]) + more
        lines.append(" " * 20 + (f"{place}: {shown}" if place != Path() else shown))
    return lines


def _remove(piece: Piece) -> None:
    """Unlink the files of a piece, then the folders that are empty by that."""
    folders = {piece.path} if piece.path.is_dir() else set()
    try:
        # The manifest is the first of them, so that a removal that is cut short leaves no store or corpus behind.
        for file in piece.files:
            between = file.relative_to(piece.path).parents if file != piece.path else ()
            holders = [piece.path / each for each in between]
            if any(each.is_symlink() for each in (*holders, piece.path)):
                continue  # it was a folder a moment ago
            file.unlink(missing_ok=True)
            folders.update(holders)
        for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise DistilvecError(f"this cannot be removed ({error.strerror})", where=str(piece.path)) from error


def _in_use(path: Path) -> bool:
    """Tell whether a process holds a lock in this folder, or in one around it."""
    around = [folder / name for folder in path.absolute().parents for name in (RUN_LOCK, "teaching.lock")]
    own = [Path(entry.path) for entry in _scan(path) if entry.name.endswith(".lock")]
    return any(map(is_locked, (*around, *own, path.with_name(f"{path.name}.lock"))))


def _walk(folder: Path) -> Iterator[Piece]:
    """Pieces in a folder; links are not followed, what is known is not looked into."""
    if _is_store(folder):
        yield from _store(folder)
        return
    manifest = folders.read(folder)
    files, start = manifest.get("files", {}), folder.parent.name == "start"
    if "student" in files and not start:
        yield Piece("student", folder, _size(folder))
        return
    report = set(files.get("output", ())) - _OTHER if manifest.get("alone") else set()
    if report:
        own = [each for name in (*report, folders.MANIFEST) if not (each := folder / name).is_symlink()]
        yield Piece("report", folder, sum(map(_size, own)))
    kinds: dict[str, Kind] = {"corpus": "corpus", "tokens": "tokens", "student": "checkpoints"}
    for kind in kinds.keys() & files.keys():
        yield _listed_piece(kinds[kind], folder, _unfinished(folder.parent.parent) if kind == "student" else "")
    for entry in sorted(_scan(folder), key=lambda each: each.name):
        if not entry.is_symlink() and entry.name not in report:
            yield from _below(Path(entry.path), manifest)


def _below(path: Path, around: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield a file or folder as the piece that its name and the manifest around it say; else what is in the folder."""
    if TEMPORARY_NAME.fullmatch(path.name):
        yield _left_over(path, _files(path, _ANY, deep=True) if path.is_dir() else (path,))
    elif not path.is_dir():
        return
    elif around and re.fullmatch(r"\.streamed-[0-9a-f]{16}", path.name):
        yield _left_over(path, _files(path, _STREAMED))
    elif around.get("alone") and re.fullmatch(r"before-\d+", path.name):
        yield Piece("student", path, _size(path))
    elif around.get("alone") and re.fullmatch(r"checkpoints(-before(-\d+)?)?", path.name):
        yield from _checkpoints(path)
    else:
        yield from _walk(path)


def _is_store(folder: Path) -> bool:
    content = read_object(folder / "store.json")
    teacher, signals = content.get("teacher"), content.get("signals")
    known = isinstance(teacher, dict) and isinstance(teacher.get("fingerprint"), str) and isinstance(signals, dict)
    return isinstance(content.get("schema"), int) and known


def _unfinished(run: Path) -> str:
    return "" if folders.is_finished(run) else "of an unfinished run"


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:  # a folder that is not for us to read holds nothing of ours
        return []


def _piece(kind: Kind, path: Path, files: Sequence[Path], kept: str = "", strangers: int = 0) -> Piece:
    return Piece(kind, path, sum(map(_size, files)), kept, tuple(files), strangers)


def _listed_piece(kind: Kind, path: Path, kept: str = "", more: Sequence[Path] = ()) -> Piece:
    """A folder whose manifest says which of its files are ours; `more` are known by their names."""
    files = [*(folders.sealed(path) or ()), *more]
    return _piece(kind, path, files, kept, len(folders.strangers(path)) - len(more))


def _files(folder: Path, names: re.Pattern[str], *, deep: bool = False) -> list[Path]:
    """Files of these names in a folder, and with `deep` in those below; links are none."""
    files = []
    for entry in sorted(_scan(folder), key=lambda each: each.name):
        if entry.is_file(follow_symlinks=False) and names.fullmatch(entry.name):
            files.append(Path(entry.path))
        elif deep and entry.is_dir(follow_symlinks=False):
            files += _files(Path(entry.path), names, deep=True)
    return files


def _checkpoints(folder: Path) -> Iterator[Piece]:
    """The checkpoints that are listed as ours, in one piece; what else lies between them stays."""
    files = [file for place in (folder, *folder.glob("checkpoint-*")) for file in folders.sealed(place) or ()]
    partials = [place for place in folder.glob(".partial-*") if re.fullmatch(r"\.partial-\d+", place.name)]
    half = [each for place in partials if not place.is_symlink() for each in _files(place, _CHECKPOINT, deep=True)]
    strangers = len(_files(folder, _ANY, deep=True)) - len(files) - len(half)
    if folder.name == "checkpoints" and files:
        yield _piece("checkpoints", folder, files, _unfinished(folder.parent), strangers)
    elif files or half:
        yield _left_over(folder, [*files, *half], strangers)
    if half and files:
        yield _left_over(folder, half)


def _store(folder: Path) -> Iterator[Piece]:
    """A store without what is derived from it and what was set aside in it, and the one inside it of judged texts."""
    for path in _files(folder, _BAD):
        yield _left_over(path, (path,))
    if _is_store(folder / "judging"):
        yield from _store(folder / "judging")
    derived = folder / "derived"
    if derived.is_dir() and not derived.is_symlink():
        yield _listed_piece("derived", derived, more=_files(derived, _INDEX))
    for place in (folder, derived):
        for path in _files(place, TEMPORARY_NAME):
            yield _left_over(path, (path,))
    files = sorted(_files(folder, _STORE), key=lambda file: file.name != "store.json")
    yield _piece("store", folder, files, strangers=len(_files(folder, _ANY)) - len(files))


def _left_over(path: Path, files: Sequence[Path], strangers: int = 0) -> Piece:
    newest = max((file.lstat().st_mtime for file in (path, *files)), default=0.0)
    kept = "less than an hour old" if time.time() - newest < YOUNG else ""
    return _piece("left over", path, files, kept, strangers)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links have none."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(_size(Path(entry.path)) for entry in _scan(path))
