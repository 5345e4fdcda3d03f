"""Training: data of a step, the distiller, the trainer, and `fit`, which puts them together."""

from distilvec.training.arguments import bfloat16_pays
from distilvec.training.callbacks import Ticker
from distilvec.training.checkpoint_folders import newest_checkpoint
from distilvec.training.data import Collator, SignalSource
from distilvec.training.distiller import Distiller
from distilvec.training.fit import Fitted, fit
from distilvec.training.sample import free_maps
from distilvec.training.samplers import BucketedBatches
from distilvec.training.sources import LiveSource, StoreSource
from distilvec.training.tokens import TokenizedCorpus

__all__ = [
    "BucketedBatches",
    "Collator",
    "Distiller",
    "Fitted",
    "LiveSource",
    "SignalSource",
    "StoreSource",
    "Ticker",
    "TokenizedCorpus",
    "bfloat16_pays",
    "fit",
    "free_maps",
    "newest_checkpoint",
]
