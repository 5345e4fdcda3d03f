"""Writes the mined pairs, and counts and shows some of what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from distilvec.corpus import Corpus
from distilvec.mining.choosing import Chosen
from distilvec.mining.outcome import SHOWN, Mined
from distilvec.mining.sides import Pairs, Side

_ROWS = 4096
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def texts_at(corpus: Corpus, further: Corpus | None, places: np.ndarray) -> list[str]:
    """Texts of corpus and further documents, numbered through, at int64 [n] places.

    They are without prompts, which the recipe that reads the mined file says again.
    """
    texts = np.empty(len(places), object)
    inside = places < len(corpus)
    texts[inside] = corpus.bare(places[inside])
    if further is not None:
        texts[~inside] = further.bare(places[~inside] - len(corpus))
    return list(texts)


class PairsWriter:
    """Writes rows of the mined file and counts what it writes.

    Args:
        out: an open file.
        texts: those at places int64 [n], see `texts_at`.
        total: rows to come, of which some are shown.
        given: how many negatives the corpus has a column for.
    """

    def __init__(
        self, out: Any, texts: Callable[[np.ndarray], list[str]], result: Mined, total: int, given: int
    ) -> None:
        self.out, self.texts, self.result, self.given = out, texts, result, given
        self._show = set(np.linspace(0, total - 1, min(SHOWN, total)).astype(int).tolist())
        self._written = 0
        self._similar: dict[str, list[np.ndarray]] = {"positive": [], "negative": []}

    def block(self, side: Side, chosen: np.ndarray, found: Chosen) -> None:
        """The pairs of a block."""
        result, there = self.result, found.numbers >= 0
        for name, number in found.taken.items():
            result.taken[name] = result.taken.get(name, 0) + number
        result.candidates += found.candidates
        counts = there.sum(1)
        result.whole += int((counts == there.shape[1]).sum())
        result.none += int((counts == 0).sum())
        result.negatives += int(counts.sum())
        result.random += int((there & (found.ranks == 0)).sum())
        self._similar["positive"].append(found.positives)
        self._similar["negative"].append(found.scores[there])
        queries, answers = self.texts(side.anchors[chosen]), self.texts(side.positives[chosen])
        negatives = iter(self.texts(side.documents.corpus[found.numbers[there]]))
        given = self._given(side.given[chosen])
        for row, (query, answer) in enumerate(zip(queries, answers, strict=True)):
            own = [next(negatives) for _ in range(int(counts[row]))]
            scores = [round(float(value), 4) for value in (found.positives[row], *found.scores[row][there[row]])]
            self._line([query, answer, *given[row]], own, scores)
            if self._written in self._show:
                ranks = found.ranks[row][there[row]].tolist()
                told = [
                    {"text": text, "score": score, "rank": rank}
                    for text, score, rank in zip(own, scores[1:], ranks, strict=True)
                ]
                result.shown.append({"query": query, "positive": answer, "score": scores[0], "negatives": told})
            self._written += 1

    def rest(self, pairs: Pairs, unasked: np.ndarray) -> None:
        """Pairs that are not asked: the teacher has no vectors for them, or a text of theirs is on the other side."""
        for start in range(0, len(unasked), _ROWS):
            chosen = unasked[start : start + _ROWS]
            self.result.none += len(chosen)
            queries, answers = self.texts(pairs.anchors[chosen]), self.texts(pairs.positives[chosen])
            for query, answer, given in zip(queries, answers, self._given(pairs.given[chosen]), strict=True):
                self._line([query, answer, *given], [], [])

    def _given(self, rows: np.ndarray) -> list[list[str | None]]:
        """Return the negatives that the corpus has for each pair, rows int64 [n, m]; None where a row has fewer."""
        texts = iter(self.texts(rows[rows >= 0]))
        found = [[next(texts) if row >= 0 else None for row in line] for line in rows.tolist()]
        return [line[: self.given] + [None] * (self.given - len(line)) for line in found]

    def _line(self, given: list[str | None], negatives: list[str], scores: list[float]) -> None:
        texts = [*given, *negatives]
        texts += [None] * (len(self.result.columns) - len(texts))
        row = {**dict(zip(self.result.columns, texts, strict=True)), "similarities": scores}
        self.out.write(json.dumps(row, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Say how similar what was found is."""
        for name, values in self._similar.items():
            every = np.concatenate(values) if values else np.zeros(0)
            if len(every):
                self.result.quantiles[name] = [round(float(x), 4) for x in np.quantile(every, _QUANTILES)]
