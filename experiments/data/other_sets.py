"""Tokenizers, images and molecules: from the files of their public repositories to those of the data folder."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections import defaultdict
from typing import Any

import numpy as np
from experiments.data.formats import npz, pack
from experiments.data.sources import Missing, Raw
from PIL import Image

Files = dict[str, bytes]


def tokenizers(raw: Raw) -> Files:
    """Vocabularies without weights. BERT's is written out of a tokenizer file, one entry a line in order of id."""
    bert = json.loads(raw.text("model2vec", "tests/data/test_tokenizer/tokenizer.json"))["model"]["vocab"]
    gpt2, mistral = "model_hub/gpt2/gpt2-base", "model_hub/mistral/mistral-7b-v0.1"
    vocabulary = json.loads(raw.text("DSKD", f"{gpt2}/vocab.json"))
    return {
        "bert-base-uncased/vocab.txt": "".join(f"{piece}\n" for piece in sorted(bert, key=bert.get)).encode(),
        "gpt2/merges.txt": raw.bytes("DSKD", f"{gpt2}/merges.txt"),
        "gpt2/vocab.json": json.dumps(vocabulary).encode(),
        "mistral-7b-v0.1/tokenizer.json.gz": pack(raw.bytes("DSKD", f"{mistral}/tokenizer.json")),
        "mistral-7b-v0.1/tokenizer.model": raw.bytes("DSKD", f"{mistral}/tokenizer.model"),
    }


def images(raw: Raw) -> Files:
    return {
        "cifar10.npz": _cifar10(raw),
        "cifar10_extra_jpeg.npz": _cifar10_jpeg(raw),
        "mnist.npz": _mnist(raw),
        "fashion_mnist_small.npz": _fashion(raw),
    }


def _cifar10(raw: Raw) -> bytes:
    """The first 4,000 official training images and the first 1,000 test images, from sheets of 1,000."""
    sheets = [raw.bytes("convnetjs", f"demo/cifar10/cifar10_batch_{number}.png") for number in range(4)]
    labels = _listed(raw.text("covnetJS", "demo/cifar10/cifar10_labels.js"))
    return npz(
        train_images=np.concatenate([_sheet(sheet).reshape(-1, 32, 32, 3) for sheet in sheets]),
        train_labels=labels[:4000],
        test_images=_sheet(raw.bytes("covnetJS", "demo/cifar10/cifar10_batch_50.png")).reshape(-1, 32, 32, 3),
        test_labels=labels[50000:51000],
    )


def _cifar10_jpeg(raw: Raw) -> bytes:
    """500 further training images of each class, as JPEG files: none of those in `cifar10.npz`."""
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    taken = np.bincount(_listed(raw.text("covnetJS", "demo/cifar10/cifar10_labels.js"))[:4000], minlength=10)
    files = dict(raw.members("CIFAR-10-images", "train/"))
    rng = np.random.default_rng(0)
    chosen = [np.sort(rng.choice(np.arange(taken[label], 5000), 500, replace=False)) for label in range(10)]
    parts = [files[f"train/{name}/{number:04d}.jpg"] for name, numbers in zip(names, chosen) for number in numbers]
    return npz(
        jpeg_bytes=np.frombuffer(b"".join(parts), np.uint8),
        offsets=np.cumsum([0, *map(len, parts)]).astype(np.int32),
        labels=np.repeat(np.arange(10, dtype=np.uint8), 500),
        file_number=np.concatenate(chosen).astype(np.int16),
    )


def _mnist(raw: Raw) -> bytes:
    """600 per class of the training images, 200 per class of the first 3,000 test images."""
    sheets = [_sheet(raw.bytes("convnetjs", f"demo/mnist/mnist_batch_{number}.png"))[..., 0] for number in range(21)]
    pixels = np.concatenate(sheets).reshape(-1, 28, 28)
    labels = _listed(raw.text("convnetjs", "demo/mnist/mnist_labels.js"))
    rng = np.random.default_rng(0)

    def draw(first: int, last: int, count: int) -> np.ndarray:
        found = [np.flatnonzero(labels[first:last] == digit) for digit in range(10)]
        return np.sort(np.concatenate([rng.choice(rows, count, replace=False) for rows in found]))

    train, test = draw(0, 60000, 600), draw(60000, 63000, 200)
    return npz(
        train_images=pixels[train],
        train_labels=labels[train],
        test_images=pixels[60000 + test],
        test_labels=labels[60000 + test],
        train_source_index=train.astype(np.int32),
        test_source_index=test.astype(np.int32),
    )


