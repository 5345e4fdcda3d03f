"""A teacher of your own in ten lines: any function from texts to vectors.

    python examples/own_teacher.py --student FOLDER_OR_ID

The function below hashes words into 64 dimensions, so that the example needs no network and no key. Put a call of your
service or model in its place: distilvec batches, repeats failed calls, keeps what was answered and never asks twice.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import numpy as np

import distilvec


def embed(texts: list[str]) -> np.ndarray:
    """One vector per text, in the order of the texts."""
    vectors = np.zeros((len(texts), 64), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            hashed = zlib.crc32(word.encode())
            vectors[row, hashed % 64] += 1 if hashed & 64 else -1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-6)


def some_texts() -> list[str]:
    """A few hundred short sentences."""
    people, verbs = ("the cook", "a nurse", "my aunt", "the pilot", "a child"), ("sees", "paints", "hides", "repairs")
    things = ("a red bicycle", "the old clock", "two apples", "a wooden boat", "the last letter", "an empty glass")
    return [
        f"{who} {does} {what} {when}" for who in people for does in verbs for what in things for when in ("", "today")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", required=True, help="a small model: folder or hub id")
    parser.add_argument("--output", type=Path, default=Path("out-own-teacher"))
    arguments = parser.parse_args()
    run = distilvec.distill(
        teacher=embed,
        student=arguments.student,
        corpus={"path": some_texts(), "holdout": 0.2},
        method="cosine",
        output=arguments.output,
        optimizer={"lr": 1e-3, "heads_lr": 1e-3},
        training={"epochs": 3, "batch_size": 16},
    )
    print(run.report)
    print(
        "agreement:",
        {name: value for name, value in run.record["agreement"].values.items() if isinstance(value, float)},
    )


if __name__ == "__main__":
    main()
