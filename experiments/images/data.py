"""The images of `images`: one corpus of several files, and the data sets of the probes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from experiments.harness.script import shared
from PIL import Image

from distilvec.corpus.images import data_uri
from distilvec.judging.perceptron import IMAGES, PerceptronTask

#: Training images of CIFAR-10, which come first in the corpus.
CIFAR_IMAGES = 4000
#: Data set -> file and epochs of its probe.
SETS = {"CIFAR-10": ("cifar10", 50), "Fashion-MNIST": ("fashion_mnist_small", 200), "MNIST": ("mnist", 50)}


def data(name: str) -> Path:
    return shared() / "data" / "images" / f"{name}.npz"


def write_pool(file: Path, limit: int | None) -> tuple[Path, int]:
    """One file of uint8 images [n, 32, 32, 3]: CIFAR-10's training images, then the further ones from JPEG files."""
    if not file.exists():
        images = np.load(data("cifar10"))["train_images"]
        archive = np.load(data("cifar10_extra_jpeg"))
        content, offsets = archive["jpeg_bytes"].tobytes(), archive["offsets"]
        chosen = np.arange(len(offsets) - 1)
        if limit is not None:  # they are sorted by class
            images, chosen = images[: limit // 2], np.random.default_rng(0).permutation(chosen)[: limit - limit // 2]
        more = [np.asarray(Image.open(io.BytesIO(content[offsets[i] : offsets[i + 1]])).convert("RGB")) for i in chosen]
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, image=np.concatenate([images, np.stack(more)]))
        partial.replace(file)
    return file, len(np.load(file)["image"])


def read_tasks(limit: int | None, seeds: tuple[int, ...]) -> list[PerceptronTask]:
    """The three data sets with their own training and test images; at most `limit` of each, and two epochs then."""
    tasks = []
    for name, (file, epochs) in SETS.items():
        archive = np.load(data(file))
        parts = []
        for part in ("train", "test"):
            images, labels = archive[f"{part}_images"], archive[f"{part}_labels"]
            if limit is not None:  # some are sorted by class
                some = np.random.default_rng(0).permutation(len(images))[:limit]
                images, labels = images[some], labels[some]
            parts.append(([data_uri(image) for image in images], labels.tolist()))
        settings = replace(IMAGES, epochs=epochs if limit is None else 2)
        tasks.append(PerceptronTask(name, parts[0], parts[1], seeds=seeds, settings=settings))
    return tasks
