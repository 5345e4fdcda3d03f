"""Shows what long work is doing: a bar on a terminal, one display in a notebook, else a line every half minute.

`logging.getLogger("distilvec").setLevel(logging.WARNING)` silences it, as `--quiet` does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from distilvec.words import per, rough_duration

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("distilvec")
_CLEAR = "\r\x1b[2K"
_BAR = 24


@dataclass(frozen=True)
class WorkState:
    """One state of some work.

    Attributes:
        title: stage and work, e.g. "stage 3 of 5: training".
        done, total: what the bar shows; without a bar if `total` is 0.
        kept: whether the last line stays on the screen.
    """

    title: str
    done: int
    total: int
    details: str = ""
    last: bool = False
    kept: bool = True

    def __str__(self) -> str:
        return f"{self.title}: {self.details}" if self.details else self.title


class _Plain:
    """Writes a line to stderr every half minute; the other screens are made like it."""

    #: Seconds between two updates.
    every = 30.0

    def show(self, line: WorkState) -> None:
        """Show a line instead of the one before it, or after it if that was the last one of its work."""
        if line.kept or not line.last:
            print(line, file=sys.stderr, flush=True)  # noqa: T201


class _Terminal(_Plain):
    """Draws a bar with rich, always on the last line of the terminal.

    Not with rich's own live display: that starts a thread and hides the cursor, which forked workers and a killed
    process would leave behind.
    """

    every = 0.2
    #: Whether a bar is on the line of the cursor.
    open = False

    def show(self, line: WorkState) -> None:
        _Terminal.open = not line.last
        sys.stderr.write(_CLEAR + (self._drawn(line) if line.kept or not line.last else ""))
        sys.stderr.write("\n" * (line.last and line.kept))
        sys.stderr.flush()

    @staticmethod
    def _drawn(line: WorkState) -> str:
        from rich.console import Console
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        console = Console(stderr=True)
        row = Table.grid(padding=(0, 1))
        for _ in range(3):
            row.add_column(no_wrap=True)
        bar = ProgressBar(max(line.total, 1), line.done, width=_BAR if console.width >= 80 else _BAR // 3)
        row.add_row(Text(line.title), bar if line.total else "", Text(line.details, overflow="ellipsis"))
        with console.capture() as drawn:
            console.print(row, end="")
        return drawn.get().rstrip("\n")


class _Notebook(_Plain):
    """Updates one display of a notebook's cell: a line for each finished stage, and the current one."""

    every = 0.5

    def __init__(self) -> None:
        self._finished: list[str] = []
        self._handle: Any = None

    def show(self, line: WorkState) -> None:
        lines = [*self._finished, str(line)] if line.kept or not line.last else self._finished
        shown = {"text/plain": "\n".join(lines)}
        if self._handle is None:
            display: Any = sys.modules["IPython.display"].display  # type: ignore[attr-defined]
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
        if line.last:
            self._finished = lines


_stage: ContextVar[str] = ContextVar("stage", default="")
_screen: ContextVar[_Plain | None] = ContextVar("screen", default=None)


def _in_notebook() -> bool:
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _open_screen() -> _Plain:
    if _in_notebook():
        return _Notebook()
    return _Terminal() if sys.stderr.isatty() else _Plain()


def _quiet() -> bool:
    if os.environ.get("RANK", "0") != "0":  # of several processes that train together the first one speaks
        return True
    return logger.level > logging.INFO or logger.manager.disable >= logging.INFO


class Ticker:
    """Shows the progress of one piece of work; call it with what is done so far, and of how much if that is known.

    Args:
        unit: what is counted, plural.
        kept: whether the last line stays on the screen; not so of work that logs its results.
    """

    def __init__(self, what: str, unit: str = "texts", *, kept: bool = True) -> None:
        self.title, self.unit, self.kept = _stage.get() + what, unit, kept
        self.screen = _screen.get() or _open_screen()
        self.start = self.last = time.monotonic()
        self.first: int | None = None
        self.over = False

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        now, begins, ends = time.monotonic(), self.first is None, total is not None and done >= total
        if self.first is None:
            self.first, self.start = done, now
        early = now - self.last < self.screen.every and not (begins and self.screen.every < 1)
        if self.over or _quiet() or (early and not ends):
            return
        self.last, self.over = now, ends
        if ends and begins:  # all of it was there already
            return
        numbers, taken = [f"{done:,}{'' if total is None else f'/{total:,}'} {self.unit}"], now - self.start
        if done > self.first and taken > 0:
            rate = (done - self.first) / taken
            numbers.append(per(rate, self.unit))
            if total is not None:
                left = f"{rough_duration((total - done) / rate)} left"
                numbers.append(f"took {rough_duration(taken)}" if ends else left)
        details = ", ".join([*numbers, note] if note else numbers)
        self.screen.show(WorkState(self.title, done, total or 0, details, ends, self.kept))


@contextlib.contextmanager
def stages(count: int) -> Iterator[Callable[[str], None]]:
    """Number the stages of long work: call what is yielded with the name of each stage as it begins.

    Tickers of a stage carry its number: "stage 3 of 5: training".
    """
    before, number = _stage.get(), 0

    def begin(name: str) -> None:
        nonlocal number
        number += 1
        _stage.set(f"stage {number} of {count}: ")
        screen = _screen.get() or _open_screen()
        if not _quiet() and type(screen) is not _Plain:
            screen.show(WorkState(_stage.get() + name, 0, 1))

    try:
        yield begin
    finally:
        _stage.set(before)
        end_line()


@contextlib.contextmanager
def within(name: str) -> Iterator[None]:
    """Put the name of larger work before the titles of what the block does: "trying: training"."""
    before = _stage.set(f"{_stage.get()}{name}: ")
    try:
        yield
    finally:
        _stage.reset(before)


def end_line() -> None:
    """Leave an unfinished bar where it is, so that what is printed next stands on a line of its own."""
    if _Terminal.open:
        _Terminal.open = False
        sys.stderr.write("\n")


class LogLines(logging.Handler):
    """Writes log records to stderr (in a notebook to stdout, whose background is not red), above an open bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = sys.stdout if _in_notebook() else sys.stderr
            stream.write(_CLEAR * _Terminal.open + self.format(record) + "\n")
            stream.flush()
            _Terminal.open = False
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def one_screen() -> Iterator[None]:
    """Let all that is done in the block share one screen."""
    if _screen.get() is not None:
        yield
        return
    before = _screen.set(_open_screen())
    try:
        yield
    finally:
        _screen.reset(before)
        end_line()


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Show what distilvec does while the block runs, and silence the bars of transformers and the hub.

    Lines of the log are shown only if nobody has configured logging, neither of the root nor of `distilvec`.
    """
    handler, level = LogLines(), logger.level
    ours = not (logger.handlers or logging.getLogger().handlers or level)
    if ours:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        with one_screen(), _no_foreign_bars():
            yield
    finally:
        if ours:
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextlib.contextmanager
def _no_foreign_bars() -> Iterator[None]:
    hub: Any = importlib.import_module("huggingface_hub.utils")
    transformers: Any = importlib.import_module("transformers.utils.logging")
    of_hub, of_transformers = not hub.are_progress_bars_disabled(), transformers.is_progress_bar_enabled()
    hub.disable_progress_bars()
    transformers.disable_progress_bar()
    try:
        yield
    finally:  # transformers' switch turns the hub's, too
        if of_transformers:
            transformers.enable_progress_bar()
        (hub.enable_progress_bars if of_hub else hub.disable_progress_bars)()


def at_work(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that people call, so that it shows what it does; see `working`."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        with working():
            return function(*args, **options)

    return call
