"""What teachers said, kept on disk: a folder of Arrow files that is written once and read by views."""

from distilvec.store.fill import FillReport, fill
from distilvec.store.reader import SignalStore
from distilvec.store.statistics import Statistics
from distilvec.store.writer import StoreWriter

__all__ = ["FillReport", "SignalStore", "Statistics", "StoreWriter", "fill"]
