"""What watches a run: the log on disk, the progress line, and a polite end when somebody interrupts."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from distilvec.errors import GO_ON
from distilvec.files import write_text
from distilvec.interruption import StopSignals
from distilvec.system_errors import system_problem
from distilvec.training.distributed import any_rank

logger = logging.getLogger(__name__)


class RunLog(TrainerCallback):
    """Append every logged value to `run.jsonl`, one JSON object a line.

    A resumed run cuts the file to the step it resumes from, so that no step is there twice.

    Args:
        file: the log; made when missing.
        resume_step: keep the entries up to this step; None starts the log anew.
    """

    def __init__(self, file: Path, resume_step: int | None = None) -> None:
        self.file = file
        kept: list[str] = []
        if resume_step is not None and file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            kept = [line for line in lines if _step(line) <= resume_step]
        write_text(file, "".join(line + "\n" for line in kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            with _room(self.file), self.file.open("a") as out:
                out.write(json.dumps({"step": state.global_step, **logs}) + "\n")


@contextlib.contextmanager
def _room(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise system_problem(error, "the log cannot be written", file, f"Then {GO_ON}.") from error


def _step(line: str) -> float:
    """The step of a log line; one that a crash cut short, and the summary at a training's end, count as never."""
    try:
        entry = json.loads(line)
        return float("inf") if "train_runtime" in entry else float(entry["step"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return float("inf")


class Progress(TrainerCallback):
    """Rate, time left and loss: a bar on a terminal, one line every 30 s elsewhere.

    Args:
        show: (done, total, what) -> None, called at every step; decides itself when to print.
    """

    def __init__(self, show: Callable[[int, int, str], None]) -> None:
        self.show, self.loss = show, ""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            self.loss = f"loss {logs['loss']:.4f}"

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            self.show(state.global_step, state.max_steps, self.loss)


class StopPolitely(TrainerCallback):
    """End the training where a signal was noted: finish the step, save a checkpoint.

    A signal to one process of several stops them all at the same step.

    Attributes:
        signals: what came to this process.
        stopped: whether the training was ended here, by a signal to this process or to another.
    """

    def __init__(self, signals: StopSignals) -> None:
        self.signals, self.stopped = signals, False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if any_rank(self.signals.number is not None):
            self.stopped = control.should_save = control.should_training_stop = True


class SaveByTime(TrainerCallback):
    """Save a checkpoint where the last one, or the start, is longer ago than `seconds`.

    Asked at every sixteenth step, because several processes have to agree on it.
    """

    def __init__(self, seconds: float = 1800.0) -> None:
        self.seconds, self.last = seconds, time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step % 16 == 0 and any_rank(time.monotonic() - self.last > self.seconds):
            control.should_save = True


class Ticker:
    """Prints progress: a rewritten line on a terminal, otherwise one line every `every` seconds.

    Args:
        what: what is being done.
        unit: what is counted.
    """

    def __init__(self, what: str, unit: str = "texts", every: float = 30.0) -> None:
        self.what, self.unit, self.every = what, unit, every
        self.start = self.last = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.first: int | None = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = done
            self.start = now
        if now - self.last < (0.2 if self.terminal else self.every) and done < total:
            return
        self.last = now
        rate = (done - self.first) / max(now - self.start, 1e-9)
        left = f"{(total - done) / rate:,.0f} s left" if rate > 0 else "..."
        line = f"{self.what}: {done:,}/{total:,} {self.unit}, {rate:,.1f}/s, {left}" + (f", {note}" if note else "")
        if self.terminal:
            sys.stderr.write("\r\x1b[2K" + line + ("\n" if done >= total else ""))
        elif done < total or self.first < total:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
