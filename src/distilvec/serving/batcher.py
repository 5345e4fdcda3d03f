"""Requests that come at the same time are encoded together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


class Batcher:
    """Encodes in one thread, as many waiting texts at a time as a batch holds, first come first served.

    Waiting costs nobody anything: whoever comes alone is encoded at once, and while a batch is in work the next one
    gathers. Where a batch of several requests fails, each is encoded by itself, so that a bad text harms its own alone.

    Args:
        encode: called in a thread of its own, never twice at once.
        batch: texts of a batch; a single request may have more.
        most_waiting: texts that may wait.
    """

    def __init__(self, encode: Encode, *, batch: int = 64, most_waiting: int = 4096) -> None:
        self._encode, self._batch, self._most = encode, batch, most_waiting
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "encode")
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def vectors(self, texts: Sequence[str], side: str | None = None) -> npt.NDArray[np.float32]:
        """The vectors [n, d] of a request's texts, in their order.

        Raises:
            BusyError: too many texts are waiting.
        """
        if self._waiting and self._waiting + len(texts) > self._most:
            raise BusyError
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        job = _Job(texts, side, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._waiting += len(texts)
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
            jobs = self._next()
            try:
                await self._answer(jobs)
            except Exception as error:
                if len(jobs) == 1:
                    self._fail(jobs[0], error)
                    continue
                # One of them did it, and the others have done nothing wrong.
                for job in jobs:
                    try:
                        await self._answer([job])
                    except Exception as own:
                        self._fail(job, own)

    async def _answer(self, jobs: Sequence[_Job]) -> None:
        """Encode the texts of some jobs together."""
        texts = [text for job in jobs for text in job.texts]
        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, texts, jobs[0].side)
        start = 0
        for job in jobs:
            if not job.answer.done():  # whoever asked has gone
                job.answer.set_result(vectors[start : start + len(job.texts)])
            start += len(job.texts)

    @staticmethod
    def _fail(job: _Job, error: Exception) -> None:
        if not job.answer.done():
            job.answer.set_exception(error)

    def _next(self) -> list[_Job]:
        """The first job, and those behind it of the same side that fit into the batch."""
        chosen: list[_Job] = []
        count = 0
        while self._jobs and (
            not chosen or (self._jobs[0].side == chosen[0].side and count + len(self._jobs[0].texts) <= self._batch)
        ):
            job = self._jobs.popleft()
            self._waiting -= len(job.texts)
            if job.answer.cancelled():
                continue
            chosen.append(job)
            count += len(job.texts)
        return chosen
