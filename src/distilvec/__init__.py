"""distilvec: large embedding models in, small fast students and an honest report out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilvec.api import choose, compare, distill, evaluate, load, mine, run, teach, train
    from distilvec.errors import DistilvecError
    from distilvec.indexes import adapt, check_index
    from distilvec.recipe import Recipe
    from distilvec.store import SignalStore
    from distilvec.students import shrink
    from distilvec.training.loss import DistillationLoss

__version__ = "0.2.0"
__all__ = [
    "DistillationLoss",
    "DistilvecError",
    "Recipe",
    "SignalStore",
    "adapt",
    "check_index",
    "choose",
    "compare",
    "distill",
    "evaluate",
    "load",
    "mine",
    "run",
    "shrink",
    "teach",
    "train",
]

# Imported when they are asked for: importing the package itself takes no torch and no time.
_HOMES = {
    "DistillationLoss": "distilvec.training.loss",
    "DistilvecError": "distilvec.errors",
    "Recipe": "distilvec.recipe",
    "SignalStore": "distilvec.store",
    "adapt": "distilvec.indexes",
    "check_index": "distilvec.indexes",
    "choose": "distilvec.api",
    "compare": "distilvec.api",
    "distill": "distilvec.api",
    "evaluate": "distilvec.api",
    "load": "distilvec.api",
    "mine": "distilvec.api",
    "run": "distilvec.api",
    "shrink": "distilvec.students",
    "teach": "distilvec.api",
    "train": "distilvec.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
