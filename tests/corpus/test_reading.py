"""Every kind of source gives the same texts; every kind of damage is told apart."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distilvec.corpus import Corpus, content_keys, read_corpus
from distilvec.errors import DataError, DistilvecError

TEXTS = [
    "A plain sentence.",
    'He said "no", twice.',
    "Zürich, naïve café 🎉",
    "line one\nline two",
    "semi; colon\u2028sep",
]


def rows() -> list[dict[str, object]]:
    return [{"text": text, "label": number % 2, "source": "ab"[number % 2]} for number, text in enumerate(TEXTS)]


def encoded(kind: str) -> bytes:
    if kind == "txt":
        return "\r\n".join(text.replace("\n", " ") for text in TEXTS).encode()
    if kind == "tsv":
        return (
            ("text\tlabel\tsource\n" + "".join(f"{r['text']}\t{r['label']}\t{r['source']}\n" for r in rows()))
            .replace("one\nline", "one line")
            .encode("utf-8-sig")
        )
    if kind == "csv":
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, ["text", "label", "source"])
        writer.writeheader()
        writer.writerows(rows())
        return out.getvalue().encode("utf-8-sig")
    if kind == "json":
        return json.dumps(rows(), indent=2).encode()
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()).encode("utf-8-sig")


def packed(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    if suffix == ".zst":
        frames = [content[: len(content) // 2], content[len(content) // 2 :]]
        return b"".join(pa.compress(frame, "zstd", asbytes=True) for frame in frames)
    return content


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "csv", "tsv", "json", "jsonl"])
def test_every_format_gives_the_same_texts(tmp_path: Path, kind: str, suffix: str) -> None:
    file = tmp_path / f"data.{kind}{suffix}"
    file.write_bytes(packed(encoded(kind), suffix))
    columns = {} if kind == "txt" else {"label": "label", "domain": "source"}
    corpus = read_corpus(file, tmp_path / "out", holdout=0.0, **columns)
    flat = [text.replace("\n", " ") for text in TEXTS]
    assert corpus.texts() == (flat if kind in ("txt", "tsv") else TEXTS)
    if columns:
        assert corpus.labels is not None and corpus.labels.tolist() == [0, 1, 0, 1, 0]
        assert corpus.labels.dtype == np.int64 and corpus.label_names is None
        assert corpus.domains is not None and corpus.domains.tolist() == [0, 1, 0, 1, 0]
        assert corpus.domain_names == ["a", "b"]
    assert not corpus.audit.rejected and corpus.audit.read == 5


def test_parquet_lists_and_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table = pa.Table.from_pylist(rows())
    pq.write_table(table, tmp_path / "data.parquet")
    pq.write_table(table.set_column(0, "text", table["text"].dictionary_encode()), tmp_path / "coded.parquet")
    dataset = datasets.Dataset.from_list(rows())
    dataset.save_to_disk(tmp_path / "saved")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_bytes(encoded("jsonl").removeprefix(b"\xef\xbb\xbf"))
    sources = [
        tmp_path / "data.parquet",
        tmp_path / "coded.parquet",
        str(tmp_path / "saved"),
        tmp_path / "hub",
        f"hub:{tmp_path / 'hub'}:train",
        dataset,
        datasets.DatasetDict(train=dataset, test=dataset),
        dataset.to_iterable_dataset(),
        rows(),
        (row for row in rows()),
    ]
    for number, source in enumerate(sources):
        corpus = read_corpus(source, tmp_path / str(number), label="label", domain="source", holdout=0.0)
        assert corpus.texts() == TEXTS, source
        assert corpus.labels is not None and corpus.labels.tolist() == [0, 1, 0, 1, 0]
    assert read_corpus(TEXTS, tmp_path / "texts", holdout=0.0).texts() == TEXTS


def test_parquet_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.array([b"good one", b"bad \xff one", None]).cast(pa.binary())
    pq.write_table(
        pa.table({"text": pa.Array.from_buffers(pa.string(), 3, bad.buffers(), bad.null_count)}), tmp_path / "a.parquet"
    )
    corpus = read_corpus(tmp_path / "a.parquet", tmp_path / "out", holdout=0.0)
    assert corpus.texts() == ["good one"]
    assert corpus.audit.rejected == {"not UTF-8": 1, "missing text": 1}


def test_texts_by_row_cross_batches_and_stay_in_order(tmp_path: Path) -> None:
    texts = [f"text number {number} {'ü' * (number % 7 + 1)}" for number in range(20_000)]
    corpus = read_corpus(texts, tmp_path, holdout=0.1)
    chosen = np.random.default_rng(0).integers(0, len(texts), 500)
    assert corpus.texts(chosen) == [texts[row] for row in chosen]
    assert corpus.texts([19_999, 0, 0]) == [texts[19_999], texts[0], texts[0]]
    assert corpus.texts([]) == [] and corpus.texts() == texts and len(corpus) == 20_000
    assert np.array_equal(corpus.keys, content_keys(texts)) and corpus.teacher_keys is corpus.keys
    assert not corpus.keys.flags.owndata and not corpus.keys.flags.writeable
    with pytest.raises(IndexError):
        corpus.texts([20_000])
    with pytest.raises(IndexError):
        corpus.texts([-1])


def test_a_json_list_longer_than_a_block_and_its_faults(tmp_path: Path) -> None:
    values = [{"text": f"{number} " + "wörd " * 400} for number in range(2000)]  # 4 MB, over block borders
    content = json.dumps(values, ensure_ascii=False).encode()
    (tmp_path / "a.json").write_bytes(content)
    corpus = read_corpus(tmp_path / "a.json", tmp_path / "out", holdout=0.0)
    assert corpus.texts() == [str(value["text"]).strip() for value in values]
    faults = {
        b"[1, 2": 'line 1: .*","',
        b'[{"text": "a"},\n{"text" "b"}]': "line 2: ",
        b"[" * 100_000: "line 1: .*nested",
    }
    for number, (broken, said) in enumerate(faults.items()):
        file = tmp_path / f"{number}.json"
        file.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{number}\.json, {said}"):
            read_corpus(file, tmp_path / f"out{number}")
    (tmp_path / "lines.json").write_bytes(encoded("jsonl"))
    assert read_corpus(tmp_path / "lines.json", tmp_path / "lines", holdout=0.0).texts() == TEXTS


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.jsonl.zst", "no.jsonl.gz", "no.jsonl.zst", "no.parquet"])
def test_damaged_files_are_errors_that_name_them(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0)
    content = "".join(json.dumps({"text": noise.bytes(40).hex()}) + "\n" for _ in range(3000)).encode()
    whole = packed(content, Path(name).suffix)
    (tmp_path / name).write_bytes(whole[: len(whole) // 3] if name.startswith("cut") else b"this is neither" * 9)
    with pytest.raises(DataError, match=name):
        read_corpus(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()
    assert not list((tmp_path / "out").iterdir())


def test_missing_things_name_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(encoded("jsonl"))
    (tmp_path / "plain.txt").write_bytes(encoded("txt"))
    with pytest.raises(DataError, match=r'text\.jsonl: .*"texts\.jsonl"'):
        read_corpus(tmp_path / "text.jsonl", tmp_path / "out")
    with pytest.raises(DataError, match=r'"txt".*"text".*"source"'):
        read_corpus(tmp_path / "texts.jsonl", tmp_path / "out", text="txt")
    with pytest.raises(DataError, match=r"plain\.txt: .*: text, label\."):
        read_corpus(tmp_path / "plain.txt", tmp_path / "out", label="label")
    with pytest.raises(DistilvecError, match=r'a\.docx: .*"\.docx".*\.jsonl'):
        read_corpus(tmp_path / "a.docx", tmp_path / "out")
    with pytest.raises(DistilvecError, match=r"corpus: .*\bint\b"):
        read_corpus(3, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"/empty: .*\.txt.*\.smi"):
        read_corpus(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "wide.txt").write_bytes("hello".encode("utf-16"))
    with pytest.raises(DataError, match=r"wide\.txt: .*UTF-16.*iconv -f utf-16 -t utf-8 wide\.txt"):
        read_corpus(tmp_path / "wide.txt", tmp_path / "out")


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    for options in (
        {"holdout": 1.0},
        {"holdout": -0.1},
        {"limit": 0},
        {"max_characters": 0},
        {"text": []},
        {"text": ["a", "a"]},
        {"text": ["a", "b"], "role": "r"},
        {"text": ["a", "b"], "teacher_text": "t", "joint": True},
    ):
        with pytest.raises(DistilvecError):
            read_corpus(["a text"], tmp_path, **options)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    for source in (tmp_path / "link", tmp_path / "link.txt"):
        assert read_corpus(source, tmp_path / "out", holdout=0.0).texts() == ["one", "two"]


@pytest.mark.parametrize("more", ['["more"]', ", 3", "]", "x"])
def test_content_after_a_list_is_refused(tmp_path: Path, more: str) -> None:
    file = tmp_path / "all.json"
    file.write_text('["one", "two"]\n' + more)
    with pytest.raises(DataError, match=r"all.json, line 2: .*the end of the file was expected"):
        read_corpus(file, tmp_path / "out", holdout=0.0)
    file.write_text('["one", "two"]\n \n')
    assert read_corpus(file, tmp_path / "out", holdout=0.0).texts() == ["one", "two"]


def test_other_files_of_a_folder_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    (folder / "B.JSONL").write_text('{"text": "two"}\n')
    (folder / "c.jsonl.bz2").write_bytes(b"x")
    (folder / "README.TXT").write_text("about the others")
    (folder / ".hidden").write_text("x")
    assert sorted(read_corpus(folder, tmp_path / "out", holdout=0.0).texts()) == ["one", "two"]
    assert "2 of its files are read; not README.TXT, c.jsonl.bz2, sub" in caplog.text and "hidden" not in caplog.text


def test_rows_within_one_object_are_named(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(json.dumps({"data": rows()}, indent=1))
    with pytest.raises(DataError, match=r"export\.json: this is neither a list nor one object a line.*list within"):
        read_corpus(tmp_path / "export.json", tmp_path / "corpus", holdout=0.0)
    (tmp_path / "lines.json").write_text("{broken\n" + "".join(json.dumps(row) + "\n" for row in rows()))
    corpus = read_corpus(tmp_path / "lines.json", tmp_path / "corpus", holdout=0.0)
    assert len(corpus) == len(TEXTS) and corpus.audit.rejected["broken JSON"] == 1


def test_a_list_of_files_is_not_read_as_texts(tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    for file in files:
        file.write_text('{"text": "one"}\n')
    for given in ([str(file) for file in files], files):
        with pytest.raises(
            DistilvecError, match=r"^corpus: these are files, not texts \(.*a.jsonl\)\. Give their folder"
        ):
            read_corpus(given, tmp_path / "out", holdout=0.0)
    with pytest.raises(DistilvecError, match="^corpus: these are files, not texts"):  # one of them has moved
        read_corpus([str(files[0]), str(tmp_path / "gone.jsonl")], tmp_path / "out", holdout=0.0)
    texts = read_corpus(["see a.jsonl", "and notes.txt"], tmp_path / "out", holdout=0.0).texts()
    assert texts == ["see a.jsonl", "and notes.txt"]


def test_a_pattern_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    for pattern in ("*.jsonl", "**/*", "a.jso?l"):
        with pytest.raises(DataError, match=r"this is a pattern, not a file\. Give the folder"):
            read_corpus(str(tmp_path / pattern), tmp_path / "out", holdout=0.0)
    (tmp_path / "what?.jsonl").write_text('{"text": "two"}\n')
    assert read_corpus(tmp_path / "what?.jsonl", tmp_path / "out", holdout=0.0).texts() == ["two"]


@pytest.mark.parametrize(("name", "between"), [("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", ",")])
def test_a_table_with_another_mark_between_its_columns_is_named(tmp_path: Path, name: str, between: str) -> None:
    """Who took the whole heading for the column's name would train on whole rows, ids and labels among them."""
    file = tmp_path / name
    file.write_text(f"id{between}text\n1{between}one\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=rf"one column, as {re.escape(repr(between))} .* a \.csv has commas, a \.tsv tabs"
    ):
        read_corpus(file, tmp_path / "out", holdout=0.0)


