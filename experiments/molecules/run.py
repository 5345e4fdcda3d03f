"""Many teachers of molecules, one student (the many-teachers paper's molecules: Table 2, Figures 4, 5, 8-10, 12)."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from experiments.harness.bench import Bench, named_rows
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, shared
from experiments.molecules.rows import (
    BATCH,
    EPOCHS,
    GROUPS,
    HOLDOUT,
    KERNEL_WIDTH,
    NETWORKS,
    QUICK,
    ROWS,
    SEEDS,
    TEACHERS,
    Row,
    Size,
    compressed_descriptors,
    read_probes,
)
from experiments.molecules.table import EXPERIMENT, write_page

from distilvec.corpus import Corpus
from distilvec.judging import CachedEncoder
from distilvec.judging.perceptron import disagreement
from distilvec.judging.scores import Score
from distilvec.modules.molecule import Graph, collate, graphs_of
from distilvec.recipe import CallSection, ModelSection, Recipe, TeacherSection
from distilvec.training import Fitted


class Molecules(Bench):
    """Corpora, teachers, stores and tasks, made once and shared by all rows."""

    rows = ROWS

    def __init__(self, size: Size, results: Results, device: str | None = None) -> None:
        super().__init__(results, device)
        self.size = size
        self.probes = read_probes(shared() / "data" / "molecules", size)
        self._probed: dict[str, dict[str, Score]] = {}

    @functools.cached_property
    def graphs(self) -> dict[str, Graph]:
        """Of all molecules of the tasks, for the students."""
        smiles = sorted({text for task in self.probes.tasks for text in task.texts()}, key=len)
        return dict(zip(smiles, graphs_of(smiles), strict=True))

    def section(self, name: str) -> TeacherSection:
        if name in NETWORKS:
            return ModelSection(name=name, model=str(shared() / "models" / f"{NETWORKS[name]}.safetensors"))
        if name == "morgan":
            return CallSection(name=name, call="distilvec.teachers.molecule:morgan", batch_size=512)
        # Their sums and products are large for 16 bits.
        return CallSection(name=name, call=compressed_descriptors, batch_size=512, storage="float32")

    def recipe(self, name: str, seed: int) -> Recipe:
        row = ROWS[name]
        pool = min(row.pool, self.size.pool)
        epochs = self.size.epochs * self.size.pool / pool * (0.2 if row.large else 1)
        return Recipe.build(
            {
                "corpus": {
                    "path": str(shared() / "data" / "molecules" / "pool_muv_40000.smi.gz"),
                    "modality": "molecule",
                    "limit": pool,
                    "holdout": HOLDOUT if self.size.rows is None else 0.25,
                },
                "teachers": [self.section(teacher).model_dump() for teacher in row.teachers],
                "student": {
                    "molecule": {
                        "kind": row.encoder,
                        "layers": 10 if row.large else 5,
                        "width": 512 if row.large else 128,
                    }
                },
                "method": {
                    "name": row.method or "gaussian",
                    "depth": row.depth,
                    "width": 1024 if row.large else KERNEL_WIDTH,
                    "init": "random",  # as published; the student starts from nothing too
                    **row.options,
                },
                "training": {
                    "epochs": epochs,
                    "batch_size": self.size.batch,
                    "seed": seed,
                    "save_every": 1_000_000,
                    "logging_steps": 10,
                    "lr_scheduler_type": "linear",
                    **self.place,
                },
                "optimizer": {"lr": 1e-3, "heads_lr": 1e-3, "weight_decay": 0.0},
                "cache": str(self.work / "cache"),
                "output": str(self.work / "runs" / f"{name.replace(' ', '_')}-{seed}"),
            }
        )

    def teacher(self, name: str) -> dict[str, Score]:
        """Its probes; their outputs are kept beside the corpora, for the disagreement with the students."""
        outputs = self.work / "outputs" / f"{name}-{digest(self.results.settings)}.json"
        self.results.run(f"teacher-{name}", functools.partial(self.teacher_row, name, outputs), teacher=name)
        if not outputs.exists():
            self.teacher_row(name, outputs)
        if name not in self._probed:
            found = [Score.from_dict(score) for score in json.loads(outputs.read_text())]
            self._probed[name] = {score.task: score for score in found}
        return self._probed[name]

    def teacher_row(self, name: str, outputs: Path) -> dict[str, Any]:
        result = {"teacher": name, **self._probe(name, CachedEncoder(self.taught(name).teacher))}
        outputs.parent.mkdir(parents=True, exist_ok=True)
        outputs.write_text(json.dumps([score.to_dict(outputs=True) for score in self._probed[name].values()]))
        return result

    def columns(self) -> dict[str, Any]:
        """What is known of the columns, the same for every row."""
        return {"items": self.probes.items, "refused": self.probes.refused}

    def facts(self, row: Row, corpus: Corpus, fitted: Fitted) -> dict[str, Any]:
        return {
            "teachers": list(row.teachers),
            "molecules": len(corpus.train_rows),
            "parameters": {"student": fitted.trained, "kernels": fitted.heads},
            "curve": [[entry["step"], round(entry["loss"], 5)] for entry in fitted.log if "loss" in entry],
        }

    def judged(self, label: str, student: Any) -> dict[str, Any]:
        found = self._probe(label, CachedEncoder(functools.partial(self.embed, student)))
        return {**found, "disagreement": self.disagreements(self._probed.pop(label))}

    @torch.inference_mode()
    def embed(self, student: Any, smiles: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [n, d], from the graphs that are there already."""
        student.eval()
        parts = []
        for start in range(0, len(smiles), BATCH):
            features = collate([self.graphs[text] for text in smiles[start : start + BATCH]])
            states = student[0]({name: tensor.to(student.device) for name, tensor in features.items()})
            parts.append(states["sentence_embedding"].float().cpu().numpy())
        return np.concatenate(parts)

    def _probe(self, label: str, encode: CachedEncoder) -> dict[str, Any]:
        start = time.perf_counter()
        encode([text for task in self.probes.tasks for text in task.texts()])
        encoded = time.perf_counter()
        scores = {task.name: task.score(encode) for task in self.probes.tasks}
        self._probed[label] = scores
        return {
            "tasks": {
                name: {
                    "metric": score.metric,
                    "value": score.value,
                    "values": score.details["values"],
                    "seeds": score.details["seeds"],
                    "epochs": score.details["epochs"],
                    "best_epochs": score.details["best_epochs"],
                    "skipped": score.details["skipped"],
                }
                for name, score in scores.items()
            },
            "encoding_seconds": round(encoded - start, 1),
            "probe_seconds": round(time.perf_counter() - encoded, 1),
        }

    def disagreements(self, scores: dict[str, Score]) -> dict[str, list[Any]]:
        """For each teacher the share of test items on which the two probes differ, by column of two classes (eq. 1)."""
        columns = [name for name, score in scores.items() if score.metric == "auroc"]
        found: dict[str, list[Any]] = {"columns": columns}
        for teacher in TEACHERS:
            theirs = self.teacher(teacher)
            found[teacher] = [round(disagreement(scores[name], theirs[name]), 5) for name in columns]
        return found


