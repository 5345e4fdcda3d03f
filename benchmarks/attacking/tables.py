"""Hostile files: tables of texts in every format, vectors with their texts, traps in folders of models."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attacking.mutate import TEXTS, spoil_bytes, spoil_tree, wild

FORMATS = ("jsonl", "json", "csv", "tsv", "txt", "parquet", "ndjson", "smi", "npz", "images")
COLUMNS = ("text", "text1", "text2", "label", "domain", "role", "\x1b[31mtext", "text ", "", "smiles", "image")
BOMB = 600 << 20


def make(rng: random.Random, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A corpus and the arguments it is read with."""
    kind = rng.choice(FORMATS)
    rows = [_row(rng, number) for number in range(rng.choice((0, 1, 9, 30, 30)))]
    data = WRITERS[kind](rows, rng)
    if rng.random() < 0.4:
        data = spoil_bytes(data, rng)
    suffix = "npz" if kind == "images" else kind
    file = folder / f"data.{suffix if rng.random() < 0.93 else rng.choice(('png', 'arrow', 'gz', 'txt', 'parquet'))}"
    packed = rng.random()
    if packed < 0.1:
        file, data = file.with_name(file.name + ".gz"), gzip.compress(data, 1)
    elif packed < 0.18:
        file, data = file.with_name(file.name + ".zst"), _zst(data)
    elif packed < 0.186:
        file, data = _bomb(rng, file)
    if rng.random() < 0.05:
        data = spoil_bytes(data, rng)
    place = rng.random()
    if place < 0.12:
        (folder / "data").mkdir()
        for number in range(rng.choice((1, 3))):
            (folder / "data" / f"{number}-{file.name}").write_bytes(data)
        (folder / "data" / rng.choice(("loop", "x.jsonl", "readme.md"))).symlink_to(rng.choice(("..", "nowhere", ".")))
        file = folder / "data"
    elif place < 0.14:
        file.mkdir()
    elif place < 0.15:
        file.symlink_to(file.name)
    elif kind == "images":
        file = _pictures(rng, folder, data)
    else:
        file.write_bytes(data)
    return file, _wanted(rng)


def _wanted(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"holdout": rng.choice((0.0, 0.0, 0.2, 0.5))}
    if rng.random() < 0.3:
        found["text"] = rng.choice((rng.choice(COLUMNS), ["text1", "text2"], ["text", "text1", "text2"], ["text"], []))
    for name in ("label", "domain", "role", "teacher_text"):
        if rng.random() < 0.12:
            found[name] = rng.choice(COLUMNS)
    if rng.random() < 0.1:
        found["strict"] = True
    if rng.random() < 0.1:
        found |= {"limit": rng.choice((1, 7, 10**30)), "max_characters": rng.choice((1, 50, 10**12))}
    if rng.random() < 0.1:
        found["modality"] = rng.choice(("text", "image", "molecule"))
    return found


def _row(rng: random.Random, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"text": f"an honest text, number {number}", "label": rng.choice("ab"), "domain": "x"}
    row |= {"text1": f"one {number}", "text2": f"two {number}", "role": rng.choice(("query", "document"))}
    while rng.random() < 0.3:
        row[rng.choice(COLUMNS)] = wild(rng) if rng.random() < 0.5 else rng.choice(TEXTS)
    return row


