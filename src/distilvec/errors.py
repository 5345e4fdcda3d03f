"""The errors a person meets: what happened, where, and what to do about it."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Iterable

#: How training goes on. Commands but these go on by themselves.
GO_ON = "run the same command again to go on (run, train and demo: with --resume; in Python: resume=True)"
#: All but tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class DistilvecError(Exception):
    """Something the caller can mend. The command line prints it in one line and exits with `exit_code`.

    Args:
        what: what happened, with the values expected and found.
        where: the file and line, the key, the row or the teacher concerned.
        remedy: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        what, where, remedy = printable(what), where and printable(where), remedy and printable(remedy)
        self.what, self.where, self.remedy = what, where, remedy
        parts = [f"{where}: {what}" if where else what]
        if remedy:
            parts.append(remedy)
        super().__init__(" ".join(part if part.endswith((".", "!", "?", ":")) else part + "." for part in parts))


class DataError(DistilvecError):
    """The corpus, a store or a vectors file is not what it has to be."""

    exit_code = 3


class DivergedError(DataError):
    """A training whose loss, gradient or vectors are not finite any more."""


class EnvironmentProblem(DistilvecError):
    """A library, a device, a permission or disk space is missing."""

    exit_code = 4


class Pending(DistilvecError):
    """Somebody else works on the answer; the same command goes on when it is there."""

    exit_code = 75


class Interrupted(DistilvecError):
    """Somebody stopped the run (Ctrl-C, SIGTERM); what was finished is saved.

    Args:
        what, where, remedy: as for every error.
        number: of the signal; the exit code is 128 more, as in a shell: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(
        self, what: str, *, where: str | None = None, remedy: str | None = None, number: int = signal.SIGINT
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.exit_code = 128 + number


def printable(text: str) -> str:
    """Somebody else's text for a terminal or a page: control characters and turns of the writing direction are named.

    A column's name or a file's could otherwise colour, move or rewrite what a person reads.

    >>> print(printable("a" + chr(27) + "[31mred"))
    a\\x1b[31mred
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known word, or all of them where none is close.

    >>> nearest("epoch", ["epochs", "seed"])
    'Did you mean "epochs"?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'Did you mean "{close[0]}"?' if close else f"Known: {', '.join(names)}."
