"""Sharpness-aware steps and the curvature they are meant to lower."""

from distilvec.optim.curvature import Curvature, largest_curvature
from distilvec.optim.sharpness import SharpnessAware, domain_ascent

__all__ = ["Curvature", "SharpnessAware", "domain_ascent", "largest_curvature"]
