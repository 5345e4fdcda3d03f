"""The calculator: time, disk, network and cost for a million to a billion texts, from rates measured here."""

from distilvec.choosing.scale.rates import measure_rates, scale
from distilvec.choosing.scale.reckoning import PEAKS, Devices, Estimate, Rates, Scale

__all__ = ["PEAKS", "Devices", "Estimate", "Rates", "Scale", "measure_rates", "scale"]
