"""Training: data of a step, the distiller, the loop, and `fit`, which puts them together."""

from typing import TYPE_CHECKING

from distilvec.late import exports
from distilvec.training.fit import Fitted, Material, TrainingSettings, fit

if TYPE_CHECKING:
    from distilvec.precision import bfloat16_pays
    from distilvec.training.checkpoint import newest_checkpoint
    from distilvec.training.data import Collator, SignalSource
    from distilvec.training.sample import free_maps
    from distilvec.training.samplers import BucketedBatches
    from distilvec.training.sources import LiveSource, StoreSource
    from distilvec.training.step import Distiller
    from distilvec.training.tokens import TokenizedCorpus

__all__ = [
    "BucketedBatches",
    "Collator",
    "Distiller",
    "Fitted",
    "LiveSource",
    "Material",
    "SignalSource",
    "StoreSource",
    "TokenizedCorpus",
    "TrainingSettings",
    "bfloat16_pays",
    "fit",
    "free_maps",
    "newest_checkpoint",
]

__getattr__ = exports(__name__)
