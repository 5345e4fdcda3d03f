"""distilvec: large embedding models in, small fast students and an honest report out."""

from typing import TYPE_CHECKING

from distilvec.late import exports

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

# Names are imported when they are asked for: importing the package itself takes no torch and no time.
__getattr__ = exports(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
