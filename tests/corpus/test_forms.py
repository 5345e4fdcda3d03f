"""Files as pandas, databases and office programs write them: rows, or the right word with the command that mends it."""

from __future__ import annotations

import gzip
import logging
import os
import shlex
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from distilvec.corpus import read_corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.judging.tables import read_table

TEXTS = ["one text, with a comma", 'two "quoted" texts', "three texts", "four\nof two lines", "five é ü"]
FRAME = pandas.DataFrame({"text": TEXTS, "label": range(5)})
#: Without a line feed in a text.
PLAIN = FRAME.drop(3)

Write = Callable[[Path], Any]
READ: dict[str, tuple[str, Write]] = {
    "records": ("a.json", lambda file: FRAME.to_json(file, orient="records")),
    "records over lines": ("a.json", lambda file: FRAME.to_json(file, orient="records", indent=1)),
    "lines": ("a.jsonl", lambda file: FRAME.to_json(file, orient="records", lines=True)),
    "lines called json": ("a.json", lambda file: FRAME.to_json(file, orient="records", lines=True)),
    "csv": ("a.csv", lambda file: FRAME.to_csv(file, index=False)),
    "csv with an index": ("a.csv", FRAME.to_csv),
    "Excel's csv": ("a.csv", lambda file: FRAME.to_csv(file, encoding="utf-8-sig", lineterminator="\r\n")),
    "Excel's first line": ("a.csv", lambda file: file.write_text("sep=,\n" + FRAME.to_csv(index=False))),
    "parquet": ("a.parquet", FRAME.to_parquet),
}


@pytest.mark.parametrize("way", READ)
def test_forms_that_are_read(way: str, tmp_path: Path) -> None:
    name, write = READ[way]
    write(tmp_path / name)
    corpus = read_corpus(tmp_path / name, tmp_path / "corpus", label="label", holdout=0.0)
    assert [text.replace("\r\n", "\n") for text in corpus.texts()] == TEXTS
    assert read_table(tmp_path / name).numbers("label") == [0, 1, 2, 3, 4]


def database(file: Path) -> None:
    connection = sqlite3.connect(file)
    FRAME.to_sql("t", connection)
    connection.close()


def encoded(encoding: str) -> Write:
    return lambda file: FRAME.to_csv(file, encoding=encoding)


def oriented(orient: Any) -> Write:
    return lambda file: FRAME.to_json(file, orient=orient)


ONE_OBJECT = r"the whole file is one object \(.*orient=\"records\", lines=True"
TOLD: dict[str, tuple[str, Write, str]] = {
    "columns": ("a.json", oriented("columns"), ONE_OBJECT),
    "columns called jsonl": ("a.jsonl", oriented("columns"), ONE_OBJECT),
    "index": ("a.json", oriented("index"), ONE_OBJECT),
    "split": ("a.json", oriented("split"), ONE_OBJECT),
    "table": ("a.json", oriented("table"), ONE_OBJECT),
    "a column": ("a.json", FRAME["text"].to_json, ONE_OBJECT),
    "over lines": ("a.json", lambda file: FRAME.to_json(file, indent=1), "neither a list nor .*lines=True"),
    "objects over lines": ("a.jsonl", lambda file: file.write_text('{\n "text": "a"\n}\n'), r"jq -c \. OLD"),
    "UTF-16": ("a.csv", encoded("utf-16"), "is UTF-16.*iconv -f utf-16 -t"),
    "UTF-16 without a mark": ("a.csv", encoded("utf-16-le"), "is UTF-16LE.*iconv -f utf-16le -t"),
    "UTF-16 of the other end": ("a.csv", encoded("utf-16-be"), "is UTF-16BE.*iconv -f utf-16be -t"),
    "UTF-32": ("a.csv", encoded("utf-32"), "is UTF-32.*iconv -f utf-32 -t"),
    "UTF-32 as json": ("a.json", lambda file: file.write_text('[{"text": "a"}]', encoding="utf-32"), "is UTF-32"),
    "sqlite": ("a.csv", database, "an SQLite database, not .csv.*sqlite3 -csv -header a.csv"),
    "workbook": ("a.csv", lambda file: file.write_bytes(b"PK\3\4" + bytes(range(99))), "a workbook.*CSV UTF-8"),
    "parquet": ("a.csv", FRAME.to_parquet, r"a Parquet file.*a\.csv\.parquet"),
    "gzip": ("a.csv", lambda file: file.write_bytes(gzip.compress(b"text\na\n")), r"gzip.*a\.csv\.gz"),
    "jsonl": ("a.csv", lambda file: FRAME.to_json(file, orient="records", lines=True), r"not a \.csv .*\.jsonl"),
}


@pytest.mark.parametrize("way", TOLD)
def test_unsupported_forms_are_named_with_a_remedy(way: str, tmp_path: Path) -> None:
    name, write, told = TOLD[way]
    write(tmp_path / name)
    with pytest.raises(DataError, match=told):
        read_corpus(tmp_path / name, tmp_path / "corpus", label="label", holdout=0.0)


