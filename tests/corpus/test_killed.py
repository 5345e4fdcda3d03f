"""Killed while reading, a full disk, many rows: nothing half-written, nothing lost, no memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError

READ = "import sys; from distilvec.corpus import read_corpus; read_corpus(sys.argv[1], sys.argv[2], holdout=0.0)"
DYING = """
import os, signal, sys
from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError
out, real = sys.argv[1], os.replace
def state():
    try:
        return " ".join(Corpus.open(out).texts())
    except DataError:
        return "none"
for point in range(1, 12):
    read_corpus(["old", "texts"], out, holdout=0.0)
    child = os.fork()
    if child == 0:
        calls = iter(range(1, 100))
        def dying(*paths):
            if next(calls) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*paths)
        os.replace = dying
        read_corpus(["new", "texts", "here"], out, holdout=0.0)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = state()
    again = " ".join(read_corpus(["new", "texts", "here"], out, holdout=0.0).texts())
    print(point, killed, left, again, any(name.startswith(".distilvec-tmp-") for name in os.listdir(out)), sep="|")
    if not killed:
        break
"""
LIMITED = """
import resource, sys
from distilvec.corpus import read_corpus
from distilvec.errors import EnvironmentProblem
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    read_corpus(sys.argv[1], sys.argv[2], holdout=0.0)
except EnvironmentProblem as problem:
    print(problem)
"""
MEASURED = """
import sys, tracemalloc
from distilvec.corpus import read_corpus
import pyarrow, numpy
from distilvec.corpus import corpus, writer, sources
def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
words = "with some words around it, so that it looks like one"
rows = ({"text": f"sentence number {n}, {words}"} for n in range(int(sys.argv[1])))
read_corpus([f"warm {n}" for n in range(20000)], sys.argv[2] + "/warm")
before = anonymous()
found = read_corpus(rows, sys.argv[2] + "/big")
print(anonymous() - before, len(found))
"""


#: A shell that starts the tests in the background has them ignore Ctrl-C, and children inherit that.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"{HEED}\n{script}", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("big") / "big.jsonl"
    with file.open("w") as out:
        for number in range(300_000):
            out.write(json.dumps({"text": f"row number {number} of a corpus that takes a while to read"}) + "\n")
    return file


def test_a_killed_reader_leaves_nothing_that_counts(tmp_path: Path, big_file: Path) -> None:
    out = tmp_path / "out"
    before = read_corpus(["what was here before"], out, holdout=0.0)
    process = run(READ, big_file, out)
    deadline = time.monotonic() + 60
    while not any(part.stat().st_size > 1_000_000 for part in out.glob(".distilvec-tmp-*/items.arrow")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(out.glob(".distilvec-tmp-*"))
    assert Corpus.open(out).texts() == before.texts(), "the old corpus is whole"
    again = read_corpus(big_file, out, holdout=0.0, limit=100)
    assert len(again) == 100
    assert not list(out.glob(".distilvec-tmp-*")), "what the dead process left is gone"


def test_killed_between_any_two_moves(tmp_path: Path) -> None:
    output, _ = run(DYING, tmp_path / "out").communicate()
    lines = [line.split("|") for line in output.splitlines() if "|" in line]  # a fork beside threads warns
    assert len(lines) > 4, output
    for _, killed, left, again, remains in lines[:-1]:
        assert (killed, again, remains) == ("True", "new texts here", "False")
        assert left in ("none", "old texts"), "never a mixture"
    assert lines[-1][1:3] == ["False", "new texts here"]


def test_an_interrupted_reader_cleans_up(tmp_path: Path, big_file: Path) -> None:
    for attempt in range(5):  # on a busy machine the reader may be done before the signal reaches it
        out = tmp_path / f"out-{attempt}"
        process = run(READ, big_file, out)
        deadline = time.monotonic() + 60
        while process.poll() is None and not list(out.glob(".distilvec-tmp-*/items.arrow")):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        if process.wait() != 0:
            break
    assert process.returncode != 0
    assert list(out.iterdir()) == []
    with pytest.raises(DataError, match=re.escape(f"{out}: ") + r".*corpus\.json"):
        Corpus.open(out)


def test_a_full_disk_is_said(tmp_path: Path, big_file: Path) -> None:
    output, _ = run(LIMITED, big_file, tmp_path / "out").communicate()
    assert "cannot be written (File too large" in output and "ulimit -f" in output, output
    assert list((tmp_path / "out").iterdir()) == []


def test_readers_at_the_same_time_agree(tmp_path: Path, big_file: Path) -> None:
    small = tmp_path / "small.jsonl"
    small.write_bytes(b"".join(big_file.read_bytes().splitlines(keepends=True)[:5000]))
    processes = [run(READ, small, tmp_path / "out") for _ in range(3)]
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    assert len(Corpus.open(tmp_path / "out")) == 5000
    assert not list((tmp_path / "out").glob(".distilvec-tmp-*"))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_memory_hardly_grows_with_rows(tmp_path: Path) -> None:
    rows = 300_000
    output, _ = run(MEASURED, rows, tmp_path).communicate()
    grown, found = map(int, output.splitlines()[-1].split())  # how far it is comes first, where it is slow
    assert found == rows
    # 40 bytes a row, and 8 MB that do not depend on the number of rows.
    assert grown < 40 * rows + 8_000_000
