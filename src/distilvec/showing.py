"""The display of results: a line in a console, the table where they are printed or end a notebook's cell."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Shown(ABC):
    """A result with a table for people. A dataclass of this kind says `repr=False`, or all its fields are shown."""

    @abstractmethod
    def text(self) -> str:
        """Return what a terminal shows."""

    @abstractmethod
    def _named(self) -> str:
        """Return what tells it from others, in a few words."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._named()})"

    def __str__(self) -> str:
        return self.text()

    def _repr_markdown_(self) -> str:
        """Return what Jupyter shows; where a result has no markdown of its own, its text as it stands."""
        return "\n".join(f"    {line}".rstrip() for line in self.text().splitlines())
