"""Steps per second of whole trainings, data loading included: distilvec's loop and sentence-transformers' trainer.

Both train a copy of the same student by cosine distance after a linear map, on the same batches of the same texts in
the same order, with the same optimiser. sentence-transformers' trainer is measured twice: with the teacher's vectors
in a list column, as its documentation has it, and with a dataset transform that reads them from an array by row.
It is `benchmarks/step.py` that runs this and writes the results.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler
from transformers import TrainerCallback
from workload import TEACHER_WIDTH, Workload

from distilvec.training import TokenizedCorpus

OURS = "distilvec, cosine"
LIST = "sentence-transformers, EmbedDistillLoss"
ARRAY = "sentence-transformers, EmbedDistillLoss, vectors by a transform"
#: The first steps are left out: they allocate the optimiser's state.
WARM = 5


class Clock(TrainerCallback):
    """Wall and processor seconds from the end of step `WARM` to the end of the last one."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.mark()

    def seconds_per_step(self) -> tuple[float, float]:
        (wall, busy), (last_wall, last_busy) = self.marks[WARM - 1], self.marks[-1]
        steps = len(self.marks) - WARM
        return (last_wall - wall) / steps, (last_busy - busy) / steps


class Given(BatchSampler):
    """Batches decided beforehand."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def ours(work: Workload, steps: int) -> tuple[float, float]:
    clock, loop = Clock(), work.loop("cosine", steps)
    step = loop.step

    def timed(window: list[dict[str, Any]]) -> Any:
        norm = step(window)
        clock.mark()
        return norm

    loop.step = timed  # type: ignore[method-assign]
    loop.train()
    return clock.seconds_per_step()


def theirs(work: Workload, steps: int, *, by_transform: bool) -> tuple[float, float]:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
    from transformers import PrinterCallback

    vectors = work.store.read(work.store.rows(work.corpus.keys))
    texts = work.corpus.texts()
    if by_transform:
        dataset = Dataset.from_dict({"text": texts, "label": list(range(len(texts)))})

        def read(batch: dict[str, list[Any]]) -> dict[str, Any]:
            return {"text": batch["text"], "label": list(vectors[np.asarray(batch["label"])])}

        dataset.set_transform(read)
    else:
        dataset = Dataset.from_dict({"text": texts, "label": vectors.tolist()})
    student, clock = copy.deepcopy(work.student), Clock()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work.folder / "runs" / "sentence-transformers"),
        max_steps=steps,
        per_device_train_batch_size=work.batch_size,
        learning_rate=1e-4,
        weight_decay=0.01,
        lr_scheduler_type="cosine",
        warmup_steps=0.06,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=work.device.type == "cpu",
        bf16=work.device.type == "cuda",
        dataloader_pin_memory=work.device.type == "cuda",
        batch_sampler=lambda dataset, **_: Given(work.batch_rows()),
    )
    trainer = SentenceTransformerTrainer(
        model=student,
        args=arguments,
        train_dataset=dataset,
        loss=EmbedDistillLoss(student, "cosine", projection_dim=TEACHER_WIDTH),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds_per_step()


def compare(work: Workload, steps: int, rounds: int) -> dict[str, Any]:
    """All three in turn, `rounds` times; and what tokenising ahead costs ours, per step of one epoch."""
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        OURS: lambda: ours(work, steps),
        LIST: lambda: theirs(work, steps, by_transform=False),
        ARRAY: lambda: theirs(work, steps, by_transform=True),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            seconds[name].append(ways[name]())
    began = time.process_time()
    TokenizedCorpus.build(work.student, work.corpus.texts, len(work.corpus), work.folder / "tokens-again")
    tokenising = (time.process_time() - began) * work.batch_size / len(work.corpus)
    return {"seconds_per_step": seconds, "tokenising_seconds_per_step": tokenising, "steps": steps}
