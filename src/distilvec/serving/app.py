"""The application behind `distilvec serve`."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import math
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import is_blank
from distilvec.export import OnnxEncoder
from distilvec.extras import need
from distilvec.serving.batcher import Batcher, BusyError, Encode

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Model = SentenceTransformer | OnnxEncoder

logger = logging.getLogger(__name__)
#: Of a request.
MOST_TEXTS, MOST_BYTES = 2048, 16 << 20
#: Of a text, most of which no model reads; cutting it into pieces holds everybody up; images may fill a request.
MOST_CHARACTERS = 200_000
#: Names of files that models of more than texts would open.
MEDIA = (
    ".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp", ".mp4", ".avi", ".mov", ".wmv", ".flv", ".mkv", ".mp3",
    ".wav", ".ogg", ".flac", ".aac",
)  # fmt: skip
#: Seconds after which a client that was turned away may ask again.
LATER = 1


_HEADERS = {503: {"Retry-After": str(LATER)}, 408: {"Connection": "close"}}
#: A token of a text has fewer characters than this; what has more is refused before its tokens are counted.
_CHARACTERS_OF_A_TOKEN = 10
#: Texts of one forward pass on a processor, sorted by length: with more of them it mostly computes padding.
_PASS = 16
#: Characters of a request; a millisecond's work.
_COUNTED_AT_ONCE = 4_000


class _Refusal(Exception):
    """A refused request: what is wrong with it, and the status that says so."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Limits:
    """The limits on one client, so that the others are answered too.

    Attributes:
        tokens: of a request, over all its texts, as they are counted in its answer.
        waiting: texts of all requests that are not answered yet.
        connections: open at the same time.
        seconds: in which a request has to arrive, and its answer to be read.
    """

    tokens: int = 300_000
    waiting: int = 4096
    connections: int = 256
    seconds: float = 60.0