SUFFIXES = {".db": "sqlite3 -csv", ".xlsx": "CSV UTF-8", ".feather": "pyarrow", ".pkl": "read_pickle", ".sql": "CSV"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_suffixes_that_are_not_read_say_what_to_do(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"x")
    with pytest.raises(DistilvecError, match=rf'"\{suffix}" are not read.*{SUFFIXES[suffix]}.*Known: \.txt'):
        read_corpus(tmp_path / f"a{suffix}", tmp_path / "corpus")


def test_the_command_for_sqlite_gives_rows(tmp_path: Path) -> None:
    database(tmp_path / "a.db")
    if os.system("command -v sqlite3 > /dev/null"):
        pytest.skip("no sqlite3")
    subprocess.run("sqlite3 -csv -header a.db 'SELECT text FROM t' > new.csv", shell=True, cwd=tmp_path, check=True)
    assert read_corpus(tmp_path / "new.csv", tmp_path / "corpus", holdout=0.0).texts() == TEXTS


MAC = {
    "a.csv": PLAIN.to_csv(index=False, lineterminator="\r"),
    "b.csv": FRAME.to_csv(index=False, lineterminator="\r"),  # one line feed, within a text
    "a.tsv": PLAIN.to_csv(index=False, lineterminator="\r", sep="\t", quoting=3, escapechar="\\"),
    "a.txt": "one text\rtwo texts\rthree texts",
    "a.jsonl": '{"text": "a"}\r{"text": "b"}\r',
    "a.csv.gz": PLAIN.to_csv(index=False, lineterminator="\r"),
}


@pytest.mark.parametrize("name", MAC)
def test_lines_that_end_in_carriage_returns_alone(name: str, tmp_path: Path) -> None:
    content = MAC[name].encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=rf"{name}: the lines end in carriage returns alone \(old Mac form\)") as caught:
        read_corpus(tmp_path / name, tmp_path / "corpus", holdout=0.0)
    with pytest.raises(DataError, match="old Mac form"):
        read_table(tmp_path / name)
    if name != "a.csv":
        return
    command = str(caught.value.remedy).removeprefix("Convert it: ")
    assert shlex.split(command)[:3] == ["tr", r"\r", r"\n"]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    corpus = read_corpus(tmp_path / "converted-a.csv", tmp_path / "corpus", holdout=0.0)
    assert corpus.texts() == PLAIN["text"].tolist()


def test_one_row_with_lists_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "short", "spans": [{"start": 0}], "ids": [[1]]}\n')
    assert read_corpus(tmp_path / "a.jsonl", tmp_path / "corpus", holdout=0.0).texts() == ["short"]
    (tmp_path / "b.jsonl").write_text('{"text": "short", "about": {"id": 1}}\n')
    assert read_corpus(tmp_path / "b.jsonl", tmp_path / "other", holdout=0.0).texts() == ["short"]


def test_a_dump_that_is_read_as_texts_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database(tmp_path / "a.db")
    (tmp_path / "dump.txt").write_text("\n".join(sqlite3.connect(tmp_path / "a.db").iterdump()))
    with caplog.at_level(logging.WARNING):
        read_corpus(tmp_path / "dump.txt", tmp_path / "corpus", holdout=0.0)
    assert "dump.txt: its first line looks like that of a .sql file" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("list.jsonl", b'["a", "b", "c"]', r"one list is a \.json\."),
        ("spread.jsonl", b'[\n {\n  "text": "a"\n }\n]', r"one list is a \.json\."),
        ("old.txt", "Grüße\nBäume".encode("cp1252"), r"iconv -f windows-1252"),
        ("empty.txt", b"", r"0 rows read.*right file"),
        ("semicolons.csv", b"id;text\n1;a, b\n2;c, d\n", r"commas separate fields"),
    ],
)
def test_corpus_without_a_usable_row_is_refused_with_advice(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DistilvecError, match=told):
        read_corpus(tmp_path / name, tmp_path / "cache")


@pytest.mark.parametrize(
    ("first", "kind"), [('{"text": "a"}', ".jsonl"), ("id,text,label", ".csv"), ("Dear, all", ""), ("a text", "")]
)
def test_text_file_that_looks_like_a_table_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, kind: str
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([first, *(f"{number},b,c" for number in range(30))]))
    read_corpus(tmp_path / "texts.txt", tmp_path / "cache", holdout=0.0)
    assert ("looks like" in caplog.text) == bool(kind) and kind in caplog.text


def test_unbalanced_quote_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["id,text", '0,"open', *(f"{number},row {number}" for number in range(20)), '21,end"', "22,last"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    assert len(read_corpus(tmp_path / "rows.csv", tmp_path / "cache", holdout=0.0)) == 2
    assert "line 2" in caplog.text and "is a quote too many?" in caplog.text
    caplog.clear()
    letter = '0,"Dear all,\nthis is one text\nof several lines\nwith no row\nin it"\n1,another\n'
    (tmp_path / "rows.csv").write_text("id,text\n" + letter)
    assert (
        len(read_corpus(tmp_path / "rows.csv", tmp_path / "more", holdout=0.0)) == 2 and "is a quote" not in caplog.text
    )


def test_carriage_returns_within_lines_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "old.txt").write_bytes(b"one line\rtwo line\rthree line\r\nfour line\n")
    read_corpus(tmp_path / "old.txt", tmp_path / "cache", holdout=0.0)
    assert "carriage returns within a line" in caplog.text
