"""Freed memory stays in the process once that was asked for."""

from __future__ import annotations

import platform

import pytest
from tests.training.starting import Starter

PROGRAM = """
import sys
from pathlib import Path
import torch
from distilvec.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
block = torch.ones(50_000_000)
del block
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_a_large_freed_block_stays_in_the_process(start: Starter) -> None:
    ended = [start.code(PROGRAM, kind, bare=True).wait() for kind in ("plain", "keep")]
    assert [code for code, _ in ended] == [0, 0], ended
    plain, kept = (int(output) for _, output in ended)
    assert kept - plain > 150_000  # of 195,000 KiB
