"""A Ray cluster, local or given, and what a pool of workers takes of it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.extras import need

#: Of a local cluster: numbers of rows pass through it, no texts and no vectors.
_OBJECT_BYTES = 1 << 28


@dataclass(frozen=True)
class Pool:
    """The number of workers, and the resources that each takes.

    Attributes:
        cpus: processors, and computing threads, of each.
        gpus: of each: 0, 1, or a fraction where workers share a GPU.
    """

    size: int
    cpus: int
    gpus: float

    @property
    def each(self) -> dict[str, Any]:
        """Ray's options for one worker."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def __str__(self) -> str:
        device = f"{self.gpus:.2g} GPU" if self.gpus else f"{self.cpus} processors" if self.cpus > 1 else "a processor"
        return f"Ray: {self.size} worker{'s' if self.size > 1 else ''}, each with {device}"


@contextlib.contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """The module ray, connected to the cluster at an address, or to a local one that ends with the block.

    Raises:
        EnvironmentProblem: Ray is not installed, or there is no such cluster.
        DistilvecError: fewer than one worker, or this process is connected to a cluster already.
    """
    if workers is not None and workers < 1:
        raise DistilvecError(f"at least one worker is needed, not {workers}", where="--workers")
    need("Teaching with Ray (--shard and torchrun do the same without it)", "ray", "ray", "pandas")
    import ray
    import ray.data

    if ray.is_initialized():
        raise DistilvecError("this process is connected to a Ray cluster already", remedy="Call ray.shutdown() first.")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # or every pool begins with a line that alarms for nothing
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a local cluster of ours tells nobody about itself
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves workers what other processes leave over
        own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processors = max(own, workers or 1)
        options |= {"num_cpus": processors, "include_dashboard": False, "object_store_memory": _OBJECT_BYTES}
    try:
        _knock(address)
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentProblem(
            f"the Ray cluster cannot be reached ({error})",
            where=address or "a local cluster",
            remedy="Look at `ray status`, or leave --address out for a cluster on this machine.",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Connect to host:port once: Ray itself would try for minutes."""
    if address and "://" not in address and (port := address.rpartition(":")[2]).isdigit():
        socket.create_connection((address.rpartition(":")[0], int(port)), timeout=10).close()


def pool_of(ray: Any, workers: int | None) -> Pool:
    """Workers for a cluster: a GPU each where it has some, else two processors each."""
    nodes = [each for node in ray.nodes() if node["Alive"] and (each := node["Resources"]).get("CPU", 0) >= 1]
    if not nodes:
        raise EnvironmentProblem("no machine of the Ray cluster has a free processor", where="ray")
    gpus, cpus = (int(sum(node.get(kind, 0) for node in nodes)) for kind in ("GPU", "CPU"))
    if gpus:
        return Pool(workers or gpus, 1, 1 / math.ceil((workers or gpus) / gpus))
    size = workers or max(1, cpus // 2)
    # The smallest machine takes its share of the workers.
    share = min(int(node["CPU"]) for node in nodes) // math.ceil(size / len(nodes))
    return Pool(size, max(1, share if workers else min(2, share)), 0)
