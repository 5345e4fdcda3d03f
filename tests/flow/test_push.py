"""A student to the hub: a server on this machine stands in for it, and the hub's own client talks to it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.push import push as push_student


class Hub(ThreadingHTTPServer):
    """Keeps what is committed; speaks as much of the hub's protocol as an upload needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.tokens: set[str] = set()
        self.status: int | None = None  # of every answer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.tokens.add(self.headers.get("authorization") or "")
        if self.server.status is not None:
            self._answer(self.server.status, {"error": "out of order"})
        elif self.headers.get("authorization") != "Bearer right":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            status = 409 if name in self.server.repositories else 200
            self.server.repositories.setdefault(name, asked)
            self._answer(status, {"url": f"{self.server.address}/{name}"})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif self.path.endswith("/commit/main"):
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "header":
                    self.server.commits.append(entry["value"]["summary"])
                elif entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self._answer(200, {"commitUrl": f"{self.server.address}/me/small/commit/1", "commitOid": "1" * 40})
        else:
            self._answer(200, {"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self._answer(200, {"id": "me/small", "sha": "0" * 40, "siblings": []} if "/api/models" in self.path else {})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    distilvec.distill(
        teacher=str(tiny_bert),
        student={"shrink": {"of": str(tiny_bert), "layers": 1}},
        corpus=sentences[:60],
        method="cosine",
        output=str(out),
        training={"epochs": 1, "batch_size": 16},
        judging={"speed": False},
    )
    return out


def push(hub: Hub, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the hub's client reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "right"}
    return subprocess.run(
        [sys.executable, "-m", "distilvec", "push", *arguments],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_student_and_its_card_arrive(hub: Hub, run: Path, tmp_path: Path) -> None:
    done = push(hub, str(run), "me/small", "--private", "--message", "first")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/me/small"
    assert hub.repositories["me/small"].get("private") or hub.repositories["me/small"].get("visibility") == "private"
    assert hub.commits == ["first"] and hub.tokens == {"Bearer right"}
    sent = {str(f.relative_to(run / "student")) for f in (run / "student").rglob("[!.]*") if f.is_file()}
    assert set(hub.files) - {".gitattributes"} == sent and b"cosine" in hub.files["README.md"]
    for name, content in hub.files.items():
        (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / name).write_bytes(content)
    text = ["A text for both."]
    assert (distilvec.load(tmp_path / "back").encode(text) == distilvec.load(run / "student").encode(text)).all()
    again = push(hub, str(run / "student"), "me/small")
    assert again.returncode == 0 and hub.commits[1:] == ["Student distilled with distilvec"]


def test_the_report_of_a_fine_tuned_model_is_not_uploaded(hub: Hub, run: Path, tmp_path: Path) -> None:
    model = shutil.copytree(run / "student", tmp_path / "model")
    (model / "report" / "figures").mkdir(parents=True)
    for name in ("report/report.json", "report/figures/training.svg"):
        (model / name).write_text("of this machine")
    assert push(hub, str(model), "me/tuned").returncode == 0
    assert "README.md" in hub.files and not [name for name in hub.files if name.startswith("report")]


def test_errors_of_the_hub_are_shown(hub: Hub, run: Path, tmp_path: Path) -> None:
    refused = push(hub, str(run), "me/small", HF_TOKEN="wrong")
    assert refused.returncode == 4 and "the Hub refuses" in refused.stderr and "hf auth login" in refused.stderr
    off = push(hub, str(run), "me/small", HF_HUB_OFFLINE="1")
    assert off.returncode == 4 and "HF_HUB_OFFLINE" in off.stderr
    hub.server_close()
    nobody = push(hub, str(run), "me/small", HF_ENDPOINT="http://127.0.0.1:9")
    assert nobody.returncode == 4 and "cannot be reached" in nobody.stderr
    nothing = push(hub, str(tmp_path), "me/small")
    assert nothing.returncode == 2 and "there is no student in this folder" in nothing.stderr
    shutil.copytree(run / "student", tmp_path / "student")
    (tmp_path / "student" / "README.md").unlink()
    bare = push(hub, str(tmp_path), "me/small")
    assert bare.returncode == 2 and "has no card" in bare.stderr
    assert not hub.files


@pytest.mark.parametrize(
    ("status", "said"),
    [(500, "again"), (503, "again"), (429, "again"), (404, "Check the name"), (403, "hf auth login")],
)
def test_a_fault_of_the_hub_is_not_the_login_s(hub: Hub, run: Path, status: int, said: str) -> None:
    hub.status = status
    done = push(hub, str(run), "me/small")
    assert done.returncode == 4 and f"HTTP {status}" in done.stderr and said in done.stderr.splitlines()[-1]
    assert ("hf auth login" in done.stderr) == (status == 403) and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["https://huggingface.co/me/small", "my student", "a/b/c"])
def test_invalid_repository_name_is_refused(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    SentenceTransformer(str(tiny_bert), device="cpu").save_pretrained(str(tmp_path / "student"))
    (tmp_path / "student" / "README.md").write_text("A card.")
    with pytest.raises(DistilvecError, match="no name of a repository") as caught:
        push_student(tmp_path, name)
    assert not isinstance(caught.value, EnvironmentProblem)
