"""Commands in forked processes that are killed at chosen moments, and watched for what they touch."""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacking import refusing

#: Audit events of Python that change a file or a folder.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
#: ... and those that start something.
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class"}
WRITING = os.O_WRONLY | os.O_RDWR
#: A process hangs that has done nothing for so many seconds, on a machine that may be busy with other things ...
IDLE = 30.0
#: ... or that has taken so many of the processor.
BUSY = 240.0
#: Ports of this machine that an input may connect to: services of the attack itself.
FRIENDS: set[int] = set()
#: Commands show tracebacks, to find out why something broke.
DEBUG = False


@dataclass(frozen=True)
class Kill:
    """How a command is killed: when it is about to make its change number `event` (1 is the first), or later.

    Attributes:
        number: of the signal.
        delay: seconds after that moment; 0 = exactly then, and from inside.
        torn: no file may grow beyond so many bytes from then on, and what tries dies (SIGXFSZ): a torn file.
    """

    event: int
    number: int = signal.SIGKILL
    delay: float = 0.0
    torn: int | None = None


@dataclass(frozen=True)
class Fault:
    """An error of the disk at change number `event` of a command.

    Attributes:
        number: of the error.
        lasting: everything after that change gets it too, at the system's calls; otherwise that change alone.
    """

    event: int
    number: int
    lasting: bool = False


@dataclass
class Ended:
    """How a process ended: exit code (minus the signal), what it wrote, whether it was hanging, its changes."""

    code: int
    output: str
    seconds: float
    hung: bool = False
    changes: list[tuple[float, str, str]] = field(default_factory=list)


def change_of(event: str, arguments: Sequence[Any]) -> str | None:
    """The path that an audit event of Python is about to change, or None."""
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITING
        return os.fsdecode(path) if writes and isinstance(path, str | bytes | os.PathLike) else None
    if event in CHANGES:
        path = arguments[1] if event == "os.rename" else arguments[0]
        return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None
    return None


def call(arguments: Sequence[str]) -> int:
    """`distilvec ARGUMENTS` in this process; returns its exit code."""
    from distilvec.cli.main import main

    try:
        main([*(["--debug"] if DEBUG else []), *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def command(arguments: Sequence[str], folder: Path, kill: Kill | Fault | None = None) -> Ended:
    """Run a command in a fork of this process, and kill it as told."""
    return forked(lambda: call(arguments), folder, kill)


def forked(action: Callable[[], int], folder: Path, kill: Kill | Fault | None = None, busy: float = BUSY) -> Ended:
    """Run `action` in a fork; its return value is the exit code."""
    told, tell = os.pipe()
    heard, say = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(told), os.close(heard)
        _child(action, folder, kill, say, tell)
    os.close(tell), os.close(say)
    return _watch(child, heard, told, kill, begun, busy)


def _child(action: Callable[[], int], folder: Path, kill: Kill | Fault | None, say: int, tell: int) -> None:
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.chdir(folder)
        os.dup2(say, 1), os.dup2(say, 2)
        faulthandler.enable(2)  # type: ignore[arg-type]
        faulthandler.register(signal.SIGUSR1, 2)  # type: ignore[arg-type]
        os.environ["TMPDIR"] = str(folder / "tmp")
        _arm(kill, folder, tell)
        code = action()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 0xFF)


def _arm(kill: Kill | Fault | None, folder: Path, tell: int) -> None:
    """Tell the parent of every change below `folder`, and die at the chosen one, or have it fail."""
    count, below = 0, str(folder)

    def change(kind: str, path: str) -> None:
        nonlocal count
        place = os.path.abspath(path)
        if not place.startswith(below):
            return
        count += 1
        os.write(tell, f"{kind}\t{place[len(below) + 1 :]}\n".encode(errors="replace"))
        if kill is None or count != kill.event:
            return
        if isinstance(kill, Fault):
            if not kill.lasting and kind != "shutil.rmtree":  # which would hear of it from inside
                raise OSError(kill.number, os.strerror(kill.number), path)
            if kill.lasting:
                refusing.refuse(kill.number, [tell])
        elif kill.delay:
            return
        elif kill.torn is None:
            os.kill(os.getpid(), kill.number)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (kill.torn, resource.RLIM_INFINITY))

    def hook(event: str, arguments: Any) -> None:
        if event == "open" or event in CHANGES:
            path = change_of(event, arguments)
            if path is not None:
                change(event, path)

    real = os.fsync

    def fsync(file: Any) -> None:
        change("fsync", os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        real(file)

    os.fsync = fsync
    sys.addaudithook(hook)


def processor_seconds(child: int) -> float:
    """What a process has taken so far; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _watch(child: int, heard: int, told: int, kill: Kill | Fault | None, begun: float, busy: float) -> Ended:
    """Read what the child says until it has ended; send the signal that has to come from outside."""
    output, changes, rest = bytearray(), [], b""
    due: float | None = None
    hung, open_ends = False, {heard, told}
    used, since = 0.0, begun
    while open_ends:
        now = time.monotonic()
        if (taken := processor_seconds(child)) > used:
            used, since = taken, now
        if not hung and (now > since + IDLE or used > busy):
            hung = True
            os.kill(child, signal.SIGUSR1)  # it shows where it is
            time.sleep(0.5)
            os.kill(child, signal.SIGKILL)
        if due is not None and now >= due:
            assert isinstance(kill, Kill)
            os.kill(child, kill.number)
            due = None
        wait = 1.0 if due is None else min(1.0, due - now)
        for end in select.select(list(open_ends), [], [], max(wait, 0))[0]:
            data = os.read(end, 65536)
            if not data:
                open_ends.discard(end)
                os.close(end)
            elif end == heard:
                output += data
            else:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    kind, _, path = line.decode(errors="replace").partition("\t")
                    changes.append((time.monotonic() - begun, kind, path))
                if (
                    isinstance(kill, Kill)
                    and kill.delay
                    and due is None
                    and len(changes) - len(lines) < kill.event <= len(changes)
                ):
                    due = time.monotonic() + kill.delay
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(code, output.decode(errors="replace"), time.monotonic() - begun, hung, changes)
