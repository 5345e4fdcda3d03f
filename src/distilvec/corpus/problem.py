"""The error of an input that cannot be an item."""

from __future__ import annotations


class Problem(Exception):
    """The reason why a row cannot be used, in two or three words; `Audit.rejected` counts the same words."""
