"""Ctrl-C and SIGTERM end long work politely: what is being done is finished and kept first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from distilvec.errors import Interrupted

_GO_ON = "Run the same command again to go on."
#: Seconds until an interruption that was swallowed is raised again.
_AGAIN = 0.1


class StopSignals:
    """While the block runs, the first Ctrl-C or SIGTERM is only noted; a second one does what it did before.

    Whoever works in the block looks at `number` now and then, and ends. Signals are caught in the main thread only,
    because nowhere else can they be.

    Attributes:
        number: the signal that came, None as long as none did.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str | None:
        """SIGINT or SIGTERM."""
        return None if self.number is None else signal.Signals(self.number).name

    def came(self) -> bool:
        """Tell whether a signal came, so that long work has to stop."""
        return self.number is not None

    def check(self, what: str, where: str | Path | None = None, remedy: str = _GO_ON) -> None:
        """End work that a signal has stopped.

        Args:
            what: was stopped, and what of it is kept.

        Raises:
            Interrupted: a signal came.
        """
        if self.number is not None:
            place = None if where is None else str(where)
            raise Interrupted(what, where=place, remedy=remedy, number=self.number)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            return
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[list[int]]:
    """Let SIGTERM end a command as Ctrl-C does, so that what is open is closed; the list then holds its number.

    Where either comes within a function that C calls, a comparison or a `__del__`, Python prints the interruption and
    goes on: there it is sent again, until it ends the command.
    """
    received: list[int] = []
    waiting: list[threading.Timer] = []
    before, shown = signal.getsignal(signal.SIGTERM), sys.unraisablehook

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    def swallowed(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            shown(ignored)
            return
        number = received[-1] if received else signal.SIGINT
        again = threading.Timer(_AGAIN, signal.pthread_kill, (threading.main_thread().ident, number))
        again.daemon = True
        waiting.append(again)
        again.start()

    signal.signal(signal.SIGTERM, end)
    sys.unraisablehook = swallowed
    try:
        yield received
    finally:
        for again in waiting:
            again.cancel()
        sys.unraisablehook = shown
        signal.signal(signal.SIGTERM, before)
