"""The log of a training: the sums between two lines, the file on disk, and trackers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distilvec.errors import GO_ON, EnvironmentProblem
from distilvec.files import write_text
from distilvec.system_errors import system_problem
from distilvec.training.distributed import mean_over_ranks

if TYPE_CHECKING:
    from accelerate import Accelerator

    from distilvec.recipe import OptimizerSection, TrainingSection


@dataclass
class Sums:
    """The sums since the last line of the log; kept in checkpoints.

    Attributes:
        loss: of the steps since the last line.
        total: of all steps before it.
        logged: step of the last line.
        terms, counts: of the micro-batches since then. A term is summed over the items that count in it, or, where all
            do, over the micro-batches that have it; counts are how many they were.
        batches: how many micro-batches they were.
        skipped: steps left out because their gradient at the perturbed weights was not finite.
        seconds: of the training up to the checkpoint.
    """

    loss: float | Tensor = 0.0
    total: float = 0.0
    logged: int = 0
    terms: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor | int] = field(default_factory=dict)
    batches: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, result: dict[str, Any]) -> None:
        """Note the terms of a micro-batch."""
        for name, value in result["terms"].items():
            count = result["counts"].get(name, 1)
            # Terms of a checkpoint that has no counts of them count as those of all its micro-batches.
            before = self.counts.get(name, self.batches if name in self.terms else 0)
            self.terms[name] = self.terms.get(name, 0) + value * count
            self.counts[name] = before + count
        self.batches += 1

    def entry(self, step: int) -> dict[str, float]:
        """Means since the last line, over all processes; the next line begins here."""
        loss = float(mean_over_ranks(torch.as_tensor(self.loss)))
        found = {"loss": loss / max(step - self.logged, 1)}
        if self.terms:
            sums = mean_over_ranks(torch.stack(list(self.terms.values()))).tolist()
            for name, value in zip(self.terms, sums, strict=True):
                # Of the items that count; a teacher that had none of them has said nothing.
                count = float(self.counts.get(name, self.batches))
                if count:
                    found[f"term/{name}"] = value / count
        if self.skipped:
            found["skipped_steps"] = self.skipped
        self.total, self.loss, self.logged = self.total + loss, 0.0, step
        self.terms, self.counts, self.batches = {}, {}, 0
        return found


class RunLog:
    """Appends every logged value to `run.jsonl`, one JSON object a line, and hands it to the trackers.

    A resumed run cuts the file to the step it resumes from, so that no step is there twice.

    Args:
        file: the log; None in all processes but the first.
        accelerator: with its trackers.
        step: keep the entries up to this one; None begins an empty log.
    """

    def __init__(self, file: Path | None, accelerator: Accelerator, step: int | None = None) -> None:
        self.file, self.accelerator = file, accelerator
        if file is None:
            return
        kept: list[str] = []
        if step is not None and file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            kept = [line for line in lines if _step(line) <= step]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, "".join(line + "\n" for line in kept))

    def open_trackers(self, training: TrainingSection, optimizer: OptimizerSection) -> None:
        """Begin the run in every tracker, with the recipe's values."""
        values = {**optimizer.model_dump(exclude={"sharpness"}), **training.model_dump()}
        plain = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
        named = {"wandb": "name", "trackio": "name", "mlflow": "run_name"}
        names = {each: {key: training.run_name} for each, key in named.items() if training.run_name}
        try:
            self.accelerator.init_trackers(training.project, plain, names)
        except Exception as error:  # each has errors of its own
            raise EnvironmentProblem(
                f"{' and '.join(training.report_to)} cannot be begun ({error})", where="training.report_to"
            ) from error

    def write(self, entry: dict[str, Any]) -> None:
        """Append one entry, which has its step."""
        if self.file is not None:
            try:
                with self.file.open("a") as out:
                    out.write(json.dumps(entry) + "\n")
            except OSError as error:
                raise system_problem(error, "the log cannot be written", self.file, f"Then {GO_ON}.") from error
        self.accelerator.log({name: value for name, value in entry.items() if name != "step"}, step=entry["step"])

    def close(self) -> None:
        """End the run in every tracker."""
        for tracker in self.accelerator.trackers:
            tracker.finish()


def _step(line: str) -> float:
    """The step of a log line; one that a crash cut short, and the summary at a training's end, count as never."""
    try:
        entry = json.loads(line)
        return float("inf") if "train_runtime" in entry else float(entry["step"])
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError):
        return float("inf")
