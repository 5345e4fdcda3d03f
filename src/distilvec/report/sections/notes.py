"""Notes for a reader of the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from distilvec.judging import TRAINED
from distilvec.judging.verdict import FEWEST, too_few
from distilvec.report.sections.base import Block, Bullets, Data, Outcome


class Notes(Data):
    """One sentence each: on the run, on each task, and those that the flow adds."""

    lines: list[str]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        judged = outcome.verdict.judged
        lines = list(_of_run(outcome))
        for task, score in (judged.scores[TRAINED] if judged else {}).items():
            lines += _of_task(task, score)
        absent = sum(each.filled.absent for each in outcome.taught)
        if absent:
            lines.append(
                f"The teachers have no vector for {absent:,} {outcome.items}, which do not count in their terms."
            )
        lines += outcome.notes
        return cls(lines=lines) if lines else None

    def blocks(self) -> list[Block]:
        return [Bullets(self.lines)]


def _of_run(outcome: Outcome) -> Iterator[str]:
    names, held, shared = outcome.teacher_names, len(outcome.held_out), outcome.corpus.audit.shared
    if outcome.fitted.skipped:
        yield f"{outcome.fitted.skipped:,} sharpness-aware steps were left out because their gradient was not finite."
    if shared:
        yield f"{shared:,} held-out texts are also in a training pair; they are neither trained on nor held out."
    if len(names) > 1:
        yield f"What is kept, the agreement and the free baseline are measured against the first teacher, {names[0]}."
    if not names and not outcome.corpus.kind.ranks:
        yield "There is no teacher in this run, so nothing is compared with one."
    if not outcome.verdict.agreement and 0 < held < FEWEST and names:
        yield f"{too_few(held)}."
    if outcome.recipe.training.best_by_agreement:
        yield "The checkpoint was chosen by agreement on the held-out items that are measured."
    if outcome.recipe.judging.compression and outcome.compression is None:
        yield f"No table of compressed forms: it takes {FEWEST} held-out texts, and there are fewer."


def _of_task(task: str, score: Any) -> Iterator[str]:
    from distilvec.judging import RetrievalTask

    items = f"{score.n:,} test items of the task {task}"
    if rejected := score.details.get("rejected"):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        yield f"Rows of the task {task} that were left out: {reasons}."
    if known := score.details.get("known"):
        yield f"{known:,} of the {items} are among its training items."
    if unknown := score.details.get("unknown_labels"):
        yield f"{unknown:,} of the {items} have a label that no training item has."
    for remark in RetrievalTask.remarks(score.details):
        yield f"Task {task}: {remark}."
    if repeated := score.details.get("repeated"):
        yield f"{repeated:,} items of the task {task} occur twice and may be both trained on and tested."
