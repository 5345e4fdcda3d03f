"""Teaching with many processes: those that torchrun starts, or a pool of Ray workers on one or many machines.

The process that keeps the ledger of a pool imports this package, too: what teaches is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilvec.flow.ray.ranks import teach_alone
    from distilvec.flow.ray.ray_engine import teach_with_ray

__all__ = ["teach_alone", "teach_with_ray"]


def __getattr__(name: str) -> Any:
    if name == "teach_alone":
        from distilvec.flow.ray.ranks import teach_alone

        return teach_alone
    if name == "teach_with_ray":
        from distilvec.flow.ray.ray_engine import teach_with_ray

        return teach_with_ray
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
