"""Sharpness-aware steps, the curvature they are meant to lower, and orthogonal ones."""

from typing import TYPE_CHECKING

from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.optim.curvature import Curvature, largest_curvature
    from distilvec.optim.muon import Muon, hidden_matrices
    from distilvec.optim.sharpness import SharpnessAware, domain_ascent

__all__ = ["Curvature", "Muon", "SharpnessAware", "domain_ascent", "hidden_matrices", "largest_curvature"]

__getattr__ = exports(__name__)
