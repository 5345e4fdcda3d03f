"""Many teachers of images, one small student (the many-teachers paper's images: Tables 1, 20, 21, Figures 2 and 3)."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.bench import Bench, named_rows
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.images import networks as image_networks
from experiments.images.data import CIFAR_IMAGES, data, read_tasks, write_pool
from experiments.images.rows import GROUPS, REPEATED, ROWS, TEACHERS, Row
from experiments.images.table import EXPERIMENT, best_single, write_page

from distilvec.corpus import Corpus
from distilvec.judging import CachedEncoder
from distilvec.recipe import CallSection, ModelSection, Recipe, TeacherSection
from distilvec.training import Fitted

SEEDS = 3
PROBE_SEEDS = (0, 1, 2)
#: Teachers that are functions: their files.
FUNCTIONS = {
    "mlperf": (image_networks.mlperf_resnet8, "cifar10_mlperf_resnet8"),
    "imagenet": (image_networks.imagenet_mobilenet, "imagenet_mobilenet_v1_050_160"),
    "birds": (image_networks.birds_mobilenet, "inat_birds_mobilenet_v2_224"),
    "vww": (image_networks.vww_mobilenet, "vww_mobilenet_v1_025"),
}


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Attributes:
        pool: images of the corpus, half of them CIFAR's where it is not all.
        images: most images of each part of a data set.
    """

    epochs: float = 12.0
    pool: int | None = None
    batch: int = 128
    kernel: int = 256
    images: int | None = None
    probe_seeds: tuple[int, ...] = PROBE_SEEDS


QUICK = Size(epochs=1, pool=240, batch=32, kernel=32, images=60, probe_seeds=(0, 1))


