"""Why something cannot be an item."""

from __future__ import annotations


class Problem(Exception):
    """Why a row cannot be used, in two or three words; the same words are counted in `Audit.rejected`."""
