"""What a benchmark ran on."""

from __future__ import annotations

from pathlib import Path


def processor() -> str:
    """The processor's name, where Linux tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def stem(name: str, device: str) -> str:
    """Name of the files with the results of a benchmark: each kind of device has its own."""
    return name if device == "cpu" else f"{name}-{device}"
