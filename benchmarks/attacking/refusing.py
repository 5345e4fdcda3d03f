"""A disk that fails from a chosen moment on, for one process: a filter of its system calls answers with the error.

It reaches what Python does not see: libraries in C++ and Rust that write by themselves. Linux on x86-64 alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable

#: Numbers of system calls: those that write content, that make it lasting, that make names, and that remove or change.
_CONTENT = (1, 18, 20, 40, 77, 76, 285, 296, 326, 328)
_LASTING = (26, 74, 75)
_NAMING = (82, 83, 86, 88, 258, 264, 265, 266, 316)
_REMOVING = (84, 87, 90, 91, 263, 268)
#: Calls that open -> which of their arguments holds the flags.
_OPENING = {2: 1, 257: 2}
_WRITES, _MAKES = os.O_WRONLY | os.O_RDWR, os.O_CREAT
#: Parts of a filter: load, compare (equal, greater, has a bit), return.
_LOAD, _EQUAL, _GREATER, _HAS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000
_NUMBER, _ARGUMENTS = 0, 16
#: `seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, ...)`, and the promise that has to go before it.
_SECCOMP, _SET_FILTER, _ALL_THREADS, _NO_NEW_PRIVILEGES = 317, 1, 1, 38


def possible() -> bool:
    """Tell whether this machine has such filters."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def refuse(number: int, allowed: Iterable[int] = ()) -> None:
    """From now on, whatever this process does with files that this error can come from, gets it.

    Args:
        number: of the error (EIO ...).
        allowed: descriptors that can still be written to, besides those up to 2.

    Raises:
        OSError: the system takes no filter.
    """
    no_room, no_right = number in (errno.ENOSPC, errno.EDQUOT), number in (errno.EACCES, errno.EPERM)
    plain = [*_NAMING, *([] if no_room else _REMOVING), *([] if no_room or no_right else _LASTING)]
    answer = (_RETURN, 0, 0, _ANSWER | number)
    filter_ = [(_LOAD, 0, 0, _NUMBER)]
    for call in plain:
        filter_ += [(_EQUAL, 0, 1, call), answer]
    for call, place in _OPENING.items():
        flags = _MAKES if no_room else _MAKES | _WRITES
        checks = [(_LOAD, 0, 0, _ARGUMENTS + 8 * place), (_HAS, 0, 1, flags), answer, (_RETURN, 0, 0, _ALLOW)]
        filter_ += [(_EQUAL, 0, len(checks), call), *checks]
    for call in () if no_right else _CONTENT:
        kept = [(_EQUAL, 0, 1, each) for each in allowed]
        let = (_RETURN, 0, 0, _ALLOW)
        checks = [(_LOAD, 0, 0, _ARGUMENTS), (_GREATER, 1, 0, 2), let]
        for each in kept:
            checks += [each, let]
        checks.append(answer)
        filter_ += [(_EQUAL, 0, len(checks), call), *checks]
    _install([*filter_, (_RETURN, 0, 0, _ALLOW)])


def _install(parts: list[tuple[int, int, int, int]]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *part) for part in parts))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(parts), ctypes.addressof(code)))
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or system.syscall(_SECCOMP, _SET_FILTER, _ALL_THREADS, program):
        raise OSError(ctypes.get_errno(), "the system takes no filter of system calls")
