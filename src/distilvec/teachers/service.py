"""A service that sells or serves embeddings as a teacher: several requests at once, and no answer paid for twice."""

from __future__ import annotations

import hashlib
import logging
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from distilvec.errors import DistilvecError
from distilvec.system_errors import system_problem
from distilvec.teachers.answers import Answers
from distilvec.teachers.base import Capabilities, Teacher, TeachingCost
from distilvec.teachers.cards import TeacherCard, fingerprint
from distilvec.teachers.endpoint import Endpoint
from distilvec.teachers.sections import Reading, ServiceSection

logger = logging.getLogger(__name__)
_PROBE = "A probe."
#: Seconds between two looks at whether to stop.
_PAUSE = 0.5
#: So many refused texts are the texts' own fault, and so is this share of them.
FEW, MANY = 20, 0.05


class ServiceTeacher(Teacher):
    """A teacher behind HTTP, in the shape of OpenAI's `/embeddings`.

    Its fingerprint covers the model's name, dimensions, further fields and prompt, not the address: the same model
    behind another address is the same teacher. What a service changes on its side cannot be seen. It has nothing for a
    text that it refuses (because it is too long, say).

    Attributes:
        card: who it is.
        answers: where answers are kept until they are in a store; None = nowhere.
    """

    _open: type[Endpoint] = Endpoint
    # So many at a time that its connections are never idle for long.
    can = Capabilities(paid=True, gaps=True, chunk=65_536)

    def __init__(self, section: ServiceSection, reading: Reading, seen: np.ndarray | None = None) -> None:
        """Ask once with a short text, to learn the width; not if an answer float32 [1, D] was `seen`.

        Raises:
            DistilvecError: the items are no texts, an address that is none, or the service refuses the request.
            EnvironmentProblem: it does not answer, or lets nobody in.
            DataError: it answers without vectors.
        """
        name, api = section.name, section.api
        if not reading.kind.tokenized:
            raise DistilvecError(
                f"a service reads texts, and the corpus holds {reading.modality}s",
                where=name,
                remedy="Give a function that asks it (`call`).",
            )
        self._section, self._most_tokens = section, api.tokens_per_request or math.inf
        self.answers: Answers | None = None
        self._stop = threading.Event()
        self.prompt = section.prompt or ""
        self._endpoint = self._open(api, rate_limit=section.rate_limit, where=name, wait=self._stop.wait)
        self._asked = self._unread = 0
        self._counting = threading.Lock()
        if seen is None:
            seen = self._endpoint.probe(self.prompt + _PROBE)
        self.card = TeacherCard(
            name=name,
            kind="service",
            source=f"{api.model} at {self._endpoint.url.host}",
            fingerprint=fingerprint("service", api.model, api.dimensions, api.extra, self.prompt, seen.shape[1]),
            width=int(seen.shape[1]),
            prompt=section.prompt or None,
            normalized=bool(abs(float(np.linalg.norm(seen[0])) - 1) < 1e-3),
        )

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]) as answers come, those first that were kept.

        Raises:
            DistilvecError: it refuses many texts, or by now the probe too.
            EnvironmentProblem, DataError: as `Endpoint.embed`; what came is kept.
        """
        todo = np.arange(len(texts))
        if self.answers is not None and len(self.answers):
            vectors = self.answers.find(self.key(text) for text in texts)
            here = np.array([each is not None for each in vectors], dtype=bool)
            if here.any():
                self.answers.given(int(here.sum()))
                yield todo[here], np.stack([each for each in vectors if each is not None])
            todo = todo[~here]
        if len(todo):
            yield from self._ask(texts, self._batches(texts, todo))

    def together(self, texts: Sequence[str], side: str | None = None) -> np.ndarray:
        """float32 [n, D], the texts beside each other as far as one request may hold them; NaN for what it refuses."""
        vectors = np.zeros((len(texts), self.card.width), np.float32)
        for rows in self._batches(texts, np.arange(len(texts))):
            asked = [self.prompt + texts[int(row)] for row in rows]
            vectors[rows] = self._endpoint.embed(asked, refused=lambda _: None)
        return vectors

    def kept(self, rows: int) -> None:
        if self.answers is not None:
            self.answers.kept(rows)

    @contextmanager
    def keeping(self, folder: Path) -> Iterator[Callable[[Iterable[str]], None]]:
        with Answers(folder, self.card.fingerprint, self.card.width) as answers:
            self.answers = answers
            try:
                yield lambda texts: answers.all_kept(map(self.key, texts) if answers.left else ())
            finally:
                self.answers = None

    def cost(self, texts: Sequence[str], items: int) -> TeachingCost:
        each = self._endpoint.estimated_tokens([self.prompt + text for text in texts]) / max(len(texts), 1)
        fit = int(self._most_tokens / each) if math.isfinite(self._most_tokens) else items
        most = max(1, min(self._section.batch_size, fit))
        return TeachingCost(math.ceil(items / most), each * items, self._section.api.price)

    def key(self, text: str) -> bytes:
        """Return the key of a text's answer among `answers`."""
        return text_key(self.prompt + text)

    def _batches(self, texts: Sequence[str], rows: np.ndarray) -> Iterator[np.ndarray]:
        batch: list[int] = []
        tokens = 0.0
        for row in rows.tolist():
            more = self._endpoint.estimated_tokens([self.prompt + texts[row]])
            if batch and (len(batch) == self._section.batch_size or tokens + more > self._most_tokens):
                yield np.array(batch)
                batch, tokens = [], 0.0
            batch.append(row)
            tokens += more
        if batch:
            yield np.array(batch)

    def _ask(self, texts: Sequence[str], batches: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ask for the batches, `concurrency` at a time; answers are given out in the order in which they were kept."""
        come: queue.Queue[tuple[np.ndarray, np.ndarray] | BaseException] = queue.Queue()
        keeping = threading.Lock()

        def keep_half(prompted: Sequence[str], vectors: np.ndarray) -> None:
            """Keep what came of a request that failed in its other half; nobody is given it now."""
            with keeping:
                self._keep(prompted, vectors)

        def one(rows: np.ndarray) -> None:
            try:
                prompted = [self.prompt + texts[int(row)] for row in rows]
                with self._counting:
                    self._asked += len(rows)
                vectors = self._endpoint.embed(prompted, keep_half, self._refused)
                with keeping:
                    self._keep(prompted, vectors)
                    come.put((rows, vectors))
            except BaseException as problem:  # raised again by the thread that reads the answers
                come.put(problem)

        pool = ThreadPoolExecutor(self._section.api.concurrency, "distilvec-service")
        try:
            waiting = 0
            for rows in batches:
                pool.submit(one, rows)
                waiting += 1
                if waiting >= 2 * self._section.api.concurrency:  # as many again wait for a free connection
                    yield from self._next(come)
                    waiting -= 1
            for _ in range(waiting):
                yield from self._next(come)
        finally:
            self._stop.set()  # who waits for a second try gives up; who waits for an answer gets it, and keeps it
            pool.shutdown(wait=True, cancel_futures=True)
            self._stop.clear()

    def _next(
        self, come: queue.Queue[tuple[np.ndarray, np.ndarray] | BaseException]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The next answer; before it, while none comes and `stop` says yes, pairs of nothing."""
        while True:
            try:
                answer = come.get(timeout=None if self.stop is None else _PAUSE)
            except queue.Empty:
                assert self.stop is not None
                if self.stop():
                    yield self._nothing()
                continue
            if isinstance(answer, BaseException):
                raise answer
            yield answer
            return

    def _refused(self, problem: DistilvecError) -> None:
        """Hear of a text that the service refuses; it is an error if it refuses many, or the probe too."""
        with self._counting:
            self._unread += 1
            count, asked = self._unread, self._asked
        if count > FEW and count > MANY * asked:
            raise DistilvecError(
                f"{problem.what}, as {count - 1:,} of {asked:,} so far", where=problem.where, remedy=problem.remedy
            )
        if not count & (count - 1):  # the 1st, 2nd, 4th ...
            self._endpoint.embed([self.prompt + _PROBE])
            logger.warning("%s; the teacher has nothing for it (%s so far)", problem.what, f"{count:,}")

    def _keep(self, prompted: Sequence[str], vectors: np.ndarray) -> None:
        if (answers := self.answers) is None:
            return
        there = ~np.isnan(vectors).all(axis=1)
        try:
            keys = (text_key(text) for text, here in zip(prompted, there, strict=True) if here)
            answers.add(keys, vectors[there])
            answers.given(int((~there).sum()))
        except OSError as problem:
            told = "What came before is kept."
            raise system_problem(problem, "the answers cannot be written", answers.folder, told) from problem


def text_key(text: str) -> bytes:
    """16 bytes for a text with its prompt."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
