"""The nine evaluation sets of TALAS's protocol, from a folder of files `<set>.<split>.jsonl.gz`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.judging.spec import READ_BY
from distilvec.judging.tables import SUFFIXES
from distilvec.judging.tasks import Task

#: In-domain sets share their training split with TALAS's corpus. WiC's target word is not shown to the model,
#: as in the papers, so that its scores stay near the base rate.
TALAS_SETS: dict[str, dict[str, Any]] = {
    "emotion": {"kind": "classification", "domain": "in"},
    "wic": {"kind": "pairs", "domain": "in"},
    "stsb": {"kind": "similarity", "domain": "in"},
    "banking77": {"kind": "classification", "domain": "out"},
    "tweeteval_sentiment": {"kind": "classification", "domain": "out"},
    "mrpc": {"kind": "pairs", "domain": "out"},
    "scitail": {"kind": "pairs", "domain": "out", "positive": "entails"},
    "sick": {"kind": "similarity", "domain": "out"},
    "sts12": {"kind": "similarity", "domain": "out"},
}


def talas_tasks(
    folder: str | Path,
    *,
    max_train: int | None = None,
    exclude: Iterable[str] = (),
    protocol: str = "talas",
    split: str = "test",
    names: Iterable[str] | None = None,
) -> list[Task]:
    """The nine tasks, in-domain first.

    Args:
        folder: has `<set>.<split>.jsonl.gz` (or another readable suffix).
        max_train: cap on the probes' training rows, a seeded sample.
        exclude: test items that have one of these texts (case-folded) are left out: the training corpus, to
            score without the overlap. `Task.without` does the same to a score already made, without encoding
            again.
        protocol: of the probes, "talas" or "tuned".
        split: "test", or "validation" for choosing settings; sets without it are left out then.
        names: some of the nine, all by default.

    Raises:
        DistilvecError: an unknown name.
        DataError: a file is missing or broken.
    """
    excluded = frozenset(exclude)
    wanted = list(TALAS_SETS) if names is None else list(names)
    if split != "test":
        wanted = [name for name in wanted if name not in TALAS_SETS or _file(Path(folder), name, split)]
    options = {"max_train": max_train, "exclude": excluded, "protocol": protocol}

    def read_by(name: str) -> dict[str, Any]:
        keys = READ_BY[TALAS_SETS[name]["kind"]] if name in TALAS_SETS else ()
        return {key: value for key, value in options.items() if key in keys}

    return [talas_task(name, folder, split=split, **read_by(name)) for name in wanted]


def talas_task(name: str, folder: str | Path, *, split: str = "test", **options: Any) -> Task:
    """One of the nine; see `talas_tasks`."""
    from distilvec.judging.loading import load_task

    if name not in TALAS_SETS:
        raise DistilvecError(f'"{name}" is not one of TALAS\'s sets', remedy=nearest(name, TALAS_SETS))
    spec = {"name": name, **TALAS_SETS[name], **options, "test": _needed(Path(folder), name, split)}
    if spec["kind"] == "classification":
        spec["train"] = _needed(Path(folder), name, "train")
        if split == "test":
            spec["validation"] = _file(Path(folder), name, "validation")
    return load_task(spec, folder)


def _needed(folder: Path, name: str, split: str) -> str:
    found = _file(folder, name, split)
    if found is None:
        raise DataError(f"there is no {name}.{split}.jsonl.gz", where=str(folder), remedy="Check the folder.")
    return found


def _file(folder: Path, name: str, split: str) -> str | None:
    suffixes = [f"{suffix}{packed}" for suffix in SUFFIXES for packed in (".gz", "", ".zst")]
    return next((f"{name}.{split}{s}" for s in suffixes if (folder / f"{name}.{split}{s}").is_file()), None)
