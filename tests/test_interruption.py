"""Signals end a command wherever they come, also within a function that C calls."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.training.starting import Starter

from distilvec.interruption import terminable

COMMAND = """
import ctypes, time
from distilvec.cli import main
from distilvec.interruption import terminable

def sort():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(*_):
        time.sleep(0.3)
        return 0

    ctypes.CDLL(None).qsort((ctypes.c_int * 3)(*range(3)), 3, 4, kind(compare))

class Slow:
    def __del__(self):
        time.sleep(1)

def work():
    print("begun", flush=True)
    {work}
    print("the callback is over", flush=True)
    time.sleep(60)
    print("as if nothing had happened", flush=True)

with terminable() as received:
    main._guard(work, ["run"], received)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("work", ["sort()", "Slow()"])
def test_an_interruption_within_a_callback_ends_the_command(
    start: Starter, tmp_path: Path, work: str, number: signal.Signals
) -> None:
    running = start.code(COMMAND.format(work=work), folder=str(tmp_path))
    running.until(lambda: "begun" in running.output)
    running.kill(number)
    code, said = running.wait(40)
    assert code == 128 + number and f"interrupted by {number.name}" in said
    assert "Traceback" not in said and "Exception ignored" not in said


def test_other_errors_that_are_ignored_are_shown_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("of somebody else")

    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    try:
        with terminable() as received:
            Broken()
        assert sys.unraisablehook is sys.__unraisablehook__ and received == []
    finally:
        sys.unraisablehook = hook
    assert "ValueError: of somebody else" in capsys.readouterr().err
