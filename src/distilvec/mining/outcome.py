"""The results of mining: the pairs, written to a file; counts, distributions, and twenty rows to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus import Corpus
from distilvec.corpus.rows import excerpt
from distilvec.files import read_record, write_record, write_text
from distilvec.mining.choosing import Chosen
from distilvec.mining.sides import Pairs, Side
from distilvec.showing import Shown

#: Rows that are shown.
SHOWN = 20
#: Characters of a text that are shown.
_LONGEST = 90
PAIRS, SUMMARY, PAGE = "mined.jsonl", "mining.json", "mining.md"
_ROWS = 4096
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(repr=False)
class Mined(Shown):
    """The result of `mine`.

    Attributes:
        folder: with mined.jsonl, mining.json and mining.md.
        columns: the text columns of mined.jsonl, for `corpus.text` of a recipe.
        teacher: whose vectors were searched.
        pairs: how many queries with a positive there were; `whole` of them got all their negatives, `none` got none.
        negatives: how many were found, `random` of them drawn at random.
        documents: how many could have been one.
        left_out: further documents that are none because they are texts of held-out pairs.
        candidates: how many of the nearest documents within the ranks, of all queries, met the filters.
        taken: filter -> how many of them it took, each of what those before it left.
        unknown: pairs left without negatives because the teacher has no vector for query or positive.
        shared: held-out pairs left without because other pairs are trained on with their query or positive.
        quantiles: "positive", "negative" -> similarities at 5, 25, 50, 75 and 95 percent.
        shown: some rows: query, positive, scores.
        seconds: of searching and choosing, without the teacher's encoding, in the last call.
        digest: of all that decides the outcome.
    """

    folder: Path
    columns: list[str]
    teacher: str
    digest: str
    pairs: int = 0
    whole: int = 0
    none: int = 0
    negatives: int = 0
    random: int = 0
    documents: int = 0
    left_out: int = 0
    candidates: int = 0
    unknown: int = 0
    shared: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    quantiles: dict[str, list[float]] = field(default_factory=dict)
    shown: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def file(self) -> Path:
        """The pairs with their negatives."""
        return self.folder / PAIRS

    def write(self) -> None:
        """Write the summary and the page into the folder."""
        write_text(self.folder / PAGE, self.page())
        write_record(self.folder / SUMMARY, {key: value for key, value in asdict(self).items() if key != "folder"})

    @classmethod
    def read(cls, folder: Path) -> Mined | None:
        """Return what an earlier call left; None if that is not there, or is damaged."""
        record = read_record(folder / SUMMARY)
        record.pop("own_checksum", None)
        try:
            return cls(folder=folder, **record)
        except TypeError:
            return None

    def text(self) -> str:
        """Return what a terminal shows."""
        return "\n".join(self._lines())

    def page(self) -> str:
        """The same as markdown."""
        told = "\n".join(f"    {line}".rstrip() for line in self._lines())
        return f"# Mined with {self.teacher}\n\n{told}\n"

    def _named(self) -> str:
        return repr(str(self.folder))

    def _repr_markdown_(self) -> str:
        return self.page()

    def _lines(self) -> list[str]:
        fewer = self.pairs - self.whole - self.none
        lines = [
            f"{self.pairs:,} pairs, {self.documents:,} documents, searched with {self.teacher}: {self.negatives:,} "
            f"negatives, {self.random:,} of them drawn at random; {self.seconds:,.0f} s",
            f"{self.whole:,} pairs with all negatives, {fewer:,} with fewer, {self.none:,} without",
        ]
        if self.unknown:
            lines.append(f"{self.unknown:,} pairs are without because the teacher has no vector for one of their texts")
        if self.shared:
            lines.append(
                f"{self.shared:,} held-out pairs are without because other pairs are trained on with one of their texts"
            )
        if self.left_out:
            lines.append(f"{self.left_out:,} of the further documents are texts of held-out pairs, and left out")
        lines += ["", f"{self.candidates:,} candidates within the ranks, beside the queries' own; the filters took"]
        lines += [f"  {number:>12,}  {name}" for name, number in self.taken.items()]
        if self.quantiles:
            lines += ["", "similarity to the query at     5 %    25 %    50 %    75 %    95 %"]
            lines += [
                f"  {name:<22}" + "".join(f"{value:8.3f}" for value in values)
                for name, values in self.quantiles.items()
            ]
        for row in self.shown:
            lines += [
                "",
                f"query            {excerpt(row['query'], _LONGEST)}",
                _scored(row["score"], "positive", row["positive"]),
            ]
            for each in row["negatives"]:
                place = f"rank {each['rank']}" if each["rank"] else "random"
                lines.append(_scored(each["score"], place, each["text"]))
        lines += ["", f"pairs       {self.file}", f"in a recipe text: [{', '.join(self.columns)}]"]
        return lines


def _scored(score: float, place: str, text: str) -> str:
    return f"  {score:6.3f} {place:<8} {excerpt(text, _LONGEST)}"


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
