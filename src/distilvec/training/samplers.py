"""Batches of texts of similar length, in an order that depends on (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distilvec.files import spilled


class BucketedBatches:
    """Shuffled batches of rows of similar length; what a DataLoader takes as `batch_sampler`.

    Rows are shuffled, cut into pools of `pool` batches, sorted by length within a pool and cut into batches;
    then the batches are shuffled. Padding shrinks to little while every epoch still mixes the corpus. Each rank
    of a distributed run gets its slice of every batch, so that the ranks together see the batches that one
    process would see.

    Args:
        lengths: tokens per row, int [n].
        batch_size: items per step over all ranks; a multiple of `world`.
        seed: the order depends on it and on the epoch only, never on a global generator.
        pool: batches per pool; 1 gives plain shuffling.
        rank, world: this process and the number of processes.
        drop_last: leave out the short batch at the end of an epoch.
        weights: float [n], how often an epoch reads a row; of rows of one weight 1.5 all come once and a half of them,
            another one in each epoch, a second time. None = once.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        seed: int,
        pool: int = 50,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        weights: np.ndarray | None = None,
    ) -> None:
        self.lengths, self.batch_size, self.seed = spilled(np.asarray(lengths)), batch_size, seed
        self.pool, self.rank, self.world, self.drop_last = pool, rank, world, drop_last
        self.epoch = self.skip = 0
        self.group: np.ndarray | None = None
        self.counts = [len(self.lengths)]  # of each weight: its rows an epoch
        if weights is not None:
            values, self.group = np.unique(weights, return_inverse=True)
            self.counts = np.round(values * np.bincount(self.group)).astype(int).tolist()

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Take the batches of this epoch from now on, without the first `skip`."""
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        full, rest = divmod(sum(self.counts), self.batch_size)
        return full + (rest >= self.world and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = spilled(self._drawn(generator))
        generator.shuffle(order)
        span, size = self.batch_size * self.pool, self.batch_size
        # The short batch, if there is one, is cut off before sorting, so that it holds random rows.
        full = len(order) // size * size
        for start in range(0, full, span):
            rows = order[start : min(start + span, full)]
            rows[:] = rows[np.argsort(self.lengths[rows], kind="stable")]
        rest = (len(order) - full) // self.world * self.world
        ends = full if self.drop_last else full + rest
        for position in generator.permutation(-(-ends // size))[self.skip :]:
            batch = order[position * size : min((position + 1) * size, ends)]
            share = len(batch) // self.world
            yield batch[self.rank * share : (self.rank + 1) * share].tolist()

    def _drawn(self, generator: np.random.Generator) -> np.ndarray:
        """The rows of an epoch, int32, before they are shuffled."""
        if self.group is None:
            return np.arange(len(self.lengths), dtype=np.int32)
        drawn = []
        for number, count in enumerate(self.counts):
            rows = np.flatnonzero(self.group == number).astype(np.int32)
            times, more = divmod(count, len(rows))
            drawn += [rows] * times + [generator.choice(rows, more, replace=False)]
        return np.concatenate(drawn)
