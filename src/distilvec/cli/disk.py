"""What runs leave on the disk, how large it is, and what of it can go."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from distilvec import words
from distilvec.errors import DistilvecError, printable
from distilvec.locking import is_locked
from distilvec.marker import (
    CHECKPOINT_FILE,
    MARKER,
    OUTPUT,
    holds_student,
    is_corpus,
    is_finetuned,
    is_finished,
    is_run,
    is_store,
    read,
)
from distilvec.sealing import sealed

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
#: What a run writes itself and never goes; `given` are texts from Python, `data` those of the demo.
_OWN = (*sorted(OUTPUT - {"checkpoints", "checkpoints-before", "router", "runs", "start", "student", "tuning"}), MARKER)
_SIGNAL = r"(sentence|logits|tokenids|next|nextids|tokens-[\w.-]+|attention-[\w.-]+)"
_PART = rf"{_SIGNAL}-[A-Za-z0-9][\w.-]*-\d{{6,}}\.(arrow|json)"
_STORE = re.compile(
    rf"{_PART}|store\.json|(store|pull|teaching)\.lock|writer-[\w.-]+\.lock|vocabulary\.json|axes-tokens-\d+\.safetensors"
)
_BAD = re.compile(
    rf"{_PART}(\.bad|\.partial|(\.[\w-]+)?\.tmp)|(store|vocabulary)\.json(\.[\w-]+)?\.tmp|.+\.arrow\.partial"
    r"|axes-tokens-\d+\.safetensors\.[0-9a-f]{8}\.tmp"
)
_DERIVED = re.compile(
    r"(ids|types|offsets|([a-z]+-(\d+-)?)?index)-[0-9a-f]{16,24}\.(bin|npy)"
    r"|[0-9a-f]{16,32}-[\w.-]+?|index\.(lock|tmp)"
)
_STREAMED = re.compile(r"rows-\d{5}\.(parquet|json)")
_CORPUS = re.compile(r"corpus\.json|\w+\.bin|items\.arrow|rejected\.jsonl")
_PIECES = re.compile(r"pieces-[0-9a-f]{16,}\.np[yz]")
_MODEL = re.compile(r".+\.(json|safetensors|txt|model|md|jinja|py)")
#: What a killed run leaves of a file that it was writing.
_WRITTEN = sorted({re.escape(word) for name in (*OUTPUT, MARKER) for word in (name, Path(name).stem)})
_HALF = re.compile(rf"\.?({'|'.join(_WRITTEN)})(\.\w+)?\.(partial|tmp)")
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
        path: a folder, or a file.
        size: in bytes.
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

    Runs are known by their marker, stores and corpora by their manifests, files by their names in these places; what
    distilvec did not write is not listed. Runs of versions without markers are known by their resolved recipe.

    Raises:
        DistilvecError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DistilvecError("there is no such folder", where=str(root), remedy="Give the output folder of a run.")
    held: dict[Path, bool] = {}
    found = [replace(piece, kept=IN_USE) if _in_use(piece.path, held) else piece for piece in _walk(root)]
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
                lines.append(f"{words.size(piece.size):>18}  {_shown(piece.path, root)}{note}")
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


def _shown(path: Path, root: str | Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


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


def _in_use(path: Path, held: dict[Path, bool]) -> bool:
    """Whether a process holds a lock in this folder, or in one around it; `held` remembers the latter."""
    around = path.absolute().parents
    for folder in around:
        if folder not in held:
            held[folder] = any(is_locked(folder / name) for name in ("run.lock", "teaching.lock"))
    own = (entry for entry in _scan(path) if entry.name.endswith(".lock"))
    return any(held[folder] for folder in around) or any(is_locked(Path(entry.path)) for entry in own)


def _walk(folder: Path) -> Iterator[Piece]:
    """Pieces in a folder; links are not followed, what is known is not looked into."""
    if is_store(folder):
        yield from _store(folder)
        return
    if is_corpus(folder):
        yield _piece("corpus", folder, _CORPUS, first="corpus.json", only=_named(folder))
        yield from _abandoned(folder)
        return
    if is_finetuned(folder):
        yield Piece("student", folder, _size(folder))
        return
    run = is_run(folder)
    shared = run or "cache" in read(folder).get("roles", ()) or is_corpus(folder / "corpus")
    if run:
        own = [folder / name for name in _OWN if not (folder / name).is_symlink()]
        yield Piece("report", folder, sum(_size(path) for path in own))
    for entry in sorted(_scan(folder), key=lambda each: each.name):
        path = Path(entry.path)
        if entry.is_symlink():
            continue
        if run:
            own_pieces = list(_of_run(path, entry))
            if own_pieces or entry.name in _OWN or not entry.is_dir():
                yield from own_pieces
                continue
        if shared and entry.name in ("tokens", "alignments", "pieces") and entry.is_dir():
            yield _piece("tokens", path, _PIECES if entry.name == "pieces" else _DERIVED)
        elif (run or shared) and entry.name == "corpus" and entry.is_dir() and not is_corpus(path):
            yield from _abandoned(path)  # the first reading was killed
        elif entry.is_dir():
            yield from _walk(path)


def _of_run(path: Path, entry: os.DirEntry[str]) -> Iterator[Piece]:
    """What this entry of a run's folder is; nothing where it is none of the run's."""
    half = re.fullmatch(r"\.(student|router)\.(partial|old)-\d+", entry.name)
    if not entry.is_dir():
        if _HALF.fullmatch(entry.name):
            yield _left_over(path, (path,))
    elif entry.name in ("student", "router") or re.fullmatch(r"before-\d+", entry.name):
        yield Piece("student", path, _size(path))
    elif re.fullmatch(r"checkpoints(-before(-\d+)?)?", entry.name):
        yield from _checkpoints(path)
    elif entry.name == "start":
        yield from _start(path)
    elif re.fullmatch(r"\.report-[a-z0-9_]{8}", entry.name):
        yield _left_over(path, _files(path, re.compile(r".+\.(md|html|json|svg)"), deep=True))
    elif half and (half[2] == "partial" or holds_student(path.parent / half[1])):
        yield _left_over(path, _files(path, _MODEL, deep=True))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:  # a folder that is not for us to read holds nothing of ours
        return []


def _piece(kind: Kind, path: Path, names: re.Pattern[str], *, first: str = "", only: set[str] | None = None) -> Piece:
    """A folder whose files of these names are ours."""
    files = [file for file in _files(path, names) if only is None or file.name in only]
    files.sort(key=lambda file: file.name != first)
    everything = _files(path, re.compile(".*"))
    return Piece(kind, path, sum(map(_size, files)), "", tuple(files), len(everything) - len(files))


def _named(folder: Path) -> set[str]:
    """The files that a corpus' manifest lists, and the manifest."""
    return {"corpus.json", *json.loads((folder / "corpus.json").read_text(encoding="utf-8"))["files"]}


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
    """The checkpoints that we know as ours, in one piece; what else lies between them stays."""
    files: list[Path] = []
    half: list[Path] = []
    for entry in sorted(_scan(folder), key=lambda each: each.name):
        if not entry.is_dir(follow_symlinks=False):
            continue
        inside = _files(Path(entry.path), CHECKPOINT_FILE)
        listed = sealed(Path(entry.path))
        before = any(file.name.startswith("unlogged-") for file in inside)
        if re.fullmatch(r"checkpoint-\d+", entry.name) and (before or sealed(Path(entry.path), "checkpoint")):
            files += inside if listed is None else listed  # versions before wrote no list
        elif re.fullmatch(r"\.partial-\d+", entry.name):
            half += [each for name in _scan(Path(entry.path)) for each in _files(Path(name.path), CHECKPOINT_FILE)]
    if files:  # which kernel the training chose lies beside its checkpoints
        files += _files(folder, re.compile(r"attention\.json"))
    strangers = len(_files(folder, re.compile(".*"), deep=True)) - len(files) - len(half)
    if folder.name != "checkpoints":
        if files or half:
            yield _left_over(folder, [*files, *half], strangers)
        return
    if files:
        kept = "" if is_finished(folder.parent) else "of an unfinished run"
        yield Piece("checkpoints", folder, sum(map(_size, files)), kept, tuple(files), strangers)
    if half:
        yield _left_over(folder, half)


