"""A server that answers as the hub does for one data set of parquet files, and counts the bytes that it gives."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40
NAME = "me/texts"


class HubServer(ThreadingHTTPServer):
    """The hub, with `files` of one data set; `sent` are the bytes of all answers."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.sent = files, 0

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process ask here."""
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_OFFLINE": "0"}


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer(files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def parquet(shards: int, rows: int, *, other: int = 0) -> dict[str, bytes]:
    """Files of numbered texts, with a column of so many random bytes a row beside them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, files = random.Random(0), {}
    for shard in range(shards):
        numbers = range(shard * rows, shard * rows + rows)
        columns = {"text": [f"text number {number}" for number in numbers]}
        columns |= {"image": [rng.randbytes(other) for _ in numbers]} if other else {}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, row_group_size=max(1, rows // 10))
        files[f"data/train-{shard:05}-of-{shards:05}.parquet"] = buffer.getvalue()
    return files


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits for 40 ms until its head is acknowledged
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        files = self.server.files
        about = f"/api/datasets/{NAME}"
        if re.fullmatch(rf"{about}(/revision/[^/]+)?", path):
            names = [{"rfilename": name} for name in files]
            return self.json({"id": NAME, "sha": COMMIT, "siblings": names, "private": False, "tags": []})
        if path.startswith(f"{about}/tree/"):
            inside = path.split("/tree/")[1].partition("/")[2]
            if not inside and "recursive=true" not in query.lower():
                return self.json([{"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"}])
            entries = [
                {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": name}
                for name, content in files.items()
            ]
            return self.json(entries)
        found = re.fullmatch(rf"/datasets/{NAME}/resolve/[^/]+/(.+)", path)
        if found and found[1] in files:
            return self.file(files[found[1]])
        return self.send(b'{"error": "not here"}', 404, {"x-error-code": "EntryNotFound"})

    def json(self, content: Any) -> None:
        self.send(json.dumps(content).encode(), 200, {"content-type": "application/json"})

    def file(self, content: bytes) -> None:
        headers = {"etag": f'"{hashlib.sha1(content).hexdigest()}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if asked is None:
            return self.send(content, 200, headers)
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        headers["content-range"] = f"bytes {first}-{last}/{len(content)}"
        return self.send(content[first : last + 1], 206, headers)

    def send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.server.sent += len(content)
