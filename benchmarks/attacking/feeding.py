"""Feeding hostile inputs, fifty to a process, and watching what happens outside and what runs."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacking import children, kinds
from attacking.children import STARTS, change_of, forked

#: Of the processor, for one input; far more than any takes.
SECONDS = 30.0
#: What a process may take beyond what it has.
MEMORY = 4 << 30
MARK = "burst"
#: Folders beside the output that are the output's.
OUTSIDE = re.compile(r"\.out\.|out\.before-\d+$|there$|smaller$|trained$")


class Draw(random.Random):
    """Chances of one input.

    Attributes:
        number: of the input among all of its kind, for kinds that go through a list.
        told: what such a kind says of it.
    """

    def __init__(self, seed: str, number: int) -> None:
        super().__init__(f"{seed}/{number}")
        self.number, self.told = number, ""


def block(kind: str, seed: str, numbers: range, inputs: Path, folder: Path, *, loud: bool = False) -> dict[str, Any]:
    """These inputs of a kind; what breaks in company is tried again in a process of its own before it counts."""
    found: dict[str, Any] = {"kind": kind, "tried": 0, "accepted": 0, "refused": 0, "broken": []}
    told: dict[int, str] = {}
    while len(told) < len(numbers):
        told |= _batch(kind, seed, numbers[len(told) :], inputs, folder, loud)
    for number, what in told.items():
        if what.startswith("broke"):
            alone = _batch(kind, seed, range(number, number + 1), inputs, folder, loud, debug=True)[number]
            told[number] = alone if alone.startswith("broke") else f"broke in company only: {what}"
        found["tried"] += 1
        if told[number] in ("accepted", "refused"):
            found[told[number]] += 1
        else:
            found["broken"].append({"case": number, "what": told[number]})
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _batch(
    kind: str, seed: str, numbers: range, inputs: Path, folder: Path, loud: bool, *, debug: bool = False
) -> dict[int, str]:
    """Number -> accepted, refused or "broke: ..."; stops behind a case that takes the process with it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    results = folder / "results"

    def inside() -> int:
        children.DEBUG = debug
        return _inside(kind, seed, numbers, inputs, folder, results)

    ended = forked(inside, folder, busy=SECONDS * len(numbers))
    if loud:
        print(ended.output)
    told = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        number, what = json.loads(line)
        told[number] = what
    if len(told) < len(numbers):
        last = numbers[len(told)]
        late = ended.hung or ended.code == -signal.SIGPROF
        how = "took too long" if late else f"ended the process with {ended.code}"
        told[last] = f"broke: it {how}: {ended.output[-1500:]}"
    return told


def _inside(kind: str, seed: str, numbers: range, inputs: Path, folder: Path, results: Path) -> int:
    """In the fork: one case after another."""
    _limit_memory()
    watch = Watch()
    faulthandler.register(signal.SIGPROF, 2, chain=True)  # type: ignore[arg-type]  # it shows where it is, and ends
    answers = folder / "answers"
    answers.write_text("y\n" * 100)
    os.dup2(os.open(answers, os.O_RDONLY), 0)
    with results.open("a", buffering=1) as out:
        for number in numbers:
            os.lseek(0, 0, os.SEEK_SET)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            draw = Draw(seed, number)
            what = _case(kind, draw, inputs, folder / str(number), watch)
            signal.setitimer(signal.ITIMER_PROF, 0)
            told = f"broke: {draw.told}: {what}" if draw.told and what.startswith("broke") else what
            out.write(json.dumps([number, told]) + "\n")
            os.chdir(folder)
            shutil.rmtree(folder / str(number), ignore_errors=True)
    return 0


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Watch:
    """Notes changes outside a folder, and code or programs that are started, as Python's audit events tell them."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if self.allowed is None or len(self.seen) > 20:
            return
        if event == "socket.connect" and arguments[1][:1] == ("127.0.0.1",) and arguments[1][1] in children.FRIENDS:
            return
        if event in STARTS and arguments[0] != "git":  # whose state a report tells
            self.seen.append(f"{event} {str(arguments)[:200]}")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(self.allowed):
            self.seen.append(f"runs {arguments[0].co_filename}")
        elif (path := change_of(event, arguments)) is not None:
            place = os.path.abspath(path)
            if not place.startswith(self.allowed) and not place.startswith("/dev/") and event != "os.mkdir":
                self.seen.append(f"{event} {place}")


def _case(kind: str, rng: Draw, inputs: Path, folder: Path, watch: Watch) -> str:
    from distilvec.errors import DistilvecError

    (folder / "tmp").mkdir(parents=True)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    act: Callable[[], int | None] = kinds.KINDS[kind](rng, inputs, folder, folder / MARK)
    sys.set_int_max_str_digits(digits)
    before = _snapshot(folder)
    watch.seen, watch.allowed = [], (str(folder),)
    try:
        code = act()
        watch.allowed = None
        what = _judged(code)
    except DistilvecError as error:
        what = "refused" if str(error).strip() else "broke: an error without a word"
    except BaseException:
        what = f"broke: {traceback.format_exc()[-1500:]}"
    watch.allowed = None
    return _touched(folder, before, watch) or what


def _judged(code: int | None) -> str:
    """By the exit code of a command; a function of the library has none."""
    if code in (None, 0):
        return "accepted"
    if code in (2, 3, 4):
        return "refused"
    return f"broke: exit code {code}"


def _snapshot(folder: Path) -> dict[str, Any]:
    """What lies beside the output: name -> size, time of change, target of a link."""
    found = {}
    for path, folders, files in os.walk(folder):
        if Path(path) == folder:
            # An earlier model is set aside beside the output.
            folders[:] = [each for each in folders if each not in ("out", "tmp") and not OUTSIDE.match(each)]
        for name in [*files, *folders]:
            place = os.path.join(path, name)
            state = os.lstat(place)
            found[place] = (state.st_mode, None if os.path.isdir(place) else (state.st_size, state.st_mtime_ns))
    return found


def _touched(folder: Path, before: dict[str, Any], watch: Watch) -> str | None:
    if (folder / MARK).exists():
        return "broke: code from the data ran"
    if watch.seen:
        return f"broke: it touched or started {watch.seen[:3]}"
    after = _snapshot(folder)
    different = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if different:
        return f"broke: changed beside its output: {[re.sub(str(folder), '', name) for name in different[:3]]}"
    return None