def failure(status: int, message: str, code: str) -> dict[str, Any]:
    """The content of an answer that refuses, in OpenAI's shape."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def application(
    model: Model,
    name: str,
    *,
    key: str | None = None,
    batch: int = 64,
    limits: Limits | None = None,
    thread: ThreadPoolExecutor | None = None,
) -> Starlette:
    """An ASGI application with `/v1/embeddings`, `/v1/models` and `/health`.

    Args:
        model, name: used in one thread at a time; clients ask for this name, and any other is refused.
        key: that clients must send ("Authorization: Bearer KEY"); None = everybody may ask. `/health` needs none.
        batch: texts that are encoded together, in one forward pass.
        limits, thread: of what a client may take (those of connections need `configured` too); who uses the model.

    A model of images reads data URIs alone: names of files and addresses, which it would open or fetch, are refused.

    Raises:
        EnvironmentProblem: the extra `serve` is not installed.
    """
    need("Serving", "serve", "starlette", "uvicorn")
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    limits = limits or Limits()
    batcher = Batcher(_encoder(model, batch), batch=batch, most_waiting=limits.waiting, thread=thread)
    server = _Server(model, name, key, batcher, limits)

    def answering(what: Any) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(await what(request))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except _Refusal as refusal:
                content = failure(refusal.status, str(refusal), refusal.code)
                return JSONResponse(content, refusal.status, _HEADERS.get(refusal.status))

        return answer

    async def nowhere(_: Request) -> dict[str, Any]:
        raise _Refusal(404, "there are POST /v1/embeddings, GET /v1/models and GET /health", "not_found")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await server.batcher.close()

    routes = [
        Route("/v1/embeddings", answering(server.embeddings), methods=["POST"]),
        Route("/embeddings", answering(server.embeddings), methods=["POST"]),
        Route("/v1/models", answering(server.models)),
        Route("/health", answering(server.health)),
        Route("/{path:path}", answering(nowhere), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _Server:
    def __init__(self, model: Model, name: str, key: str | None, batcher: Batcher, limits: Limits) -> None:
        self.name, self.key, self.batcher, self.limits = name, key, batcher, limits
        self.width = _width(model)
        self._counter = _counter(model)
        kinds = set(getattr(model, "modalities", ["text"]))
        self._heads = tuple(f"data:{kind}/" for kind in sorted(kinds & {"image", "audio", "video"}))
        self._reads_text = "text" in kinds

    async def health(self, _: Request) -> dict[str, Any]:
        return {"status": "ok", "model": self.name}

    async def models(self, request: Request) -> dict[str, Any]:
        self._admit(request)
        entry = {"id": self.name, "object": "model", "created": 0, "owned_by": "distilvec"}
        return {"object": "list", "data": [entry]}

    async def embeddings(self, request: Request) -> dict[str, Any]:
        self._admit(request)
        asked = await _body(request, self.limits.seconds)
        if asked.get("model") not in (None, self.name):
            raise _Refusal(404, f'there is no such model; this is "{self.name}"', "model_not_found")
        texts = _texts(asked.get("input"), self._heads)
        self._refuse_places(texts)
        width = self._width(asked.get("dimensions"))
        encoding = asked.get("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise _Refusal(400, "encoding_format is float or base64", "invalid_value")
        side = asked.get("input_type")
        if side not in (None, "query", "document"):
            raise _Refusal(400, "input_type is query or document", "invalid_value")
        try:
            with self.batcher.admitted(len(texts)):
                tokens = await self._counted(texts)
                vectors = await self._vectors(texts, side)
        except BusyError:
            raise _Refusal(503, "too many texts are waiting", "overloaded") from None
        rows = [
            {"object": "embedding", "index": index, "embedding": each}
            for index, each in enumerate(_written(_cut(vectors, width), encoding))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": rows, "model": self.name, "usage": usage}

    async def _vectors(self, texts: list[str], side: str | None) -> npt.NDArray[np.float32]:
        try:
            vectors = await self.batcher.vectors(texts, side)
        except ValueError as error:  # as models of molecules and images say that they cannot read an input
            logger.warning("the model cannot read an input (%s)", error)
            raise _Refusal(400, f"the model cannot read an input ({str(error)[:200]})", "invalid_value") from error
        except Exception as error:
            logger.exception("the model failed on %d texts", len(texts))
            raise _Refusal(500, "the model failed on these texts", "model_error") from error
        if not (finite := np.isfinite(vectors).all(axis=1)).all():
            raise _Refusal(500, f"the model gives no numbers for input {int(finite.argmin())}", "model_error")
        if not (read := vectors.any(axis=1)).all():  # as a table of word vectors gives where it knows no piece
            raise _Refusal(400, f"input {int(read.argmin())} holds nothing that the model knows", "invalid_value")
        return vectors

    async def _counted(self, texts: list[str]) -> int:
        """The tokens of a request, which has no more than it may have."""
        plain = [text for text in texts if not text.startswith(self._heads)]  # an image has no tokens
        tokens, most, size = 0, self.limits.tokens, sum(len(text) for text in plain)
        told = f"{size:,} characters"
        if size <= most * _CHARACTERS_OF_A_TOKEN:
            # Of long texts it takes seconds; of short ones less than to hand them to a thread.
            short = size <= _COUNTED_AT_ONCE
            tokens = self._tokens(plain) if short else await asyncio.to_thread(self._tokens, plain)
            told = f"{tokens:,} tokens"
        if tokens > most or size > most * _CHARACTERS_OF_A_TOKEN:
            raise _Refusal(413, f"a request has at most {most:,} tokens, this one has {told}", "too_large")
        return tokens

    def _admit(self, request: Request) -> None:
        if self.key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(), self.key.encode())
        if not known or scheme.lower() != "bearer":
            raise _Refusal(401, "the key is missing or wrong", "invalid_api_key")

    def _refuse_places(self, texts: Sequence[str]) -> None:
        """Refuse what sentence-transformers would open on this machine or fetch from another; data URIs hold all."""
        for index, text in enumerate(texts if self._heads else []):
            if text.startswith(self._heads):
                continue
            if not self._reads_text:
                head = self._heads[0]
                told = f'input {index} is no data URI ("{head}..."), the only form in which this model is asked'
                raise _Refusal(400, told, "invalid_value")
            if text.startswith(("http://", "https://")) or text.lower().endswith(MEDIA):
                told = f"input {index} names a file or an address; send what it holds as a data URI"
                raise _Refusal(400, told, "invalid_value")

    def _width(self, asked: Any) -> int:
        if asked is None:
            return self.width
        if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= self.width:
            raise _Refusal(400, f"dimensions is a number from 1 to {self.width}", "invalid_value")
        return asked

    def _tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of the texts, before anything is cut off; characters / 4 without a tokenizer."""
        if self._counter is None:
            return sum(math.ceil(len(text) / 4) for text in texts)
        return sum(len(each.ids) for each in self._counter.encode_batch_fast(list(texts), add_special_tokens=False))


