"""Connections of a server: only so many at a time, and none for a client that keeps it waiting."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from distilvec.serving.app import LATER, Limits, failure

if TYPE_CHECKING:
    from starlette.applications import Starlette

#: Seconds in which a client that is turned away reads why.
_LINGER = 1.0
_CONTENT = json.dumps(failure(503, "too many connections are open", "overloaded")).encode()
_BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {LATER}\r\nconnection: close\r\n"
    f"content-type: application/json\r\ncontent-length: {len(_CONTENT)}\r\n\r\n"
).encode() + _CONTENT


def configured(app: Starlette, limits: Limits) -> uvicorn.Config:
    """Configure uvicorn to serve an application within limits that it lacks itself: it waits for slow clients for ever,
    and limits requests where connections are what runs out.
    """
    protocol: Any = functools.partial(_Connection, limits=limits)
    return uvicorn.Config(
        app, http=protocol, ws="none", log_level="warning", access_log=False, timeout_graceful_shutdown=30
    )


class _Connection(H11Protocol):
    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._turned_away = False
        self._waited_for: tuple[Any, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self.connections.discard(self)
            self._turned_away = True
            transport.write(_BUSY)
            transport.write_eof()
            self._timer = self.loop.call_later(_LINGER, transport.abort)
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        if not self._turned_away:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Cut off a client that has been waited for since the last look, for one and the same thing."""
        before, self._waited_for = self._waited_for, self._client_owes()
        if self._waited_for is not None and self._waited_for == before:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self._limits.seconds, self._look)

    def _client_owes(self) -> tuple[Any, ...] | None:
        """Return what the client has to do next; None while the server is at work."""
        if self.cycle is None or self.cycle.response_complete:
            return self.cycle, "reading the last answer, or a whole request"
        return (self.cycle, "a body") if self.cycle.more_body else None
