"""Freed memory stays in the process once that was asked for, or goes back at once."""

from __future__ import annotations

import platform

import pytest
from tests.training.starting import Starter

BEGIN = """
import sys
from pathlib import Path
import torch
from distilvec.allocator import give_back, keep_freed_memory, return_freed_memory

asked = {"keep": keep_freed_memory, "return": return_freed_memory}.get(sys.argv[1])
assert asked is None or asked()
"""
END = """
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])
"""
ONE = "block = torch.ones(50_000_000); del block"
#: The C library serves blocks of a size that was freed before from its heap, where those in between hold them back.
MANY = """
block = torch.ones(2_000_000); del block
blocks = [(torch.ones(300_000), torch.ones(1_000)) for _ in range(400)]
blocks = [small for _, small in blocks]
"""
#: The last block holds back all that were freed below it.
BELOW = """
blocks = [bytes(1_000) for _ in range(300_000)]; last = bytes(1_000); del blocks
assert sys.argv[1] == "plain" or give_back()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
@pytest.mark.parametrize(
    ("code", "less", "more"), [(ONE, "plain", "keep"), (MANY, "return", "plain"), (BELOW, "back", "plain")]
)
def test_freed_memory(start: Starter, code: str, less: str, more: str) -> None:
    ended = [start.code(BEGIN + code + END, kind, bare=True).wait() for kind in (less, more)]
    assert [status for status, _ in ended] == [0, 0], ended
    small, large = (int(output) for _, output in ended)
    assert large - small > 150_000  # of 195,000, 470,000 and 300,000 KiB
