"""Teaching with many processes: those that torchrun starts, or a pool of Ray workers on one or many machines."""

from distilvec.flow.ray.ranks import teach_alone
from distilvec.flow.ray.ray_engine import teach_with_ray

__all__ = ["teach_alone", "teach_with_ray"]
