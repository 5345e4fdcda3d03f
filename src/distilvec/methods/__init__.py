"""Loss terms and the heads that exist only to compute them: one file per method."""

from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term, Wanted, WantedOfStudent
from distilvec.methods.table import available, build_method, build_methods, build_options, resolve

__all__ = [
    "Batch",
    "Method",
    "Needs",
    "Options",
    "Sample",
    "Term",
    "Wanted",
    "WantedOfStudent",
    "available",
    "build_method",
    "build_methods",
    "build_options",
    "resolve",
]
