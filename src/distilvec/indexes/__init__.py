"""What an old index and a model have to do with each other: `check_index`, and `adapt`, which makes a model fit."""

from distilvec.indexes.adapting import Adaptation, adapt
from distilvec.indexes.checking import check_index
from distilvec.indexes.findings import Finding, IndexCheck

__all__ = ["Adaptation", "Finding", "IndexCheck", "adapt", "check_index"]
