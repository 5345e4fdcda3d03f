"""The cost of teaching and training for a million to a billion texts, from rates measured here, with the arithmetic.

    teaching seconds = texts / (texts per second x factor x devices)
    training seconds = texts x epochs / (texts per second x factor x devices)
    store bytes      = texts x (width x bytes per value + 16 of the key + 16 of the index)

Measured: how many texts per second the teacher encodes and the student is trained on, on this machine, and the bytes
of a text. Estimated: the factor of another device, as the ratio of peak rates of matrix products: the data sheet's of
that device (`PEAKS`), and this machine's, from the data sheet where it has a listed device, else measured in a matrix
product. A device that is that much faster on paper is rarely so with small models, short texts and small batches, so
the result is a wide range, from a tenth of the factor to all of it. Several devices are taken to be as many times as
fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distilvec.errors import DistilvecError, nearest
from distilvec.report.grid import Cell, Grid
from distilvec.store.layout import KEY_BYTES
from distilvec.words import ABSENT, duration, number, size

#: TFLOPS of dense matrix products in bfloat16 (float16 where a device has no bfloat16), from the vendors' data sheets;
#: where a sheet gives the figure with sparsity only, half of it.
PEAKS = {
    "T4": 65.0,
    "V100": 125.0,
    "A10": 125.0,
    "L4": 121.0,
    "L40S": 362.0,
    "RTX4090": 165.0,
    "A100": 312.0,
    "H100-PCIe": 756.0,
    "H100": 989.0,
    "H200": 989.0,
    "MI300X": 1307.0,
    "B200": 2250.0,
}
#: Share of the ratio of peaks that is counted on at the slow end.
CAUTIOUS = 1 / 10
INDEX_BYTES = 16
POWERS = (10**6, 10**7, 10**8, 10**9)


@dataclass(frozen=True)
class Devices:
    """So many devices of a kind; a kind of None is this machine's own."""

    count: int = 1
    kind: str | None = None

    @classmethod
    def read(cls, text: str) -> Devices:
        """From "8xH100", "H100" or "8" (eight like this machine).

        >>> Devices.read("8xh100")
        Devices(count=8, kind='H100')
        """
        match = re.fullmatch(r"(?:([0-9]{1,9})(?:x(?=\w)|$))?([A-Za-z][\w-]*)?", text.strip())
        if match is None or not any(match.groups()) or match[1] == "0":
            raise DistilvecError(
                f'"{text[:200]}" names no devices', where="--devices", remedy="For example 8xH100, or 4."
            )
        kind = {name.casefold(): name for name in PEAKS}.get((match[2] or "").casefold())
        if match[2] and kind is None:
            raise DistilvecError(
                f'the peak rate of "{match[2]}" is not listed',
                where="--devices",
                remedy=f"{nearest(match[2], PEAKS)} Or run this on such a device and give a number only.",
            )
        return cls(int(match[1] or 1), kind)

    def __str__(self) -> str:
        return f"{self.count} x {self.kind or 'this machine'}"


@dataclass(frozen=True)
class Rates:
    """Rates and sizes measured on this machine.

    Attributes:
        teaching: texts per second, all teachers one after the other.
        training: texts per second; None where the recipe names no student.
        text_bytes, token_bytes: mean of a text in UTF-8, and of the student's token ids (None without student).
        vector_bytes: of a text's vectors in the stores, with keys and index.
        parts: how `vector_bytes` comes about, one term per teacher.
        parameters: trained, heads included.
        peak: TFLOPS of this machine.
    """

    machine: str
    teaching: float
    text_bytes: float
    vector_bytes: int
    parts: list[str]
    peak: float
    peak_from: str
    training: float | None = None
    token_bytes: float | None = None
    parameters: int = 0
    epochs: float = 1.0
    batch_size: int = 32


@dataclass(frozen=True)
class Estimate:
    """For one number of texts: seconds from fast to slow, bytes, cost from low to high."""

    texts: int
    teaching: tuple[float, float]
    training: tuple[float, float] | None
    disk: float
    network: float
    hours: tuple[float, float]


