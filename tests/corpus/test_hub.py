"""Data sets of the hub as a stream: only what is wanted, once, and on from where it was; local files stand in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.hub_server import COMMIT, parquet, serving

from distilvec.corpus import hub, read_corpus
from distilvec.errors import DataError, EnvironmentProblem

COUNT = 3600
#: As many are looked at before the first is taken: what columns there are.
FIRST = 1000


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Three parquet files of 1,200 rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = tmp_path / "set"
    place.mkdir()
    for shard in range(3):
        numbers = range(1200 * shard, 1200 * shard + 1200)
        table = pa.table({"text": [f"text number {n}" for n in numbers], "label": [n % 3 for n in numbers]})
        pq.write_table(table, place / f"train-{shard:05}-of-00003.parquet", row_group_size=50)
    return f"hub:{place}"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Rows that really come out of the stream."""
    real, found = hub._fetched, []

    def counted(*args: Any) -> Any:
        for row in real(*args):
            found.append(row)
            yield row

    monkeypatch.setattr(hub, "_fetched", counted)
    return found


def texts(numbers: range) -> list[str]:
    return [f"text number {number}" for number in numbers]


def test_only_what_is_wanted_comes(address: str, fetched: list[dict[str, Any]], tmp_path: Path) -> None:
    corpus = read_corpus(address, tmp_path / "corpus", limit=1500, holdout=0.0)
    assert corpus.texts() == texts(range(1500)) and len(fetched) == 1500
    assert fetched[0].keys() == {"text"}
    assert not list((tmp_path / "corpus").glob(".streamed*"))
    read_corpus(address, tmp_path / "corpus", limit=1500, holdout=0.0)
    assert len(fetched) == 1500  # the prepared corpus is found by the files' own marks


def test_after_a_fault_every_row_comes_once(
    address: str, fetched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ROWS", 100)
    breaks = iter([530, 1777])
    real = hub._opened

    def breaking(*args: Any) -> Any:
        return _Breaking(real(*args), next(breaks, None))

    monkeypatch.setattr(hub, "_opened", breaking)
    for come in (530, 1777):
        with pytest.raises(EnvironmentProblem, match=rf"{come:,} rows .*no route.*same command"):
            read_corpus(address, tmp_path / "corpus", holdout=0.0)
        assert len(fetched) == come
    corpus = read_corpus(address, tmp_path / "corpus", holdout=0.0)
    assert corpus.texts() == texts(range(COUNT)) and len(fetched) == COUNT


def test_rows_kept_by_a_longer_reading_stay(
    address: str, fetched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a reading with a limit ends beside it; and what it kept is gone when all is read."""
    monkeypatch.setattr(hub, "ROWS", 100)
    real = hub._opened
    monkeypatch.setattr(hub, "_opened", lambda *args: _Breaking(real(*args), 2500))
    with pytest.raises(EnvironmentProblem):
        read_corpus(address, tmp_path / "corpus", holdout=0.0)
    monkeypatch.setattr(hub, "_opened", real)
    fetched.clear()
    assert len(read_corpus(address, tmp_path / "corpus", holdout=0.0, limit=100)) == 100 and not fetched
    corpus = read_corpus(address, tmp_path / "corpus", holdout=0.0)
    assert corpus.texts() == texts(range(COUNT)) and len(fetched) == COUNT - 2500
    assert not list((tmp_path / "corpus").glob(".streamed*"))


@pytest.mark.parametrize("damaged", ["rows-00003.json", "rows-00003.parquet"])
def test_parts_behind_a_gap_are_not_rows(
    damaged: str, address: str, fetched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ROWS", 100)
    wanted = hub.HubAddress.read(address)
    rows = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
    for _ in range(1000):
        next(rows)
    rows.close()
    (tmp_path / f"{hub.KEPT}k" / damaged).write_bytes(b"damaged")
    monkeypatch.setattr(hub, "ROWS", 130)  # parts of another size meet no old ones
    for come in (450, COUNT):
        rows = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
        read = [row.value["text"] for row, _ in zip(rows, range(come))]
        rows.close()
        assert read == texts(range(come))


class _Breaking:
    """A streamed data set whose line breaks when so many rows have come in all."""

    def __init__(self, dataset: Any, after: int | None) -> None:
        self.dataset, self.after = dataset, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __iter__(self) -> Any:
        for row in self.dataset:
            if self.after is not None and row["text"] == f"text number {self.after}":
                raise ConnectionError("no route")
            yield row


def test_a_kill_costs_the_part_that_was_not_written(
    address: str, fetched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ROWS", 100)
    wanted = hub.HubAddress.read(address)
    rows = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
    for _ in range(250):
        next(rows)
    rows.close()
    place = tmp_path / f"{hub.KEPT}k"
    (place / "rows-00002.json").unlink()  # what a process leaves that is killed between the two files of a part
    fetched.clear()
    again = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
    found = [row.value["text"] for row in again]
    assert found == texts(range(COUNT)) and len(fetched) == COUNT - 200
    fetched.clear()
    assert len(list(hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k"))) == COUNT and not fetched


def test_two_at_once_do_not_disturb_each_other(address: str, tmp_path: Path) -> None:
    wanted = hub.HubAddress.read(address)
    one = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
    other = hub.stream(wanted, ["text"], lambda dataset: dataset, tmp_path, "k")
    for _ in range(100):
        assert next(one) == next(other)
    assert [row.value["text"] for row in other] == texts(range(100, COUNT))
    assert [row.value["text"] for row in one] == texts(range(100, COUNT))


def test_other_columns_and_formats(address: str, tmp_path: Path) -> None:
    labelled = read_corpus(address, tmp_path / "labelled", label="label", limit=30, holdout=0.0)
    assert labelled.labels is not None and labelled.labels.tolist() == [n % 3 for n in range(30)]
    with pytest.raises(DataError, match='"body".*"text"'):
        read_corpus(address, tmp_path / "wrong", text="body")
    with pytest.raises(DataError, match='"test".*"train"|train'):
        read_corpus(f"{address}:test", tmp_path / "wrong")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert read_corpus(f"hub:{plain}", tmp_path / "jsonl", holdout=0.0).texts() == ["one", "two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=rf"hub:{tmp_path}/empty: "):
        read_corpus(f"hub:{tmp_path}/empty", tmp_path / "wrong")


def test_as_the_hub_itself_answers(tmp_path: Path) -> None:
    """A server stands in for it: less than the files is fetched, and the commit is found."""
    code = """
import sys
from distilvec.corpus import hub, read_corpus
print(hub.commit_of(hub.HubAddress.read("hub:me/texts", sys.argv[3])))
print(read_corpus("hub:me/texts", sys.argv[1], limit=int(sys.argv[2]), holdout=0.0, revision=sys.argv[3]).texts()[-1])
"""

    with serving(parquet(4, 1500, other=400)) as server:
        told = {**os.environ, **server.environment, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", code, str(tmp_path / "corpus"), "1400", "main"]
        done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[:2] == [COMMIT, "text number 1399"]
        assert 0 < server.sent < sum(map(len, server.files.values())) / 2


def test_changed_files_are_read_again(address: str, fetched: list[dict[str, Any]], tmp_path: Path) -> None:
    read_corpus(address, tmp_path / "corpus", limit=10, holdout=0.0)
    os.utime(next(Path(address.removeprefix("hub:")).iterdir()), (0, 0))
    read_corpus(address, tmp_path / "corpus", limit=10, holdout=0.0)
    assert len(fetched) == 2 * FIRST
