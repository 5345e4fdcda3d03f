"""What one client may take: measured with sockets that are slow, many, or read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.serving.server import Arrivals, batched, posted, running

from distilvec.serving import Batcher, application
from distilvec.serving.app import Limits
from distilvec.students import load_student

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def model(tiny_bert: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_bert), device="cpu")


@contextlib.contextmanager
def limited(model: Any, batch: int = 64, **limits: Any) -> Iterator[str]:
    given = Limits(**limits)
    with running(application(model, "small", batch=batch, limits=given), given) as address:
        yield address


def opened(address: str, receive: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    client.settimeout(20)
    return client


def rest(client: socket.socket) -> bytes:
    """All that comes until the server closes; it may do so hard."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            content += piece
    return content


def ask(address: str, texts: list[str]) -> httpx2.Response:
    return httpx2.post(f"{address}/v1/embeddings", json={"input": texts}, timeout=60)


class Held:
    """A model that waits before each batch until it may."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model, self.may, self.calls = model, threading.Event(), 0

    def encode(self, texts: Any, **options: Any) -> Any:
        self.calls += 1
        assert self.may.wait(60)
        return self.model.encode(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


# a request


def test_a_request_counts_its_tokens(model: SentenceTransformer) -> None:
    with limited(model, tokens=100) as address:
        one = ask(address, ["a cat"]).json()["usage"]["prompt_tokens"]
        texts = ["a cat"] * (100 // one)
        assert ask(address, texts).json()["usage"]["prompt_tokens"] == one * len(texts) <= 100
        refused = ask(address, [*texts, "a cat"])
        message = refused.json()["error"]["message"]
        assert refused.status_code == 413 and f"{one * (len(texts) + 1)} tokens" in message and " 100 " in message


def test_long_texts_are_refused_before_their_tokens_are_counted(model: SentenceTransformer) -> None:
    """16 MiB of them took a processor eight seconds to count."""
    with limited(model) as address:
        refused = ask(address, ["word " * 16_000] * 200)
        assert refused.status_code == 413 and "16,000,000 characters" in refused.json()["error"]["message"]


def test_images_have_no_tokens(model: SentenceTransformer) -> None:
    class Both:
        modalities = ["text", "image"]

        def encode(self, texts: Any, **_: Any) -> Any:
            return np.ones((len(texts), 4), np.float32)

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    with limited(Both(), tokens=10) as address:
        found = ask(address, ["data:image/png;base64," + "A" * 10_000, "a cat"])
        assert found.status_code == 200 and found.json()["usage"] == ask(address, ["a cat"]).json()["usage"]


# the queue


def test_a_full_queue_says_when_to_come_again(model: SentenceTransformer) -> None:
    held = Held(model)
    with limited(held, batch=2, waiting=6) as address, ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ask, address, ["a cat", "a dog", "a cow"]) for _ in range(5)]
        refused = [each.result() for each in itertools.islice(as_completed(asked), 3)]
        held.may.set()
        answered = [each.result() for each in asked if each.result().status_code == 200]
    assert [each.status_code for each in refused] == [503] * 3
    assert all(each.headers["retry-after"] == "1" for each in refused)
    assert all(each.json()["error"]["code"] == "overloaded" for each in refused)
    assert [len(each.json()["data"]) for each in answered] == [3, 3]


def test_a_large_request_does_not_delay_others(model: SentenceTransformer) -> None:
    held = Held(model)
    arrivals = Arrivals(application(held, "small", batch=2))  # type: ignore[arg-type]
    with running(arrivals) as address, ThreadPoolExecutor(2) as pool:
        large = pool.submit(ask, address, [f"text number {number}" for number in range(200)])
        while not held.calls:
            time.sleep(0.01)
        small = pool.submit(lambda: (ask(address, ["a cat"]), held.calls))
        arrivals.wait_for(2)
        held.may.set()
        answer, calls = small.result()
        rows = large.result().json()["data"]
    assert answer.status_code == 200 and calls < 90, "of 101 calls"
    vectors = model.encode([f"text number {number}" for number in range(200)])
    assert np.allclose([row["embedding"] for row in rows], vectors, atol=1e-5)


# connections


def test_no_more_connections_than_there_may_be(model: SentenceTransformer) -> None:
    with limited(model, connections=3) as address:
        held = [opened(address) for _ in range(3)]
        for client in held:  # each is known to the server once it was answered
            client.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        head, _, content = rest(opened(address)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in head
        assert json.loads(content)["error"]["code"] == "overloaded"
        turned_away = httpx2.get(f"{address}/health")
        assert turned_away.status_code == 503 and turned_away.json()["error"]["message"]
        held.pop().close()
        end = time.monotonic() + 20
        while httpx2.get(f"{address}/health").status_code != 200:
            assert time.monotonic() < end
        for client in held:
            client.close()


def test_a_slow_body_is_refused(model: SentenceTransformer) -> None:
    with limited(model, seconds=0.5) as address:
        client = opened(address)
        client.sendall(HEAD + b"content-length: 10000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):  # a byte now and then, for longer than the server waits
                client.sendall(b" ")
                time.sleep(0.05)
                if select.select([client], [], [], 0)[0]:
                    break
        answer = rest(client)
        assert answer.startswith(b"HTTP/1.1 408") and b"0.5 s" in answer
        assert ask(address, ["a cat"]).status_code == 200


@pytest.mark.parametrize("begun", [b"", HEAD, HEAD + b"content-length: 4\r\n\r\n"])
def test_a_client_that_sends_no_whole_request_is_cut_off(model: SentenceTransformer, begun: bytes) -> None:
    with limited(model, seconds=0.3) as address:
        client = opened(address)
        client.sendall(begun)
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 408") if b"length" in begun else answer == b""


def test_headers_that_drip_are_cut_off(model: SentenceTransformer) -> None:
    with limited(model, seconds=0.3) as address:
        client = opened(address)
        with pytest.raises(ConnectionError):
            for byte in (HEAD + b"x: y\r\n" * 1000)[:400]:
                client.sendall(bytes([byte]))
                time.sleep(0.05)


def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    class Wide:
        device = torch.device("cpu")

        def get_embedding_dimension(self) -> int:
            return 20_000

        def eval(self) -> None:
            """Nothing."""

        def encode(self, texts: Any, **_: Any) -> Any:
            return np.random.default_rng(0).random((len(texts), 20_000), np.float32)

        encode_query = encode_document = encode

    with limited(Wide(), seconds=0.5, connections=1) as address:
        client = opened(address, receive=4096)
        body = json.dumps({"input": ["a cat"] * 64}).encode()
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        end = time.monotonic() + 20
        while httpx2.get(f"{address}/health").status_code != 200:  # the one place is free again
            assert time.monotonic() < end
            time.sleep(0.05)
        assert len(rest(client)) < 20_000_000, "a part of 24 MB"


def test_a_client_that_waits_for_a_slow_model_is_not(model: SentenceTransformer) -> None:
    held = Held(model)
    with limited(held, seconds=0.5) as address, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, address, ["a cat"])
        while not held.calls:
            time.sleep(0.01)
        time.sleep(1.2)
        held.may.set()
        assert asked.result().status_code == 200


def test_batch_size_reaches_the_model(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    encode, sizes = model.encode, []

    def counted(texts: list[str], **options: Any) -> Any:
        sizes.append(options.get("batch_size"))
        return encode(texts, **options)

    model.encode = counted  # type: ignore[method-assign, assignment]
    with running(application(model, "small", batch=7)) as address:
        assert posted(address, input="a cat").status_code == 200
    assert sizes == [7]


def test_bad_input_fails_only_its_own_request() -> None:
    def encode(texts: Sequence[str], _: str | None) -> Any:
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[len(text)] for text in texts], np.float32)

    async def work(batcher: Batcher) -> list[Any]:
        asked = [["first"], ["a", "bc"], ["bad"], ["def"]]
        return await asyncio.gather(*(batcher.vectors(texts) for texts in asked), return_exceptions=True)

    first, good, bad, other = batched(work, encode=encode, batch=8)
    assert first[0, 0] == 5 and good[:, 0].tolist() == [1, 2] and isinstance(bad, ValueError) and other[0, 0] == 3
