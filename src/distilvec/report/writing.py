"""What the report says of models that write: scores beside ROUGE-L, and a few answers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.report.grid import Cell, Grid
from distilvec.report.record_parts import Part, clip
from distilvec.words import number, points

#: Characters of a prompt or answer in a table.
LONGEST = 300


class WritingFacts(Part):
    """One model on one task of kind generation.

    Attributes:
        rouge_l, exact_match: of the likeliest answers, fractions.
        sampled, sampled_deviation: mean and deviation over seeds of the ROUGE-L of drawn answers; None without any.
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


class WrittenAnswer(Part):
    """One prompt with its answer, and what each model writes."""

    task: str
    prompt: str
    answer: str
    written: dict[str, str]


def writing_facts(scores: Mapping[str, Mapping[str, Any]]) -> list[WritingFacts]:
    """Of model -> task -> `judging.Score`, those of kind generation."""
    return [
        WritingFacts(
            model=model,
            task=task,
            rouge_l=score.value,
            **{name: value for name, value in score.details.items() if name in WritingFacts.model_fields},
        )
        for model, each in scores.items()
        for task, score in each.items()
        if score.kind == "generation"
    ]


def written_answers(scores: Mapping[str, Mapping[str, Any]]) -> list[WrittenAnswer]:
    """The answers that the scores brought along, all models' together."""
    answers: dict[tuple[str, str], WrittenAnswer] = {}
    for model, each in scores.items():
        for task, score in each.items():
            for one in score.details.get("written", ()):
                new = WrittenAnswer(task=task, prompt=one["prompt"], answer=one["answer"], written={})
                answers.setdefault((task, one["prompt"]), new).written[model] = one["written"]
    return list(answers.values())


def writing_grid(found: Sequence[WritingFacts]) -> Grid:
    """One row per task and model."""
    rows = []
    for each in sorted(found, key=lambda one: [other.task for other in found].index(one.task)):
        drawn = points(each.sampled)
        if each.sampled is not None and each.sampled_deviation is not None:
            drawn += f" ± {points(each.sampled_deviation)}"
        cells = [each.task, each.model, points(each.rouge_l), drawn, points(each.exact_match)]
        cells += [f"{each.loss:.3f}", f"{each.bits_per_byte:.3f}", number(each.tokens_per_second)]
        rows.append([Cell(cell) for cell in cells])
    header = ["task", "model", "ROUGE-L", "drawn", "exact", "nats per token", "bits per byte", "tokens per second"]
    note = (
        "ROUGE-L and exact match of the likeliest answers, times 100; drawn: ROUGE-L of answers drawn from the model's "
        "own distribution, mean and deviation over seeds. Of models with different tokenizers compare bits per byte, "
        "not nats per token."
    )
    cut = [f"{each.model} on {each.task}: {each.cut:,}" for each in found if each.cut]
    notes = [f"Right answers that were longer than the model reads, and count as far: {'; '.join(cut)}."] if cut else []
    return Grid(header, rows, [note, *notes])


def answers_grid(found: Sequence[WrittenAnswer]) -> Grid:
    """One row per prompt, one column per model."""
    models = list(dict.fromkeys(model for each in found for model in each.written))
    rows = [
        [Cell(clip(text, LONGEST)) for text in (one.prompt, one.answer, *(one.written.get(m, "") for m in models))]
        for one in found
    ]
    return Grid(["prompt", "answer", *models], rows, [])
