"""Teaching with Ray: a pool of workers holds the teacher and adds parts to one store on a shared file system.

What is missing is cut into chunks of at most one part. Ray Data hands them to the workers, starts workers again that
died, and gives their chunks to others; a part that was not complete does not exist, so what a death costs is that part.
"""

from __future__ import annotations

import logging
import math
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.lessons import copied
from distilvec.flow.prepare import open_corpus, require
from distilvec.flow.ray.ledger import Ledger
from distilvec.flow.ray.pool import Pool, cluster, pool_of
from distilvec.flow.ray.worker import StorePlace, Work, Worker, prepare
from distilvec.flow.teach import finish
from distilvec.interruption import StopSignals
from distilvec.progress import Ticker
from distilvec.recipe import Recipe
from distilvec.store import FillReport, RaggedSignal, SignalStore
from distilvec.store.fill import distinct_positions
from distilvec.store.layout import DTYPES, KEY_BYTES, key_words
from distilvec.store.part import PART_BYTES
from distilvec.store.turns import alone

logger = logging.getLogger(__name__)

#: Chunks per worker, so that all end at about the same time; and the fewest texts that are worth a file.
_CHUNKS_EACH, _LEAST = 16, 32
_POLL_SECONDS = 0.5
#: A shared file system may show a file to other machines only after a while.
_VISIBLE_SECONDS = 60.0


def teach_with_ray(
    recipe: Recipe, *, workers: int | None = None, address: str | None = None, chunk: int | None = None
) -> list[tuple[SignalStore, FillReport]]:
    """Fill the stores of all teachers with what they lack, with a pool of Ray workers.

    The driver opens no teacher. Where several teachers are combined, the later run does so.

    Args:
        workers: how many; None = one per GPU of the cluster, without any one per two processors.
        address: of a Ray cluster, "auto" for the one on this machine; None = a local one that ends with the call.
        chunk: texts that a worker takes at a time; None = a sixteenth of its share, at most one part of the store.

    Returns:
        Per teacher its store and what was done.

    Raises:
        EnvironmentProblem: Ray is not installed, or the cluster cannot be reached, or shares no file system.
        DistilvecError: what a worker raises.
        Interrupted: Ctrl-C or SIGTERM; workers finish their batch and keep all that was encoded.
    """
    place = {"output": str(Path(recipe.output).absolute()), "cache": str(recipe.place.absolute())}
    recipe = recipe.model_copy(update=place)
    if recipe.scorers:
        raise DistilvecError(
            "Ray's workers teach vectors, and this recipe has scorers",
            where="scorers",
            remedy="Fill their stores with `distilvec teach`, in parts with --shard.",
        )
    require(recipe, "teach")
    corpus = open_corpus(recipe)
    done = []
    # Signals are caught once Ray is there: it takes them over when it starts.
    with cluster(address, workers) as ray, StopSignals() as signals:
        pool = pool_of(ray, workers)
        logger.info("%s", pool)
        folder = corpus.folder.absolute()
        prepared = ray.remote(prepare).options(**pool.each).remote(recipe, folder, corpus.fingerprint)
        places = _waited(ray, prepared, signals)
        for number, (section, store_place) in enumerate(zip(recipe.teachers, places, strict=True)):
            work = Work(recipe, folder, corpus.fingerprint, number, store_place)
            ticker = Ticker(f"teaching with {section.name}, {pool.size} workers", corpus.kind.noun)
            with copied(recipe, section), alone(store_place.path, signals):
                store, filled = _Teaching(ray, pool, work, ticker, signals).run(corpus.teacher_keys, chunk)
            finish(section, store, filled, corpus.modality, signals)
            done.append((store, filled))
    return done


def lacking(store: SignalStore, place: StorePlace, keys: np.ndarray) -> np.ndarray:
    """Return which keys uint8 [n, 16] the store has no sentence vector or no wanted signal for: bool [n]."""
    missing = store.missing(keys)
    for name in place.wanted.signals:
        missing |= RaggedSignal(place.path, name).missing(keys)
    return missing


def chunk_rows(store: SignalStore, texts: int, workers: int) -> int:
    """Texts that a worker takes at a time: a sixteenth of its share, but at most one part of the store."""
    part = PART_BYTES // (store.width * np.dtype(DTYPES[store.dtype]).itemsize + KEY_BYTES)
    return min(part, max(_LEAST, math.ceil(texts / (workers * _CHUNKS_EACH))))


