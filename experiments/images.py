"""Many teachers of images, one small student (the many-teachers paper's images: Tables 1, 20, 21, Figures 2 and 3).

    python experiments/images.py                    # all rows but `vit`, three seeds: about 70 minutes on one core
    python experiments/images.py --rows main,weak --seeds 1
    python experiments/images.py --rows vit,vit-single --seeds 1    # a small vision transformer, about 7 minutes a row
    python experiments/images.py --table

Teachers: four CIFAR residual networks (resnet20 to resnet56), a smaller one (mlperf), MobileNets trained on ImageNet,
on birds (at 96 pixels) and on "person or no person" (vww: weak, most of its coordinates are dead). Student: a residual
network of 8 layers, 75,000 parameters, 64 numbers, from random weights. Corpus: 9,000 CIFAR-10 images without labels,
the 4,000 training images and 5,000 further ones from JPEG files, a twentieth held out. Batches of 128, Adam at 1e-3
falling linearly to 0, 12 epochs, no augmentation; kernels have three hidden layers of 256, four times the student's
width. Nothing is tuned: the rows differ in what they are named after. `labels` is the student without distillation:
cross-entropy on the labels of the 4,000, as many steps. All rows of a seed start from the same weights. The vision
transformer has ViT-tiny's width and heads and a third of its layers (192, 3, 4; patches of 4 pixels), for 3 epochs.

Probes: the paper's perceptron (hidden layer as wide as the vector, SGD 1e-3, Nesterov momentum 0.9, batches of 64, L2
1e-4) on frozen vectors, three seeds; 50 epochs (it gives no number) and the best epoch on a tenth of the training
images are ours. Fashion-MNIST has 900 training images here and gets 200 epochs, about as many steps as CIFAR-10.
Teachers and students alike.

What to keep in mind: the CIFAR networks were trained on all 50,000 labelled CIFAR-10 training images, so they have seen
the corpus and the images that CIFAR-10's probe is fitted on; the test images are new to all.

Rows of `main`, `weak` and `robust`, resnet56's and the best single-teacher student (with seed 0) have all seeds, the
others one. Every row is kept as soon as it is there, so the script goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import image_networks
from common import WORK, Results, arguments, finished, settings_of, shared
from image_data import CIFAR_IMAGES, data, read_tasks, write_pool
from image_tables import EXPERIMENT, TEACHERS, WEAK, best_single, single_rows, write_page
from opened import settled, trained
from records import Rows

from distilvec.flow.prepare import Teachers, make_start, open_corpus
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder
from distilvec.recipe import CallSection, ModelSection, Recipe, TeacherSection

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
class Row:
    """A student: what it is made of where that is not the default.

    Attributes:
        method: None = not trained; sft = by labels.
        vit: a vision transformer instead of the residual network, in a quarter of the epochs.
        options: further options of the method.
    """

    method: str | None = "gaussian"
    teachers: tuple[str, ...] = TEACHERS
    preset: str = "sound"
    vit: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_KERNELS = {"init": "ridge", "width": 1024}
GROUPS: dict[str, dict[str, Row]] = {
    "main": {
        "untrained": Row(None),
        "labels": Row("sft", ("resnet20",)),
        "gaussian": Row(),
        "multi_mse": Row("multi_mse"),
        "multi_cosine": Row("multi_cosine"),
    },
    "weak": {
        "gaussian without vww": Row(teachers=tuple(name for name in TEACHERS if name != WEAK)),
        "gaussian from resnet56+vww": Row(teachers=("resnet56", WEAK)),
        "gaussian from resnet56+vww per_dim": Row(teachers=("resnet56", WEAK), options={"teacher_weight": "per_dim"}),
        "multi_mse from resnet56+vww": Row("multi_mse", ("resnet56", WEAK)),
    },
    "single": {row: Row(teachers=(name,)) for name, row in zip(TEACHERS, single_rows(), strict=True)},
    "presets": {"gaussian paper": Row(preset="paper")},
    # What `sound` adds to the likelihood on standardised vectors: clipped coordinates, and beta-NLL with beta 1.
    "robust": {
        "gaussian beta 0.5": Row(options={"beta_nll": 0.5}),
        "gaussian beta 0": Row(options={"beta_nll": 0}),
        "gaussian unclipped": Row(options={"clip": None}),
        "gaussian unclipped beta 0": Row(options={"clip": None, "beta_nll": 0}),
        "multi_mse unclipped": Row("multi_mse", options={"clip": None}),
    },
    # The method's own defaults, instead of what the other rows have as published (narrow kernels that start at random),
    # and each of the two changes alone.
    "kernels": {
        "gaussian default kernels": Row(options=DEFAULT_KERNELS),
        "multi_mse default kernels": Row("multi_mse", options=DEFAULT_KERNELS),
        "gaussian wide kernels": Row(options={"width": DEFAULT_KERNELS["width"]}),
        "gaussian ridge start": Row(options={"init": DEFAULT_KERNELS["init"]}),
    },
    "vit": {
        "vit untrained": Row(None, vit=True),
        "vit gaussian": Row(vit=True),
        "vit labels": Row("sft", ("resnet20",), vit=True),
        "vit multi_mse": Row("multi_mse", vit=True),
        "vit multi_cosine": Row("multi_cosine", vit=True),
    },
    "vit-single": {f"vit gaussian from {name}": Row(teachers=(name,), vit=True) for name in TEACHERS},
}
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}
#: Rows with all seeds; of the single teachers the best one with seed 0 gets them, too.
REPEATED = (
    *GROUPS["main"],
    *GROUPS["weak"],
    *GROUPS["robust"],
    *GROUPS["kernels"],
    "gaussian from resnet32",
    "gaussian from resnet56",
)


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
    parser = arguments(__doc__, quick="a few steps on a few images, kept apart")
    parser.add_argument("--rows", default="default", help=f"default, {', '.join(GROUPS)}, or names, between commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the rows in REPEATED")
    parser.add_argument("--epochs", type=float, default=Size().epochs)
    options = parser.parse_args()
    size = QUICK if options.quick else Size(epochs=options.epochs)
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"size": dataclasses.asdict(size)}, work=work)
    if finished(options, results, page):
        return
    rows = named_rows(options.rows)
    bench = Bench(size, results, options.device)
    print(f"about {estimate(bench, rows, options.seeds):.0f} minutes on one core where nothing is there yet")
    run(bench, rows, options.seeds)
    print(page(results.rows(), results.home))


def page(rows: Rows, folder: Path) -> str:
    return write_page(rows, folder, list(ROWS))


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
        page(bench.results.rows(), bench.results.home)


if __name__ == "__main__":
    main()
