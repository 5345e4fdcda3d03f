"""A service on this machine that embeds as OpenAI's does, as badly as it is told to."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

WIDTH = 6


def vector(text: str) -> np.ndarray:
    """What the service says of a text, float32 [6]."""
    found = np.array([len(text), text.count("e"), text.count(" "), text.count("a"), text.count("t"), 1], np.float32)
    normal: np.ndarray = found / np.linalg.norm(found)
    return normal


class Service(ThreadingHTTPServer):
    """Attributes:
    fault: number of a request (from 0) -> what goes wrong with it; None = nothing.
    answered: text -> how often it was sent out in a whole answer.
    bodies, keys: of all requests.
    """

    daemon_threads = True

    def __init__(self, fault: Callable[[int, list[str]], Any] | None = None, seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault, self.seconds = fault or (lambda number, texts: None), seconds
        self.answered: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits for 40 ms until the head is acknowledged
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = body["input"]
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.keys.append(self.headers["authorization"])
        time.sleep(self.server.seconds)
        fault = self.server.fault(number, texts) if self.path == "/v1/embeddings" else 404
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault == "html":
            self._send(200, b"<!doctype html><title>Sign in</title>")
        elif isinstance(fault, int):
            self._send(fault, json.dumps({"error": {"message": f"fault {fault} for {self.headers['authorization']}"}}))
        elif isinstance(fault, dict):
            self._send(429, b"slow down", **fault)
        else:
            self._embed(body, texts, fault)

    def _embed(self, body: dict[str, Any], texts: list[str], fault: str | bytes | None) -> None:
        rows = [{"index": place, "embedding": vector(text).tolist()} for place, text in enumerate(texts)]
        if isinstance(fault, bytes):  # packed as it is, whatever is asked for
            rows = [row | {"embedding": base64.b64encode(fault).decode()} for row in rows]
        elif body.get("encoding_format") == "base64" or fault == "packed":
            kind = fault if fault in ("<f2", "<f8", ">f4", "i1") else "<f4"
            numbers = [(vector(text) * (127 if kind == "i1" else 1)).astype(kind).tobytes() for text in texts]
            rows = [row | {"embedding": base64.b64encode(each).decode()} for row, each in zip(rows, numbers)]
        if fault == "unnumbered":
            rows = [row | {"index": None} for row in rows][::-1]
        if fault == "missing":
            rows = rows[1:]
        if fault == "twice":
            rows[0] = rows[-1]
        if fault == "nan":
            rows[0]["embedding"] = [float("nan")] * WIDTH
        if fault == "wider":
            rows = [row | {"embedding": [*row["embedding"], 0.5]} for row in rows]
        tokens = 10**400 if fault == "count" else sum(map(len, texts)) // 2
        answer = json.dumps({"data": rows[::-1], "usage": {"prompt_tokens": tokens}})
        if fault in ("drip", "drip from the first byte"):
            self._drip(answer.encode(), late=fault == "drip")
            return
        if fault == "half":
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode()[: len(answer) // 2])
            self.connection.close()
            self.close_connection = True
            return
        if fault is None or fault == "count":
            with self.server.lock:
                self.server.answered.update(texts)
        self._send(200, answer)

    def _drip(self, answer: bytes, late: bool) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer)
        if late:
            self.wfile.write(head)
        for byte in answer if late else head + answer:
            self.wfile.write(bytes([byte]))
            time.sleep(0.02)

    def _send(self, status: int, content: str | bytes, **headers: str) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def serving(fault: Callable[[int, list[str]], Any] | None = None, seconds: float = 0.0) -> Iterator[Service]:
    """A service that runs while the block does."""
    with Service(fault, seconds) as service:
        threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield service
        finally:
            service.shutdown()
