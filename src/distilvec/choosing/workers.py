"""Short trainings of several candidates side by side, one in each thread that torch may use.

A small student does not keep two cores busy, two small students do. Workers are programs of their own: torch's threads
do not survive a fork, and a spawned process would run the caller's script once more. Tasks and what came of them are
pickled through their standard input and output; they end when their input does.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.choosing.probe import Stored, short_training
from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError, EnvironmentProblem, Interrupted
from distilvec.judging import CachedEncoder
from distilvec.judging.agreement import likeness
from distilvec.methods.base import Method, foreign_classes
from distilvec.recipe.sections import OptimizerSection

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
#: Workers at most: each takes about 600 MB of memory.
MOST = 8


@dataclass(frozen=True)
class Lesson:
    """The data and settings that all short trainings share.

    Attributes:
        teacher: whose vectors are learnt from.
        held, vectors: held-out texts, and the teacher's vectors of them.
        to_come: steps of the whole training.
    """

    sample: Corpus
    teacher: Stored
    held: list[str]
    vectors: npt.NDArray[np.float32]
    training: Mapping[str, Any]
    optimizer: OptimizerSection
    to_come: int

    def order(self, student: object, name: str) -> float:
        """Spearman's correlation of the student's cosines with the teacher's over pairs of held-out texts."""
        return likeness(self.vectors, CachedEncoder(student, name=name)(self.held))["similarity_spearman"]

    def learnt(self, task: Trial, steps: int) -> float:
        """Train a student in place for so many steps; the order after it."""
        settings = {**self.training, "max_steps": steps}
        if (warmup := settings.get("warmup_steps") or 0) >= 1:  # a number of steps, not a share of them
            settings["warmup_steps"] = min(1 - 1e-9, warmup / self.to_come)
        short_training(task.student, task.method, self.sample, [self.teacher], settings, self.optimizer)
        return self.order(task.student, task.name)


@dataclass(frozen=True)
class Trial:
    """A candidate to train: its name, the untrained student, and a method that is not built yet."""

    name: str
    student: SentenceTransformer
    method: Method


class Trainings:
    """Short trainings, as many at once as torch may use threads; in this process with one thread, on a GPU, or where a
    student or a teacher cannot be pickled (code that came with a model) or a method is not ours.
    """

    def __init__(self, lesson: Lesson, probes: Sequence[Trial]) -> None:
        self.lesson = lesson
        on_cpu = all(next(probe.student.parameters()).device.type == "cpu" for probe in probes)
        at_home = on_cpu and not any(foreign_classes(probe.method) for probe in probes)
        self.workers = min(torch.get_num_threads(), len(probes), MOST) if at_home else 1
        if self.workers > 1 and not _travels((lesson, probes)):
            self.workers = 1
        self._all: list[subprocess.Popen[bytes]] = []
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def __enter__(self) -> Trainings:
        if self.workers > 1:
            try:
                self._begin()
            except BaseException:
                self.__exit__()
                raise
        return self

    def _begin(self) -> None:
        shared = pickle.dumps((torch.get_num_threads() // self.workers, self.lesson))
        self._place = tempfile.TemporaryDirectory(prefix="distilvec-plan-")  # what killed ones leave goes with it
        try:
            for _ in range(self.workers):
                self._all.append(_started(self._place.name))
            for worker in self._all:  # once all have begun: each takes a large lesson only when it has imported all
                _send(worker, shared)
        except OSError as error:
            raise EnvironmentProblem(
                f"a process to train it in cannot be started ({error.strerror or error})",
                where="candidates",
                remedy="With OMP_NUM_THREADS=1 they are trained in this one.",
            ) from error
        for worker in self._all:
            self._idle.put(worker)

    def __exit__(self, *error: object) -> None:
        self._stop()
        for worker in self._all:
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
        if self._place is not None:
            self._place.cleanup()

    def _stop(self) -> None:
        for worker in self._all:
            worker.kill()
            worker.wait()

    def orders(self, probes: Sequence[Trial], steps: int) -> Iterator[float | DistilvecError]:
        """The order of each candidate after so many steps, or why it could not be trained; the students themselves are
        left as they are.
        """
        if self.workers == 1:
            for probe in probes:
                try:
                    yield self.lesson.learnt(copy.deepcopy(probe), steps)
                except DistilvecError as error:
                    yield _of_one(error)
            return
        pool = ThreadPoolExecutor(self.workers)
        try:
            yield from pool.map(lambda probe: self._asked(probe, steps), probes)
        finally:
            if sys.exc_info()[0] is not None:
                self._stop()  # nobody waits for what is still being trained
            pool.shutdown(cancel_futures=True)

    def _asked(self, probe: Trial, steps: int) -> float | DistilvecError:
        worker = self._idle.get()
        assert worker.stdout is not None
        try:
            _send(worker, pickle.dumps((probe, steps)))
            found = pickle.load(worker.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise EnvironmentProblem(
                f"the process that trained it ended with code {worker.wait()}",
                where=probe.name,
                remedy="Out of memory? With OMP_NUM_THREADS=1 candidates are trained one after the other.",
            ) from error
        finally:
            self._idle.put(worker)
        if isinstance(found, DistilvecError):
            return _of_one(found)
        if isinstance(found, Exception):
            raise found
        return float(found)


def _of_one(error: DistilvecError) -> DistilvecError:
    """A failure that leaves the other candidates alone; an interruption, and one of the surroundings, is raised."""
    if isinstance(error, EnvironmentProblem | Interrupted):
        raise error
    return error


def _travels(what: object) -> bool:
    try:
        pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _started(place: str) -> subprocess.Popen[bytes]:
    """A worker that finds the modules that this process finds, with its own temporary files in a folder."""
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
    surroundings = {**os.environ, "PYTHONPATH": paths, "TMPDIR": place}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings)


def _send(worker: subprocess.Popen[bytes], message: bytes) -> None:
    assert worker.stdin is not None
    worker.stdin.write(message)
    worker.stdin.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints does not get between the answers
    threads, lesson = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    while True:
        try:
            probe, steps = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            found: float | Exception = lesson.learnt(probe, steps)
        except DistilvecError as error:
            found = error
        except Exception as error:
            logger.exception("%s", probe.name)
            found = RuntimeError(f"{probe.name}: {type(error).__name__}: {error}")
        pickle.dump(found, answers)
        answers.flush()
