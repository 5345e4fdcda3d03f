"""Teaching under torchrun: every process takes its share, and none waits for another."""

from __future__ import annotations

import os

from distilvec.errors import DistilvecError
from distilvec.flow.checks import check_scorers
from distilvec.flow.lessons import fill_scores, fill_stores
from distilvec.flow.prepare import open_corpus, open_teachers, require
from distilvec.flow.score import QueryDocuments
from distilvec.flow.settle import wants_of
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
    require(recipe, "teach")
    corpus = open_corpus(recipe)
    check_scorers(recipe, corpus)
    teachers = open_teachers(recipe, corpus)
    taught = fill_stores(recipe, corpus, teachers, wants_of(recipe, corpus, teachers), own or shard)
    scored = fill_scores(recipe, QueryDocuments.of(corpus), own or shard) if recipe.scorers else []
    return [(each.store, each.filled) for each in taught] + [(each.store, each.filled) for each in scored]


def share_of_rank() -> tuple[int, int] | None:
    """(rank, processes) where torchrun started several processes, else None.

    The process takes the GPU of its local rank then: models that it opens go there.
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
