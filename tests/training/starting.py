"""Starting jobs of `jobs.py`, and waiting for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A job in a process of its own."""

    def __init__(self, ticket: Path) -> None:
        self.ticket = ticket

    @property
    def pid(self) -> int:
        return int(_read_when_there(self.ticket / "pid", 60))

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 120) -> tuple[int, str]:
        """Exit code (minus the signal's number where one ended it) and output."""
        code = int(_read_when_there(self.ticket / "status", seconds))
        return code, (self.ticket / "output").read_text()

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until the job has come so far."""
        end = time.monotonic() + seconds
        while not condition():
            if (self.ticket / "status").exists() or time.monotonic() > end:
                raise AssertionError((self.ticket / "output").read_text())
            time.sleep(0.002)


def _read_when_there(file: Path, seconds: float) -> str:
    end = time.monotonic() + seconds
    while not (file.exists() and (text := file.read_text())):
        if time.monotonic() > end:
            raise AssertionError(f"nothing came: {file}")
        time.sleep(0.005)
    return text


class Starter:
    """Starts jobs in the process that has everything imported."""

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


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """start.train(home=..., out=..., method=...) or start(arguments=[...], folder=...): see tests/training/jobs.py."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/training/jobs.py")],
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as process:
        yield Starter(process, tmp_path_factory.mktemp("tickets"))
        process.send_signal(signal.SIGKILL)
