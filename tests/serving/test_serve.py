"""A student behind HTTP: official clients get its vectors, and whoever asks wrongly is told so."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from sentence_transformers import SentenceTransformer
from tests.serving.server import Arrivals, batched, posted, running
from tests.training.starting import Starter

from distilvec.cli.main import main
from distilvec.errors import DistilvecError
from distilvec.export import export_onnx, load_onnx
from distilvec.serving import Batcher, BusyError, application
from distilvec.serving.serve import serve
from distilvec.teachers import load_teacher

KEY = "test-key"


@pytest.fixture(scope="module")
def model(tiny_model_folders: dict[str, Path]) -> SentenceTransformer:
    """One with prompts."""
    return SentenceTransformer(str(tiny_model_folders["qwen3"]), device="cpu")


@pytest.fixture(scope="module")
def address(model: SentenceTransformer) -> Iterator[str]:
    with running(application(model, "small", key=KEY, batch=8)) as found:
        yield found


@pytest.fixture
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


# the official client


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_official_client_gets_the_models_vectors(
    client: openai.OpenAI, model: SentenceTransformer, sentences: list[str], encoding: Any
) -> None:
    texts = [*sentences[:20], "🙂 emoji", "שלום עולם", "a\ttab"]
    found = client.embeddings.create(model="small", input=texts, encoding_format=encoding)
    rows: list[Any] = [each.embedding for each in found.data]
    if encoding == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    assert np.allclose(np.array(rows, np.float32), model.encode(texts), atol=1e-5)
    assert [each.index for each in found.data] == list(range(len(texts)))
    assert found.model == "small" and found.usage.prompt_tokens == found.usage.total_tokens > len(texts)


def test_one_text_is_a_list_of_one(client: openai.OpenAI, model: SentenceTransformer) -> None:
    found = client.embeddings.create(model="small", input="a single text")
    assert np.allclose(found.data[0].embedding, model.encode("a single text"), atol=1e-5)
    assert [each.id for each in client.models.list()] == ["small"]


def test_fewer_dimensions_and_prompts(client: openai.OpenAI, model: SentenceTransformer) -> None:
    short = client.embeddings.create(model="small", input=["a text"], dimensions=8).data[0].embedding
    whole = model.encode(["a text"])[0][:8]
    assert np.allclose(short, whole / np.linalg.norm(whole), atol=1e-5)
    asked = client.embeddings.create(model="small", input=["a text"], extra_body={"input_type": "query"})
    assert np.allclose(asked.data[0].embedding, model.encode(["a text"], prompt_name="query")[0], atol=1e-5)
    plain = client.embeddings.create(model="small", input=["a text"], extra_body={"input_type": "document"})
    assert np.allclose(plain.data[0].embedding, model.encode(["a text"])[0], atol=1e-5)


def test_tokens_are_counted_before_padding_and_cuts(client: openai.OpenAI, model: SentenceTransformer) -> None:
    texts = ["a cat", "a dog " * 2 * int(model.max_seq_length or 0)]
    alone = [client.embeddings.create(model="small", input=[text]).usage.prompt_tokens for text in texts]
    together = client.embeddings.create(model="small", input=[*texts, texts[0]]).usage.prompt_tokens
    assert alone[1] > int(model.max_seq_length or 0) and together == alone[0] * 2 + alone[1]


def test_an_empty_prompt_is_not_the_default(tiny_bert: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.prompts, model.default_prompt_name = {"query": "ask: ", "document": ""}, "query"
    with running(application(model, "small")) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        found = client.embeddings.create(model="small", input=["a cat"], extra_body={"input_type": "document"})
    assert np.allclose(found.data[0].embedding, model.encode_document(["a cat"])[0], atol=1e-5)


def test_sides_are_those_of_the_model(tiny_model_folders: dict[str, Path]) -> None:
    """Of a model with a route for each, and of one whose prompt has another of the usual names."""
    from sentence_transformers.sentence_transformer.modules import Router

    first, second = (SentenceTransformer(str(tiny_model_folders[kind]), device="cpu") for kind in ("bert", "xlmr"))
    routed = SentenceTransformer(
        modules=[Router.for_query_document(list(first.children()), list(second.children()))], device="cpu"
    )
    named = SentenceTransformer(str(tiny_model_folders["bert"]), device="cpu")
    named.prompts = {"query": "ask: ", "passage": "text: "}
    for model in (routed, named):
        with running(application(model, "small")) as address:
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
            for side, encode in (("query", model.encode_query), ("document", model.encode_document)):
                asked = client.embeddings.create(model="small", input=["a cat"], extra_body={"input_type": side})
                assert np.allclose(asked.data[0].embedding, encode(["a cat"])[0], atol=1e-5), side
            body = {"input": "a cat", "model": None, "encoding_format": None, "dimensions": None, "input_type": None}
            assert httpx2.post(f"{address}/v1/embeddings", json=body, timeout=60).status_code == 200


def test_a_student_can_be_a_teacher_over_the_wire(
    address: str, model: SentenceTransformer, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILVEC_TEST_KEY", KEY)
    teacher = load_teacher(
        name="served", api={"url": f"{address}/v1", "model": "small", "key_env": "DISTILVEC_TEST_KEY"}, batch_size=8
    )
    assert np.allclose(teacher.encode(sentences[:20]), model.encode(sentences[:20]), atol=1e-5)


# what is refused


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "JSON"),
        (b"[1]", 400, "object"),
        (b"[" * 100_000, 400, "JSON"),
        (b"\xff", 400, "JSON"),
        ({"input": []}, 400, "input"),
        ({"input": {"a": 1}}, 400, "input"),
        ({}, 400, "input"),
        ({"input": ["a", 7]}, 400, "input 1"),
        ({"input": [[1, 2]]}, 400, "token ids"),
        ({"input": ["a", " "]}, 400, "input 1"),
        (b'{"input": "\\ud800"}', 400, "half a character"),
        ({"input": ["a"] * 3000}, 413, "3,000"),
        ({"input": ["a", "a" * 200_001]}, 413, "200,001"),
        (b'{"input": "' + b"a" * (17 << 20) + b'"}', 413, "16 MiB"),
        ({"input": "a", "model": "large"}, 404, '"small"'),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": 10**6}, 400, "dimensions"),
        ({"input": "a", "dimensions": True}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "base64"),
        ({"input": "a", "input_type": "clustering"}, 400, "query"),
    ],
)
def test_wrong_requests_are_refused(address: str, body: Any, status: int, said: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx2.post(f"{address}/v1/embeddings", content=content, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == status and said in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic abc"}])
def test_requests_without_the_key_are_refused(address: str, headers: dict[str, str]) -> None:
    for ask in (httpx2.post, httpx2.get):
        path = "embeddings" if ask is httpx2.post else "models"
        answer = ask(f"{address}/v1/{path}", headers=headers)
        assert answer.status_code == 401 and "embedding" not in answer.text
    assert httpx2.get(f"{address}/health").json() == {"status": "ok", "model": "small"}


def test_the_scheme_of_a_key_is_written_in_either_case(address: str) -> None:
    for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert httpx2.get(f"{address}/v1/models", headers=headers).status_code == status


def test_other_paths(address: str) -> None:
    assert httpx2.get(f"{address}/v1/chat/completions").status_code == 404
    assert httpx2.get(f"{address}/v1/embeddings").status_code in (404, 405)


# batching


def test_requests_at_the_same_time_go_together(model: SentenceTransformer) -> None:
    sizes: list[int] = []
    encode = model.encode

    def counted(texts: list[str], **options: Any) -> Any:
        sizes.append(len(texts))
        arrivals.wait_for(24)
        return encode(texts, **options)

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return counted if name == "encode" else getattr(model, name)

    arrivals = Arrivals(application(Counting(), "small", batch=8))  # type: ignore[arg-type]
    with running(arrivals) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)

        def ask(number: int) -> Sequence[float]:
            return client.embeddings.create(model="small", input=[f"text number {number}"]).data[0].embedding

        with ThreadPoolExecutor(24) as pool:
            found = list(pool.map(ask, range(24)))
    assert np.allclose(found, encode([f"text number {number}" for number in range(24)]), atol=1e-5)
    assert sum(sizes) == 24 and max(sizes) <= 8 and len(sizes) < 12


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_with_nan_are_not_served(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    encode = model.encode

    def broken(texts: Any, **options: Any) -> Any:
        found = np.array(encode(texts, **options))
        found[["bad" in text for text in texts]] = np.nan
        return found

    monkeypatch.setattr(model, "encode", broken)
    with running(application(model, "small")) as found:
        body = {"input": ["good", "a bad one"], "encoding_format": encoding}
        answer = httpx2.post(f"{found}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 500 and "no numbers for input 1" in answer.json()["error"]["message"]


def lengths(texts: Sequence[str], _: str | None) -> Any:
    time.sleep(0.05)
    return np.array([[len(text)] for text in texts], np.float32)


def test_too_many_are_turned_away_and_the_others_are_answered() -> None:
    async def work(batcher: Batcher) -> list[Any]:
        async def ask(length: int) -> Any:
            with batcher.admitted(1):
                return await batcher.vectors(["a" * length])

        return await asyncio.gather(*(ask(length) for length in range(1, 21)), return_exceptions=True)

    found = batched(work, encode=lengths, batch=2, most_waiting=10)
    assert all(isinstance(each, BusyError) if n > 10 else each[0, 0] == n for n, each in enumerate(found, start=1))


def test_a_large_request_is_encoded_in_pieces_and_comes_back_in_order() -> None:
    calls: list[list[str]] = []

    def encode(texts: Sequence[str], side: str | None) -> Any:
        calls.append(list(texts))
        return lengths(texts, side)

    async def work(batcher: Batcher) -> list[Any]:
        large = asyncio.create_task(batcher.vectors(["a" * (7 * n % 40 + 1) for n in range(40)]))
        await asyncio.sleep(0)
        return [await batcher.vectors(["a small one"]), await large]

    small, large = batched(work, encode=encode, batch=4)
    assert small[0, 0] == 11 and large[:, 0].tolist() == [7 * n % 40 + 1 for n in range(40)]
    assert [len(call) for call in calls] == [4, 1, *[4] * 9], "the small one waited for one piece"
    assert calls[0] == ["a" * n for n in (40, 39, 38, 37)], "of like lengths"


def test_prompts_do_not_mix_and_a_failure_hits_its_batch_alone() -> None:
    seen: list[tuple[int, str | None]] = []

    def encode(texts: Sequence[str], prompt: str | None) -> Any:
        seen.append((len(texts), prompt))
        if "bad" in texts:
            raise RuntimeError("bad text")
        return lengths(texts, prompt)

    async def work(batcher: Batcher) -> list[Any]:
        asked = [("first", None), ("a", "query"), ("b", "query"), ("bad", None), ("c", "document")]
        return await asyncio.gather(*(batcher.vectors([t], p) for t, p in asked), return_exceptions=True)

    found = batched(work, encode=encode, batch=8)
    assert [isinstance(each, RuntimeError) for each in found] == [False, False, False, True, False]
    assert seen == [(1, None), (2, "query"), (1, None), (1, "document")]


def test_a_client_that_disconnects_does_not_delay_others() -> None:
    async def work(batcher: Batcher) -> Any:
        gone = asyncio.create_task(batcher.vectors(["gone"]))
        await asyncio.sleep(0)
        stays = asyncio.create_task(batcher.vectors(["stays"]))
        gone.cancel()
        return await stays

    assert batched(work, encode=lengths)[0, 0] == 5


# an exported student


@pytest.fixture(scope="module")
def export(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("export")
    model.save_pretrained(str(folder / "model"))
    export_onnx(folder / "model", folder / "onnx")
    return folder / "onnx"


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_export_answers_with_its_own_vectors(export: Path, sentences: list[str], precision: Any) -> None:
    encoder = load_onnx(export, precision=precision)
    with running(application(encoder, "small", batch=8)) as address:
        for side, encode in ((None, encoder.encode), ("query", encoder.encode_query)):
            for text in sentences[:5]:  # one at a time: in int8 a text's vector depends on those beside it
                found = posted(address, input=[text], input_type=side).json()
                assert np.allclose(found["data"][0]["embedding"], encode([text])[0], atol=1e-6)
                pieces = encoder.tokenizer.encode(text, add_special_tokens=False).ids
                assert side == "query" or found["usage"]["prompt_tokens"] == len(pieces)


def test_a_precision_that_a_model_lacks_is_refused(export: Path) -> None:
    with pytest.raises(DistilvecError, match="is not an export") as caught:
        serve(str(export.parent / "model"), precision="int8")
    assert "distilvec export" in str(caught.value)
    with pytest.raises(DistilvecError, match="an export has float32 and int8"):
        serve(str(export), precision="bfloat16")


# the command


def test_the_command_answers_and_ends_on_a_signal(start: Starter, tiny_bert: Path) -> None:
    words = ["serve", str(tiny_bert), "--port", "0", "--key-env", "SERVED_KEY"]
    running = start(arguments=words, env={"SERVED_KEY": KEY})
    running.until(lambda: "/v1" in running.output)
    base = running.output.split("answers at ")[1].split("/v1")[0]
    found = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY).embeddings.create(model=tiny_bert.name, input="a text")
    running.kill(signal.SIGTERM)
    code, said = running.wait()
    assert len(found.data[0].embedding) == 32 and code == 0, said
    assert KEY not in said and "Traceback" not in said and "interrupted" not in said


def test_a_model_that_does_not_tell_its_width(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    monkeypatch.setattr(model, "get_embedding_dimension", lambda: None)
    with running(application(model, "small")) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
        assert len(client.embeddings.create(model="small", input="a text").data[0].embedding) == 32


def test_the_command_answers_in_another_precision(start: Starter, export: Path, model: SentenceTransformer) -> None:
    ways = {"bfloat16": export.parent / "model", "int8": export}
    running = {way: start(arguments=["serve", str(ways[way]), "--port", "0", "--precision", way]) for way in ways}
    wanted = model.encode(["a text"])[0]
    for each in running.values():
        each.until(lambda each=each: "/v1" in each.output)
        address = each.output.split("answers at ")[1].split("/v1")[0]
        found = np.array(posted(address, input=["a text"]).json()["data"][0]["embedding"])
        assert 0.98 < found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) < 1 - 1e-9
        each.kill(signal.SIGTERM)
        each.wait()


def test_a_key_with_a_line_end_is_the_key(start: Starter, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(arguments=["serve", str(tiny_bert), "--port", "0", "--key-env", "K"], env={"K": f"{KEY}\r\n"})
    running.until(lambda: "/v1" in running.output)
    base = running.output.split("answers at ")[1].split("/v1")[0]
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0)
    assert client.embeddings.create(model=tiny_bert.name, input="a text").data
    running.kill(signal.SIGTERM)
    running.wait()
    monkeypatch.setenv("K", "schlüssel")
    with pytest.raises(DistilvecError, match=r"^K: .*ASCII"):
        serve(str(tiny_bert), key_env="K")


def test_models_that_cannot_be_served_are_refused(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DistilvecError, match=r"^--key-env: .*NO_SUCH_VARIABLE"):
        serve(str(tiny_bert), key_env="NO_SUCH_VARIABLE")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(DistilvecError, match=r"^127\.0\.0\.1:\d+: .*"):
        serve(str(tiny_bert), port=taken.getsockname()[1])
    with pytest.raises(DistilvecError, match=r"^no\.such\.host\.invalid:1: "):
        serve(str(tiny_bert), host="no.such.host.invalid", port=1)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path / "nothing")])
    assert ended.value.code == 2 and "nothing" in capsys.readouterr().err