def _fashion(raw: Raw) -> bytes:
    """The sample sheet of the repository (30 x 30 images, three rows a class); 500 test images less those in it."""
    sheet = np.asarray(
        Image.open(io.BytesIO(raw.bytes("fashion-mnist", "doc/img/fashion-mnist-sprite.png"))).convert("L")
    )
    train = sheet.reshape(30, 28, 30, 28).swapaxes(1, 2).reshape(900, 28, 28)
    table = np.load(io.BytesIO(raw.bytes("sapient-webinar", "fashion_test.npy")), allow_pickle=False)
    labels, test = table[:, 0].astype(np.uint8), table[:, 1:].reshape(-1, 28, 28).astype(np.uint8)
    far = [np.sqrt(((train - image.astype(np.float64)) ** 2).mean((1, 2)).min()) >= 3 for image in test]
    return npz(
        train_images=train,
        train_labels=np.repeat(np.arange(10, dtype=np.uint8), 90),
        test_images=test[far],
        test_labels=labels[far],
    )


def _sheet(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _listed(script: str) -> np.ndarray:
    return np.array(
        json.loads("[" + re.search(r"\[(.*?)\]", script, re.S).group(1).strip().rstrip(",") + "]"), np.uint8
    )


#: File here, file of the source.
MOLECULES = {
    "bbbp": "bbbp.csv",
    "bace": "bace.csv",
    "clintox": "clintox.csv",
    "sider": "sider.csv",
    "tox21": "tox21.csv",
    "hiv": "hiv.csv.gz",
    "esol": "delaney.csv",
    "freesolv": "freesolv.csv",
    "lipophilicity": "lipo.csv",
}


def molecules(raw: Raw) -> Files:
    """MoleculeNet's tasks with a scaffold split, and 40,000 screening compounds that are in none of them."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise Missing("molecules need RDKit: pip install 'distilvec[molecules]'") from error

    RDLogger.DisableLog("rdApp.*")
    files, known = {}, set()
    for name, source in MOLECULES.items():
        columns, rows = _table(raw.bytes("chemprop", f"data/{source}"))
        if name == "hiv":
            active = np.array([row[1] == "1" for row in rows])
            drawn = np.random.default_rng(0).choice(np.flatnonzero(~active), 4000 - active.sum(), replace=False)
            rows = [rows[row] for row in sorted({*np.flatnonzero(active), *drawn})]
        parsed = [(row, Chem.MolFromSmiles(row[0])) for row in rows]
        parsed = [(row, molecule) for row, molecule in parsed if molecule is not None]
        known |= {Chem.MolToSmiles(molecule) for _, molecule in parsed}
        splits = scaffold_split([molecule for _, molecule in parsed])
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["smiles", "scaffold_split", *columns[1:]])
        number = _decimal if name in ("esol", "freesolv", "lipophilicity") else str
        for (row, _), split in zip(parsed, splits, strict=True):
            writer.writerow([row[0], split, *map(number, row[1:])])
        files[f"{name}.csv.gz"] = pack(out.getvalue().encode())
    _, rows = _table(raw.bytes("chemprop", "data/muv.csv.gz"))
    pool = list(dict.fromkeys(Chem.MolToSmiles(Chem.MolFromSmiles(row[0])) for row in rows))
    np.random.default_rng(0).shuffle(pool)
    pool = [smiles for smiles in pool if smiles not in known][:40000]
    return {**files, "pool_muv_40000.smi.gz": pack("".join(f"{smiles}\n" for smiles in pool).encode())}


def scaffold_split(molecules: list[Any]) -> list[str]:
    """Groups with one Bemis-Murcko scaffold go whole, largest first, to train up to 80 %, valid up to 10 %, else test.

    Args:
        molecules: RDKit molecules.

    Returns:
        "train", "valid" or "test" for each.
    """
    from rdkit import Chem
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    groups = defaultdict(list)
    for row, molecule in enumerate(molecules):
        plain = Chem.MolFromSmiles(Chem.MolToSmiles(molecule, isomericSmiles=False)) or molecule
        groups[MurckoScaffoldSmiles(mol=plain, includeChirality=False)].append(row)
    splits = ["test"] * len(molecules)
    counts = {"train": 0, "valid": 0}
    for rows in sorted(groups.values(), key=lambda rows: (-len(rows), rows[0])):
        for split, most in (("train", 0.8), ("valid", 0.1)):
            if counts[split] + len(rows) <= most * len(molecules):
                counts[split] += len(rows)
                for row in rows:
                    splits[row] = split
                break
    return splits


def _decimal(text: str) -> str:
    """A number as Python prints it: -.7 becomes -0.7, -1 becomes -1.0."""
    return repr(float(text))


def _table(data: bytes) -> tuple[list[str], list[list[str]]]:
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    columns, *rows = csv.reader(io.StringIO(plain.decode("utf-8-sig"), newline=""))
    return columns, [row for row in rows if row]
