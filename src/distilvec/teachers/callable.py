"""A function as a teacher, so that a paid service can be one: batches, patience, and a limit on the rate."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
import time
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, nearest
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, fingerprint
from distilvec.teachers.carried import carried, compiled, source_of
from distilvec.teachers.pace import StoppedError
from distilvec.teachers.sections import CallSection, Reading

logger = logging.getLogger(__name__)

# Mistakes in the function itself: asking again would give the same. An image may be a data URI in place of a path.
_MISTAKES = (TypeError, NameError, AttributeError, ImportError, NotImplementedError, FileNotFoundError)
_LONGEST_WAIT = 60.0
#: Seconds between two looks at whether to stop.
_PAUSE = 0.5


@dataclass(frozen=True)
class Patience:
    """The number of attempts of a call, the clock, and the function that sleeps between them."""

    attempts: int = 6
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class CallTeacher(Teacher):
    """A teacher behind a function from a list of texts to vectors.

    Where it has nothing for a text, the function gives None, or a row of nothing but NaN.

    One call is under way at a time. A call that raises is repeated after 1, 2, 4 ... seconds (at most 60), up to
    six times in all, and every attempt counts for the rate limit.

    Its fingerprint covers the function's name and source text, the prompt, the width, and what a Python value carries
    along (see `carried`); what a service changes on its side cannot be seen. A function with an attribute
    `fingerprint`, a text, has that one (with the prompt, where there is one), and whoever wrote it answers for it.
    """

    can = Capabilities(paid=True, gaps=True)
    #: Whether the item of the first call must get something: without, the width would be unknown.
    _knows_all = True
    #: The item of the first call; "" = that of the kind of items.
    _probe = ""
    #: What the function is given, for whoever wrote it.
    _given = (
        "one list of items: texts, SMILES, or paths and data URIs of images "
        "(distilvec.kinds.image.images.open_image opens both)"
    )

    def __init__(self, section: CallSection, reading: Reading, patience: Patience | None = None) -> None:
        """Find the function (modules of the working directory are found) and call it once, to learn its width.

        Raises:
            DistilvecError: there is no such function, or it has a mistake.
            EnvironmentProblem: every attempt failed.
            DataError: it does not give [n, D] finite numbers.
        """
        call, name, prompt = section.call, section.name, section.prompt
        self._place = str(Path.cwd())
        self._function = find_function(call) if isinstance(call, str) else call
        self._where = name
        self._batch_size, self._patience = section.batch_size, patience or Patience()
        self._pause = 1.0 / section.rate_limit if section.rate_limit else 0.0
        self._next_call = -float("inf")
        self._lock = threading.Lock()
        self._width: int | None = None
        self.prompt = prompt or ""
        probe = self._probe or reading.kind.probe
        seen = self._ask([probe])
        if self._knows_all and np.isnan(seen).any():
            raise DataError(f"it has no vector for {probe!r}, which it is tried with", where=name)
        source = call if isinstance(call, str) else _name_of(call)
        self.card = TeacherCard(
            name=name,
            kind="callable",
            source=source,
            fingerprint=self._fingerprint(source, seen.shape[1]),
            width=int(seen.shape[1]),
            prompt=prompt or None,
            normalized=bool(abs(float(np.linalg.norm(seen[0])) - 1) < 1e-3),
        )

    def _fingerprint(self, source: str, width: int) -> str:
        told = getattr(self._function, "fingerprint", None)
        if isinstance(told, str) and told:
            return fingerprint(told, self.prompt) if self.prompt else told
        own = [carried(self._function)]
        own = own if any(own) else []  # that of a plain function is as it always was
        text, code = source_of(self._function), getattr(self._function, "__code__", None)
        if text is None and isinstance(code, types.CodeType):  # of a prompt, or of a program that came by a pipe
            text = compiled(code)
        return fingerprint(source, text, self.prompt, width, *own)

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]), in the order of the texts, one call each."""
        for start in range(0, len(texts), self._batch_size):
            rows = np.arange(start, min(start + self._batch_size, len(texts)))
            yield from self._answer(rows, [texts[int(row)] for row in rows])

    def _answer(self, rows: np.ndarray, texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows and their vectors; before them, while `stop` says yes, pairs of nothing."""
        while True:
            try:
                vectors = self._ask(texts)
            except StoppedError:
                yield self._nothing()
                continue
            yield rows, vectors
            return

    def _ask(self, texts: list[str]) -> np.ndarray:
        prompted = [self.prompt + text for text in texts]
        with self._lock:
            return self._checked(self._patiently(prompted), texts)

    def _patiently(self, texts: list[str]) -> Any:
        attempt = 0
        while True:
            attempt += 1
            self._keep_rate()
            try:
                with importable(self._place):  # a neighbour may be imported only now
                    return self._function(list(texts))
            except DistilvecError:
                raise
            except _MISTAKES as problem:
                raise DistilvecError(
                    f"the function fails with {type(problem).__name__}: {problem}",
                    where=self._where,
                    remedy=_by_encode(self._function) or f"It is called with {self._given}; try it by itself.",
                ) from problem
            except (SystemExit, GeneratorExit) as problem:
                raise DistilvecError(
                    f"the function ends the process ({type(problem).__name__}: {problem})",
                    where=self._where,
                    remedy="It has to return vectors, or raise an error; what was taught so far is kept.",
                ) from problem
            except Exception as problem:  # whatever a service's client raises
                if attempt == self._patience.attempts:
                    raise EnvironmentProblem(
                        f"{attempt} calls failed, the last with {type(problem).__name__}: {problem}",
                        where=self._where,
                        remedy="What was taught so far is kept; start again when the service answers.",
                    ) from problem
                seconds = min(2.0 ** (attempt - 1), _LONGEST_WAIT)
                logger.warning("%s: %s: %s; again in %g s", self._where, type(problem).__name__, problem, seconds)
                self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """Sleep; raise `StoppedError` if `stop` says yes meanwhile."""
        while self.stop is not None and seconds > 0:
            if self.stop():
                raise StoppedError
            self._patience.sleep(min(seconds, _PAUSE))
            seconds -= _PAUSE
        if seconds > 0:
            self._patience.sleep(seconds)

    def _keep_rate(self) -> None:
        wait = self._next_call - self._patience.clock()
        if wait > 0:
            self._wait(wait)
        self._next_call = self._patience.clock() + self._pause

    def _checked(self, answer: Any, texts: list[str]) -> np.ndarray:
        try:
            vectors = np.asarray(self._filled(answer), dtype=np.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as problem:  # RuntimeError: tensors with gradients
            raise DataError(
                f"{len(texts)} rows of numbers were expected, found {type(answer).__name__}: {problem}",
                where=self._where,
                remedy="The function must return one vector of constant width per text.",
            ) from problem
        if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.shape[1] < 1:
            raise DataError(
                f"expected [{len(texts)}, D], found {list(vectors.shape)}",
                where=self._where,
                remedy="The function must return one vector per text, in the order of the texts.",
            )
        if self._width is not None and vectors.shape[1] != self._width:
            raise DataError(
                f"vectors of width {self._width} came before, now of width {vectors.shape[1]}", where=self._where
            )
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1) & ~np.isnan(vectors).all(axis=1))
        if len(wrong):
            raise DataError(
                f"the vector of {texts[wrong[0]][:120]!r} has values that are not finite",
                where=self._where,
                remedy="Where there is none, the function gives None or a row of nothing but NaN.",
            )
        self._width = vectors.shape[1]
        return vectors

    def _filled(self, rows: Any) -> Any:
        """A list with a row of NaN for every None in it."""
        if not isinstance(rows, list | tuple) or all(row is not None for row in rows):
            return rows
        width = self._width or next((len(row) for row in rows if row is not None), 1)
        return [np.full(width, np.nan, np.float32) if row is None else row for row in rows]


def find_function(path: str) -> Callable[[list[str]], Any]:
    """The function that "module:function" names; modules of the working directory are found.

    Raises:
        DistilvecError: the path has no colon, there is no such module or function, or it cannot be called.
    """
    function = find(path, "function", "my_service:embed")
    if not callable(function):
        raise DistilvecError(f"a {type(function).__name__} cannot be called", where=path, remedy=_by_encode(function))
    found: Callable[[list[str]], Any] = function
    return found


def _by_encode(model: Any) -> str | None:
    """Say how to name a model that encodes texts and was given as a function; None for anything else."""
    if isinstance(model, str) or not callable(getattr(model, "encode", None)):
        return None
    return f"It is a {type(model).__name__}; name its method: call: module:NAME.encode."


def find(path: str, kind: str, example: str) -> Any:
    """Return what "module:name" names, a `kind` of thing; modules of the working directory are found.

    Raises:
        DistilvecError: the path has no colon, or there is no such module or name.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise DistilvecError(f'"{path}" is not of the form module:{kind}', remedy=f'For example "{example}".')
    if "<" in name:
        raise DistilvecError(
            f"this {kind} was given from Python and has no name by which it could be found again",
            where=path,
            remedy=f"Give it from Python once more, or name a {kind} of a module: module:{kind}.",
        )
    found = _imported(path, module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DistilvecError(f'there is no "{part}"', where=path, remedy=nearest(part, _public(found) or [part]))
        found = getattr(found, part)
    return found


def _imported(path: str, name: str) -> Any:
    try:
        with importable(str(Path.cwd())):
            return importlib.import_module(name)
    except ImportError as problem:
        raise DistilvecError(
            f'the module "{name}" cannot be imported: {problem}',
            where=path,
            remedy="Start distilvec in the folder that holds it, or install it.",
        ) from problem
    except (Exception, SystemExit) as problem:  # what a module of somebody else's does when it is imported
        raise DistilvecError(
            f'importing the module "{name}" fails with {type(problem).__name__}: {problem}',
            where=path,
            remedy='Try `python -c "import ..."` in this folder.',
        ) from problem


@contextlib.contextmanager
def importable(folder: str) -> Iterator[None]:
    """While modules of a folder are found first."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # somebody else has taken it off
            sys.path.remove(folder)


def _public(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _name_of(function: Callable[..., Any]) -> str:
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"