@dataclass
class Scale:
    """The calculator's answer.

    Attributes:
        price: of one device for an hour, in whatever money; None = not asked.
        notes: what is not in it.
    """

    rates: Rates
    devices: Devices
    rows: int
    price: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def factors(self) -> tuple[float, float]:
        """The speed of one device relative to this machine, at best and at the slow end."""
        if self.devices.kind is None:
            return 1.0, 1.0
        ratio = PEAKS[self.devices.kind] / self.rates.peak
        return ratio, CAUTIOUS * ratio

    def estimate(self, texts: int) -> Estimate:
        rates, count = self.rates, self.devices.count
        teaching = self._seconds(texts, rates.teaching)
        training = None if rates.training is None else self._seconds(texts * rates.epochs, rates.training)
        disk = texts * (rates.text_bytes + KEY_BYTES + rates.vector_bytes + (rates.token_bytes or 0))
        fast, slow = (one + other for one, other in zip(teaching, training or (0.0, 0.0), strict=True))
        hours = (fast * count / 3600, slow * count / 3600)
        # Texts to the teachers and vectors back; vectors and token ids in every epoch.
        network = texts * (rates.text_bytes + rates.vector_bytes)
        if training is not None:
            network += texts * rates.epochs * (rates.vector_bytes + (rates.token_bytes or 0))
        return Estimate(texts, teaching, training, disk, network, hours)

    def _seconds(self, items: float, rate: float) -> tuple[float, float]:
        fast, slow = (items / (rate * factor * self.devices.count) for factor in self.factors)
        return fast, slow

    def grid(self) -> Grid:
        """A row per power of ten, and the number asked about."""
        header = ["texts", "teaching", f"training ({self.rates.epochs:g} epochs)", "disk", "network", "device hours"]
        rows = []
        for texts in sorted({*POWERS, self.rows}):
            estimate = self.estimate(texts)
            cells = [
                f"{texts:,}",
                _range(estimate.teaching, duration),
                ABSENT if estimate.training is None else _range(estimate.training, duration),
                size(estimate.disk),
                size(estimate.network),
                _range(estimate.hours, number),
                *([] if self.price is None else [self._cost(estimate)]),
            ]
            rows.append([Cell(text) for text in cells])
        return Grid([*header, *(["cost"] if self.price is not None else [])], rows, [])

    def arithmetic(self) -> list[str]:
        """Return how the row that was asked about comes about."""
        rates, devices, estimate = self.rates, self.devices, self.estimate(self.rows)
        best, slow = self.factors
        factor = "" if devices.kind is None else f" x {number(slow)} to {number(best)}"
        trained = "" if rates.training is None else f", training {rates.training:,.1f} texts/s"
        measured = f"teaching {rates.teaching:,.1f} texts/s, texts of {rates.text_bytes:,.0f} bytes{trained}"
        lines = [f"measured  {rates.machine}: {measured}"]
        if devices.kind is not None:
            lines.append(
                f"estimated one {devices.kind} is {number(best)} times as fast at best: {PEAKS[devices.kind]:g} TFLOPS "
                f"(data sheet) / {rates.peak:.3g} TFLOPS ({rates.peak_from}); a tenth of that at the slow end"
            )
        lines.append(
            f"teaching  {self.rows:,} / ({rates.teaching:,.1f}{factor} x {devices.count}) = "
            f"{_range(estimate.teaching, duration)}"
        )
        if rates.training is not None and estimate.training is not None:
            lines.append(
                f"training  {self.rows:,} x {rates.epochs:g} / ({rates.training:,.1f}{factor} x {devices.count}) = "
                f"{_range(estimate.training, duration)}"
            )
            if devices.kind is not None:
                steps = [rates.training * each / rates.batch_size for each in (slow, best)]
                lines.append(
                    f"          that is {number(steps[0])} to {number(steps[1])} steps of {rates.batch_size} texts a "
                    "second and device; small batches may not reach it: raise training.batch_size, or measure there"
                )
        lines += [
            f"store     {self.rows:,} x ({' + '.join(rates.parts)}) bytes = {size(self.rows * rates.vector_bytes)}",
            f"corpus    {self.rows:,} x ({rates.text_bytes:,.0f} + {KEY_BYTES} of the key) bytes = "
            f"{size(self.rows * (rates.text_bytes + KEY_BYTES))}",
        ]
        if rates.token_bytes is not None:
            tokens = self.rows * rates.token_bytes
            lines.append(f"token ids {self.rows:,} x {rates.token_bytes:,.0f} bytes = {size(tokens)}")
        return [*lines, *self._traffic(estimate), *(f"note: {each}" for each in self.notes)]

    def _traffic(self, estimate: Estimate) -> list[str]:
        rates, count = self.rates, self.devices.count
        per_text = rates.text_bytes + rates.vector_bytes
        rate = self.rows * per_text / estimate.teaching[0] / count
        lines = [f"network   teaching moves {per_text:,.0f} bytes a text, at most {size(rate)}/s per device"]
        if rates.training is not None and count > 1:
            sent = 2 * (count - 1) / count * 4 * rates.parameters
            lines.append(
                f"          training sends 2 x {count - 1} / {count} x 4 x {rates.parameters:,} bytes = {size(sent)} "
                "of gradients per device and step; they cross the network only between machines"
            )
        if self.price is not None:
            hours = _range(estimate.hours, number)
            lines.append(f"cost      {hours} device hours x {self.price:g} = {self._cost(estimate)}")
        return lines

    def _cost(self, estimate: Estimate) -> str:
        return _range(tuple(hours * (self.price or 0) for hours in estimate.hours), _money)

    def text(self) -> str:
        title = f"{self.devices}" + (" (estimated)" if self.devices.kind else " (measured rates)")
        return "\n".join([title, "", self.grid().text(), "", *self.arithmetic()])


def _range(ends: Sequence[float], shown: Callable[[float], str]) -> str:
    fast, slow = shown(ends[0]), shown(ends[1])
    return fast if fast == slow else f"{fast} to {slow}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
