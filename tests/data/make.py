"""Cuts the files beside this one from the shared data, for tests that need only some real rows or a small network.

    DISTILVEC_DATA=FOLDER python tests/data/make.py

shared/data/*.jsonl.gz          seeded samples of the evaluation sets, of TALAS's corpus, and of the pool's sentences
shared/data/images/*.npz        CIFAR-10 (test images 0 to 7 are those of the goldens), its further JPEGs, Fashion-MNIST
shared/data/molecules/*         300 molecules of the pool, and BBBP whole
shared/models/goldens.npz       what the published networks give for the eight images and for ten molecules, whole: a
                                shared folder that was built again has the networks, and no goldens
shared/models/cifar10_mlperf_resnet8.safetensors   the network in half precision
scitail_pieces.json.gz          pieces of BERT's and Mistral's tokenizers for 500 pairs of SciTail
resnet20_features.npz           a pretrained ResNet-20's features of CIFAR-10 images, in eight bits, and the labels

Sources and licences are those of the shared data.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SMALL = HERE / "shared"
ROWS, CORPUS_ROWS, SENTENCES, PIECES, FEATURES = 60, 400, 1500, 500, (1000, 400)
SETS = (
    "banking77", "emotion", "mrpc", "scitail", "sick", "sst2", "sts12", "stsb", "tweeteval_sentiment", "wic",
    "talas_corpus",
)  # fmt: skip


def read(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def packed(file: Path, content: bytes) -> None:
    """gzip without a time stamp, so that the same rows are the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content, mtime=0))


def written(file: Path, rows: list[dict[str, Any]]) -> None:
    packed(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def texts(data: Path) -> None:
    for file in sorted(data.glob("*.jsonl.gz")):
        if file.name.split(".")[0] in SETS:
            rows = read(file)
            kept = np.random.default_rng(0).permutation(len(rows))[: CORPUS_ROWS if "corpus" in file.name else ROWS]
            written(SMALL / "data" / file.name, [rows[row] for row in kept])
    for name, column in (("sentences", "text"), ("pairs", "anchor")):
        rows = [row for row in read(data / f"{name}.jsonl.gz") if 20 < len(row[column]) < 120]
        kept = np.random.default_rng(0).permutation(len(rows))[: SENTENCES // 2]
        written(SMALL / "data" / f"{name}.jsonl.gz", [{column: rows[row][column]} for row in kept])


def images(data: Path) -> None:
    folder = SMALL / "data" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, counts in (("cifar10", (12, 8)), ("fashion_mnist_small", (40, 40))):
        archive = np.load(data / "images" / f"{name}.npz")
        parts = {
            f"{part}_{kind}": archive[f"{part}_{kind}"][:count]
            for part, count in zip(("train", "test"), counts, strict=True)
            for kind in ("images", "labels")
        }
        np.savez_compressed(folder / f"{name}.npz", **parts)
    archive = np.load(data / "images" / "cifar10_extra_jpeg.npz")
    offsets = archive["offsets"][:31]
    cut = {"jpeg_bytes": archive["jpeg_bytes"][: offsets[-1]], "offsets": offsets, "labels": archive["labels"][:30]}
    np.savez_compressed(folder / "cifar10_extra_jpeg.npz", **cut, file_number=archive["file_number"][:30])


def molecules(data: Path) -> None:
    with gzip.open(data / "molecules" / "pool_muv_40000.smi.gz", "rt", encoding="utf-8") as lines:
        packed(SMALL / "data" / "molecules" / "pool.smi.gz", "".join(next(lines) for _ in range(300)).encode())
    with gzip.open(data / "molecules" / "bbbp.csv.gz", "rb") as lines:
        packed(SMALL / "data" / "molecules" / "bbbp.csv.gz", lines.read())


def networks(shared: Path) -> None:
    from safetensors.numpy import load_file, save_file

    models = SMALL / "models"
    models.mkdir(parents=True, exist_ok=True)
    name = "cifar10_mlperf_resnet8"
    tensors = load_file(shared / "models" / f"{name}.safetensors")
    save_file({key: tensor.astype(np.float16) for key, tensor in tensors.items()}, models / f"{name}.safetensors")
    np.savez_compressed(models / "goldens.npz", **np.load(shared / "models" / "goldens.npz"))


def pieces(data: Path) -> None:
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    folder = data / "tokenizers"
    bert = BertWordPieceTokenizer(str(folder / "bert-base-uncased" / "vocab.txt"), lowercase=True)
    with gzip.open(folder / "mistral-7b-v0.1" / "tokenizer.json.gz", "rt", encoding="utf-8") as file:
        mistral = Tokenizer.from_str(file.read())
    rows = read(data / "scitail.test.jsonl.gz")
    kept = np.random.default_rng(0).permutation(len(rows))[:PIECES]
    both = [rows[row][side] for row in kept for side in ("text1", "text2")]
    found = {
        name: [each.tokens for each in tokenizer.encode_batch(both, add_special_tokens=False)]
        for name, tokenizer in (("bert", bert), ("mistral", mistral))
    }
    packed(HERE / "scitail_pieces.json.gz", json.dumps(found, ensure_ascii=False).encode())


def features(shared: Path) -> None:
    from safetensors.torch import load_file

    from distilvec.kinds.image.images import data_uri
    from distilvec.modules.cifar_resnet import CifarResNet, image_model

    archive = np.load(shared / "data" / "images" / "cifar10.npz")
    classifier = shared / "models" / "cifar10_resnet20.safetensors"
    model = image_model(CifarResNet.from_classifier(classifier, load_file(classifier)))
    found = {}
    for part, count in zip(("train", "test"), FEATURES, strict=True):
        vectors = model.encode([data_uri(image) for image in archive[f"{part}_images"][:count]])
        found[part] = np.clip(np.round(vectors * 64), 0, 255).astype(np.uint8)
        found[f"{part}_labels"] = archive[f"{part}_labels"][:count]
    np.savez_compressed(HERE / "resnet20_features.npz", **found)


def main() -> None:
    shared = Path(os.environ["DISTILVEC_DATA"])
    texts(shared / "data")
    images(shared / "data")
    molecules(shared / "data")
    networks(shared)
    pieces(shared / "data")
    features(shared)
    for file in sorted(HERE.rglob("*.*z*")):
        print(f"{file.stat().st_size:8} {file.relative_to(HERE)}")


if __name__ == "__main__":
    main()
