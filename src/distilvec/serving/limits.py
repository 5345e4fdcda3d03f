"""The limits on one client of a server, so that the others are answered too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Attributes:
    tokens: of a request, over all its texts, as they are counted in its answer.
    waiting: texts of all requests that are not answered yet.
    connections: open at the same time.
    seconds: in which a request has to arrive, and its answer to be read.
    """

    tokens: int = 300_000
    waiting: int = 4096
    connections: int = 256
    seconds: float = 60.0