def main() -> None:
    parser = arguments(__file__, quick="a few steps on a few molecules, kept apart")
    parser.add_argument("--rows", default="default", help=f"default, {', '.join(GROUPS)}, or names, between commas")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="of the rows that are named; without --rows, of the main ones"
    )
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    options = parser.parse_args()
    size = QUICK if options.quick else Size(epochs=options.epochs)
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"size": dataclasses.asdict(size)}, work=work)
    if finished(options, results, write_page):
        return
    rows = named_rows(options.rows, GROUPS, "large")
    # Further seeds of everything would take hours.
    repeated = [row for row in rows if options.rows != "default" or row in GROUPS["main"]]
    run(Molecules(size, results, options.device), rows, repeated, options.seeds)
    print(write_page(results.rows(), results.home))


def run(bench: Molecules, rows: Sequence[str], repeated: Sequence[str], seeds: int) -> None:
    """Teachers first, then each row with seed 0, then the further seeds of those to be repeated."""
    bench.results.run("columns", bench.columns)
    bench.work_off(((f"teacher {name}", functools.partial(bench.teacher, name)) for name in TEACHERS), write_page)
    for seed in range(seeds):
        wanted = repeated if seed else rows
        bench.work_off(((f"{row}, seed {seed}", functools.partial(bench.row, row, seed)) for row in wanted), write_page)


if __name__ == "__main__":
    main()
