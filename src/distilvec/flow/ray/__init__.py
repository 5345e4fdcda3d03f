"""Teaching with many processes: those that torchrun starts, or a pool of Ray workers on one or many machines.

The process that keeps the ledger of a pool imports this package, too: what teaches is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.flow.ray.ranks import teach_alone
    from distilvec.flow.ray.ray_engine import teach_with_ray

__all__ = ["teach_alone", "teach_with_ray"]
__getattr__ = exports(__name__)
