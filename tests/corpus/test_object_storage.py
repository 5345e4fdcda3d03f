"""Corpora on object storage: the same texts as from the disk, with one file of theirs on it at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest
from tests import english

from distilvec.corpus import Part, read_corpus
from distilvec.corpus.object_storage import _mark
from distilvec.corpus.sources import find_source
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem

TEXTS = english.sentences(60)


def write(place: Path) -> Path:
    place.mkdir()
    for number in range(3):
        rows = (json.dumps({"body": text}) for text in TEXTS[number * 20 : number * 20 + 20])
        (place / f"part-{number}.jsonl").write_text("\n".join(rows) + "\n")
    (place / "README.md").write_text("about them")
    return place


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """The address of three files in a storage that is no disk."""
    storage = fsspec.filesystem("memory")
    storage.put(str(write(tmp_path / "sent")), f"/{tmp_path.name}", recursive=True)
    yield f"memory://{tmp_path.name}"
    storage.rm(f"/{tmp_path.name}", recursive=True)


def test_the_corpus_is_that_of_the_same_files_on_the_disk(tmp_path: Path, bucket: str) -> None:
    here = read_corpus(tmp_path / "sent", tmp_path / "here", text="body")
    for number, address in enumerate((bucket, f"file://{tmp_path / 'sent'}")):
        there = read_corpus(address, tmp_path / f"there-{number}", text="body")
        assert there.fingerprint == here.fingerprint
        assert there.texts() == here.texts() == TEXTS
    one = read_corpus(f"{bucket}/part-1.jsonl", tmp_path / "one", text="body")
    assert one.texts() == TEXTS[20:40]


def test_one_file_at_a_time_lies_on_the_disk(tmp_path: Path, bucket: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    rows = find_source(bucket, folder=place).rows(["body"], 1000)
    for number, row in enumerate(rows):
        assert [file.name for file in place.rglob("*.jsonl")] == [f"part-{number // 20}.jsonl"]
        assert row.file == f"{bucket}/part-{number // 20}.jsonl"
    assert not list(place.iterdir())


def test_rejected_rows_name_the_address(tmp_path: Path, bucket: str) -> None:
    with fsspec.open(f"{bucket}/part-2.jsonl", "a") as file:
        file.write('{"body": ""}\n')
    read_corpus(bucket, tmp_path / "out", text="body")
    row = json.loads((tmp_path / "out" / "rejected.jsonl").read_text())
    assert row["file"].startswith("memory://") and row["file"].endswith("part-2.jsonl") and row["line"] == 21


def test_it_is_fetched_again_only_where_a_file_has_changed(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    storage = type(fsspec.filesystem("memory"))
    get = storage.get_file

    def count(self: object, path: str, *others: object, **more: object) -> object:
        fetched.append(path.rsplit("/", 1)[-1])
        return get(self, path, *others, **more)

    monkeypatch.setattr(storage, "get_file", count)
    read_corpus(bucket, tmp_path / "out", text="body", holdout=0.1)
    assert fetched == ["part-0.jsonl", "part-1.jsonl", "part-2.jsonl"]
    read_corpus(bucket, tmp_path / "out", text="body", holdout=0.1)
    assert len(fetched) == 3
    with fsspec.open(f"{bucket}/part-2.jsonl", "a") as file:
        file.write('{"body": "one more"}\n')
    assert read_corpus(bucket, tmp_path / "out", text="body", holdout=0.1).texts()[-1] == "one more"
    assert len(fetched) == 6


def test_when_a_file_was_last_read_counts_for_nothing() -> None:
    sftp = {"name": "/a", "size": 3, "type": "file", "time": 10.0, "mtime": 5.0}
    assert _mark(sftp) == _mark(sftp | {"time": 20.0})
    assert _mark(sftp) != _mark(sftp | {"mtime": 6.0})
    assert _mark(sftp) != _mark(sftp | {"size": 4})


def test_a_part_may_lie_there(tmp_path: Path, bucket: str) -> None:
    parts = [Part(path=["one", "two"], name="own", text="text"), Part(path=bucket, name="far", text="body")]
    corpus = read_corpus(parts, tmp_path / "out", holdout=0.0)
    assert corpus.domain_names == ["far", "own"] and len(corpus) == 62


def test_a_damaged_file_is_named_by_its_address(tmp_path: Path, bucket: str) -> None:
    with fsspec.open(f"{bucket}/zz.parquet", "w") as file:
        file.write("PAR1 and nothing else")
    with pytest.raises(DataError, match=r"memory://.*zz\.parquet") as told:
        read_corpus(bucket, tmp_path / "out", text="body", holdout=0.0)
    assert "distilvec-tmp" not in str(told.value)
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_what_is_not_there_or_not_read_is_said(tmp_path: Path, bucket: str) -> None:
    said = {
        f"{bucket}/nothing": "there is no such file or folder",
        f"{bucket}/README.md": 'files of kind ".md" are not read',
        "https://example.org/texts.jsonl": "texts are not read from web addresses. Download the file first",
        "jupyter://somewhere/texts.jsonl": "a corpus is an address such as s3://bucket/folder",
    }
    for address, words in said.items():
        with pytest.raises(DistilvecError) as told:
            read_corpus(address, tmp_path / "out")
        assert words in str(told.value)
    with pytest.raises(DistilvecError, match="^ftp://host: a corpus has an address with a password") as told:
        read_corpus("ftp://me:secret@host/texts.jsonl", tmp_path / "out")
    assert "secret" not in str(told.value)
    with pytest.raises(DistilvecError, match="images are read from files of this machine"):
        read_corpus(bucket, tmp_path / "out", modality="image")


def test_what_is_not_read_is_said(tmp_path: Path, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("more.jsonl.bz2", "deep/more.jsonl", "c.jsonl"):
        with fsspec.open(f"{bucket}/{name}", "w") as file:
            file.write('{"body": "one more"}\n')
    assert len(read_corpus(bucket, tmp_path / "out", text="body")) == len(TEXTS) + 1
    assert f"{bucket}: 4 of its files are read; not README.md, deep, more.jsonl.bz2" in caplog.text


@pytest.mark.parametrize("fault", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_faults_of_the_storage_are_not_told_of_the_disk(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", broken)
    with pytest.raises(EnvironmentProblem, match=rf"part-0\.jsonl: the storage cannot be used .*{fault.strerror}"):
        read_corpus(bucket, tmp_path / "out", text="body", holdout=0.0)
    fault.errno = 28
    with pytest.raises(EnvironmentProblem, match="the file cannot be fetched .*Make room there"):
        read_corpus(bucket, tmp_path / "out", text="body", holdout=0.0)


def test_a_folder_is_read_from_its_own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages whose paths are written without the host, as FTP's and SFTP's are."""
    from fsspec.implementations.local import LocalFileSystem

    class Far(LocalFileSystem):
        protocol = "ftp"

        def __init__(self, host: str, port: int, **more: object) -> None:
            assert (host, port) == ("far.example", 2121)
            super().__init__(**more)

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return urlsplit(path).path if "://" in path else path

        @staticmethod
        def _get_kwargs_from_urls(url: str) -> dict[str, object]:
            return {"host": urlsplit(url).hostname, "port": urlsplit(url).port}

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "ftp", Far)
    place = write(tmp_path / "sent")
    (place / "a::b.jsonl").write_text('{"body": "one more"}\n')
    corpus = read_corpus(f"ftp://far.example:2121{place}", tmp_path / "out", text="body", holdout=0.0)
    assert corpus.texts() == ["one more", *TEXTS]


def test_a_storage_that_breaks_off_is_said(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", broken)
    with pytest.raises(EnvironmentProblem, match=r"part-0\.jsonl: the storage cannot be used \(reset by peer\)"):
        read_corpus(bucket, tmp_path / "out", text="body", holdout=0.0)
    assert not (tmp_path / "out" / "corpus.json").exists()