class Images(Bench):
    """Corpus, teachers, stores and tasks, made once and shared by all rows."""

    rows = ROWS

    def __init__(self, size: Size, results: Results, device: str | None = None) -> None:
        super().__init__(results, device)
        self.size = size
        self.pool, self.images = write_pool(self.work / "pool.npz", size.pool)
        self.tasks = read_tasks(size.images, size.probe_seeds)

    def section(self, name: str) -> TeacherSection:
        if name in FUNCTIONS:
            return CallSection(name=name, call=FUNCTIONS[name][0])
        return ModelSection(name=name, model=str(shared() / "models" / f"cifar10_{name}.safetensors"))

    def recipe(self, name: str, seed: int) -> Recipe:
        row, size = ROWS[name], self.size
        supervised = row.method == "sft"
        corpus: dict[str, Any] = {
            "path": str(self.pool),
            "modality": "image",
            "holdout": 0.05 if size.pool is None else 0.25,
        }
        epochs = size.epochs * (0.25 if row.vit else 1)
        if supervised:
            labelled = min(CIFAR_IMAGES, size.pool or CIFAR_IMAGES)
            corpus |= {"path": str(data("cifar10")), "text": "train_images", "limit": labelled}
            epochs *= self.images / labelled
        # Kernels start from nothing, as published; the student does too.
        method = {} if supervised else {"width": size.kernel, "init": "random"}
        return Recipe.build(
            {
                "corpus": corpus,
                "teachers": [self.section(teacher).model_dump() for teacher in row.teachers],
                "student": {"model": str(self.vit)} if row.vit else {"resnet": {"depth": 8}},
                "method": {"name": row.method or "gaussian", "preset": row.preset, **method, **row.options},
                "optimizer": {"lr": 1e-3, "heads_lr": 1e-3, "weight_decay": 0.0},
                "training": {
                    "epochs": epochs,
                    "batch_size": size.batch,
                    "seed": seed,
                    "save_every": 1_000_000,
                    "lr_scheduler_type": "linear",
                    # The paper clips no gradients.
                    **({"max_grad_norm": 0.0} if row.preset == "paper" else {}),
                    **self.place,
                },
                "task": {"kind": "classification", "label": "train_labels", "alpha": 1.0} if supervised else None,
                "cache": str(self.work / ("labelled" if supervised else "cache")),
                "output": str(self.work / "runs" / f"{name.replace(' ', '_')}-{seed}"),
            }
        )

    @functools.cached_property
    def vit(self) -> Path:
        """A vision transformer with random weights, the same for every row and seed."""
        import torch
        from transformers import ViTConfig, ViTImageProcessor, ViTModel

        folder = self.work / "vit"
        if not (folder / "config.json").exists():
            torch.manual_seed(0)
            ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
            config = ViTConfig(
                hidden_size=192,
                num_hidden_layers=4,
                num_attention_heads=3,
                intermediate_size=768,
                patch_size=4,
                image_size=32,
            )
            ViTModel(config).save_pretrained(folder)
        return folder

    def teacher(self, name: str) -> None:
        self.results.run(f"teacher-{name}", functools.partial(self.teacher_row, name), teacher=name)

    def teacher_row(self, name: str) -> dict[str, Any]:
        taught = self.taught(name)
        parameters = taught.teacher.card.parameters
        if name in FUNCTIONS:
            body = image_networks.load(FUNCTIONS[name][1]).body
            parameters = sum(p.numel() for p in body.parameters())
        result = {"teacher": name, "parameters": parameters, "width": taught.teacher.card.width}
        return result | self.probe(CachedEncoder(taught.teacher))

    def facts(self, row: Row, corpus: Corpus, fitted: Fitted) -> dict[str, Any]:
        teachers = list(row.teachers) if row.method != "sft" else []
        return {"teachers": teachers, "images": len(corpus.train_rows), "kernel_parameters": fitted.heads}

    def judged(self, label: str, student: Any) -> dict[str, Any]:
        return {"parameters": sum(p.numel() for p in student.parameters()), **self.probe(CachedEncoder(student))}

    def probe(self, encode: CachedEncoder) -> dict[str, Any]:
        """Accuracy on each data set: mean over the probes' seeds, with the interval over test images."""
        start = time.perf_counter()
        encode([item for task in self.tasks for item in task.texts()])
        encoded = time.perf_counter()
        scores = {task.name: task.score(encode) for task in self.tasks}
        return {
            "tasks": {
                name: {
                    "value": score.value,
                    "interval": score.interval,
                    **{key: score.details[key] for key in ("values", "seeds", "epochs", "best_epochs", "train_rows")},
                }
                for name, score in scores.items()
            },
            "encoding_seconds": round(encoded - start, 1),
            "probe_seconds": round(time.perf_counter() - encoded, 1),
        }


def main() -> None:
    parser = arguments(__file__, quick="a few steps on a few images, kept apart")
    parser.add_argument("--rows", default="default", help=f"default, {', '.join(GROUPS)}, or names, between commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the rows in REPEATED")
    parser.add_argument("--epochs", type=float, default=Size().epochs)
    options = parser.parse_args()
    size = QUICK if options.quick else Size(epochs=options.epochs)
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"size": dataclasses.asdict(size)}, work=work)
    if finished(options, results, write_page):
        return
    rows = named_rows(options.rows, GROUPS, "vit")
    run(Images(size, results, options.device), rows, options.seeds)
    print(write_page(results.rows(), results.home))


def run(bench: Images, rows: Sequence[str], seeds: int) -> None:
    """Teachers first, then each row with seed 0, then the further seeds."""
    bench.work_off(((f"teacher {name}", functools.partial(bench.teacher, name)) for name in TEACHERS), write_page)
    for seed in range(seeds):
        best = best_single(bench.results.rows()) if seed else None
        wanted = [row for row in rows if not seed or row in REPEATED or row == best]
        bench.work_off(((f"{row}, seed {seed}", functools.partial(bench.row, row, seed)) for row in wanted), write_page)


if __name__ == "__main__":
    main()
