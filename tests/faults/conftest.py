"""Whole jobs through the command line."""

from __future__ import annotations

from tests.training.starting import start

__all__ = ["start"]
