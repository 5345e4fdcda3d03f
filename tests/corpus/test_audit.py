"""Every kind of bad row: counted, written down with its line, and never a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError


def rejected(corpus: Corpus) -> list[tuple[int, str]]:
    lines = (corpus.folder / "rejected.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert all(set(entry) == {"file", "line", "reason", "excerpt"} and len(entry["excerpt"]) <= 80 for entry in entries)
    return sorted((entry["line"], entry["reason"]) for entry in entries)


BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"text": "caf\xe9"}', "not UTF-8"),
    (b'{"text": "half a pair \\ud83d"}', "not UTF-8"),
    (b"", "empty"),
    (b'{"text": " \\u00a0\\ufeff "}', "empty"),
    (b'{"text": "' + b"x" * 201 + b'"}', "too long"),
    (b'{"text": "nul \\u0000 inside"}', "control characters"),
    (b'{"text": "bell \\u0007 inside"}', "control characters"),
    (b'{"text": null}', "missing text"),
    (b'{"text": NaN}', "missing text"),
    (b'{"other": "x"}', "missing text"),
    (b'{"text": 12}', "not text"),
    (b'{"text": {"text": "nested"}}', "not text"),
    (b'{"text": ["a", "b"]}', "not text"),
    (b"[1, 2]", "not text"),
    (b'{"text": "cut off', "broken JSON"),
    (b"[" * 100_000, "broken JSON"),
    (b'{"text": ' + b"1" * 5000 + b"}", "broken JSON"),
    (b'{"text": "a good one"}', "duplicate"),
    (b'{"text": "  a good one\\n"}', "duplicate"),
]


def bad_file(folder: Path) -> Path:
    file = folder / "bad.jsonl"
    file.write_bytes(b'{"text": "a good one"}\n' + b"\n".join(line for line, _ in BAD_LINES) + b'\n{"text": "last"}\n')
    return file


def test_every_bad_row_is_counted_and_listed(tmp_path: Path) -> None:
    corpus = read_corpus(bad_file(tmp_path), tmp_path / "out", holdout=0.0, max_characters=200)
    assert corpus.texts() == ["a good one", "last"]
    expected = [(line, reason) for line, (_, reason) in enumerate(BAD_LINES, start=2)]
    assert rejected(corpus) == sorted(expected)
    counts: dict[str, int] = {}
    for _, reason in expected:
        counts[reason] = counts.get(reason, 0) + 1
    assert corpus.audit.duplicates == counts.pop("duplicate")
    assert corpus.audit.rejected == counts
    assert corpus.audit.read == len(BAD_LINES) + 2 and corpus.audit.kept == 2
    assert corpus.audit.lengths["max"] == 10 and corpus.audit.lengths["min"] == 4


@pytest.mark.parametrize("number", range(len(BAD_LINES)))
def test_strict_names_file_and_line(tmp_path: Path, number: int) -> None:
    content, reason = BAD_LINES[number]
    file = tmp_path / "strict.jsonl"
    file.write_bytes(b'{"text": "a good one"}\n' + content + b"\n" + BAD_LINES[0][0] + b"\n")
    with pytest.raises(DataError) as caught:
        read_corpus(file, tmp_path / "out", strict=True, holdout=0.0, max_characters=200)
    assert str(caught.value).startswith(f"{file}, line 2: {reason}")
    assert not list((tmp_path / "out").iterdir())


def test_strict_is_not_satisfied_by_what_was_read_without(tmp_path: Path) -> None:
    file = bad_file(tmp_path)
    read_corpus(file, tmp_path / "out", holdout=0.0)
    with pytest.raises(DataError, match=r"bad\.jsonl, line 2: .*caf.*strict"):
        read_corpus(file, tmp_path / "out", strict=True, holdout=0.0)
    assert len(Corpus.open(tmp_path / "out")) == 3  # the longer limit keeps one more; it is still there


def test_bad_csv_rows_cost_only_themselves(tmp_path: Path) -> None:
    lines = [
        b"text,label",
        b"good one,1",
        b"too,many,fields",
        b"few",
        b'"two\nlines",1',
        b'"never closed,1',
        b"good two,0",
        b'"closed" badly,1',
        b"caf\xe9,1",
        b"no label,",
        b"no number,NaN",
        b"",
        b'good "three",0',
    ]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    corpus = read_corpus(tmp_path / "a.csv", tmp_path / "out", label="label", holdout=0.0)
    assert corpus.texts() == ["good one", "two\nlines", "good two", 'good "three"']
    assert rejected(corpus) == [
        (3, "wrong number of fields"),
        (4, "wrong number of fields"),
        (7, "broken CSV"),
        (9, "broken CSV"),
        (10, "not UTF-8"),
        (11, "missing label"),
        (12, "missing label"),
        (13, "empty"),
    ]


def test_a_book_in_a_csv_field_is_one_row(tmp_path: Path) -> None:
    lines = [f"line {number}, of many" for number in range(80_000)]
    book = "\n".join(lines)
    assert len(book) > 1 << 20
    (tmp_path / "a.csv").write_text(f'text,label\nfirst,1\n"{book}",2\n"last, but one",3\nlast,4\n')
    corpus = read_corpus(tmp_path / "a.csv", tmp_path / "out", label="label", holdout=0.0)
    assert corpus.texts() == ["first", "last, but one", "last"] and rejected(corpus) == [(3, "too long")]


def test_a_line_of_100_mb_is_skipped_without_being_held(tmp_path: Path) -> None:
    import tracemalloc

    for name, start, end in (("a.txt", b"", b""), ("a.jsonl", b'{"text": "', b'"}'), ("a.csv", b"text\n", b"")):
        good = b'{"text": "good"}' if name == "a.jsonl" else b"good"
        with (tmp_path / name).open("wb") as out:
            out.write(start)
            for _ in range(100):
                out.write(b"x" * 1_000_000)
            out.write(end + b"\n" + good + b"\n")
        tracemalloc.start()
        corpus = read_corpus(tmp_path / name, tmp_path / f"{name}.out", holdout=0.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert corpus.texts() == ["good"] and corpus.audit.rejected == {"too long": 1}
        assert peak < 60e6
        (tmp_path / name).unlink()


def test_hostile_values_in_lists(tmp_path: Path) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd\nthing\x00"

    source: list[Any] = [
        "fine",
        b"bytes",
        None,
        math.nan,
        3.5,
        Odd(),
        {"text": Odd()},
        {"text": "\ud800"},
        [],
        ["deep"],
    ]
    corpus = read_corpus(source, tmp_path, holdout=0.0)
    assert corpus.texts() == ["fine"]
    assert corpus.audit.rejected == {"not text": 6, "missing text": 2, "not UTF-8": 1}


def test_labels_domains_and_roles(tmp_path: Path) -> None:
    source = [
        {"text": "a", "label": "dog", "domain": "z", "role": "query"},
        {"text": "a", "label": "cat", "domain": "b", "role": "Document"},
        {"text": "b", "label": "dog", "domain": 7, "role": "query"},
        {"text": "c", "label": None, "domain": "b", "role": "query"},
        {"text": "d", "label": ["dog"], "domain": "b", "role": "query"},
        {"text": "e", "label": "dog", "domain": "", "role": "query"},
        {"text": "f", "label": "dog", "domain": {}, "role": "query"},
        {"text": "g", "label": "dog", "domain": "b", "role": "editor"},
        {"text": "h", "label": "dog", "domain": "b"},
    ]
    corpus = read_corpus(source, tmp_path, label="label", domain="domain", role="role", holdout=0.0)
    assert corpus.texts() == ["a", "a", "b"], "one text in two roles is two items"
    assert corpus.labels is not None and corpus.domains is not None and corpus.roles is not None
    assert corpus.label_names == ["cat", "dog"] and corpus.labels.tolist() == [1, 0, 1]
    assert corpus.domain_names == ["7", "b", "z"] and corpus.domains.tolist() == [2, 1, 0]
    assert corpus.roles.tolist() == [0, 1, 0] and corpus.groups is None
    assert corpus.keys[0].tolist() != corpus.keys[1].tolist()
    assert set(corpus.audit.rejected) == {
        "missing label", "bad label", "missing domain", "bad domain", "missing role", "bad role",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "expected", "kind"),
    [
        ([1, 0, True], [1, 0, 1], "int64"),
        ([0.5, 1, 3.25], [0.5, 1, 3.25], "float32"),
        (["3", "-1", "10"], [3, -1, 10], "int64"),
        (["3", "0.5", "1e1"], [3, 0.5, 10], "float32"),
        (["none", "1", "x"], [1, 0, 2], "int64"),
        (["b", 1, "a"], [2, 0, 1], "int64"),
        ([0, "1", "-2"], [0, 1, -2], "int64"),
        (["0", True, 2], [0, 1, 2], "int64"),
        ([0, "1.5", 2], [0, 1.5, 2], "float32"),
        (["2", "\u00b2"], [0, 1], "int64"),
        (["010", "9", "007"], [1, 2, 0], "int64"),  # codes, not numbers
    ],
)
def test_labels_are_numbers_or_names(tmp_path: Path, labels: list[Any], expected: list[float], kind: str) -> None:
    source = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    corpus = read_corpus(source, tmp_path, label="label", holdout=0.0)
    assert corpus.labels is not None
    assert corpus.labels.tolist() == expected and str(corpus.labels.dtype) == kind


def test_a_name_among_numbers_is_bad(tmp_path: Path) -> None:
    source = [{"text": "a", "label": 1}, {"text": "b", "label": "x"}, {"text": "c", "label": 2}]
    corpus = read_corpus(source, tmp_path, label="label", holdout=0.0)
    assert corpus.texts() == ["a", "c"] and corpus.audit.rejected == {"bad label": 1}


def test_a_corpus_that_ends_empty_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n \nnul\x00\n")
    with pytest.raises(
        DataError, match=r"a\.txt: .*\(3 rows .*\b2 empty .*a\.txt, line 1\).*\b1 control.*a\.txt, line 3\)"
    ):
        read_corpus(tmp_path / "a.txt", tmp_path / "out")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.txt: .*\(0 rows"):
        read_corpus(tmp_path / "b.txt", tmp_path / "out")
    (tmp_path / "c.csv").write_bytes(b"text\n")
    with pytest.raises(DataError, match=r"c\.csv: .*\(0 rows"):
        read_corpus(tmp_path / "c.csv", tmp_path / "out")
    with pytest.raises(DataError, match=r"the items given: .*\b1\b.*holdout: 0\.999999"):
        read_corpus(["one"], tmp_path / "out", holdout=0.999999)


def test_labels_keep_their_last_digit(tmp_path: Path) -> None:
    """Identifiers: in a table they are exact, as numbers of JSON they are refused where a float would merge them."""
    names = [str(10**17 + number) for number in (1, 2, 3)]
    table = tmp_path / "ids.csv"
    table.write_text("text,label\n" + "".join(f"text {name},{name}\n" for name in names))
    assert read_corpus(table, tmp_path / "table", label="label", holdout=0.0).labels.tolist() == [*map(int, names)]
    rows = [{"text": f"text {label}", "label": label} for label in (1, 2**53, 2**53 + 1, -(10**400))]
    corpus = read_corpus(rows, tmp_path / "rows", label="label", holdout=0.0)
    assert corpus.labels.tolist() == [1, 2**53] and corpus.audit.rejected == {"label too large a number": 2}


def test_identifiers_in_a_column_with_gaps_are_what_they_were(tmp_path: Path) -> None:
    """A frame writes such a column as floats."""
    rows = [{"text": f"text {day}", "label": 20230100.0 + day} for day in range(4)]
    corpus = read_corpus([*rows, {"text": "none", "label": float("nan")}], tmp_path, label="label", holdout=0.0)
    assert corpus.labels is not None and corpus.labels.tolist() == [20230100, 20230101, 20230102, 20230103]
    assert corpus.labels.dtype == np.int64


def test_values_of_numpy_are_labels_and_domains(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": np.int64(n), "domain": np.int64(n % 2)} for n in range(4)]
    corpus = read_corpus(rows, tmp_path / "rows", label="label", domain="domain", holdout=0.0)
    assert corpus.labels.tolist() == [0, 1, 2, 3] and corpus.domain_names == ["0", "1"]
