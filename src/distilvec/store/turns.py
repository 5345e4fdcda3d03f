"""One teaching of a store at a time: two that start together would both pay for what the store lacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distilvec.errors import Interrupted
from distilvec.files import locked
from distilvec.interruption import StopSignals

logger = logging.getLogger(__name__)
#: Seconds between two looks.
PAUSE = 0.2


@contextmanager
def alone(folder: Path, signals: StopSignals) -> Iterator[None]:
    """While the block runs, no other process is in such a block for the same store; wait for one that is.

    The lock dies with its process. Shards (`--shard i/n`) share no texts, so they need no turns.

    Raises:
        Interrupted: a signal came while waiting.
    """
    told = False
    while True:
        with locked(folder / "teaching.lock", wait=False) as got:
            if got:
                yield
                return
        if not told:
            logger.info("%s is being taught by another process; waiting until it is done", folder)
            told = True
        if signals.number is not None:
            raise Interrupted(
                f"stopped by {signals.name} while another process was teaching",
                where=str(folder),
                remedy="Run the same command again to go on.",
                number=signals.number,
            )
        time.sleep(PAUSE)
