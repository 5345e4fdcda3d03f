"""Old indexes and models: `check_index` tells whether they fit, and `adapt` makes a model fit."""

from distilvec.indexes.adapting import Adaptation, adapt
from distilvec.indexes.checking import check_index
from distilvec.indexes.findings import Finding, IndexCheck

__all__ = ["Adaptation", "Finding", "IndexCheck", "adapt", "check_index"]
