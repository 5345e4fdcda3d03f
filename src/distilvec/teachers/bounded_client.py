"""An HTTP client whose requests end in time, also where the other side sends a byte a second."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore2
import httpx2


class BoundedClient(httpx2.Client):
    """As `httpx2.Client`, whose own time limits are for each single read and write; `within` bounds them together."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._end = _End()
        # The mounts are the proxies of the environment. Neither package takes a backend from outside.
        for transport in (self._transport, *self._mounts.values()):
            pool: Any = getattr(transport, "_pool", None)
            if hasattr(pool, "_network_backend"):
                pool._network_backend = _Backend(pool._network_backend, self._end)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let the requests of this thread end after so many seconds, with `httpx2.TimeoutException`."""
        self._end.at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._end.at = math.inf


class _End(threading.local):
    """The deadline of a thread's current request; threads use the same connections after each other."""

    at = math.inf

    def left(self, timeout: float | None) -> float:
        # Zero would mean "do not wait", which is another kind of error.
        return min(math.inf if timeout is None else timeout, max(self.at - time.monotonic(), 1e-3))


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, inner: httpcore2.NetworkBackend, end: _End) -> None:
        self._inner, self._end = inner, end

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = self._inner.connect_tcp(host, port, self._end.left(timeout), local_address, socket_options)
        return _Stream(stream, self._end)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, end: _End) -> None:
        self._inner, self._end = inner, end

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._end.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._end.left(timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, self._end.left(timeout)), self._end)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
