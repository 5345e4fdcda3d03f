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
    ) -> None:
        self.lengths, self.batch_size, self.seed = spilled(np.asarray(lengths)), batch_size, seed
        self.pool, self.rank, self.world, self.drop_last = pool, rank, world, drop_last
        self.epoch = self.skip = 0

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Take the batches of this epoch from now on, without the first `skip`."""
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths), self.batch_size)
        return full + (rest >= self.world and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = spilled(np.arange(len(self.lengths), dtype=np.int32))
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