def _lines(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    lines = [json.dumps(spoil_tree(row, rng) if rng.random() < 0.15 else row, default=str) for row in rows]
    return "".join(line + rng.choice(("\n", "\n", "\n", "\r\n", "\n\n")) for line in lines).encode()


def _list(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    return json.dumps(spoil_tree(rows, rng) if rng.random() < 0.5 else rows, default=str).encode()


def _separated(separator: str) -> Callable[[list[dict[str, Any]], random.Random], bytes]:
    def write(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
        out = io.StringIO(newline="")
        names = rng.sample(COLUMNS, 4) + (["text"] if rng.random() < 0.8 else [])
        writer = csv.writer(out, delimiter=separator, lineterminator=rng.choice(("\n", "\r\n", "\r")))
        writer.writerow(names)
        for row in rows:
            cells = [str(row.get(name, ""))[:30_000] for name in names]
            writer.writerow(cells if rng.random() < 0.9 else cells[: rng.randrange(5)])
        return out.getvalue().encode("utf-8", "replace") + rng.choice((b"", b"", b'"open quote\n' * 30))

    return write


def _plain(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    return "\n".join(str(row.get("text"))[:30_000] for row in rows).encode(rng.choice(("utf-8", "utf-16")), "replace")


def _smiles(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    known = (
        "CCO",
        "c1ccccc1",
        "[Na+].[Cl-]",
        "C1CC",
        "[Xx]",
        "C" * 3000,
        "C(" * 500,
        "(",
        "\x00",
        "CC name of it",
        "*",
    )
    return "\n".join(rng.choice(known) for _ in rows).encode()


def _parquet(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    """Columns of every type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(rows)
    texts = [f"text {number}" for number in range(count)]
    makers: tuple[Callable[[], Any], ...] = (
        lambda: pa.array(texts),
        lambda: pa.array(texts, pa.large_string()),
        lambda: pa.array(texts).dictionary_encode(),
        lambda: pa.nulls(count),
        lambda: pa.array(range(count)),
        lambda: pa.array([text.encode() + b"\xff" for text in texts]),
        lambda: pa.array([[text] for text in texts], pa.list_(pa.string())),
        lambda: pa.array([{"a": text} for text in texts], pa.struct([("a", pa.string())])),
        lambda: pa.array([None if number % 2 else text for number, text in enumerate(texts)], pa.string()),
        lambda: pa.array([Decimal("1.5")] * count, pa.decimal128(5, 2)),
        lambda: pa.array([float("nan")] * count, pa.float64()),
        lambda: pa.array([1] * count, pa.timestamp("ns")),
        lambda: pa.array([True] * count, pa.bool_()),
        lambda: pa.array([1] * count, pa.duration("s")),
        lambda: pa.array([[0.5] * 4] * count, pa.list_(pa.float32(), 4)),
        lambda: pa.array([[("k", text)] for text in texts], pa.map_(pa.string(), pa.string())),
    )
    names = ["text"] * (rng.random() < 0.9) + rng.sample(COLUMNS, 3)
    arrays = [rng.choice(makers[:9] if name == "text" else makers)() for name in names]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=names), out)
    return out.getvalue()


def _npz(rows: list[dict[str, Any]], rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in rng.sample(("x_train", "images", "labels", "../../x", "text"), rng.choice((1, 2))):
            archive.writestr(f"{name}.npy", _npy(rng, len(rows) or 1, None))
    return out.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]], random.Random], bytes]] = {
    "jsonl": _lines,
    "ndjson": _lines,
    "json": _list,
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "txt": _plain,
    "smi": _smiles,
    "parquet": _parquet,
    "npz": _npz,
    "images": lambda rows, rng: _png(rng),
}


def _zst(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)


def _bomb(rng: random.Random, file: Path) -> tuple[Path, bytes]:
    """Much out of little: 600 MB of one line, or of many."""
    chunk = rng.choice((b"a" * (1 << 20), b"\x00" * (1 << 20), b'{"text": "' + b"a" * ((1 << 20) - 13) + b'"}\n'))
    packer = gzip.GzipFile(fileobj=(out := io.BytesIO()), mode="wb", compresslevel=1)
    for _ in range(BOMB >> 20):
        packer.write(chunk)
    packer.close()
    return file.with_name(file.name + ".gz"), out.getvalue()


def _png(rng: random.Random) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    size = rng.choice(((8, 8), (1, 1), (20_000, 1)))
    mode, kind = rng.choice(("RGB", "L", "P", "1", "RGBA", "CMYK")), rng.choice(("PNG", "TIFF"))
    Image.new(mode, size).save(out, "TIFF" if mode == "CMYK" else kind)
    return out.getvalue()


def _pictures(rng: random.Random, folder: Path, data: bytes) -> Path:
    for number in range(3):
        place = folder / "pictures" / rng.choice(("a", "b", "x" * 100))
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.{rng.choice(('png', 'jpg', 'gif'))}").write_bytes(data if number else _png(rng))
    return folder / "pictures"


# vectors


def _npy(rng: random.Random, count: int, mark: Path | None) -> bytes:
    """Of any type and shape; with a mark also pickles that make it."""
    odd = ((count,), (), (0, 8), (count, 0), (count, 2, 4), (count + 1, 8), (count, 1), (1, 8))
    shape = rng.choice(odd) if rng.random() < 0.15 else (count, 8)
    kinds = ("i8", "u1", "c8", "?", "S4", "U4", "M8[s]", "f4,f4", "O", "O", "f8", "f2", ">f4", "g")
    dtype = rng.choice(kinds) if rng.random() < 0.3 else "f4"
    if dtype == "O":
        value = np.empty(shape, object)
        value.fill(Burst(mark) if mark else None)
    else:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        value = np.frombuffer(rng.randbytes(size), dtype).reshape(shape) if rng.random() < 0.2 else None
        if value is None:
            base = np.random.default_rng(0).standard_normal(shape)
            value = np.zeros(shape, dtype) if "," in dtype or dtype[0] == "M" else base.astype(dtype)
    if np.issubdtype(value.dtype, np.floating) and value.size and rng.random() < 0.3:
        value = value.copy()
        value.flat[rng.randrange(value.size)] = rng.choice((np.nan, np.inf, -np.inf))
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asfortranarray(value) if rng.random() < 0.1 else value, allow_pickle=True)
    return out.getvalue()


class Burst:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (str(self.mark),)


def make_vectors(rng: random.Random, folder: Path, mark: Path) -> tuple[dict[str, Any], list[str]]:
    """The arguments of a teacher from elsewhere, and texts to ask it for."""
    texts = [f"text {number}" for number in range(12)]
    given: dict[str, Any] = {"name": "given"}
    if rng.random() < 0.35:
        given["vectors"] = str(folder / "vectors.parquet") + rng.choice(("", "", "", ":vector", ":vector", ":no"))
        data = _vector_table(texts, rng)
        (folder / "vectors.parquet").write_bytes(_maybe(data, rng))
        if rng.random() < 0.5:
            given["texts"] = rng.choice(("text", "text", "text", "nothing", "vector"))
    else:
        name = rng.choice(("vectors.npy", "vectors.npy", "vectors.npz", "vectors.bin"))
        data = _npy(rng, len(texts), mark)
        if rng.random() < 0.08:
            data = _npz([{}] * len(texts), rng)
        elif rng.random() < 0.05:
            data = pickle.dumps(Burst(mark))
        (folder / name).write_bytes(_maybe(data, rng))
        given["vectors"] = str(folder / name)
        how = rng.random()
        if how < 0.5:
            given["texts"] = str(folder / "texts.txt")
            (folder / "texts.txt").write_bytes(_maybe("\n".join(texts).encode(), rng))
        elif how < 0.75:
            given["texts"] = str(folder / "texts.jsonl")
            odd = rng.random() < 0.3
            rows = [wild(rng) if odd and rng.random() < 0.2 else rng.choice((text, {"text": text})) for text in texts]
            (folder / "texts.jsonl").write_bytes(
                _maybe("\n".join(json.dumps(r, default=str) for r in rows).encode(), rng)
            )
        elif how < 0.95:
            given["keys"] = str(folder / "keys.npy")
            out = io.BytesIO()
            keys = np.random.default_rng(1).integers(0, 256, (12, rng.choice((16, 16, 15))))
            np.save(out, keys.astype(rng.choice(("u1", "u1", "i8"))))
            (folder / "keys.npy").write_bytes(_maybe(out.getvalue(), rng))
    if rng.random() < 0.05:
        given["modality"] = rng.choice(("image", "molecule"))
    return given, texts


def _maybe(data: bytes, rng: random.Random) -> bytes:
    return spoil_bytes(data, rng) if rng.random() < 0.25 else data


def _vector_table(texts: list[str], rng: random.Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(texts)
    columns: tuple[Callable[[], Any], ...] = (
        lambda: pa.array([[0.5, 1.0]] * count, pa.list_(pa.float32())),
        lambda: pa.array([[0.5, float(number)] for number in range(count)], pa.list_(pa.float64(), 2)),
        lambda: pa.array([[0.5] * (number % 3) for number in range(count)], pa.list_(pa.float32())),
        lambda: pa.array([[0.5, None]] * count, pa.list_(pa.float32())),
        lambda: pa.array([None if number == 3 else [0.5] for number in range(count)], pa.list_(pa.float32())),
        lambda: pa.array([[float("nan"), 1.0]] * count, pa.list_(pa.float32())),
        lambda: pa.array([["a"]] * count, pa.list_(pa.string())),
        lambda: pa.array([[[1.0]]] * count, pa.list_(pa.list_(pa.float32()))),
        lambda: pa.array([0.5] * count),
        lambda: pa.array([b"1234"] * count),
        lambda: pa.nulls(count),
    )
    words: tuple[Callable[[], Any], ...] = (
        lambda: pa.array(texts),
        lambda: pa.array(texts),
        lambda: pa.array(range(count)),
        lambda: pa.nulls(count),
        lambda: pa.array([[text] for text in texts], pa.list_(pa.string())),
        lambda: pa.array([text.encode() for text in texts]),
        lambda: pa.array([None if number % 2 else text for number, text in enumerate(texts)], pa.string()),
    )
    columns, words = ((each[:2] if rng.random() < 0.5 else each) for each in (columns, words))
    arrays, names = [rng.choice(columns)(), rng.choice(words)()], ["vector", "text"]
    if rng.random() < 0.15:
        arrays, names = [*arrays, rng.choice(columns)()], [*names, rng.choice(("vector", "other"))]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=names), out)
    return out.getvalue()


# models


def plant(rng: random.Random, folder: Path, mark: Path) -> None:
    """Code or pickles in a model's folder that would make the mark."""
    code = f"import os\nos.mkdir({str(mark)!r})\n"
    kind = rng.choice(("auto_map", "tokenizer", "module", "outside", "pickle", "beside", "dense", "link"))
    (folder / "evil.py").write_text(code)
    if kind == "auto_map":
        names = {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoTokenizer": ["evil.T", "evil.T"]}
        more = {"model_type": rng.choice(("evil", "bert", "qwen3"))}
        _merge(folder / "config.json", {"auto_map": names} | (more if rng.random() < 0.7 else {}))
    elif kind == "tokenizer":
        _merge(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}})
        _merge(folder / "tokenizer_config.json", {"tokenizer_class": rng.choice(("evil.T", "T", "Evil"))})
    elif kind in ("module", "outside"):
        modules = json.loads((folder / "modules.json").read_text())
        if kind == "module":
            modules[rng.randrange(len(modules))]["type"] = rng.choice(
                ("evil.C", "evil", "os.system", "subprocess.Popen")
            )
        else:
            modules[-1]["path"] = rng.choice(("../outside", "/etc", "a/b/../../..", "~", "1_Pooling/../../outside"))
        (folder / "modules.json").write_text(json.dumps(modules))
    elif kind == "pickle":
        (folder / "model.safetensors").unlink()
        (folder / rng.choice(("pytorch_model.bin", "model.pt"))).write_bytes(pickle.dumps(Burst(mark)))
    elif kind == "beside":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Burst(mark)))
    elif kind == "dense":
        place = folder / rng.choice(("2_Dense", "a/b/2_Dense"))
        place.mkdir(parents=True)
        config = {"in_features": 32, "out_features": 8, "activation_function": rng.choice(("evil.C", "os.system"))}
        (place / "config.json").write_text(json.dumps(config if rng.random() < 0.5 else config | {"bias": True}))
        (place / "pytorch_model.bin").write_bytes(pickle.dumps(Burst(mark)))
        modules = json.loads((folder / "modules.json").read_text())
        name = "sentence_transformers.models.Dense"
        modules.append({"idx": 2, "name": "2", "path": str(place.relative_to(folder)), "type": name})
        (folder / "modules.json").write_text(json.dumps(modules))
    else:
        (folder / "vocab.txt").symlink_to("/etc/hostname")
    if rng.random() < 0.3:
        sizes = {
            "num_hidden_layers": 10**6,
            "vocab_size": 10**9,
            "hidden_size": 10**7,
            "max_position_embeddings": 10**9,
        }
        name = rng.choice(list(sizes))
        _merge(folder / "config.json", {name: sizes[name]})


def _merge(file: Path, more: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
