"""Registered benchmarks by name, through MTEB where it is installed: single tasks, and whole benchmarks of them."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from distilvec.errors import DistilvecError, EnvironmentProblem, nearest
from distilvec.judging.encoder import CachedEncoder, Encode
from distilvec.judging.scores import Score
from distilvec.judging.talas_sets import TALAS_SETS
from distilvec.judging.tasks import JudgingTask
from distilvec.progress import Ticker

if TYPE_CHECKING:
    from distilvec.judging.results import ResultFiles

logger = logging.getLogger(__name__)
#: Types of tasks whose corpora are too large to keep their vectors.
_LARGE = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")
_CHUNK = 4096


class MtebTask(JudgingTask):
    """One of MTEB's tasks; its own data, protocol and main score, without an interval.

    Args:
        benchmark: name of the benchmark that it stands for here.

    Attributes:
        results: where its result file lies or goes; None = nowhere.
    """

    kind: ClassVar[str] = "mteb"

    def __init__(self, task: Any, benchmark: str | None = None) -> None:
        super().__init__(task.metadata.name)
        self.task, self.benchmark = task, benchmark
        self.results: ResultFiles | None = None

    def test_items(self) -> list[tuple[str, ...]]:
        """MTEB loads its texts when it scores; none are known before."""
        return []

    def score(self, encode: Encode) -> Score:
        """Run MTEB's own evaluation, or take what a result file says.

        Raises:
            EnvironmentProblem: the benchmark's data cannot be loaded.
        """
        import mteb

        result = self._result(self.task, encode)
        about = self.task.metadata
        kind = "retrieval" if about.type in _LARGE else self.kind
        details = {"mteb": result.mteb_version or mteb.__version__, "type": about.type, "splits": list(result.scores)}
        dataset = about.dataset or {}
        details |= {key: str(dataset[name]) for key, name in _ABOUT_DATA if dataset.get(name)}
        if self.benchmark is not None:
            details["benchmark"] = self.benchmark
        return Score(self.name, kind, str(about.main_score), float(result.get_score()), None, 0, details, self.domain)

    def _result(self, task: Any, encode: Encode) -> Any:
        """MTEB's result of a task, or of one that others are joined to."""
        import mteb
        from mteb.abstasks.aggregated_task import AbsTaskAggregate

        kept = None if self.results is None else self.results.find(task)
        if kept is not None:
            logger.info("%s: taken from %s", task.metadata.name, self.results)
            return kept
        if isinstance(task, AbsTaskAggregate):
            result = task.combine_task_results([self._result(each, encode) for each in task.metadata.tasks])
        else:
            try:
                model = _MtebEncoder(encode, task.metadata.name, large=task.metadata.type in _LARGE)
                result = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results[0]
            except (OSError, ConnectionError) as error:
                left = "" if self.results is None else " What is finished is kept; the same command goes on from it."
                raise EnvironmentProblem(
                    f"MTEB could not run ({error})",
                    where=f"task {task.metadata.name}",
                    remedy=f"Its data comes from the hub.{left}",
                ) from error
        if self.results is not None:
            self.results.keep(result)
        return result


_ABOUT_DATA = (("dataset", "path"), ("revision", "revision"))


def mteb_task(name: str) -> MtebTask:
    """A task that MTEB registers."""
    _need(name)
    import mteb

    try:
        return MtebTask(mteb.get_task(name))
    except KeyError as error:
        known = {task.metadata.name for task in mteb.get_tasks()}
        raise DistilvecError(f'MTEB has no task "{name}"', remedy=nearest(name, known)[:300]) from error


def benchmark_tasks(benchmark: Any) -> list[MtebTask] | None:
    """The tasks of a benchmark of MTEB's, by its name or the object; None where there is none of this name.

    Raises:
        EnvironmentProblem: MTEB is not installed.
    """
    if isinstance(benchmark, str):
        _need(benchmark)
        import mteb

        try:
            benchmark = mteb.get_benchmark(benchmark)
        except KeyError:
            return None
    return [MtebTask(task, benchmark=benchmark.name) for task in benchmark.tasks]


def is_benchmark(found: Any) -> bool:
    return hasattr(found, "tasks") and type(found).__module__.startswith("mteb.")


def benchmark_means(scores: Sequence[Score]) -> dict[str, tuple[float, int, float, int]]:
    """Benchmark -> mean over its tasks, their number, mean over the means of types of task, their number.

    Both means are those of MTEB's leaderboards.
    """
    by_benchmark = {}
    for name in dict.fromkeys(score.details.get("benchmark") for score in scores):
        if name is None:
            continue
        own = [score for score in scores if score.details.get("benchmark") == name]
        types: dict[str, list[float]] = {}
        for score in own:
            types.setdefault(str(score.details.get("type")), []).append(score.value)
        means = [float(np.mean(values)) for values in types.values()]
        by_benchmark[str(name)] = (float(np.mean([s.value for s in own])), len(own), float(np.mean(means)), len(means))
    return by_benchmark


def _need(name: str) -> None:
    if importlib.util.find_spec("mteb") is None:
        raise EnvironmentProblem(
            f'"{name}" is neither a file nor one of {", ".join(TALAS_SETS)}; '
            "other benchmarks come from MTEB, which is not installed",
            remedy="pip install 'distilvec[mteb]', or describe the task in a YAML file.",
        )


class _MtebEncoder:
    """An encoder as MTEB wants it: batches of a data loader in, an array out, queries told from documents.

    Vectors are kept for the one task alone, and those of large corpora not at all.
    """

    def __init__(self, encode: Encode, task: str, *, large: bool) -> None:
        from distilvec.judging.results import model_meta

        name = str(getattr(encode, "name", "model"))
        self._encode = CachedEncoder.of(encode, name).apart()
        self._task, self._large = task, large
        self.mteb_model_meta = model_meta(name, "local")

    def encode(self, inputs: Any, *, prompt_type: Any = None, **ignored: Any) -> Any:
        texts = [text for batch in inputs for text in self._texts(batch)]
        name = getattr(prompt_type, "value", prompt_type)
        side = name if name in ("query", "document") else ""
        vectors, ticker = [], Ticker(self._task, kept=False)
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            vectors.append(self._encode.once(chunk, side) if self._large else self._encode.on_side(chunk, side))
            ticker(start + len(chunk), len(texts))
        return np.concatenate(vectors)

    def _texts(self, batch: Any) -> list[str]:
        if "text" not in batch:
            raise DistilvecError(
                f"this task holds {', '.join(sorted(batch))}, and only texts are read", where=f"task {self._task}"
            )
        return list(batch["text"])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)