def _start(folder: Path) -> Iterator[Piece]:
    """Untrained students that jobs keep, by the key of what they are made of."""
    for entry in sorted(_scan(folder), key=lambda each: each.name):
        place = Path(entry.path)
        files = tuple(_files(place, _MODEL, deep=True)) if entry.is_dir(follow_symlinks=False) else ()
        if files and re.fullmatch(r"[0-9a-f]{16}", entry.name):
            kept = "" if is_finished(folder.parent) else "of an unfinished run"
            listed = sealed(place)
            files = files if listed is None else tuple(listed)
            strangers = len(_files(place, re.compile(".*"), deep=True)) - len(files)
            yield Piece("checkpoints", place, sum(map(_size, files)), kept, files, strangers)
        elif files and re.fullmatch(r"\.[0-9a-f]{16}\.partial-\d+", entry.name):
            yield _left_over(Path(entry.path), files)


def _store(folder: Path) -> Iterator[Piece]:
    """A store without what is derived from it and what was set aside in it, and the one inside it of judged texts."""
    for path in _files(folder, _BAD):
        yield _left_over(path, (path,))
    if is_store(folder / "judging"):
        yield from _store(folder / "judging")
    derived = folder / "derived"
    if derived.is_dir() and not derived.is_symlink():
        yield _piece("derived", derived, _DERIVED)
    yield _piece("store", folder, _STORE, first="store.json")


def _abandoned(corpus: Path) -> Iterator[Piece]:
    """What killed processes left half-written in a corpus."""
    for entry in _scan(corpus):
        if entry.is_dir(follow_symlinks=False) and re.fullmatch(r"\.partial-([0-9a-f]{16}|[\w-]+-\d+)", entry.name):
            yield _left_over(Path(entry.path), _files(Path(entry.path), _CORPUS))
        elif entry.is_dir(follow_symlinks=False) and re.fullmatch(r"\.streamed-[0-9a-f]{16}", entry.name):
            yield _left_over(Path(entry.path), _files(Path(entry.path), _STREAMED))


def _left_over(path: Path, files: Sequence[Path], strangers: int = 0) -> Piece:
    newest = max((file.lstat().st_mtime for file in (path, *files)), default=0.0)
    young = time.time() - newest < YOUNG
    kept = "less than an hour old" if young else ""
    return Piece("left over", path, sum(map(_size, files)), kept, tuple(files), strangers)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links have none."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(_size(Path(entry.path)) for entry in _scan(path))
