"""Starting what `tests/forking.py` forks, and waiting for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A process that was forked for a request."""

    def __init__(self, ticket: Path) -> None:
        self.ticket = ticket

    @property
    def pid(self) -> int:
        return int(_read_when_there(self.ticket / "pid", 60))

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def output(self) -> str:
        """What it has said so far."""
        return (self.ticket / "output").read_text() if (self.ticket / "output").exists() else ""

    @property
    def ended(self) -> bool:
        return (self.ticket / "status").exists()

    def wait(self, seconds: float = 120) -> tuple[int, str]:
        """Exit code (minus the signal's number where one ended it) and output."""
        code = int(_read_when_there(self.ticket / "status", seconds))
        return code, self.output

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until the job has come so far."""
        end = time.monotonic() + seconds
        while not condition():
            if self.ended or time.monotonic() > end:
                raise AssertionError(self.output)
            time.sleep(0.002)


def _read_when_there(file: Path, seconds: float) -> str:
    end = time.monotonic() + seconds
    while not (file.exists() and (text := file.read_text())):
        if time.monotonic() > end:
            raise AssertionError(f"nothing came: {file}")
        time.sleep(0.005)
    return text


class Starter:
    """Has processes forked from one that has everything imported, or (`bare`) from one that has not seen distilvec."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    def __call__(self, **request: Any) -> Running:
        ticket = Path(tempfile.mkdtemp(dir=self.folder))
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ticket": str(ticket), **request}) + "\n")
        self.process.stdin.flush()
        return Running(ticket)

    def train(self, **job: Any) -> Running:
        return self(job={key: str(value) if isinstance(value, Path) else value for key, value in job.items()})

    def code(self, code: str, *arguments: object, **how: Any) -> Running:
        """A program's text, with these words as its arguments."""
        return self(code=textwrap.dedent(code), argv=[str(each) for each in arguments], **how)

    def elsewhere(self, code: str, *arguments: object, place: Path) -> str:
        """The output of a program where distilvec cannot be imported, with `place` as its folder; it must succeed."""
        absent = "import sys\nsys.modules['distilvec'] = None\n"
        running = self.code(absent + textwrap.dedent(code), *arguments, bare=True, folder=str(place))
        status, output = running.wait()
        assert status == 0, output[-3000:]
        return output


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """start.train(home=..., out=..., method=...), start(arguments=[...], folder=...), start.code("..."), ..."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    for name in [name for name in environment if name.startswith("MALLOC_")]:
        del environment[name]
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/forking.py")],
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as process:
        yield Starter(process, tmp_path_factory.mktemp("tickets"))
        process.send_signal(signal.SIGKILL)
