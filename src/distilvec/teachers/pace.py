"""The pace at which a service may be asked."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


class StoppedError(Exception):
    """A wait was cut short, because nobody wants the answer any more."""


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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service asks to be left alone, at most a day."""
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), 86_400.0) if math.isfinite(seconds) else None
