"""Loss terms and the heads that exist only to compute them: one file per method."""

from distilvec.methods.base import Batch, Layers, Method, Needs, Options, Sample, Term
from distilvec.methods.table import available, build_method, build_options, resolve

__all__ = [
    "Batch",
    "Layers",
    "Method",
    "Needs",
    "Options",
    "Sample",
    "Term",
    "available",
    "build_method",
    "build_options",
    "resolve",
]
