"""Names, kinds and files of the nine evaluation sets of TALAS's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.corpus.readers import SUFFIXES
from distilvec.errors import DataError, DistilvecError, nearest

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


def talas_spec(name: str, folder: str | Path, *, split: str = "test", **options: Any) -> dict[str, Any]:
    """One of the nine as a task's description, with its files; see `talas_tasks`."""
    if name not in TALAS_SETS:
        raise DistilvecError(f'"{name}" is not one of TALAS\'s sets', remedy=nearest(name, TALAS_SETS))
    spec = {"name": name, **TALAS_SETS[name], **options, "test": _needed(Path(folder), name, split)}
    if spec["kind"] == "classification":
        spec["train"] = _needed(Path(folder), name, "train")
        if split == "test" and spec.get("protocol") == "tuned":
            spec["validation"] = talas_file(Path(folder), name, "validation")
    return spec


def _needed(folder: Path, name: str, split: str) -> str:
    found = talas_file(folder, name, split)
    if found is None:
        raise DataError(f"there is no {name}.{split}.jsonl.gz", where=str(folder), remedy="Check the folder.")
    return found


def talas_file(folder: Path, name: str, split: str) -> str | None:
    """The name of a set's file, `<set>.<split>.jsonl.gz` or of another suffix; None where there is none."""
    suffixes = [f"{suffix}{packed}" for suffix in SUFFIXES for packed in (".gz", "", ".zst")]
    return next((f"{name}.{split}{s}" for s in suffixes if (folder / f"{name}.{split}{s}").is_file()), None)
