"""An application that is served in a thread, and a batcher with a function as model."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn

from distilvec.serving import Batcher
from distilvec.serving.app import Limits
from distilvec.serving.connections import configured


class Arrivals:
    """An application that counts the requests whose body has arrived."""

    def __init__(self, app: Any) -> None:
        self.app, self.count, self._changed = app, 0, threading.Condition()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                with self._changed:
                    self.count += 1
                    self._changed.notify_all()
            return message

        await self.app(scope, counted, send)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, 60)


@contextmanager
def running(app: Any, limits: Limits | None = None) -> Iterator[str]:
    """Address of an application that is served in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(app, limits or Limits()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def batched(work: Callable[[Batcher], Any], **options: Any) -> Any:
    async def run() -> Any:
        batcher = Batcher(**options)
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(run())


def posted(address: str, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{address}/v1/embeddings", json=body, timeout=60)
