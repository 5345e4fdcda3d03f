"""Teaching under torchrun: every process takes its share, and none waits for another."""

from __future__ import annotations

import os

from distilvec.errors import DistilvecError
from distilvec.flow.checks import check_scorers
from distilvec.flow.job import Job
from distilvec.recipe import Recipe
from distilvec.store import FillReport, SignalStore
from distilvec.training.distributed import launched


def teach_alone(recipe: Recipe, shard: tuple[int, int] | None = None) -> list[tuple[SignalStore, FillReport]]:
    """Fill the stores of all teachers and scorers in this process; where it is one of torchrun's, with its share.

    Args:
        shard: (i, n), for processes that were started in another way.

    Returns:
        Per teacher, and then per scorer, its store and what was done.

    Raises:
        DistilvecError: `shard` under torchrun, and whatever teaching raises.
    """
    own = share_of_rank()
    if own is not None and shard is not None:
        raise DistilvecError(
            "torchrun's processes take their shares themselves", where="--shard", remedy="Leave it out."
        )
    job = Job(recipe)
    job.require("teach")
    check_scorers(job)
    taught = job.teach(shard=own or shard) if recipe.teachers else []
    scored = job.score(shard=own or shard)
    return [(each.store, each.filled) for each in taught] + [(each.store, each.filled) for each in scored]


def share_of_rank() -> tuple[int, int] | None:
    """(rank, processes) where torchrun started several processes, else None.

    The process takes the GPU of its local rank then: models that it opens go there.

    Raises:
        DistilvecError: there are fewer GPUs than processes on this machine.
    """
    import torch

    rank, processes = launched()
    if processes == 1:
        return None
    if torch.cuda.is_available():
        local, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= devices:
            raise DistilvecError(
                f"process {local + 1} on a machine with {devices} GPUs",
                where="torchrun",
                remedy=f"Use --nproc-per-node {devices}, or hide the GPUs with CUDA_VISIBLE_DEVICES=.",
            )
        torch.cuda.set_device(local)
    return rank, processes
