"""Keep freed memory in the process, so that every step does not ask the system for it again.

A training step on a CPU allocates and frees the same hundreds of megabytes over and over. The C library gives large
blocks back to the system at once, and each of their pages has to be zeroed and mapped anew when it is next touched;
`benchmarks/allocator.py` measures what that costs. Encoding without gradients hardly suffers from it.
"""

from __future__ import annotations

import ctypes
import functools
import platform

# From malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_BLOCK, _SMALLEST_BLOCK = 1 << 28, 1 << 18
_KEPT = (1 << 31) - 1
_AHEAD = 1 << 28


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, up to 2 GiB, and to serve blocks under 256 MiB from it.

    Called before training on a CPU. It changes the allocator of the whole process, once; the
    memory that the process holds stays near its peak then. Environment variables such as `MALLOC_TRIM_THRESHOLD_`
    that are set by hand are overruled; another allocator (jemalloc, tcmalloc) is left alone.

    Returns:
        Whether the C library took it: False where it is not glibc.
    """
    return _told((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD))


def return_freed_memory() -> bool:
    """Tell glibc to give what is free back to the system, and from now on every freed block of 256 KiB or more.

    For a student that is sharded, which is done to save memory: blocks that are gathered and freed in turn leave gaps
    otherwise, which take a third of what the process holds. Returns the same as `keep_freed_memory`.
    """
    return _told((_MMAP_THRESHOLD, _SMALLEST_BLOCK))


def give_back() -> bool:
    """Return freed memory to the system: training a tokenizer leaves hundreds of megabytes that nothing uses.

    Returns:
        Whether the C library could: False where it is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


def _told(*settings: tuple[int, int]) -> bool:
    if not give_back():  # also what cutting the student and teaching have left
        return False
    taken = [ctypes.CDLL(None).mallopt(name, value) for name, value in settings]
    return all(taken)
