"""The progress that workers of a teaching report: how far each chunk is, and how often it was begun."""

from __future__ import annotations

from distilvec.errors import DistilvecError

#: A chunk whose worker died so often is itself the suspect.
MOST_ATTEMPTS = 4


class Ledger:
    """Kept in a process of its own, so that it outlives the workers."""

    def __init__(self) -> None:
        self._covered: dict[int, int] = {}
        self._attempts: dict[int, int] = {}
        self._stopped = False

    def begin(self, chunk: int) -> int:
        """A worker takes a chunk; returns how often that has happened to it."""
        self._covered[chunk] = 0
        self._attempts[chunk] = self._attempts.get(chunk, 0) + 1
        return self._attempts[chunk]

    def advance(self, chunk: int, covered: int) -> bool:
        """So many of a chunk are covered; returns whether the worker should stop."""
        self._covered[chunk] = covered
        return self._stopped

    def stop(self) -> None:
        """Tell the workers to write what they have and to take nothing more."""
        self._stopped = True

    def state(self) -> tuple[int, int]:
        """Return how many texts of all chunks are covered, and how often a chunk was begun again."""
        return sum(self._covered.values()), sum(self._attempts.values()) - len(self._attempts)


def refuse_deadly(attempts: int, rows: tuple[int, int]) -> None:
    """Stop where a chunk has killed one worker after another.

    Args:
        rows: first and last row of the corpus in it.
    """
    if attempts > MOST_ATTEMPTS:
        raise DistilvecError(
            f"{attempts - 1} workers died one after another while they taught rows {rows[0]:,} to {rows[1]:,}",
            where="corpus",
            remedy="Look whether they run out of memory; teach with `distilvec teach` alone to see what happens.",
        )
