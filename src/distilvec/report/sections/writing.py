"""Answers of models that write: scores with ROUGE-L, and a few answers side by side."""

from __future__ import annotations

from typing import Self

from distilvec.report.sections.base import Block, Data, Outcome, RecordPart, Table, clip, table
from distilvec.words import number, points

#: Characters of a prompt or answer in a table.
LONGEST = 300


class WritingFacts(RecordPart):
    """One model on one task of kind generation.

    Attributes:
        rouge_l, exact_match: of the likeliest answers, fractions.
        sampled, sampled_deviation: mean and deviation over seeds of the ROUGE-L of sampled answers; None without any.
        loss: nats per token of the right answers; not comparable across tokenizers.
        bits_per_byte: of the right answers; comparable.
        cut: right answers whose end the model's length left out.
        tokens_per_second: written, on the record's machine.
    """

    model: str
    task: str
    rouge_l: float
    exact_match: float
    sampled: float | None = None
    sampled_deviation: float | None = None
    loss: float
    bits_per_byte: float
    cut: int = 0
    tokens_per_second: float | None = None


class WrittenAnswer(RecordPart):
    task: str
    prompt: str
    answer: str
    written: dict[str, str]


class Writing(Data):
    scores: list[WritingFacts]
    answers: list[WrittenAnswer]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        found, answers = [], dict[tuple[str, str], WrittenAnswer]()
        for model, by_task in (outcome.verdict.judged.scores if outcome.verdict.judged else {}).items():
            for task, score in by_task.items():
                if score.kind != "generation":
                    continue
                details = {name: value for name, value in score.details.items() if name in WritingFacts.model_fields}
                found.append(WritingFacts(model=model, task=task, rouge_l=score.value, **details))
                for one in score.details.get("written", ()):
                    new = WrittenAnswer(task=task, prompt=one["prompt"], answer=one["answer"], written={})
                    answers.setdefault((task, one["prompt"]), new).written[model] = one["written"]
        return cls(scores=found, answers=list(answers.values())) if found else None

    def blocks(self) -> list[Block]:
        if not self.answers:
            return [self.table()]
        models = list(dict.fromkeys(model for each in self.answers for model in each.written))
        rows = [
            [clip(text, LONGEST) for text in (one.prompt, one.answer, *(one.written.get(m, "") for m in models))]
            for one in self.answers
        ]
        return [self.table(), table(["prompt", "answer", *models], rows, title="A few answers", kind="texts")]

    def table(self) -> Table:
        rows = []
        tasks = [each.task for each in self.scores]
        for each in sorted(self.scores, key=lambda one: tasks.index(one.task)):
            sampled = points(each.sampled)
            if each.sampled is not None and each.sampled_deviation is not None:
                sampled += f" ± {points(each.sampled_deviation)}"
            rows.append([each.task, each.model, points(each.rouge_l), sampled, points(each.exact_match)])
            rows[-1] += [f"{each.loss:.3f}", f"{each.bits_per_byte:.3f}", number(each.tokens_per_second)]
        header = ["task", "model", "ROUGE-L", "sampled", "exact"]
        header += ["nats per token", "bits per byte", "tokens per second"]
        notes = [
            "ROUGE-L and exact match of the likeliest answers, times 100; sampled: ROUGE-L of answers sampled from the "
            "model's own distribution, mean and deviation over seeds. To compare models with different tokenizers, use "
            "bits per byte, not nats per token."
        ]
        if cut := [f"{each.model} on {each.task}: {each.cut:,}" for each in self.scores if each.cut]:
            notes.append(f"Right answers longer than the model reads, which are scored up to there: {'; '.join(cut)}.")
        return table(header, rows, *notes, brief=True)
