"""The order of the documents that a search by words found first: before, and by each model."""

from __future__ import annotations

from typing import Self

from distilvec.report.grid import Cell
from distilvec.report.rows import ScoreEntry, entry_of, score_cell
from distilvec.report.sections.base import Block, Data, Outcome, RecordPart, table
from distilvec.words import number, points


class RerankingFacts(RecordPart):
    """One model on one task of kind reranking.

    Attributes:
        found: share of right documents among the first `depth` of the search `first`.
        milliseconds: for all documents of one query; None of what is not computed anew.
    """

    model: str
    task: str
    ndcg: ScoreEntry
    mrr: ScoreEntry
    found: float
    first: str
    depth: int
    milliseconds: float | None = None


class Reranking(Data):
    scores: list[RerankingFacts]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        rows = []
        for model, by_task in (outcome.verdict.judged.scores if outcome.verdict.judged else {}).items():
            for task, score in by_task.items():
                if score.kind != "reranking":
                    continue
                facts = score.details
                low, high = facts["mrr_interval"] or (None, None)
                mrr = ScoreEntry(metric="mrr@10", value=facts["mrr@10"], low=low, high=high)
                kept = {name: facts[name] for name in ("found", "first", "depth", "milliseconds")}
                rows.append(RerankingFacts(model=model, task=task, ndcg=entry_of(score), mrr=mrr, **kept))
        return cls(scores=rows) if rows else None

    def blocks(self) -> list[Block]:
        known = {each.task: each for each in self.scores}
        rows: list[list[str | Cell]] = [
            [each.task, each.model, score_cell(each.ndcg), score_cell(each.mrr), number(each.milliseconds)]
            for each in sorted(self.scores, key=lambda one: list(known).index(one.task))
        ]
        notes = [
            f"{task}: the first {one.depth} documents that {one.first} finds for each query are put into order. Of the "
            f"right documents {points(one.found)} % are among them; the others are out of reach for every model."
            for task, one in known.items()
        ]
        return [table(["task", "order by", "nDCG@10", "MRR@10", "ms per query"], rows, *notes, title="Reranking")]
