"""One address that turns texts into vectors, in the shape that OpenAI's `/embeddings` has and many servers speak.

Hosted services, text-embeddings-inference, infinity, vLLM and Ollama answer to it. What goes wrong on the way (a busy
server, a limit, a broken connection, half an answer) is tried again; what is wrong with the request is not.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem

logger = logging.getLogger(__name__)

#: Answers that another try may change; those that a smaller request may change; those that say who is let in.
_BUSY = {408, 409, 425, 429, *range(500, 600)} - {501, 505}
_UNFIT, _CLOSED = {400, 413, 422}, {401, 403}
_LONGEST_WAIT = 60.0
_MOST_BYTES = 512 << 20
_SECONDS_BETWEEN_WARNINGS = 10.0
#: Texts of most languages have three to five bytes a token; the service's own counts correct it.
_TOKENS_PER_BYTE = 0.25


class StoppedError(Exception):
    """A wait was cut short, because nobody wants the answer any more."""


class _FaultyError(Exception):
    """No answer, or one that is not what was asked for; another try may be better.

    Attributes:
        answered: whether the service took the request and answered it wrongly.
        wait: seconds that it asks to be left alone.
    """

    def __init__(self, what: str, *, answered: bool = False, wait: float | None = None) -> None:
        super().__init__(what)
        self.answered, self.wait = answered, wait


class Pace:
    """Requests and tokens a minute, kept by all threads together: evenly, so that no limit is met in bursts."""

    def __init__(self, requests_per_second: float | None, tokens_per_minute: float | None) -> None:
        self._request = 1 / requests_per_second if requests_per_second else 0.0
        self._token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._next_request = self._next_token = self._not_before = 0.0
        self._lock = threading.Lock()

    def reserve(self, tokens: float) -> float:
        """Seconds to wait before a request of so many tokens; its time is taken."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_request, self._next_token, self._not_before)
            self._next_request = start + self._request
            self._next_token = start + self._token * tokens
            return start - now

    def pause(self, seconds: float) -> None:
        """Nobody asks before so many seconds are over."""
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)


