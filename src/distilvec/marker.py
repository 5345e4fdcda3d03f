"""The marker in a folder that distilvec writes into: what makes the folder ours, and whether its run is finished.

`.distilvec.json` is written when a run takes its folder. Nothing is written into a folder with files of somebody
else's, and nothing is removed from a folder without the marker, or without what runs of versions before are known by.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, Literal

import yaml

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.files import read_object, write_text
from distilvec.plain_yaml import read as read_yaml

logger = logging.getLogger(__name__)
MARKER = ".distilvec.json"
Role = Literal["output", "cache"]
#: What a run leaves in its output folder, beside what lies in `SHARED`.
OUTPUT = {
    "baselines",
    "baselines.json",
    "checkpoints",
    "checkpoints-before",
    "compare.json",
    "compare.md",
    "compression.json",
    "compression.md",
    "data",
    "figures",
    "given",
    "mined.jsonl",
    "mining",
    "mining.json",
    "mining.md",
    "mining.yaml",
    "plan.json",
    "plan.svg",
    "recipe.yaml",
    "ranks.svg",
    "rejected.jsonl",
    "report.html",
    "report.json",
    "report.md",
    "router",
    "run.jsonl",
    "runs",
    "scores.json",
    "start",
    "student",
    "tuning",
}
#: What several runs can share.
SHARED = {"alignments", "corpus", "pieces", "stores", "tokens"}
#: Names of an unfinished writing, and of what systems and shells put into any folder.
_PASSING = re.compile(
    r"\.(recipe\.partial|(report|export|compression)-\w+|student\.(partial|old)-\d+|router\.(partial|old)-\d+|.+\.tmp)"
    r"|(student\.)?before-\d+|(corpus|mining|run)\.lock|.+\.log|\.DS_Store|\.git(ignore|keep)|lost\+found|\.ipynb_checkpoints|Thumbs\.db|\.nfs\w+"
)
#: Files of a checkpoint. Ours hold `unlogged-0.json`, which nobody else's do.
CHECKPOINT_FILE = re.compile(
    r"model\.safetensors|optimizer\.pt|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth|trainer_state\.json"
    r"|training_args\.bin|unlogged-\d+\.json|README\.md|data\.json"
)
#: Keys of every resolved recipe; a recipe written by hand rarely has them all.
_RESOLVED = {"corpus", "teachers", "combine", "student", "method", "optimizer", "training", "judging", "output"}


def claim(folder: str | Path, role: Role = "output") -> Path:
    """Make a folder ours, or find that it is.

    An empty folder becomes ours, and so does one that an earlier version wrote, which had no marker.

    Args:
        role: "output" of a run, where nothing of somebody else's may lie; or "cache", which may lie among other files
            as long as none of them has a name that is needed.

    Raises:
        DistilvecError: files of somebody else's lie there; or it is no folder.
        EnvironmentProblem: it cannot be read or written.
    """
    place = Path(folder)
    try:
        if place.exists() and not place.is_dir():
            raise DistilvecError("this is a file, and a folder is needed", where=str(place), remedy="Choose another.")
        names = {entry.name for entry in place.iterdir()} if place.is_dir() else set()
        marker = read(place)
        roles = set(marker.get("roles", ()))
        if role not in roles:
            foreign = _foreign(place, names, role)
            if foreign:
                raise DistilvecError(
                    f"this folder holds what distilvec did not write: {_shown(foreign)}",
                    where=str(place.absolute()),
                    remedy="Choose an empty or a new folder (output, or -o); nothing was changed.",
                )
        _check_kinds(place, SHARED if role == "cache" else OUTPUT | SHARED)
        if role not in roles:
            place.mkdir(parents=True, exist_ok=True)
            write(place, {**marker, "roles": sorted(roles | {role})})
    except OSError as error:
        raise EnvironmentProblem(
            f"the {role} folder cannot be written ({error.strerror or error})",
            where=str(place)[:300],
            remedy=f"Choose another {role}.",
        ) from error
    return place


def _check_kinds(place: Path, names: set[str]) -> None:
    """Say now, not after hours, that a file lies where a folder is needed, or something else where a file is.

    Raises:
        DistilvecError: naming it.
    """
    stores = list((place / "stores").iterdir()) if (place / "stores").is_dir() else []
    for path in [*(place / name for name in sorted(names)), *stores]:
        folder = path.parent != place or path.name in SHARED or "." not in path.name
        there = path.exists() or path.is_symlink()
        if there and not (path.is_dir() if folder else path.is_file()) and path.name != ".DS_Store":
            raise DistilvecError(
                f"a {'folder' if folder else 'file'} is needed here, and this is none",
                where=str(path),
                remedy="Move it away, or choose another output or cache.",
            )


def begin(place: Path, data: dict[str, Any] | None = None) -> None:
    """Say that a run has begun in a claimed folder: what it needs to go on is not removed until `finish`.

    Args:
        data: what tells its corpus, and a method that is not ours, from another.
    """
    write(place, {**read(place), "finished": False, **({} if data is None else {"data": data})})


def finish(place: Path) -> None:
    """Say that the run in a claimed folder is finished: its report and its student belong together."""
    write(place, {**read(place), "finished": True})


def read(place: Path) -> dict[str, Any]:
    """What the marker says; empty where there is none, where it is a link, or where it is none of ours."""
    marker = read_object(place / MARKER)
    ours = marker.get("made_by") == "distilvec" and isinstance(marker.get("roles"), list)
    return marker if ours else {}


def write(place: Path, content: dict[str, Any]) -> None:
    """Write the marker."""
    told = "distilvec writes into this folder, and `distilvec clean` removes what it wrote here."
    write_text(place / MARKER, json.dumps({"made_by": "distilvec", "about": told, **content}, indent=1) + "\n")


def holds_student(folder: Path) -> bool:
    """Whether a student was shipped into it: sentence-transformers' listing, or one that writes with its settings."""
    writes = (folder / "config.json").is_file() and (folder / "generation_config.json").is_file()
    return writes or (folder / "modules.json").is_file()