def _width(model: Model) -> int:
    if isinstance(model, OnnxEncoder):
        return model.width
    return int(model.get_embedding_dimension() or np.shape(model.encode(["A probe."]))[-1])


def _counter(model: Model) -> Any:
    """A copy of the model's tokenizer that neither pads nor cuts, as the model's own does for each batch."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "encode_batch_fast"):
        return None
    from distilvec.students.vocabulary import plain_backend

    return plain_backend(backend)


def _encoder(model: Model, batch: int) -> Encode:
    ways: dict[str | None, Any] = {None: model.encode, "query": model.encode_query, "document": model.encode_document}
    on_processor = isinstance(model, OnnxEncoder) or model.device.type == "cpu"
    options: dict[str, Any] = {"batch_size": min(batch, _PASS) if on_processor else batch}
    if not isinstance(model, OnnxEncoder):
        model.eval()
        options |= {"show_progress_bar": False, "convert_to_numpy": True}

    def encode(texts: Sequence[str], side: str | None) -> npt.NDArray[np.float32]:
        return np.asarray(ways[side](list(texts), **options), np.float32)

    return encode


async def _body(request: Request, seconds: float) -> dict[str, Any]:
    """The JSON object of a request, which is read no further than it may be long, and no longer than it may take."""
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MOST_BYTES:
                    raise _Refusal(413, f"a request has at most {MOST_BYTES >> 20} MiB", "too_large")
    except TimeoutError:
        raise _Refusal(408, f"the request was not there after {seconds:g} s", "timeout") from None
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise _Refusal(400, "the body is no JSON", "invalid_json") from None
    if not isinstance(body, dict):
        raise _Refusal(400, "the body is no JSON object", "invalid_json")
    return body


def _texts(given: Any, media: tuple[str, ...]) -> list[str]:
    """The texts of a request; those that begin like `media` are images and their like, and may be longer."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise _Refusal(400, "input is a text, or a list of texts", "invalid_value")
    if len(texts) > MOST_TEXTS:
        raise _Refusal(413, f"a request has at most {MOST_TEXTS:,} texts, this one has {len(texts):,}", "too_large")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise _Refusal(
                400, f"input {index} is no text; token ids of other models mean nothing here", "invalid_value"
            )
        if len(text) > MOST_CHARACTERS and not text.startswith(media):
            told = f"input {index} has {len(text):,} characters, and a text has at most {MOST_CHARACTERS:,}"
            raise _Refusal(413, told, "too_large")
        if is_blank(text):
            raise _Refusal(400, f"input {index} is empty", "invalid_value")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise _Refusal(400, f"input {index} holds half a character", "invalid_value")
    return texts


def _cut(vectors: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """The first numbers, as long as before where all are: a prefix of a unit vector is one again."""
    if width == vectors.shape[1]:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    cut = vectors[:, :width]
    return np.asarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12) * lengths, np.float32)


def _written(vectors: npt.NDArray[np.float32], encoding: str) -> list[Any]:
    if encoding == "float":
        return list(vectors.tolist())
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]