class Endpoint:
    """Texts to vectors by HTTP; may be used by several threads at once.

    Attributes:
        tokens: that the service counted so far.
        width: of the vectors that came; None = none came yet.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_env: str | None = None,
        dimensions: int | None = None,
        extra: Mapping[str, Any] | None = None,
        encoding: str | None = None,
        timeout: float = 60.0,
        attempts: int = 8,
        rate_limit: float | None = None,
        tokens_per_minute: float | None = None,
        connections: int = 4,
        where: str = "teacher",
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Read the key from the environment; nothing is asked yet.

        Args:
            url: with or without "/embeddings" at its end.
            model: the service's name of it.
            key_env: name of the environment variable that holds the key; None = no key is sent.
            dimensions: asked for; None = the service's own.
            extra: further fields of every request.
            encoding: "float" or "base64", of the numbers in the answer; None = not asked for.
            timeout: seconds for which the service may say nothing.
            attempts: how often a request is tried.
            rate_limit: requests per second over all threads, None = no limit.
            tokens_per_minute: over all threads, None = no limit.
            connections: that are kept open.
            where: what messages call the teacher.
            wait: waits so many seconds, and says whether to give up; default sleeps.

        Raises:
            DistilvecError: no such variable, or an address that is none.
        """
        import httpx2

        self._where, self._attempts = where, attempts
        self._key = _key(key_env, where)
        try:
            address = httpx2.URL(url)
        except httpx2.InvalidURL as problem:
            raise DistilvecError(f'"{url}" is no address: {problem}', where=where) from problem
        if address.scheme not in ("http", "https") or not address.host:
            raise DistilvecError(
                f'"{url}" is no address of a service', where=where, remedy="For example http://localhost:8080/v1."
            )
        if address.userinfo:
            raise DistilvecError(
                "the address holds a password", where=where, remedy="Put it into an environment variable: api.key_env."
            )
        path = address.path.rstrip("/")
        self.url = address.copy_with(path=path if path.endswith("/embeddings") else f"{path}/embeddings")
        self._body = {
            "model": model,
            **({"dimensions": dimensions} if dimensions else {}),
            **({"encoding_format": encoding} if encoding else {}),
            **(extra or {}),
        }
        self._dimensions = dimensions
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx2.Client(timeout=timeout, limits=limits, headers=headers)  # redirects are not followed
        self._pace = Pace(rate_limit, tokens_per_minute)
        self._wait = wait or _sleep
        self._lock = threading.Lock()
        self._bytes = self.tokens = 0
        self.width: int | None = None
        self._failures, self._told = 0, -math.inf

    def estimated_tokens(self, texts: Sequence[str]) -> float:
        """Tokens of some texts, by their bytes and by what the service counted so far."""
        with self._lock:
            rate = self.tokens / self._bytes if self.tokens and self._bytes else _TOKENS_PER_BYTE
        return rate * sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def embed(
        self,
        texts: Sequence[str],
        came: Callable[[Sequence[str], np.ndarray], None] | None = None,
        refused: Callable[[DistilvecError], None] | None = None,
    ) -> np.ndarray:
        """float32 [n, D]. A request that the service finds unfit is halved, until the text is found that is at fault.

        Args:
            came: told the texts and vectors of a half whose other half fails: they are paid for.
            refused: told of a text that the service refuses, whose row is then NaN; None = it is an error.

        Raises:
            DistilvecError: the service refuses a text, or the request.
            EnvironmentProblem: it does not answer, or its key is refused.
            DataError: it answers with other than one vector per text, again and again.
            StoppedError: `wait` said so.
        """
        for attempt in range(1, self._attempts + 1):
            try:
                status, content, headers = self._post(texts)
                if status in _UNFIT:
                    if len(texts) > 1:
                        return self._halved(texts, came, refused)
                    problem = self._unfit(status, content, texts[0])
                    if refused is None or self.width is None:
                        raise problem
                    refused(problem)
                    return np.full((1, self.width), np.nan, np.float32)
                self._refuse(status, content)
                if status in _BUSY:
                    wait = _retry_after(headers)
                    if wait is not None:
                        self._pace.pause(wait)
                    raise _FaultyError(f"HTTP {status}: {self._said(content)}", wait=wait)
                return self._vectors(content, texts)
            except _FaultyError as problem:
                if attempt == self._attempts:
                    raise (DataError if problem.answered else EnvironmentProblem)(
                        f"{attempt} requests failed, the last so: {problem}",
                        where=self._where,
                        remedy="All vectors that came are kept; start again when the service answers.",
                    ) from problem
                patience = min(2.0 ** (attempt - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0)
                if problem.wait:  # the pace waits so long, for all threads
                    patience = 0.0
                self._tell(str(problem), problem.wait or patience)
                self._patiently(patience)
        raise AssertionError("the last attempt raises")

    def _halved(
        self,
        texts: Sequence[str],
        came: Callable[[Sequence[str], np.ndarray], None] | None,
        refused: Callable[[DistilvecError], None] | None,
    ) -> np.ndarray:
        half = len(texts) // 2
        first = self.embed(texts[:half], came, refused)
        try:
            return np.concatenate([first, self.embed(texts[half:], came, refused)])
        except (DistilvecError, StoppedError):
            if came is not None:
                came(texts[:half], first)
            raise

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
        try:
            with self._client.stream("POST", self.url, json={**self._body, "input": list(texts)}) as answer:
                content = bytearray()
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > _MOST_BYTES:
                        raise _FaultyError(f"it answered with more than {_MOST_BYTES >> 20} MiB", answered=True)
                return answer.status_code, bytes(content), answer.headers
        except httpx2.HTTPError as problem:
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
            answer = json.loads(content)
            rows = answer["data"]
            given = [row.get("index") for row in rows]
            places = [place if index is None else index for place, index in enumerate(given)]
            whole = len(places) == len(texts) and {*places} == {*range(len(texts))}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            raise _FaultyError(
                f"it answered with what holds no vectors: {self._said(content)}", answered=True
            ) from problem
        if not whole:
            told = f" with the indexes {str(given)[:80]}" if len(rows) == len(texts) else ""
            raise _FaultyError(f"it answered with {len(rows)} vectors for {len(texts)} texts{told}", answered=True)
        try:
            numbers = [_numbers(row["embedding"]) for _, row in sorted(zip(places, rows), key=lambda each: each[0])]
            vectors = np.stack(numbers)
        except (ValueError, TypeError, KeyError, OverflowError) as problem:
            raise _FaultyError(f"it answered with vectors that cannot be read ({problem})", answered=True) from problem
        if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
            raise _FaultyError("it answered with vectors that are not finite numbers", answered=True)
        if self._dimensions and vectors.shape[1] != self._dimensions:
            raise DataError(
                f"{self._dimensions} dimensions were asked for, and {vectors.shape[1]} came",
                where=self._where,
                remedy="Does this model know `dimensions`? Leave api.dimensions out.",
            )
        self._count(answer, texts)
        self.width = vectors.shape[1]
        return vectors

    def _count(self, answer: Any, texts: Sequence[str]) -> None:
        usage = answer.get("usage")
        tokens = (usage.get("prompt_tokens") or usage.get("total_tokens")) if isinstance(usage, dict) else None
        if isinstance(tokens, int) and tokens > 0:
            with self._lock:
                self.tokens += tokens
                self._bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def _said(self, content: bytes) -> str:
        """What a service says of a failure, short and without the key."""
        text = content[:4000].decode("utf-8", "replace")
        try:
            answer = json.loads(content)
            said = answer.get("error", answer.get("detail", answer.get("message", text)))
            text = str(said.get("message", said) if isinstance(said, dict) else said)
        except (ValueError, AttributeError, RecursionError):
            pass
        return self._hidden(" ".join(text.split()))[:200] or "no word"

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


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


def _numbers(given: Any) -> np.ndarray:
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float32)
    vector = np.asarray(given, dtype=np.float32)
    if vector.ndim != 1:
        raise ValueError(f"shape {list(vector.shape)}")
    return vector


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service asks to be left alone, at most a day."""
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), 86_400.0) if math.isfinite(seconds) else None
