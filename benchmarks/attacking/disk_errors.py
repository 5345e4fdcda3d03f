"""Make the disk fail at a chosen write of a command; judge its message, its files, and its next start."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacking import kills, refusing, whole
from attacking.children import CHANGES, Ended, Fault, command
from attacking.jobs import Job, foreign_touched, fresh

NUMBERS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
RARE = (errno.ESTALE, errno.EACCES)
#: Errors that room on the disk would mend.
FULL = (errno.ENOSPC, errno.EDQUOT)


def aim(changes: Sequence[tuple[float, str, str]], rng: random.Random) -> Fault:
    """A change, evenly over what a command does, and the error that it gets: that one alone, or all from then on."""
    numbers: dict[str, list[int]] = {}
    for number, (_, kind, path) in enumerate(changes, 1):
        if kind in CHANGES - {"shutil.rmtree"} or kind in ("open", "fsync"):
            numbers.setdefault(kills.place_of(path), []).append(number)
    event = rng.choice(numbers[rng.choice(sorted(numbers))])
    lasting = rng.random() < 0.5 and refusing.possible()
    return Fault(event, rng.choice(NUMBERS if rng.random() < 0.85 else RARE), lasting)


def block(
    job: Job, changes: Sequence[tuple[float, str, str]], whole_run: Path, folder: Path, rng: random.Random, count: int
) -> dict[str, Any]:
    """So many errors, each in a command of its own."""
    found: dict[str, Any] = {"errors": count, "well": 0, "refused": 0, "broken": []}
    for number in range(count):
        fault = aim(changes, rng)
        problems, code = _case(job, fault, whole_run, fresh(folder))
        found["well" if code == 0 else "refused"] += not problems
        if problems:
            change = " ".join(changes[fault.event - 1][1:])
            told = (
                f"{errno.errorcode[fault.number]} {'from' if fault.lasting else 'at'} change {fault.event} ({change})"
            )
            found["broken"].append({"case": number, "history": [told], "what": problems[:5]})
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _case(job: Job, fault: Fault, whole_run: Path, folder: Path) -> tuple[list[str], int]:
    """List faults of the end of the command, of the files it left, and of its next start on a disk that works."""
    ended = command(job.arguments, folder, fault)
    problems = _spoken(ended, fault) + foreign_touched(folder)
    problems += [f"after the error: {line}" for line in whole.broken_files(folder / "out")]
    if ended.code == 0:
        return problems + kills.differing(job, folder, whole_run), 0
    again = command(job.again, folder)
    if again.code and not (job.finished and job.finished in again.output):
        return [*problems, f"started again, it ended with {again.code}: {again.output[-1500:]}"], ended.code
    problems += kills.differing(job, folder, whole_run)
    return problems + whole.broken_files(folder / "out") + foreign_touched(folder), ended.code


def _spoken(ended: Ended, fault: Fault) -> list[str]:
    """List faults of the last message: its reason has to be the system's, and its advice has to fit the reason."""
    said = ended.output[-1500:]
    if ended.hung:
        return [f"it was hanging: {said}"]
    if "Traceback" in said or "unexpected" in said:
        return [f"it said: {said}"]
    if ended.code not in (0, 2, 3, 4):
        return [f"it ended with {ended.code}: {said}"]
    if ended.code and os.strerror(fault.number) not in said:
        return [f"it does not say {os.strerror(fault.number)!r}: {said}"]
    if ended.code and fault.number not in FULL and ("room" in said or "space" in said):
        return [f"it asks for room, and the error is {os.strerror(fault.number)!r}: {said}"]
    return []
