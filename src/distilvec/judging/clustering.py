"""Clusters of the embeddings against known groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from distilvec.errors import DataError
from distilvec.judging.encoder import Encode
from distilvec.judging.metrics import measure
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import JudgingTask, same_length, sampled, unit


class ClusteringTask(JudgingTask):
    """V-measure of mini-batch k-means on unit vectors, k = number of groups, mean over several starts.

    The interval is over items with the clusters as found; the spread over starts is in the details.

    Args:
        labels: the known group of each, compared as text.
        max_items: cap on items, a seeded sample.
    """

    kind: ClassVar[str] = "clustering"

    def __init__(
        self,
        name: str,
        texts: Sequence[str],
        labels: Sequence[Any],
        *,
        starts: int = 5,
        max_items: int | None = None,
        domain: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, domain, seed)
        same_length(name, text=texts, label=labels)
        rows = sampled(range(len(texts)), max_items, np.random.default_rng(seed))
        self._texts = [texts[row] for row in rows]
        names, codes = np.unique(np.array([str(labels[row]) for row in rows]), return_inverse=True)
        if len(names) < 2:
            raise DataError(f'all {len(rows)} items have the same label, "{names[0]}"', where=f"task {name}")
        self._codes, self.clusters, self.starts = codes.astype(np.int32), len(names), starts

    def test_items(self) -> list[tuple[str, ...]]:
        return [(text,) for text in self._texts]

    def score(self, encode: Encode) -> Score:
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning

        vectors = unit(encode(self._texts))
        assignments = []
        for start in range(self.starts):
            kmeans = MiniBatchKMeans(self.clusters, batch_size=1024, n_init=3, random_state=self.seed + start)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than groups: collapse
                assignments.append(kmeans.fit_predict(vectors).astype(np.int32))
        clusters = np.stack(assignments)
        each = [measure("v_measure", self._codes, row) for row in clusters]
        details = {"clusters": self.clusters, "starts": self.starts, "deviation": float(np.std(each))}
        return self._scored(Outputs("v_measure", self._codes, clusters), details)
