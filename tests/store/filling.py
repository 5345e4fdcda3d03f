"""A teacher without weights, and a process that fills a store with it and dies where it is told to.

python filling.py FOLDER --items 600 [--shard 0 2] [--die disk:7 | encode:3 | half:2] [--limit 2:20000]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from distilvec.errors import DistilvecError
from distilvec.store import SignalStore, fill
from distilvec.store import part as part_module
from distilvec.teachers import Teacher
from distilvec.teachers.signals import TeacherSignals, Wanted

WIDTH, HIDDEN = 16, 8
WANTED = Wanted(tokens=(1, 2))
CARD = {"name": "hashes", "kind": "callable", "fingerprint": "f" * 16, "licence": "apache-2.0"}
PART_BYTES = 8_000  # about 160 rows


def texts(count: int) -> list[str]:
    """Texts of different lengths, the last tenth repeats earlier ones."""
    words = [f"text {number} " + "x" * (number % 17) for number in range(count - count // 10)]
    return words + words[: count // 10]


def keys(items: Sequence[str]) -> np.ndarray:
    """uint8 [n, 16]."""
    digests = b"".join(hashlib.blake2b(item.encode(), digest_size=16).digest() for item in items)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)


def vectors(items: Sequence[str]) -> np.ndarray:
    """float32 [n, WIDTH], the same for the same text."""
    return np.stack(
        [np.random.default_rng(list(item.encode())).standard_normal(WIDTH, dtype=np.float32) for item in items]
    )


def token_states(item: str) -> np.ndarray:
    """float32 [tokens, HIDDEN], the same for the same text; as many tokens as the text's length says."""
    generator = np.random.default_rng(list(item[::-1].encode()))
    return generator.standard_normal((1 + len(item) % 5, HIDDEN), dtype=np.float32)


class HashTeacher(Teacher):
    """Streams batches of 32 in order of length; counts what it encodes."""

    def __init__(self, on_batch: Callable[[int], None] = lambda batch: None) -> None:
        self.card, self.encoded, self.batches, self._on_batch = dict(CARD), 0, 0, on_batch

    def stream(self, items: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.argsort([len(item) for item in items], kind="stable")
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            self.batches += 1
            self._on_batch(self.batches)
            self.encoded += len(rows)
            yield rows, vectors([items[row] for row in rows])

    hidden, vocabulary, final_norm = HIDDEN, [f"word{number}" for number in range(64)], False

    def refuse(self, wanted: Wanted) -> None:
        """It can give everything."""

    def observe(self, items: Sequence[str], wanted: Wanted) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
        for rows, sentence in self.stream(items):
            states = [token_states(items[row]) for row in rows]
            longest = max(map(len, states))
            mask = torch.arange(longest) < torch.tensor([[len(each)] for each in states])
            padded = torch.zeros(len(rows), longest, HIDDEN)
            padded[mask] = torch.from_numpy(np.concatenate(states))
            ids = mask.long() * torch.arange(longest)
            signals = TeacherSignals(torch.ones(len(rows), dtype=torch.bool), sentence=torch.from_numpy(sentence))
            signals.mask = signals.content = mask
            signals.ids, signals.tokens = ids, dict.fromkeys(wanted.tokens, padded)
            yield rows, signals


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_disk_event(number: int) -> None:
    """Die before the n-th call that makes something durable or visible."""
    events = iter(range(1, number + 1))

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if next(events, number) == number:
                die()
            return call(*args, **kwargs)

        return counted

    for name in ("fsync", "replace", "link"):
        setattr(os, name, before(getattr(os, name)))


def die_in_write(number: int) -> None:
    """Die when half of the n-th block of vectors is in the file."""
    whole, blocks = part_module._HashedFile.write, iter(range(1, number + 1))

    def half(self: Any, data: Any) -> int:
        view = memoryview(data).cast("B")
        if view.nbytes > 4000 and next(blocks, number) == number:
            whole(self, view[: view.nbytes // 2])
            die()
        return whole(self, data)

    part_module._HashedFile.write = half  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--shard", type=int, nargs=2)
    parser.add_argument("--die")
    parser.add_argument("--signals", action="store_true", help="token states too")
    parser.add_argument("--limit", help="from this batch on, no file may grow beyond this many bytes")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds per batch")
    given = parser.parse_args()
    kind, _, number = (given.die or "").partition(":")

    def on_batch(batch: int) -> None:
        time.sleep(given.slow)
        if kind == "encode" and batch == int(number):
            die()
        if given.limit and batch == int(given.limit.split(":")[0]):
            most = int(given.limit.split(":")[1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    if kind == "disk":
        die_at_disk_event(int(number))
    if kind == "half":
        die_in_write(int(number))
    teacher, items = HashTeacher(on_batch), texts(given.items)
    try:
        store = SignalStore.create(given.folder, CARD, WIDTH)
        shard = tuple(given.shard) if given.shard else None
        if given.signals:
            report = fill(store, teacher, items, keys(items), WANTED, shard=shard, part_bytes=PART_BYTES)
        else:
            report = fill(store, teacher, items, keys(items), shard=shard, part_bytes=PART_BYTES)
    except DistilvecError as error:
        sys.stderr.write(str(error))
        return error.exit_code
    sys.stdout.write(json.dumps({"taught": report.taught, "present": report.present, "parts": report.parts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
