"""Killing a command again and again, starting it anew, and looking at what it leaves."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacking import whole
from attacking.children import Ended, Kill, command, forked
from attacking.jobs import Job, foreign_touched, fresh

#: Parts of a path -> what the command was doing when it was killed.
PLACES = {
    "corpus": ("corpus/", "rejected"),
    "store": ("stores/",),
    "training": ("checkpoints", "run.jsonl", "tokens", "alignments", "derived", "finetune"),
    "student": ("student", "safetensors", "tokenizer", "onnx", "modules"),
    "judging and report": ("report", "figures", "compare", "baselines", "scores", "compression", "task/"),
}
#: A signal -> how a command that it stops ends.
STOPPED = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
STARTS = 3


def place_of(path: str) -> str:
    """What is going on where this path is changed."""
    return next((name for name, parts in PLACES.items() if any(part in path for part in parts)), "other")


def unkilled(job: Job, folder: Path) -> Ended:
    """The run that is not killed; it has to end well."""
    ended = command(job.arguments, fresh(folder))
    if ended.code:
        raise SystemExit(f"{job.name} ended with {ended.code} without being killed:\n{ended.output}")
    return ended


def aim(changes: Sequence[tuple[float, str, str]], rng: random.Random) -> tuple[Kill, str]:
    """A moment, evenly over what a command does (and not over the time that it takes), and the kind of death."""
    numbers: dict[str, list[int]] = {}
    for number, (_, _, path) in enumerate(changes, 1):
        numbers.setdefault(place_of(path), []).append(number)
    place = rng.choice(sorted(numbers))
    event = rng.choice(numbers[place])
    kind = rng.random()
    if kind < 0.15:
        return Kill(event, torn=round(10 ** rng.uniform(0, 4.5))), place
    number = rng.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (0.76, 0.12, 0.12))[0]
    if kind < 0.6:
        return Kill(event, number), place
    gap = changes[event][0] - changes[event - 1][0] if event < len(changes) else 0.05
    return Kill(event, number, delay=max(1e-4, rng.random() * gap)), place


def block(
    job: Job, changes: Sequence[tuple[float, str, str]], whole_run: Path, folder: Path, rng: random.Random, kills: int
) -> dict[str, Any]:
    """Cases of one to three kills each, until so many kills are done."""
    found: dict[str, Any] = {
        "kills": 0,
        "cases": 0,
        "held": 0,
        "left": 0,
        "signals": Counter(),
        "places": Counter(),
        "broken": [],
    }
    while found["kills"] < kills:
        case = {"case": found["cases"], "history": []}
        problems = _case(job, changes, whole_run, fresh(folder), rng, found, case["history"])
        found["cases"] += 1
        found["held"] += not problems
        if problems:
            found["broken"].append(case | {"what": problems[:5]})
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _case(
    job: Job,
    changes: Sequence[tuple[float, str, str]],
    whole_run: Path,
    folder: Path,
    rng: random.Random,
    found: dict[str, Any],
    history: list[str],
) -> list[str]:
    """Kill one to three times, then let it end; returns what is wrong."""
    problems: list[str] = []
    arguments = job.arguments
    for _ in range(rng.choice((1, 1, 2, STARTS))):
        kill, place = aim(changes, rng)
        ended = command(arguments, folder, kill)
        arguments = job.again
        stopped = _stopped(kill, ended)
        shown = " ".join(ended.changes[kill.event - 1][1:] if len(ended.changes) >= kill.event else ["none"])
        name = "torn" if kill.torn else signal.Signals(kill.number).name
        history.append(f"{name} at change {kill.event} ({shown}), {kill.delay:.4f} s later: code {ended.code}")
        problems += _spoken(ended, stopped) + foreign_touched(folder)
        problems += [f"after a kill: {line}" for line in whole.broken_files(folder / "out")]
        if not stopped:
            break
        found["kills"] += 1
        found["signals"][name] += 1
        found["places"][place] += 1
    ended = command(arguments, folder)
    if ended.code and not (job.finished and job.finished in ended.output):
        how = "was hanging" if ended.hung else f"ended with {ended.code}"
        return [*problems, f"started again, it {how}: {ended.output[-1500:]}"]
    problems += differing(job, folder, whole_run)
    problems += whole.broken_files(folder / "out") + foreign_touched(folder)
    found["left"] += bool(whole.left_over(folder / "out"))
    return problems


def differing(job: Job, folder: Path, whole_run: Path) -> list[str]:
    """List differences from the undisturbed run; a fork looks at them."""
    checked = forked(lambda: _print(job.check(folder, whole_run)), folder)
    problems: list[str] = [json.loads(line) for line in checked.output.splitlines() if line.startswith('"')]
    if checked.code:
        problems.append(f"what it left cannot be looked at: {checked.output[-600:]}")
    return problems


def _stopped(kill: Kill, ended: Ended) -> bool:
    """Whether the signal ended the command; it may have come too late, or the file never have grown so far."""
    return ended.code == (-signal.SIGXFSZ if kill.torn else STOPPED[signal.Signals(kill.number)])


def _spoken(ended: Ended, stopped: bool) -> list[str]:
    """What is wrong with how it ended."""
    if ended.hung:
        return [f"it was hanging: {ended.output[-1500:]}"]
    if "Traceback" in ended.output or "unexpected" in ended.output:
        return [f"it said: {ended.output[-600:]}"]
    if not stopped and ended.code:
        return [f"it ended with {ended.code}: {ended.output[-600:]}"]
    return []


def _print(lines: Sequence[str]) -> int:
    for line in lines:
        print(json.dumps(line))
    return 0