def is_finetuned(place: Path) -> bool:
    """Whether `distilvec finetune` wrote this model: by its record beside the task's head."""
    return holds_student(place) and "digest" in read_object(place / "task" / "finetune.json")


def is_finished(place: Path) -> bool:
    """Whether the newest run in this folder went to its end, with report and student."""
    if not (holds_student(place / "student") and (place / "report.json").is_file()):
        return False
    marker = read(place)
    if "finished" in marker:
        return bool(marker["finished"])
    # A version before the marker: it wrote the recipe when it began, and the report last.
    begun = [place / "recipe.yaml", *place.glob("checkpoints/checkpoint-*/trainer_state.json")]
    written = (place / "report.json").stat().st_mtime
    return all(file.stat().st_mtime <= written for file in begun if file.is_file())


def is_run(place: Path) -> bool:
    """Whether a run of ours lies here: by its marker, or by the recipe that every run resolves and saves."""
    marker = read(place)
    return "output" in marker["roles"] if marker else is_resolved(place / "recipe.yaml")


def is_resolved(file: Path) -> bool:
    """Whether this is a recipe as runs save it: with every section, defaults included."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > 1_000_000:
            return False
        content = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return False
    sections = ("corpus", "student", "method", "optimizer", "training", "judging")
    return (
        isinstance(content, dict)
        and content.keys() >= _RESOLVED
        and all(isinstance(content[name], dict) for name in sections)
        and "seed" in content["training"]
        and "path" in content["corpus"]
    )


def is_corpus(place: Path) -> bool:
    """Whether this folder holds a prepared corpus: by what its manifest says."""
    manifest = read_object(place / "corpus.json")
    return isinstance(manifest.get("format"), int) and isinstance(manifest.get("files"), dict) and "source" in manifest


def is_store(place: Path) -> bool:
    """Whether this folder is a store: by what store.json says."""
    content = read_object(place / "store.json")
    teacher, signals = content.get("teacher"), content.get("signals")
    known = isinstance(teacher, dict) and isinstance(teacher.get("fingerprint"), str) and isinstance(signals, dict)
    return isinstance(content.get("schema"), int) and known


def set_aside(place: Path) -> Path | None:
    """Move an earlier run's student and report out of the way of another recipe's, or of another corpus'; None where
    there is none.
    """
    if not (place / "student").exists():
        return None
    number = 1
    while (place / f"before-{number}").exists():
        number += 1
    before = place / f"before-{number}"
    before.mkdir()
    names = ("router", "figures", "report.md", "report.html", "report.json", "run.jsonl", "student", "recipe.yaml")
    for name in names:  # the student late and the recipe last: after a kill the rest is still seen to be in the way
        if (place / name).exists():
            (place / name).rename(before / name)
    told = "Another recipe or corpus starts here; the student and the report of the run before are now in %s."
    logger.warning(told, before)
    return before


def _foreign(place: Path, names: set[str], role: Role) -> list[str]:
    """Names of somebody else's that are in the way."""
    names = {name for name in names if name != MARKER and not _PASSING.fullmatch(name)}
    ours = {name for name in names & (OUTPUT | SHARED) if _is_ours(place, name)}
    if role == "cache":
        return sorted((names & SHARED) - ours)
    proven = any(name in ours for name in ("recipe.yaml", "corpus", "stores", "given"))
    return sorted(names - (ours if proven else set()))


def _is_ours(place: Path, name: str) -> bool:
    """Whether what has this name was written by an earlier version, as far as its content tells."""
    path = place / name
    if path.is_symlink():
        return False
    known = {
        "recipe.yaml": is_resolved,
        "corpus": lambda path: is_corpus(path) or _only(path, r"\.partial-.+"),
        "stores": lambda path: path.is_dir() and all(is_store(each) for each in path.iterdir()),
        "given": lambda path: _only(
            path, r"(corpus|validation|test)\.jsonl|.+-texts\.jsonl|.+-vectors\.npy|.+\.(partial|tmp)"
        ),
    }
    if name in known:
        return known[name](path)
    if name.startswith("report.") or name == "figures":  # a copied recipe proves nothing of a report
        return bool({"sections", "models"} & read_object(place / "report.json").keys())
    return name not in SHARED or _only(path, r"\.?[\w.-]*[0-9a-f]{8,}[\w.-]*")


def _only(path: Path, pattern: str) -> bool:
    return path.is_dir() and all(re.fullmatch(pattern, each.name) for each in path.iterdir())


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:60] for name in names[:3]) + more