class _Teaching:
    """One teacher's store, filled by a pool."""

    def __init__(self, ray: Any, pool: Pool, work: Work, ticker: Ticker, signals: StopSignals) -> None:
        self.ray, self.pool, self.work, self.ticker, self.signals = ray, pool, work, ticker, signals

    def run(self, keys: np.ndarray, chunk: int | None) -> tuple[SignalStore, FillReport]:
        began = time.monotonic()
        store = SignalStore.open(self.work.place.path)
        before = set(store.parts)
        distinct = distinct_positions(key_words(keys), None)
        todo = distinct[lacking(store, self.work.place, keys[distinct])]
        covered = absent = 0
        if len(todo) and self.signals.number is None:
            covered, absent = self._distribute(
                todo, chunk or chunk_rows(store, len(todo), self.pool.size), len(distinct)
            )
        store.refresh()
        if self.signals.number is None:
            self._check_visible(store, keys[todo], absent)
        store.build_index()
        return store, FillReport(
            items=len(keys),
            distinct=len(distinct),
            present=len(distinct) - len(todo),
            taught=covered - absent,
            seconds=time.monotonic() - began,
            parts=sorted(set(store.parts) - before),
            set_aside=dict(store.bad),
            absent=absent,
        )

    def _distribute(self, todo: np.ndarray, size: int, total: int) -> tuple[int, int]:
        """Teach `todo`; how many of it are covered, and of how many the teacher has nothing."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        # With this process, as another node may die.
        ledger = self.ray.remote(Ledger).options(num_cpus=0, scheduling_strategy=here).remote()
        results: list[dict[str, Any]] = []
        failed: list[BaseException] = []

        def consume() -> None:
            try:
                results.extend(self._results(todo, size, ledger))
            except BaseException as error:  # raised again by the thread that waits
                failed.append(error)

        # In a thread, so that this one can show progress and hear signals while a chunk is under way.
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        present, told = total - len(todo), False
        while thread.is_alive():
            covered, again = self.ray.get(ledger.state.remote())
            self.ticker(present + covered, total, f"{again} chunks begun again" if again else "")
            if self.signals.number is not None and not told:
                told = True
                ledger.stop.remote()
            thread.join(_POLL_SECONDS)
        if failed:
            raise _explained(failed[0])
        covered, _ = self.ray.get(ledger.state.remote())
        self.ticker(present + covered, total)
        return covered, sum(int(row["absent"]) for row in results)

    def _results(self, todo: np.ndarray, size: int, ledger: Any) -> Iterator[dict[str, Any]]:
        """Yield the workers' report on each chunk."""
        from ray.data import ActorPoolStrategy, DataContext, from_items

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        chunks = [todo[start : start + size] for start in range(0, len(todo), size)]
        items = [{"chunk": n, "rows": rows.astype("<i8").tobytes()} for n, rows in enumerate(chunks)]
        taught = from_items(items, override_num_blocks=len(items)).map_batches(
            Worker,
            fn_constructor_args=(self.work, ledger),
            batch_size=None,
            compute=ActorPoolStrategy(min_size=1, max_size=self.pool.size, initial_size=self.pool.size),
            **self.pool.each,
        )
        for row in taught.iter_rows():
            if row["error"] is not None:
                raise pickle.loads(row["error"])
            yield row

    def _check_visible(self, store: SignalStore, keys: np.ndarray, absent: int) -> None:
        """See that this machine finds what the workers wrote."""
        end = time.monotonic() + _VISIBLE_SECONDS
        while (missing := int(lacking(store, self.work.place, keys).sum())) > absent:
            if time.monotonic() > end:
                raise EnvironmentProblem(
                    f"the workers have taught everything, but {missing - absent:,} of {len(keys):,} are not seen here",
                    where=str(store.path),
                    remedy="The recipe's output (or cache) has to lie on a file system that all machines share.",
                )
            time.sleep(1)
            store.refresh()


def _waited(ray: Any, reference: Any, signals: StopSignals) -> Any:
    """Return what a worker gives back, unless a signal comes first."""
    try:
        while not ray.wait([reference], timeout=_POLL_SECONDS)[0]:
            signals.check(f"{signals.name} came before teaching began", remedy="Run the same command again.")
        return ray.get(reference)
    except Exception as error:
        raise _explained(error) from error


def _explained(error: BaseException) -> BaseException:
    """The error that a worker met, where it is one that a person can mend."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DistilvecError):
            return cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    return error
