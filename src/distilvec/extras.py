"""Packages that only some commands need, each installed by an extra of distilvec."""

from __future__ import annotations

import importlib.util

from distilvec.errors import EnvironmentProblem


def need(what: str, extra: str, *packages: str) -> None:
    """Refuse to start without the packages of an extra."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"{what} needs {', '.join(missing)}, which is not installed", remedy=f"pip install 'distilvec[{extra}]'"
        )
