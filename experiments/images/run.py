"""Many teachers of images, one small student (the many-teachers paper's images: Tables 1, 20, 21, Figures 2 and 3)."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.script import WORK, Results, arguments, finished, settings_of, shared
from experiments.harness.training import settled, trained
from experiments.images import networks as image_networks
from experiments.images.data import CIFAR_IMAGES, data, read_tasks, write_pool
from experiments.images.rows import GROUPS, REPEATED, ROWS, TEACHERS, single_rows
from experiments.images.table import EXPERIMENT, best_single, write_page

from distilvec.flow.prepare import Teachers, make_start, open_corpus
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder
from distilvec.recipe import Recipe, TeacherSection

SEEDS = 3
PROBE_SEEDS = (0, 1, 2)
#: Teachers that are functions: their files.
FUNCTIONS = {
    "mlperf": (image_networks.mlperf_resnet8, "cifar10_mlperf_resnet8"),
    "imagenet": (image_networks.imagenet_mobilenet, "imagenet_mobilenet_v1_050_160"),
    "birds": (image_networks.birds_mobilenet, "inat_birds_mobilenet_v2_224"),
    "vww": (image_networks.vww_mobilenet, "vww_mobilenet_v1_025"),
}
#: Processor seconds, for the estimate: a step of either student, what a teacher's kernel adds to it, vectors and probes
#: of a model, and the vectors of all teachers of one image.
STEP, VIT_STEP, KERNEL, PROBES, TEACHING = 0.11, 1.35, 0.004, 15.0, 0.0145


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


class Bench:
    """Corpus, teachers, stores and tasks, made once and shared by all rows."""

    def __init__(self, size: Size, results: Results, device: str | None = None) -> None:
        self.size, self.results, self.work = size, results, results.work
        work = self.work
        self.place: dict[str, Any] = {"use_cpu": True} if device == "cpu" else {}
        self.pool, self.images = write_pool(work / "pool.npz", size.pool)
        self.tasks = read_tasks(size.images, size.probe_seeds)

    def section(self, name: str) -> TeacherSection:
        if name in FUNCTIONS:
            return TeacherSection(name=name, call=FUNCTIONS[name][0])
        return TeacherSection(name=name, model=str(shared() / "models" / f"cifar10_{name}.safetensors"))

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

    @functools.cache  # noqa: B019  # one bench a process
    def taught(self, teacher: str) -> Taught:
        """The teacher with its vectors of the whole corpus stored."""
        recipe = self.recipe("gaussian", 0)
        return teach_one(self.section(teacher), open_corpus(recipe), recipe.place / "stores")

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

    def row(self, name: str, seed: int) -> None:
        make = functools.partial(self.trained_row, name, seed)
        self.results.run(f"{name}-{seed}", make, row=name, **settings_of(self.recipe(name, seed)))

    def trained_row(self, name: str, seed: int) -> dict[str, Any]:
        row, recipe = ROWS[name], self.recipe(name, seed)
        shutil.rmtree(recipe.output, ignore_errors=True)
        corpus, result = open_corpus(recipe), {"row": name, "seed": seed}
        if row.method is None:
            student = make_start(recipe, corpus, Teachers()).open()
        else:
            taught = [self.taught(teacher) for teacher in row.teachers]
            student, fitted, _ = trained(settled(recipe, corpus, [each.teacher for each in taught]), taught)
            shutil.rmtree(recipe.output, ignore_errors=True)
            result |= {
                "teachers": list(row.teachers) if row.method != "sft" else [],
                "steps": fitted.steps,
                "epochs": recipe.training.epochs,
                "images": len(corpus.train_rows),
                "kernel_parameters": fitted.heads,
                "training_seconds": round(fitted.seconds, 1),
                "held_out": _per_teacher(fitted.held_out, row.teachers),
            }
        result["parameters"] = sum(p.numel() for p in student.parameters())
        return result | self.probe(CachedEncoder(student))

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


def _per_teacher(terms: dict[str, float], teachers: Sequence[str]) -> dict[str, dict[str, float]]:
    """`explained:birds` -> birds, explained; with one teacher the terms have no suffix."""
    found: dict[str, dict[str, float]] = {}
    for term, value in terms.items():
        name, _, teacher = term.partition(":")
        found.setdefault(teacher or teachers[0], {})[name] = value
    return found


def named_rows(words: str) -> list[str]:
    """Row names of groups, of `default` (all groups but those of the vision transformer) and of single rows."""
    default = [row for group, rows in GROUPS.items() if not group.startswith("vit") for row in rows]
    found = [
        row for word in words.split(",") for row in (default if word == "default" else GROUPS.get(word, {word: None}))
    ]
    unknown = [row for row in found if row not in ROWS]
    if unknown:
        raise SystemExit(f"There is no row or group {unknown[0]!r}; groups: default, {', '.join(GROUPS)}.")
    return list(dict.fromkeys(found))


def estimate(bench: Bench, rows: Sequence[str], seeds: int) -> float:
    """Minutes on one core, from what was measured on one, where nothing is there yet."""
    images = bench.images + sum(len(task.texts()) for task in bench.tasks)
    seconds = len(TEACHERS) * PROBES + TEACHING * images
    # The best single-teacher student is not known yet: counted as resnet56's, which costs the same.
    repeated = [row for row in rows if row in REPEATED]
    repeated += ["gaussian from resnet56"] if set(single_rows()) <= set(rows) else []
    for row in [*rows, *(repeated * (seeds - 1))]:
        made = ROWS[row]
        steps = bench.size.epochs * bench.images / bench.size.batch if made.method else 0.0
        kernels = KERNEL * len(made.teachers) if made.method != "sft" else 0.0
        # A quarter of the steps for a vision transformer.
        seconds += PROBES + (steps / 4 * VIT_STEP if made.vit else steps * STEP) + steps * kernels
    return seconds / 60


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
    rows = named_rows(options.rows)
    bench = Bench(size, results, options.device)
    print(f"about {estimate(bench, rows, options.seeds):.0f} minutes on one core where nothing is there yet")
    run(bench, rows, options.seeds)
    print(write_page(results.rows(), results.home))


def run(bench: Bench, rows: Sequence[str], seeds: int) -> None:
    """Teachers first, then each row with seed 0, then the further seeds."""
    jobs: list[tuple[str, Callable[[], Any]]] = [
        (f"teacher {name}", functools.partial(bench.teacher, name)) for name in TEACHERS
    ]
    jobs += [(f"{row}, seed 0", functools.partial(bench.row, row, 0)) for row in rows]
    _work_off(bench, jobs)
    best = best_single(bench.results.rows())
    again = [row for row in rows if row in REPEATED or row == best]
    for seed in range(1, seeds):
        _work_off(bench, [(f"{row}, seed {seed}", functools.partial(bench.row, row, seed)) for row in again])


def _work_off(bench: Bench, jobs: Sequence[tuple[str, Callable[[], Any]]]) -> None:
    for number, (label, job) in enumerate(jobs, 1):
        start = time.perf_counter()
        job()
        print(f"{number} of {len(jobs)}, {label}: {time.perf_counter() - start:.0f} s", flush=True)
        write_page(bench.results.rows(), bench.results.home)


if __name__ == "__main__":
    main()
