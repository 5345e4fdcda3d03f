"""Every format gives the same table, and every bad file an error with file, line and column."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.judging.tables import read_table

ROWS: list[dict[str, Any]] = [
    {"text": 'It said \u2028 nothing, "really"', "label": "a", "score": 1.5},
    {"text": "ünïcode 東京", "label": "b", "score": 2.0},
    {"text": "third", "label": "a", "score": -3.0},
]


def _jsonl(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", encoding="utf-8")


def _json(path: Path) -> None:
    path.write_text(json.dumps(ROWS), encoding="utf-8")


def _gz(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode()))


def _csv(path: Path) -> None:
    import csv

    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "score"])
        writer.writeheader()
        writer.writerows(ROWS)


def _tsv(path: Path) -> None:
    lines = ["text\tlabel\tscore"] + [f"{row['text']}\t{row['label']}\t{row['score']}" for row in ROWS]
    path.write_text("\n".join(lines), encoding="utf-8")


def _parquet(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path)


def _zst(path: Path) -> None:
    content = "\n".join(json.dumps(row) for row in ROWS).encode()
    # Two frames one after the other are one file.
    path.write_bytes(b"".join(pa.compress(part, "zstd", asbytes=True) for part in (content[:40], content[40:])))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.jsonl", _jsonl), ("t.json", _json), ("t.jsonl.gz", _gz), ("t.csv", _csv), ("t.tsv", _tsv),
        ("t.parquet", _parquet), ("t.jsonl.zst", _zst),
    ],
)  # fmt: skip
def test_every_format(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    table = read_table(tmp_path / name)
    assert table.texts("text") == [row["text"] for row in ROWS]
    assert table.labels("label") == ["a", "b", "a"]
    assert table.numbers("score") == [1.5, 2.0, -3.0]


def test_rows_from_python() -> None:
    assert read_table(ROWS).numbers("score") == [1.5, 2.0, -3.0]


def test_one_class_however_it_is_written() -> None:
    labels = read_table([{"x": value} for value in (1, 1.0, "1", True)]).labels("x")
    assert labels == ["1", "1", "1", "1"]


def test_labels_of_numpy() -> None:
    """As an array of labels gives them, row by row."""
    given = [np.int64(1), np.float32(1), np.bool_(True), np.str_("1")]
    assert read_table([{"x": value} for value in given]).labels("x") == ["1", "1", "1", "1"]
    with pytest.raises(DataError, match="row 1, column x: a label was expected, not nan"):
        read_table([{"x": np.float32("nan")}]).labels("x")


def _flipped(content: bytes) -> bytes:
    """Compressed, with one byte in the middle changed."""
    packed = bytearray(gzip.compress(content, mtime=0))
    packed[len(packed) // 2] ^= 0xFF
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"text": "a"}\n\n{"text": \n', r"t\.jsonl, line 3: .*JSON"),
        ("t.jsonl", b'{"text": "a"}\n"b"\n', r"t\.jsonl, line 2: .*\bstr\b"),
        ("t.jsonl", b"\n\n", r"t\.jsonl: .*\brows\b"),
        ("t.jsonl", b'{"text": "\xff"}', r"t\.jsonl, line 1: .*UTF-8.*xff"),
        ("t.json", b'[{"text": "a"},\n {]', r"t\.json, line 2: .*JSON"),
        ("t.jsonl.gz", b"not gzip", r"t\.jsonl\.gz: .*\bgzip"),
        ("t.jsonl.gz", gzip.compress(b'{"text": "a"}' * 50, mtime=0)[:-12], r"t\.jsonl\.gz: .*\(.+\)"),
        ("t.csv", b'text,label\n"two\nlines",a\nb\n', r"t\.csv, line 4: .*fields \(b\)"),
        ("t.csv", b'text,label\n"open,a\n', r't\.csv, line 2: .*CSV \("open,a\)'),
        ("t.jsonl.zst", b"not zstd at all", r"t\.jsonl\.zst: .*\bZSTD"),
        (
            "t.jsonl.zst",
            pa.compress(b'{"text": "a"}\n' * 50, "zstd", asbytes=True)[:-3],
            r"t\.jsonl\.zst: .*cut off.*\(Trunc",
        ),
        ("t.jsonl.gz", _flipped(b'{"text": "abc"}' * 9), r"t\.jsonl\.gz: .*\(.+\)"),
        ("t.csv", b"text,label\n", r"t\.csv: .*\brows\b"),
        ("t.parquet", b"PAR1 no", r"t\.parquet: .*7 bytes"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / name)


def test_a_kind_of_file_that_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r't\.xlsx: .*"\.xlsx".*\.jsonl'):
        read_table(tmp_path / "t.xlsx")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    _jsonl(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r'tran\.jsonl: .*"train\.jsonl"'):
        read_table(tmp_path / "tran.jsonl")
    with pytest.raises(DataError, match=r"/nowhere/train\.jsonl: .*/nowhere either"):
        read_table(tmp_path / "nowhere" / "train.jsonl")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("texts", 5, r"text .*\b5\b"),
        ("texts", None, r"text .*\bNone\b"),
        ("texts", "  ", r"text .*\bempty\b"),
        ("texts", "half \ud800", r"text .*half a character"),
        ("labels", None, r"label .*\bNone\b"),
        ("labels", float("nan"), r"label .*\bnan\b"),
        ("labels", ["a"], r"label .*\blist\b"),
        ("numbers", "high", "number .*'high'"),
        ("numbers", float("inf"), r"number .*\binf\b"),
    ],
)
def test_bad_values(tmp_path: Path, kind: str, value: Any, message: str) -> None:
    rows = [{"x": "1"}, {"x": value}]
    (tmp_path / "t.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    table = read_table(tmp_path / "t.jsonl")
    with pytest.raises(DataError, match=rf"t\.jsonl, line 3, column x: .*{message}"):
        getattr(table, kind)("x")


def test_a_missing_column_names_the_nearest() -> None:
    with pytest.raises(DataError, match=r'row 2, column text: .*"txt"'):
        read_table([{"text": "a"}, {"txt": "b"}]).texts("text")
