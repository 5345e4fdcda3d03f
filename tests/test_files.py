"""Arrays outside of the process' own memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distilvec.files import scratch, spilled

#: In a process of its own: one that has run other tests gives and takes memory meanwhile.
MEASURED = """
import numpy as np
from distilvec.files import spilled

def anonymous():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

before = anonymous()
array = spilled(np.arange(8_000_000))  # 64 MB
assert int(array.sum()) == 8_000_000 * 7_999_999 // 2
print(anonymous() - before)
"""


def test_a_large_array_leaves_memory_and_keeps_its_values() -> None:
    grown = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 16e6
    words = spilled(np.array([b"ab", b"c"] * 1_500_000, "S16"))
    assert words.dtype == "S16" and np.searchsorted(words[:2], b"b") == 1


def test_a_small_array_stays_in_memory_and_so_does_a_large_one_without_a_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = np.arange(10)
    assert spilled(small) is small
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert spilled(small, small).tolist() == [*small, *small]
    large = spilled(np.ones(600_000), np.zeros(0), np.ones(400_000))
    assert type(large.base) is not np.memmap and large.sum() == 1_000_000
    assert not scratch(1_000_000, np.int64).any()
