"""Sources that people really have and sources that nobody should have: folders, links, broken bytes, no network."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError, EnvironmentProblem


def rejected(corpus: Corpus) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (corpus.folder / "rejected.jsonl").read_text("utf-8").splitlines()]


def test_a_folder_of_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deeper").mkdir(parents=True)
    (folder / "b.csv").write_text("text,label\nsecond,1\n,1\n")
    (folder / "a.ndjson").write_text('{"text": "first", "label": 0}\n{"text": 3, "label": 0}\n')
    (folder / ".hidden.csv").write_text("text\nno\n")
    (folder / "LICENSE").write_text("no")
    (folder / "deeper" / "c.csv").write_text("text\nno\n")
    corpus = read_corpus(folder, tmp_path / "out", label="label", holdout=0.0)
    assert corpus.texts() == ["first", "second"]
    assert rejected(corpus) == [
        {"file": str(folder / "a.ndjson"), "line": 2, "reason": "not text", "excerpt": "{'text': 3, 'label': 0}"},
        {"file": str(folder / "b.csv"), "line": 3, "reason": "empty", "excerpt": "{'text': '', 'label': '1'}"},
    ]
    (folder / "c.jsonl").write_text('{"text": "third", "label": 1}\n')
    assert len(read_corpus(folder, tmp_path / "out", label="label", holdout=0.0)) == 3, "a new file is noticed"
    (folder / "d.csv").write_text("txt,label\nfourth,1\n")
    with pytest.raises(DataError, match=r'd\.csv: .*"text".*"txt", "label"'):
        read_corpus(folder, tmp_path / "out", label="label")
    (folder / "d.csv").unlink()
    (folder / "README.txt").write_text("What this is.\n")
    assert len(read_corpus(folder, tmp_path / "out", label="label", holdout=0.0)) == 3, "it is about the others"
    (folder / "notes.txt").write_text("Plain texts.\n")
    with pytest.raises(DataError, match=r"/data: .*notes\.txt"):
        read_corpus(folder, tmp_path / "out", label="label")


def test_windows_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone line\r\nanother\r\n\r\nthird")
    corpus = read_corpus(tmp_path / "a.txt", tmp_path / "out", holdout=0.0)
    assert corpus.texts() == ["one line", "another", "third"]
    assert [(entry["line"], entry["reason"]) for entry in rejected(corpus)] == [(3, "empty")]
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,label\r\n"one\r\nmore",1\r\ntwo,2\r\n')
    corpus = read_corpus(tmp_path / "a.csv", tmp_path / "csv", label="label", holdout=0.0)
    assert corpus.texts() == ["one\r\nmore", "two"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_bad_bytes_in_a_csv_field_of_several_lines_cost_the_record(tmp_path: Path, place: int) -> None:
    inside = [b'"open here', b"go on", b'close"']
    inside[place] = inside[place].replace(b"o", b"\xe9", 1)
    lines = [b"text,label", b"good,1", *inside[:-1], inside[-1] + b",1", b'"last\none",1', b"caf\xe9,1", b"end,1"]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    corpus = read_corpus(tmp_path / "a.csv", tmp_path / "out", label="label", holdout=0.0)
    assert corpus.texts() == ["good", "last\none", "end"]
    entries = rejected(corpus)
    assert [(entry["line"], entry["reason"]) for entry in entries] == [(3, "not UTF-8"), (8, "not UTF-8")]
    assert "\\xe9" in entries[0]["excerpt"] and entries[1]["excerpt"] == "caf\\xe9,1"


def test_a_csv_without_header_names_what_it_took_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n".join(",".join(f"v{row}{column}" for column in range(10)) for row in range(5)))
    with pytest.raises(DataError, match=r'"text".*"v00".*"v01"'):
        read_corpus(tmp_path / "a.csv", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_parquet_columns_that_hold_no_text(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: dict[str, dict[str, Any]] = {
        "numbers": {"text": [1, 2, None]},
        "nothing": {"text": pa.nulls(3)},
        "lists": {"text": [["a"], ["b"], None]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        with pytest.raises(
            DataError, match=rf"{name}\.parquet: .*\(3 rows .*text \(first: .*{name}\.parquet, line [123]\)"
        ):
            read_corpus(tmp_path / f"{name}.parquet", tmp_path / "out")
    columns = {"text": ["a", None, "b", "c"], "label": [None, 1, 2, 3], "vector": [[1.0]] * 4}
    pq.write_table(pa.table(columns), tmp_path / "some.parquet")
    corpus = read_corpus(tmp_path / "some.parquet", tmp_path / "some", label="label", holdout=0.0)
    assert corpus.texts() == ["b", "c"] and corpus.audit.rejected == {"missing label": 1, "missing text": 1}


def test_bad_texts_for_the_teacher_are_distinguished(tmp_path: Path) -> None:
    values: list[Any] = [None, 3, "", "fine", "nul\x00", "\udc80", "x" * 101]
    rows = [{"text": f"text {number}", "other": value} for number, value in enumerate(values)]
    corpus = read_corpus(rows, tmp_path, teacher_text="other", holdout=0.0, max_characters=100)
    assert corpus.texts() == ["text 3"] and corpus.teacher_texts() == ["fine"]
    reasons = ["missing text", "not text", "empty", "control characters", "not UTF-8", "too long"]
    assert [entry["reason"] for entry in rejected(corpus)] == [f"teacher text: {reason}" for reason in reasons]
    assert [entry["line"] for entry in rejected(corpus)] == [1, 2, 3, 5, 6, 7]


def test_unexpected_python_values(tmp_path: Path) -> None:
    class Furious:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    loop: dict[str, Any] = {"text": "in a loop"}
    loop["self"] = loop
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    source: list[Any] = [{1: "a", "text": "mixed keys"}, loop, {"text": deep}, {"text": Furious()}]
    corpus = read_corpus(source, tmp_path, holdout=0.0)
    assert corpus.texts() == ["mixed keys", "in a loop"] and corpus.audit.rejected == {"not text": 2}
    while deep:
        deep = deep[0]  # taken apart by hand: Python's own way is as deep


def test_without_a_network_the_hub_is_an_environment_problem(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="hub:some-one/some-thing: ") as caught:
        read_corpus("hub:some-one/some-thing", tmp_path)
    assert caught.value.exit_code == 4


def test_a_data_set_of_several_splits_needs_a_choice(tmp_path: Path) -> None:
    import datasets

    part = datasets.Dataset.from_dict({"text": ["a", "b"]})
    with pytest.raises(DataError, match=r'"train": dev, test\.'):
        read_corpus(datasets.DatasetDict(dev=part, test=part), tmp_path)
    only = read_corpus(datasets.DatasetDict(dev=part), tmp_path, holdout=0.0)
    assert only.texts() == ["a", "b"]
    with pytest.raises(DataError, match='"body".*"text"'):
        read_corpus(part, tmp_path, text="body")


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(DataError, match=r'gone\.txt: .*/nothing"'):
        read_corpus(tmp_path / "gone.txt", tmp_path / "out")
    (tmp_path / "round.txt").symlink_to(tmp_path / "round.txt")
    with pytest.raises(EnvironmentProblem, match=r"round\.txt"):
        read_corpus(tmp_path / "round.txt", tmp_path / "out")


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / ("x" * 300), Path("/dev/null/inside"), Path("/proc/none/inside")):
        with pytest.raises(EnvironmentProblem, match=re.escape(f"{folder}: ")):
            read_corpus(["a text"], folder)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid():  # the superuser may write anywhere
        with pytest.raises(EnvironmentProblem, match=re.escape(f"{locked}: ")):
            read_corpus(["a text"], locked)


def test_errors_of_a_source_are_not_reported_as_disk_errors(tmp_path: Path) -> None:
    def source() -> Any:
        yield "one"
        raise TimeoutError("the database is away")

    with pytest.raises(TimeoutError, match="database"):
        read_corpus(source(), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
