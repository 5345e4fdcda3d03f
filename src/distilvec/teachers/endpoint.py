"""One address that turns texts into vectors, in the shape that OpenAI's `/embeddings` has and many servers speak.

Hosted services, text-embeddings-inference, infinity, vLLM and Ollama answer to it. What goes wrong on the way (a busy
server, a limit, a broken connection, half an answer) is tried again; what is wrong with the request is not.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.teachers.embeddings import UnreadableError, read_embeddings, read_failure, scattered
from distilvec.teachers.pace import Pace, StoppedError, retry_after
from distilvec.teachers.sections import ApiSection

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

#: Answers that another try may change; those that a smaller request may change; those that say who is let in.
_BUSY = {408, 409, 425, 429, *range(500, 600)} - {501, 505}
_UNFIT, _CLOSED = {400, 413, 422}, {401, 403}
LONGEST_WAIT = 60.0
_MOST_BYTES = 512 << 20
#: Of the time for which a service may say nothing: how long a whole answer may take.
WHOLE = 5
#: Share by which the values of two answers to one text may differ: services round, and sum in another order.
_SAME = 0.05
_SECONDS_BETWEEN_WARNINGS = 10.0
#: Texts of most languages have three to five bytes a token; the service's own counts correct it.
_TOKENS_PER_BYTE = 0.25


class _FaultyError(Exception):
    """No answer, or one that is not what was asked for; another try may be better.

    Attributes:
        answered: whether the service took the request and answered it wrongly.
        wait: seconds that it asks to be left alone.
    """

    def __init__(self, what: str, *, answered: bool = False, wait: float | None = None) -> None:
        super().__init__(what)
        self.answered, self.wait = answered, wait


class Endpoint:
    """Texts to vectors by HTTP; may be used by several threads at once.

    Attributes:
        tokens: that the service counted so far.
        width: of the vectors that came; None = none came yet.
    """

    def __init__(
        self,
        api: ApiSection,
        *,
        rate_limit: float | None = None,
        where: str = "teacher",
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Read the key from the environment; nothing is asked yet.

        Args:
            api: its url is with or without "/embeddings" at its end.
            rate_limit: requests per second over all threads, None = no limit.
            where: what messages call the teacher.
            wait: waits so many seconds, and says whether to give up; default sleeps.
        """
        import httpx2

        from distilvec.teachers.bounded_client import BoundedClient

        self._where, self._api = where, api
        self._key = _key(api.key_env, where)
        address = _address(api.url, where)
        path = address.path.rstrip("/")
        self.url = address.copy_with(path=path if path.endswith("/embeddings") else f"{path}/embeddings")
        self._body = request_body(api)
        limits = httpx2.Limits(max_connections=api.concurrency, max_keepalive_connections=api.concurrency)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = BoundedClient(timeout=api.timeout, limits=limits, headers=headers)  # redirects are not followed
        self._pace = Pace(rate_limit, api.tokens_per_minute)
        self._wait = wait or _sleep
        self._lock = threading.Lock()
        self._bytes = self.tokens = 0
        self.width: int | None = None
        self._packed = False
        self._most: float = math.inf  # texts a request, once the service has refused more
        self._passed = 0  # most texts of a request that was answered
        self._failures, self._told = 0, -math.inf

    def estimated_tokens(self, texts: Sequence[str]) -> float:
        """Tokens of some texts, by their bytes and by what the service counted so far."""
        with self._lock:
            rate = self.tokens / self._bytes if self.tokens and self._bytes else _TOKENS_PER_BYTE
        return rate * sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def probe(self, text: str) -> np.ndarray:
        """The vector of one text, float32 [1, D]. One that came as base64 is compared with its plain numbers.

        Raises:
            DataError: they differ, because what is packed is of another precision, say.
            DistilvecError, EnvironmentProblem, StoppedError: as `embed`.
        """
        vector = self.embed([text])
        if not self._packed:
            return vector
        body, width = self._body, self.width
        self._body, self.width = {**body, "encoding_format": "float"}, None
        try:
            plain = self.embed([text])
        finally:
            self._body, self.width = body, width
        if self._packed:
            if scattered(vector[0]):
                raise DataError(
                    f"the service answers in base64 that is not float32 ({_shown(vector)})",
                    where=self._where,
                    remedy="Set its options so that it answers in plain numbers or in float32.",
                )
            told = "%s: the service answers in base64 also where plain numbers are asked for: they cannot be compared"
            logger.warning(told, self._where)
        elif plain.shape != vector.shape or _differ(plain.astype(np.float64), vector.astype(np.float64)):
            raise DataError(
                f"the service's base64 holds {_shown(vector)}, and its plain answer {_shown(plain)}",
                where=self._where,
                remedy="It packs them in another precision than float32: set api.encoding: float.",
            )
        return vector

    def embed(
        self,
        texts: Sequence[str],
        came: Callable[[Sequence[str], np.ndarray], None] | None = None,
        refused: Callable[[DistilvecError], None] | None = None,
    ) -> np.ndarray:
        """float32 [n, D]. A request that the service finds unfit is halved, until the text is found that is at fault.

        Args:
            came: called with the texts and vectors of parts whose other parts fail: they are paid for.
            refused: told of a text that the service refuses, whose row is then NaN; None = it is an error.

        Raises:
            DistilvecError: the service refuses a text, or the request.
            EnvironmentProblem: it does not answer, or its key is refused.
            DataError: it answers with other than one vector per text, again and again.
            StoppedError: `wait` said so.
        """
        if len(texts) > self._most:
            return self._in_parts(texts, int(self._most), came, refused)
        for attempt in range(1, self._api.attempts + 1):
            try:
                status, content, headers = self._post(texts)
                if status in _UNFIT:
                    if len(texts) > 1:
                        vectors = self._in_parts(texts, -(-len(texts) // 2), came, refused)
                        if not np.isnan(vectors).any():  # no text was refused by itself
                            self._learn_limit(len(texts), f"HTTP {status}: {self._said(content)}")
                        return vectors
                    problem = self._unfit(status, content, texts[0])
                    if refused is None or self.width is None:
                        raise problem
                    refused(problem)
                    return np.full((1, self.width), np.nan, np.float32)
                self._refuse(status, content)
                if status in _BUSY:
                    wait = retry_after(headers)
                    if wait is not None:
                        self._pace.pause(wait)
                    raise _FaultyError(f"HTTP {status}: {self._said(content)}", wait=wait)
                return self._vectors(content, texts)
            except _FaultyError as problem:
                if attempt == self._api.attempts:
                    raise (DataError if problem.answered else EnvironmentProblem)(
                        f"{attempt} requests failed, the last so: {problem}",
                        where=self._where,
                        remedy="All vectors that came are kept; start again when the service answers.",
                    ) from problem
                patience = min(2.0 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.5, 1.0)
                if problem.wait:  # the pace waits so long, for all threads
                    patience = 0.0
                self._tell(str(problem), problem.wait or patience)
                self._patiently(patience)
        raise AssertionError("the last attempt raises")

    def _in_parts(
        self,
        texts: Sequence[str],
        size: int,
        came: Callable[[Sequence[str], np.ndarray], None] | None,
        refused: Callable[[DistilvecError], None] | None,
    ) -> np.ndarray:
        parts: list[np.ndarray] = []
        try:
            for start in range(0, len(texts), size):
                parts.append(self.embed(texts[start : start + size], came, refused))
        except (DistilvecError, StoppedError):
            if came is not None and parts:
                came(texts[: size * len(parts)], np.concatenate(parts))
            raise
        return np.concatenate(parts)

    def _learn_limit(self, refused: int, said: str) -> None:
        """Remember the most texts that go through, where more never did: then it is their number that is refused."""
        with self._lock:
            if not self._passed < refused <= self._most:
                return
            first, self._most = math.isinf(self._most), self._passed
        if first:
            told = "%s: the service takes at most %s texts a request (%s): set batch_size: %s"
            logger.warning(told, self._where, f"{self._passed:,}", said, self._passed)

    def _tell(self, problem: str, seconds: float) -> None:
        """Say what is tried again, but not for each of thousands of requests."""
        with self._lock:
            self._failures += 1
            if time.monotonic() - self._told < _SECONDS_BETWEEN_WARNINGS:
                return
            self._told, count = time.monotonic(), self._failures
        logger.warning("%s: %s; again in %.1f s (%s so far)", self._where, problem, seconds, f"{count:,}")

    def _patiently(self, seconds: float) -> None:
        if seconds > 0 and self._wait(seconds):
            raise StoppedError

    def _post(self, texts: Sequence[str]) -> tuple[int, bytes, Mapping[str, str]]:
        import httpx2

        self._patiently(self._pace.reserve(self.estimated_tokens(texts)))
        whole, body = WHOLE * self._api.timeout, {**self._body, "input": list(texts)}
        started = time.monotonic()
        try:
            with self._client.within(whole), self._client.stream("POST", self.url, json=body) as answer:
                content = bytearray()
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > _MOST_BYTES:
                        raise _FaultyError(f"it answered with more than {_MOST_BYTES >> 20} MiB", answered=True)
                return answer.status_code, bytes(content), answer.headers
        except httpx2.HTTPError as problem:
            if time.monotonic() - started >= whole:
                raise _FaultyError(f"its answer was not whole after {whole:g} s") from problem
            told = self._hidden(str(problem)) or "no answer"
            raise _FaultyError(f"{type(problem).__name__}: {told}") from problem
        except UnicodeEncodeError as problem:
            raise DistilvecError(
                f"a text cannot be sent: {problem}", where=self._where, remedy="Remove lone surrogates."
            ) from problem

    def _unfit(self, status: int, content: bytes, text: str) -> DistilvecError:
        return DistilvecError(
            f"the service refuses the text {text[:80]!r} (HTTP {status}: {self._said(content)})",
            where=self._where,
            remedy="Is it too long or empty? Leave it out of the corpus, or check api.model and api.dimensions.",
        )

    def _refuse(self, status: int, content: bytes) -> None:
        """Raise what no other try would change."""
        if status in _CLOSED:
            raise EnvironmentProblem(
                f"the service lets nobody in with this key (HTTP {status}: {self._said(content)})",
                where=self._where,
                remedy="Check the environment variable that api.key_env names.",
            )
        if status not in _BUSY and not 200 <= status < 300:
            raise EnvironmentProblem(
                f"the service answers HTTP {status}: {self._said(content)}",
                where=self._where,
                remedy=f"Check api.url and api.model; {self.url.copy_with(query=None)} was asked.",
            )

    def _vectors(self, content: bytes, texts: Sequence[str]) -> np.ndarray:
        try:
            answer = read_embeddings(content, len(texts))
        except UnreadableError as problem:
            said = f": {self._said(content)}" if problem.no_vectors else ""
            raise _FaultyError(f"it answered with {problem}{said}", answered=True) from problem
        width = answer.vectors.shape[1]
        if self._api.dimensions not in (None, width):
            packed = ", or set api.encoding: float" if answer.packed else ""
            raise DataError(
                f"{self._api.dimensions} dimensions were asked for, and {width} came",
                where=self._where,
                remedy=f"Does this model know `dimensions`? Leave api.dimensions out{packed}.",
            )
        if self.width not in (None, width):
            raise DataError(
                f"vectors of width {self.width} came before, now of width {width}",
                where=self._where,
                remedy="Was the model behind this address changed?",
            )
        with self._lock:
            self.width, self._packed = width, answer.packed
            self._passed = max(self._passed, len(texts))
            if answer.tokens is not None:
                self.tokens += answer.tokens
                self._bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        return answer.vectors

    def _said(self, content: bytes) -> str:
        """Return what a service says of a failure, short and without the key."""
        return self._hidden(read_failure(content))[:200] or "no word"

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def request_body(api: ApiSection) -> dict[str, Any]:
    """The fields that every request holds beside its texts."""
    return {
        "model": api.model,
        **({"dimensions": api.dimensions} if api.dimensions else {}),
        **({"encoding_format": api.encoding} if api.encoding else {}),
        **api.extra,
    }


def _differ(plain: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(plain - other) > _SAME * np.linalg.norm(plain))


def _shown(vectors: np.ndarray) -> str:
    return f"{vectors.shape[1]} numbers that begin with {', '.join(f'{number:.3g}' for number in vectors[0, :3])}"


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _address(url: str, where: str) -> httpx2.URL:
    import httpx2

    try:
        address = httpx2.URL(url)
        address.raw_host.decode("ascii").encode("idna")  # as the system does before it looks for the host
    except (httpx2.InvalidURL, UnicodeError) as problem:
        raise DistilvecError(f'"{url[:200]}" is no address: {str(problem)[:200]}', where=where) from problem
    if address.scheme not in ("http", "https") or not address.host:
        raise DistilvecError(
            f'"{url[:200]}" is no address of a service', where=where, remedy="For example http://localhost:8080/v1."
        )
    if address.userinfo:
        raise DistilvecError(
            "the address holds a password", where=where, remedy="Put it into an environment variable: api.key_env."
        )
    return address


def _key(name: str | None, where: str) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise EnvironmentProblem(
            f"there is no environment variable {name}, which is to hold the service's key",
            where=where,
            remedy=f"export {name}=...",
        )
    if not key.isascii() or not key.isprintable():
        raise EnvironmentProblem(f"the key in {name} has characters that no header takes", where=where)
    return key