def test_one_word_among_numbers_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scores become classes by it."""
    file = tmp_path / "a.csv"
    file.write_text("text,label\n" + "".join(f"text {n},{n / 7:.3f}\n" for n in range(30)) + "another,none\nlast,NaN\n")
    corpus = read_corpus(file, tmp_path / "out", label="label", holdout=0.0)
    assert corpus.label_names is not None and 'but for "none", so that all of them are taken as names' in caplog.text


def test_a_table_exported_with_quotes_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('text\tlabel\n"a plain quote"\t1\nhe said "hi"\t1\n')
    read_corpus(file, tmp_path / "one", holdout=0.0)
    assert "in quotes" not in caplog.text
    file.write_text('text\tlabel\nplain\t1\n"He said ""hi"" to me"\t1\n"and ""again"""\t1\n')
    read_corpus(file, tmp_path / "two", holdout=0.0)
    assert caplog.text.count("in quotes") == 1 and "a.tsv, line 3" in caplog.text


def test_a_column_that_begins_late_is_missed_with_the_reason(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}"} for number in range(1000)] + [{"text": "the last", "note": "seen"}]
    file = tmp_path / "late.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r'late\.jsonl, its first 1,000 rows: there is no column "note"'):
        read_corpus(file, tmp_path / "corpus", domain="note")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_header_that_is_not_utf8_is_refused(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"table.{suffix}"
    separator = "," if suffix == "csv" else "\t"
    file.write_bytes(separator.join(["text", "größe"]).encode("latin-1") + f"\na{separator}b\n".encode())
    with pytest.raises(DataError, match=r"the names of the columns is not UTF-8.*iconv"):
        read_corpus(file, tmp_path / "corpus")


def test_permission_error_of_a_source_is_passed_on(tmp_path: Path) -> None:
    def rows() -> Any:
        yield "a text"
        raise PermissionError(13, "Permission denied", str(tmp_path / "secret.txt"))

    with pytest.raises(PermissionError):
        read_corpus(rows(), tmp_path / "corpus")


def test_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    """In a process of its own: what collects tests' output takes no such names."""
    code = (
        "from pathlib import Path\nfrom distilvec.corpus import read_corpus\n"
        "Path('caf\\udce9.txt').write_text('one text\\nanother text\\n')\n"
        "read_corpus(Path('caf\\udce9.txt'), 'corpus', holdout=0.0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert len(Corpus.open(tmp_path / "corpus")) == 2
