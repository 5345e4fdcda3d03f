"""Many teachers of molecules, one student (the many-teachers paper's molecules: Table 2, Figures 4, 5, 8-10, 12).

    python experiments/molecules.py                       # all rows but `large`: about 80 minutes on one core
    python experiments/molecules.py --rows main --seeds 3 # about 9 minutes for each further seed
    python experiments/molecules.py --rows main,depth --seeds 1
    python experiments/molecules.py --rows large          # 10 layers x 512, a fifth of the epochs
    python experiments/molecules.py --table

Teachers: four pretrained graph networks (gcn, graphsage, gat, molclr), the encoder of a chemical autoencoder (chemvae),
Morgan fingerprints and RDKit's descriptors (arcsinh of them: some span thirty orders of magnitude). Student: GINE, 5
layers of 128, from random weights, on 20,000 screening compounds without labels; batches of 256, learning rate 1e-3
falling linearly to 0. Kernels have hidden layers of 256 (as in the paper, twice the student's width). A smaller pool
gets the same number of steps. Nothing is tuned: the rows differ in what they are named after.

Probes: every column of the shared task files by a perceptron (hidden 128, Adam 1e-3, batches of 64) on frozen vectors,
five random splits 70/10/20, best validation epoch; area under the ROC curve, R2 for the three columns of numbers (none
of them on logarithms: the paper takes these for excretion tasks only, and there is none). Teachers and students alike.

Every row is kept as soon as it is there, so the script goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from common import WORK, once, shared
from molecule_rows import (
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
    Size,
    compressed_descriptors,
    named_rows,
    read_probes,
)
from molecule_tables import HERE, file_name, write_page

from distilvec.judging import CachedEncoder
from distilvec.judging.perceptron import disagreement
from distilvec.judging.scores import Score
from distilvec.modules.molecule import Graph, collate, graphs_of
from distilvec.preparing import make_student, prepare_corpus
from distilvec.recipe import Recipe, TeacherSection
from distilvec.run import train_student
from distilvec.teaching import Taught, teach_one


class Bench:
    """Corpora, teachers, stores and tasks, made once and shared by all rows."""

    def __init__(self, size: Size, here: Path, work: Path, device: str | None = None) -> None:
        self.size, self.here, self.work = size, here, work
        self.place: dict[str, Any] = {"use_cpu": True} if device == "cpu" else {}
        self.probes = read_probes(shared() / "data" / "molecules", size)
        self._probed: dict[str, dict[str, Score]] = {}

    @functools.cached_property
    def graphs(self) -> dict[str, Graph]:
        """Of all molecules of the tasks, for the students."""
        smiles = sorted({text for task in self.probes.tasks for text in task.texts()}, key=len)
        return dict(zip(smiles, graphs_of(smiles), strict=True))

    def section(self, name: str) -> TeacherSection:
        if name in NETWORKS:
            return TeacherSection(name=name, model=str(shared() / "models" / f"{NETWORKS[name]}.safetensors"))
        if name == "morgan":
            return TeacherSection(name=name, call="distilvec.teachers.molecule:morgan", batch_size=512)
        # Their sums and products are large for 16 bits.
        return TeacherSection(name=name, call=compressed_descriptors, batch_size=512, storage="float32")

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
                "output": str(self.work / "runs" / f"{file_name(name)}-{seed}"),
            }
        )

    @functools.cache  # noqa: B019  # one bench a process
    def taught(self, teacher: str) -> Taught:
        """The teacher with its vectors of the whole pool stored."""
        recipe = self.recipe("gaussian", 0)
        return teach_one(self.section(teacher), prepare_corpus(recipe), recipe.place / "stores")

    def teacher(self, name: str) -> dict[str, Score]:
        """Its probes; their outputs are kept beside the corpora, for the disagreement with the students."""
        file, outputs = self.here / f"teacher-{name}.json", self.work / "outputs" / f"{name}.json"
        if not (file.exists() and outputs.exists()):
            file.unlink(missing_ok=True)
            once(file, lambda: {"teacher": name, **self._probe(name, CachedEncoder(self.taught(name).teacher))})
            outputs.parent.mkdir(parents=True, exist_ok=True)
            outputs.write_text(json.dumps([score.to_dict(outputs=True) for score in self._probed[name].values()]))
        if name not in self._probed:
            found = [Score.from_dict(score) for score in json.loads(outputs.read_text())]
            self._probed[name] = {score.task: score for score in found}
        return self._probed[name]

    def row(self, name: str, seed: int) -> None:
        def make() -> dict[str, Any]:
            row, recipe = ROWS[name], self.recipe(name, seed)
            corpus, result = prepare_corpus(recipe), {"row": name, "seed": seed}
            if row.method is None:
                student = make_student(recipe.student, recipe.teachers, corpus, seed)
            else:
                out = Path(recipe.output)
                shutil.rmtree(out, ignore_errors=True)
                taught = [self.taught(teacher) for teacher in row.teachers]
                student, fitted = train_student(recipe, corpus, taught, out, False)
                shutil.rmtree(out, ignore_errors=True)
                result |= {
                    "teachers": list(row.teachers),
                    "steps": fitted.steps,
                    "epochs": recipe.training.epochs,
                    "molecules": len(corpus.train_rows),
                    "parameters": {"student": fitted.trained, "kernels": fitted.heads},
                    "training_seconds": round(fitted.seconds, 1),
                    "held_out": _per_teacher(fitted.held_out, row.teachers),
                    "curve": [[entry["step"], round(entry["loss"], 5)] for entry in fitted.log if "loss" in entry],
                }
            label = f"{name}-{seed}"
            result |= self._probe(label, CachedEncoder(functools.partial(self.embed, student)))
            scores = self._probed.pop(label)
            result["disagreement"] = {teacher: self.disagreements(scores, teacher) for teacher in TEACHERS}
            return result

        once(self.here / f"{file_name(name)}-{seed}.json", make)

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
            "items": self.probes.items,
            "refused": self.probes.refused,
            "encoding_seconds": round(encoded - start, 1),
            "probe_seconds": round(time.perf_counter() - encoded, 1),
        }

    def disagreements(self, scores: dict[str, Score], teacher: str) -> dict[str, float]:
        """By task of two classes, the share of test items on which the two probes differ (equation 1)."""
        theirs = self.teacher(teacher)
        return {
            name: round(disagreement(score, theirs[name]), 5)
            for name, score in scores.items()
            if score.metric == "auroc" and name in theirs
        }


def _per_teacher(terms: dict[str, float], teachers: Sequence[str]) -> dict[str, dict[str, float]]:
    """`explained:gcn` -> gcn, explained; with one teacher the terms have no suffix."""
    found: dict[str, dict[str, float]] = {}
    for term, value in terms.items():
        name, _, teacher = term.partition(":")
        found.setdefault(teacher or teachers[0], {})[name] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="default", help=f"default, {', '.join(GROUPS)}, or names, between commas")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="of the rows that are named; without --rows, of the main ones"
    )
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--device", default=None, help="cpu to keep off an accelerator")
    parser.add_argument("--quick", action="store_true", help="a few steps on a few molecules, kept apart")
    parser.add_argument("--table", action="store_true", help="only write the tables of what is there")
    options = parser.parse_args()
    work = WORK / ("molecules-quick" if options.quick else "molecules")
    here = work / "results" if options.quick else HERE
    rows = named_rows(options.rows)
    if not options.table:
        size = QUICK if options.quick else Size(epochs=options.epochs)
        # Further seeds of everything would take hours.
        repeated = [row for row in rows if options.rows != "default" or row in GROUPS["main"]]
        run(Bench(size, here, work, options.device), rows, repeated, options.seeds)
    print(write_page(here))


def run(bench: Bench, rows: Sequence[str], repeated: Sequence[str], seeds: int) -> None:
    """Teachers first, then each row with seed 0, then the further seeds of those to be repeated."""
    jobs: list[tuple[str, Callable[[], Any]]] = [
        (f"teacher {name}", functools.partial(bench.teacher, name)) for name in TEACHERS
    ]
    for seed in range(seeds):
        wanted = repeated if seed else rows
        jobs += [(f"{row}, seed {seed}", functools.partial(bench.row, row, seed)) for row in wanted]
    for number, (label, job) in enumerate(jobs, 1):
        start = time.perf_counter()
        job()
        print(f"{number} of {len(jobs)}, {label}: {time.perf_counter() - start:.0f} s", flush=True)
        write_page(bench.here)


if __name__ == "__main__":
    main()
