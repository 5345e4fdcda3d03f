"""Requests that come at the same time are encoded together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

#: Texts and their side (query, document, or None for texts as such) -> vectors [n, d].
Encode = Callable[[Sequence[str], str | None], npt.NDArray[np.float32]]


class BusyError(Exception):
    """More texts are waiting than may wait."""


@dataclass
class _Job:
    texts: Sequence[str]
    side: str | None
    answer: asyncio.Future[npt.NDArray[np.float32]] = field(repr=False)
    order: list[int] = field(init=False)
    parts: list[npt.NDArray[np.float32]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        # Texts of like lengths are encoded together, so that little is padded.
        self.order = sorted(range(len(self.texts)), key=lambda index: len(self.texts[index]), reverse=True)

    @property
    def begin(self) -> int:
        """The number of texts that are encoded already."""
        return sum(len(part) for part in self.parts)

    def piece(self, most: int) -> list[str]:
        """The texts that are encoded next."""
        return [self.texts[index] for index in self.order[self.begin : self.begin + most]]

    def vectors(self) -> npt.NDArray[np.float32]:
        """All vectors [n, d], in the order of the texts."""
        found = np.concatenate(self.parts)
        found[self.order] = found.copy()
        return found


class Batcher:
    """Encodes in one thread, as many waiting texts at a time as a batch holds, first come first served.

    Waiting costs nobody anything: whoever comes alone is encoded at once, and while a batch is in work the next one
    gathers. A request with more texts than a batch holds is encoded in pieces, between which others have their turns.
    Where a batch of several requests fails, each is encoded by itself, so that a bad text harms its own alone.

    Args:
        encode: called in a thread of its own, never twice at once.
        batch: texts of a batch.
        most_waiting: texts that may be admitted at the same time; a single request may have more.
        thread: an executor of one thread in which `encode` is called; default a new one.
    """

    def __init__(
        self, encode: Encode, *, batch: int = 64, most_waiting: int = 4096, thread: ThreadPoolExecutor | None = None
    ) -> None:
        self._encode, self._batch, self._most = encode, batch, most_waiting
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._thread = thread or ThreadPoolExecutor(1, "encode")
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def admitted(self, count: int) -> Iterator[None]:
        """Hold the place of a request with `count` texts until it is answered.

        Raises:
            BusyError: too many texts are waiting.
        """
        if self._waiting and self._waiting + count > self._most:
            raise BusyError
        self._waiting += count
        try:
            yield
        finally:
            self._waiting -= count

    async def vectors(self, texts: Sequence[str], side: str | None = None) -> npt.NDArray[np.float32]:
        """The vectors [n, d] of a request's texts, in their order."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        job = _Job(texts, side, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._awake.set()
        return await job.answer

    async def close(self) -> None:
        """Finish what is in work, and stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    async def _work(self) -> None:
        while True:
            while not self._jobs:
                self._awake.clear()
                await self._awake.wait()
            if jobs := self._next():  # none if whoever asked has gone
                await self._try(jobs)

    async def _try(self, jobs: Sequence[_Job]) -> None:
        """Answer jobs together; if that fails, each by itself: one of them did it, the others have done nothing."""
        try:
            await self._answer(jobs)
        except Exception as error:
            for job in jobs if len(jobs) > 1 else ():
                await self._try([job])
            if len(jobs) == 1 and not jobs[0].answer.done():
                jobs[0].answer.set_exception(error)

    async def _answer(self, jobs: Sequence[_Job]) -> None:
        """Encode the next pieces of some jobs together; who has more to do stands at the end of the queue again."""
        pieces = [job.piece(self._batch) for job in jobs]
        texts = [text for piece in pieces for text in piece]
        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, texts, jobs[0].side)
        start = 0
        for job, piece in zip(jobs, pieces, strict=True):
            job.parts.append(vectors[start : start + len(piece)])
            start += len(piece)
            if job.begin < len(job.texts):
                self._jobs.append(job)
            elif not job.answer.done():  # whoever asked may have gone
                job.answer.set_result(job.vectors())

    def _next(self) -> list[_Job]:
        """The first job, and those behind it of the same side whose next pieces fit into the batch."""
        chosen: list[_Job] = []
        count = 0
        while self._jobs:
            job = self._jobs[0]
            size = min(len(job.texts) - job.begin, self._batch)
            if chosen and (job.side != chosen[0].side or count + size > self._batch):
                break
            self._jobs.popleft()
            if not job.answer.done():
                chosen.append(job)
                count += size
        return chosen
