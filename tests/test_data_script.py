"""experiments/data/get.py against a server on this machine that hands out the first rows of real files, badly."""

from __future__ import annotations

import doctest
import gzip
import hashlib
import http.server
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "experiments" / "data"
EXCERPTS = Path(__file__).parent / "data_excerpts"
TRAIN = "PolyAI-LDN/task-specific-datasets/banking_data/train.csv"


class Server(http.server.ThreadingHTTPServer):
    """Hands out `files`; `faults` has, by path, what goes wrong with the next requests, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            str(file.relative_to(EXCERPTS / "raw")): file.read_bytes() for file in EXCERPTS.rglob("raw/**/*.*")
        }
        self.faults: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((path, wanted))
        faults = self.server.faults.get(path, [])
        fault = faults.pop(0) if faults else ""
        if path not in self.server.files or fault == "500":
            self.send_error(500 if fault else 404)
            return
        data = self.server.files[path]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and fault != "no ranges" else 0
        if start >= len(data):
            self.send_error(416)
            return
        data = data[start:]
        if fault == "half a file":
            data = data[: len(data) // 2]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if fault not in ("dropped", "stalled") else data[: len(data) // 2])
        self.wfile.flush()
        if fault == "stalled":
            time.sleep(60)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("experiments.data.sources"), "PAUSE", 0.01)


@pytest.fixture
def listed(server: Server, tmp_path: Path) -> Path:
    """A file of sources like the real one, of two sets, with the excerpts' checksums and this server."""
    real = importlib.import_module("experiments.data.sources").Sources.read(SCRIPTS / "sources.toml")
    lines = [f'url = "{server.address}/{{address}}/{{path}}"', f'archive = "{server.address}/{{address}}.tar.gz"']
    for name in ("task-specific-datasets", "AttExplainer"):
        part = real.repositories[name]
        lines += [f"[repositories.{name}]", f'address = "{part.address}"', f'commit = "{part.commit}"', 'licence = "x"']
        lines.append(f"[repositories.{name}.files]")
        for path in part.checksums:
            lines.append(f'"{path}" = "{hashlib.sha256(server.files[f"{part.address}/{path}"]).hexdigest()}"')
    for name in ("banking77", "emotion"):
        part = real.sets[name]
        lines += [f"[sets.{name}]", f'licence = "{part.licence}"', f"repositories = {list(part.repositories)}"]
        lines += [f"[sets.{name}.files]", *(f'"{file}" = 1' for file in part.files)]
    file = tmp_path / "sources.toml"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of what the excerpts must become."""
    describe, pack = (
        getattr(importlib.import_module("experiments.data.formats"), name) for name in ("describe", "pack")
    )
    rows = {f"data/{file.name}.gz": pack(file.read_bytes()) for file in sorted((EXCERPTS / "rows").iterdir())}
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({name: describe(name, data) for name, data in rows.items()}))
    return file


def get(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["get.py", *map(str, arguments)])
    status = importlib.import_module("experiments.data.get").main()
    return status, capsys.readouterr().out


def test_fetches_builds_and_checks_through_failures(
    server: Server,
    listed: Path,
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.faults = {
        TRAIN: ["500", "dropped", "dropped"],
        TRAIN.replace("train", "test"): ["half a file"],
        "niuzaisheng/AttExplainer/data/emotion/val.txt": ["dropped", "no ranges"],
    }
    to = tmp_path / "got"
    status, said = get(capsys, monkeypatch, "--to", to, "--sources", listed)
    assert status == 0
    assert said.index("CC BY 4.0") < said.index("train.csv")  # the licence comes before the first byte
    for expected in (EXCERPTS / "rows").iterdir():
        assert gzip.decompress((to / "data" / f"{expected.name}.gz").read_bytes()) == expected.read_bytes()
    half = len(server.files[TRAIN]) // 2
    asked = [wanted for path, wanted in server.asked if path == TRAIN]
    assert asked[:3] == [None, None, f"bytes={half}-"] and len(asked) == 4
    assert not list(to.rglob("*.part"))
    written = json.loads((to / "checksums.json").read_text())
    for name, checksum in written.items():
        assert hashlib.sha256((to / name).read_bytes()).hexdigest() == checksum

    server.asked.clear()
    assert "already there" in get(capsys, monkeypatch, "--to", to, "--sources", listed)[1]
    assert not server.asked
    status, page = get(capsys, monkeypatch, "--to", to, "--sources", listed, "--manifest", manifest, "--check")
    assert status == 0 and page.startswith("2 of 2 sets equal")


def test_a_file_that_is_not_what_it_was_is_refused_and_the_other_sets_go_on(
    server: Server,
    listed: Path,
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.files[TRAIN] = server.files[TRAIN].replace(b"card", b"cord")
    to = tmp_path / "got"
    status, said = get(capsys, monkeypatch, "--to", to, "--sources", listed)
    assert status == 1 and "Could not be had: banking77" in said and "checksum" in said
    assert {file.name for file in (to / "data").iterdir()} == {
        f"emotion.{x}.jsonl.gz" for x in ("train", "validation", "test")
    }
    arguments = ("--to", to, "--sources", listed, "--manifest", manifest, "--check")
    status, page = get(capsys, monkeypatch, *arguments)
    assert status == 1 and page.startswith("1 of 2") and page.count("not there") == 2


def test_check_says_by_how_much_a_file_differs(
    listed: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "got"
    get(capsys, monkeypatch, "--to", to, "--sources", listed)
    lines = (EXCERPTS / "rows" / "emotion.train.jsonl").read_bytes().splitlines(keepends=True)
    (to / "data" / "emotion.train.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:25])))
    (to / "data" / "emotion.test.jsonl.gz").write_bytes(
        gzip.compress(b"".join(reversed((EXCERPTS / "rows" / "emotion.test.jsonl").read_bytes().splitlines(True))))
    )
    _, page = get(capsys, monkeypatch, "--to", to, "--sources", listed, "--manifest", manifest, "--check")
    assert "differs: 25 rows for 100; 25 of 100 sampled rows" in page
    assert page.count("the same rows in another order") == 1
    # A set whose file was changed is built again.
    assert "wrote emotion.train" in get(capsys, monkeypatch, "--to", to, "--sources", listed, "emotion")[1]
    _, page = get(capsys, monkeypatch, "--to", to, "--sources", listed, "--manifest", manifest, "--check")
    assert page.startswith("2 of 2")


def test_killed_in_a_transfer_it_goes_on_where_it_was(server: Server, listed: Path, tmp_path: Path) -> None:
    server.faults = {TRAIN: ["stalled"]}
    to = tmp_path / "got"
    command = [sys.executable, "-m", "experiments.data.get", "--to", str(to), "--sources", str(listed), "banking77"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    half = len(server.files[TRAIN]) // 2
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size == half for file in to.rglob("*.part")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (to / "data").exists() and not list(to.rglob("train.csv"))
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert [wanted for path, wanted in server.asked if path == TRAIN] == [None, f"bytes={half}-"]
    built = gzip.decompress((to / "data" / "banking77.train.jsonl.gz").read_bytes())
    assert built == (EXCERPTS / "rows" / "banking77.train.jsonl").read_bytes()


def test_a_mirror_of_clones_and_an_archive_hand_out_the_same(
    server: Server, listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: ModuleType = importlib.import_module("experiments.data.sources")
    found = sources.Sources.read(listed)
    clone = tmp_path / "mirror" / "niuzaisheng" / "AttExplainer"
    packed = io.BytesIO()
    old = found.repositories["AttExplainer"].commit
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(EXCERPTS / "raw" / "niuzaisheng" / "AttExplainer", f"AttExplainer-{old}")
    server.files["niuzaisheng/AttExplainer.tar.gz"] = packed.getvalue()
    server.faults = {"niuzaisheng/AttExplainer.tar.gz": ["dropped"]}
    from_net = dict(sources.Raw(found, tmp_path / "raw", tmp_path).members("AttExplainer", "data/emotion/"))
    assert set(from_net) == {f"data/emotion/{part}.txt" for part in ("train", "val", "test")}

    subprocess.run(
        ["cp", "-r", EXCERPTS / "raw" / "niuzaisheng" / "AttExplainer", "."], cwd=_made(clone.parent), check=True
    )
    git = ["git", "-C", str(clone), "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "as it is"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    listed.write_text(listed.read_text().replace(old, head))
    raw = sources.Raw(sources.Sources.read(listed), tmp_path / "raw", tmp_path, tmp_path / "mirror")
    assert dict(raw.members("AttExplainer", "data/emotion/")) == from_net
    server.asked.clear()
    arguments = ("--to", tmp_path / "got", "--sources", listed, "--mirror", tmp_path / "mirror")
    status, said = get(capsys, monkeypatch, *arguments)
    assert status == 1 and "Could not be had: banking77" in said and not server.asked
    assert (tmp_path / "got" / "data" / "emotion.train.jsonl.gz").exists()


def test_the_file_of_sources_the_builders_and_the_manifest_name_the_same() -> None:
    sources = importlib.import_module("experiments.data.sources").Sources.read(SCRIPTS / "sources.toml")
    manifest = json.loads((SCRIPTS / "manifest.json").read_text())
    assert list(sources.sets) == list(importlib.import_module("experiments.data.get").BUILDERS)
    rows = {f"{part.folder}/{name}": count for part in sources.sets.values() for name, count in part.files.items()}
    assert rows == {name: described.get("rows", 1) for name, described in manifest.items()}
    for part in sources.sets.values():
        assert (
            part.licence
            and set(part.repositories) <= set(sources.repositories)
            and set(part.after) <= set(sources.sets)
        )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", ["formats", "pools", "text_sets"])
def test_the_examples_in_the_modules_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"experiments.data.{name}"))
    assert found.attempted and not found.failed
