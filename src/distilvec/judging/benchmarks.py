"""Registered benchmarks by name, through MTEB where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any, ClassVar

import numpy as np

from distilvec.errors import DistilvecError, EnvironmentProblem, nearest
from distilvec.judging.encoder import Encode
from distilvec.judging.scores import Score
from distilvec.judging.talas_sets import TALAS_SETS
from distilvec.judging.tasks import Task, side


class MtebTask(Task):
    """One of MTEB's tasks; its own data, protocol and main score, without an interval.

    Args:
        task: an `mteb` task object.
    """

    kind: ClassVar[str] = "mteb"

    def __init__(self, task: Any, domain: str | None = None) -> None:
        super().__init__(task.metadata.name, domain)
        self.task = task

    def texts(self) -> list[str]:
        """MTEB loads its texts when it scores; none are known before."""
        return []

    def test_items(self) -> list[tuple[str, ...]]:
        return []

    def score(self, encode: Encode) -> Score:
        """Run MTEB's own evaluation.

        Raises:
            EnvironmentProblem: the benchmark's data cannot be loaded.
        """
        import mteb

        try:
            result = mteb.evaluate(_MtebEncoder(encode), self.task, cache=None, show_progress_bar=False)
        except (OSError, ConnectionError) as error:
            raise EnvironmentProblem(
                f"MTEB could not run ({error})",
                where=f"task {self.name}",
                remedy="Its data comes from the hub.",
            ) from error
        found = result.task_results[0]
        kind = "retrieval" if self.task.metadata.type in ("Retrieval", "Reranking") else self.kind
        details = {"mteb": mteb.__version__, "type": self.task.metadata.type, "splits": list(found.scores)}
        metric = str(self.task.metadata.main_score)
        return Score(self.name, kind, metric, float(found.get_score()), None, 0, details, self.domain)


def mteb_task(name: str) -> MtebTask:
    """A benchmark that MTEB registers.

    Raises:
        EnvironmentProblem: MTEB is not installed.
        DistilvecError: MTEB has no task of this name.
    """
    if importlib.util.find_spec("mteb") is None:
        raise EnvironmentProblem(
            f'"{name}" is neither a file nor one of {", ".join(TALAS_SETS)}; '
            "other benchmarks come from MTEB, which is not installed",
            remedy="pip install 'distilvec[mteb]', or describe the task in a YAML file.",
        )
    import mteb

    try:
        return MtebTask(mteb.get_task(name))
    except KeyError as error:
        known = {task.metadata.name for task in mteb.get_tasks()}
        raise DistilvecError(f'MTEB has no task "{name}"', remedy=nearest(name, known)[:300]) from error


class _MtebEncoder:
    """An encoder as MTEB wants it: batches of a data loader in, an array out, queries told from documents."""

    def __init__(self, encode: Encode) -> None:
        from mteb.models.model_meta import ModelMeta

        name = str(getattr(encode, "name", "model")).replace("/", "_").replace("\\", "_")
        self._encode = encode
        self.mteb_model_meta = ModelMeta.create_empty({"name": f"distilvec/{name}", "revision": "local"})

    def encode(self, inputs: Any, *, prompt_type: Any = None, **ignored: Any) -> Any:
        texts = [text for batch in inputs for text in batch["text"]]
        name = getattr(prompt_type, "value", prompt_type)
        call = side(self._encode, name) if name in ("query", "document") else self._encode
        return np.asarray(call(texts))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)
