"""The store of what teachers said: a folder of Arrow files that is written once and read by views."""

from typing import TYPE_CHECKING

from distilvec.late import exports
from distilvec.store.fill import FillOptions, FillReport, fill

if TYPE_CHECKING:
    from distilvec.store.ragged import RaggedSignal
    from distilvec.store.reader import SignalStore
    from distilvec.store.remote import pull, push
    from distilvec.store.signals import read_vocabulary
    from distilvec.store.statistics import Statistics
    from distilvec.store.writer import StoreWriter

__all__ = [
    "FillOptions",
    "FillReport",
    "RaggedSignal",
    "SignalStore",
    "Statistics",
    "StoreWriter",
    "fill",
    "pull",
    "push",
    "read_vocabulary",
]

__getattr__ = exports(__name__)
