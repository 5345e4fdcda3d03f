"""The nine evaluation sets of TALAS's protocol, from a folder of files `<set>.<split>.jsonl.gz`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distilvec.judging.loading import load_task
from distilvec.judging.spec import READ_BY
from distilvec.judging.talas_sets import TALAS_SETS, talas_file, talas_spec
from distilvec.judging.tasks import JudgingTask


def talas_tasks(
    folder: str | Path,
    *,
    max_train: int | None = None,
    exclude: Iterable[str] = (),
    protocol: str = "talas",
    split: str = "test",
    names: Iterable[str] | None = None,
) -> list[JudgingTask]:
    """The nine tasks, in-domain first.

    Args:
        folder: has `<set>.<split>.jsonl.gz` (or another readable suffix).
        max_train: cap on the probes' training rows, a seeded sample.
        exclude: test items that have one of these texts (case-folded) are left out: the training corpus, to
            score without the overlap. `JudgingTask.without` does the same to a score already made, without encoding
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
        wanted = [name for name in wanted if name not in TALAS_SETS or talas_file(Path(folder), name, split)]
    options = {"max_train": max_train, "exclude": excluded, "protocol": protocol}

    def read_by(name: str) -> dict[str, Any]:
        keys = READ_BY[TALAS_SETS[name]["kind"]] if name in TALAS_SETS else ()
        return {key: value for key, value in options.items() if key in keys}

    return [load_task(talas_spec(name, folder, split=split, **read_by(name)), folder) for name in wanted]
