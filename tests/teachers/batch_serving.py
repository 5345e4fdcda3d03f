"""The batch API of a service on this machine: files, jobs and their results, as badly as it is told to."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.teachers.serving import Service, _Handler, vector


class BatchService(Service):
    """A service that answers at once, too. A job is done when `finish` is called.

    Attributes:
        files: id -> content; jobs: id -> what is said of each.
        batched: texts of all requests in jobs, in the order in which they came.
        drop_created: answers to "create a job" that are lost on their way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _BatchHandler
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.batched: list[str] = []
        self.drop_created = 0

    def requests(self, job: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files[self.jobs[job]["input_file_id"]].splitlines()]

    def finish(
        self, job: str, faults: dict[str, Any] | None = None, status: str = "completed", last: int | None = None
    ) -> None:
        """End a job: its first `last` requests are answered, in the reverse order.

        Args:
            faults: text -> an HTTP status, "lost", or the result's line as it is to be.
        """
        good, bad, faults = [], [], faults or {}
        for request in self.requests(job)[:last][::-1]:
            text, name = request["body"]["input"], request["custom_id"]
            fault = faults.get(text)
            if fault == "lost":
                continue
            if isinstance(fault, int):
                body = {"error": {"message": f"cannot {text[:20]}"}}
                bad.append({"custom_id": name, "response": {"status_code": fault, "body": body}, "error": None})
                continue
            body = {"data": [{"index": 0, "embedding": vector(text).tolist()}], "usage": {"prompt_tokens": 3}}
            line = {"id": "r", "custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}
            good.append({**line, **fault} if isinstance(fault, dict) else line)
        told = self.jobs[job]
        told["status"] = status
        for kind, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                told[kind] = f"{kind[:3]}-{job}"
                self.files[told[kind]] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class _BatchHandler(_Handler):
    server: BatchService

    def do_GET(self) -> None:
        path = self.path.removeprefix("/v1")
        if path == "/batches":
            self._send(200, json.dumps({"data": list(self.server.jobs.values())[::-1]}))
        elif (job := path.removeprefix("/batches/")) in self.server.jobs:
            self._send(200, json.dumps(self.server.jobs[job]))
        elif (found := re.fullmatch(r"/files/(.+)/content", path)) and found[1] in self.server.files:
            self._send(200, self.server.files[found[1]])
        else:
            self._send(404, json.dumps({"error": {"message": f"no {path}"}}))

    def do_POST(self) -> None:
        path = self.path.removeprefix("/v1")
        if path not in ("/files", "/batches"):
            super().do_POST()
            return
        content = self.rfile.read(int(self.headers["content-length"]))
        if path == "/files":
            assert b'name="purpose"\r\n\r\nbatch\r\n' in content
            start = content.index(b"\r\n\r\n", content.index(b"filename=")) + 4
            name = f"file-{len(self.server.files)}"
            self.server.files[name] = content[start : content.rindex(b"\r\n--")]
            self._send(200, json.dumps({"id": name, "purpose": "batch"}))
            return
        body = json.loads(content)
        job = f"job-{len(self.server.jobs)}"
        self.server.jobs[job] = {
            **body,
            "id": job,
            "status": "validating",
            "expires_at": 1_900_000_000,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }
        self.server.batched += [each["body"]["input"] for each in self.server.requests(job)]
        if self.server.drop_created:
            self.server.drop_created -= 1
            self.close_connection = True
            self.connection.close()
            return
        self._send(200, json.dumps(self.server.jobs[job]))


@contextmanager
def batches() -> Iterator[BatchService]:
    """A service that runs while the block does."""
    with BatchService() as service:
        threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield service
        finally:
            service.shutdown()
