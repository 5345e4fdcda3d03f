"""Files of batch jobs, in OpenAI's shape: a request a line to the service, a result a line back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, WrapValidator

from distilvec.teachers.embeddings import UnreadableError, or_none, read_embeddings, read_failure

#: What OpenAI takes in one file; a little less than its 200 MB.
MOST_REQUESTS, _MOST_BYTES = 50_000, 190_000_000
#: Answers that say that the text cannot be embedded.
_UNFIT = {400, 413, 422}


class _Answer(BaseModel):
    status_code: int
    body: Any = None


class _ResultLine(BaseModel):
    custom_id: str
    response: _Answer | None = None
    error: Annotated[dict[str, Any] | None, WrapValidator(or_none)] = None


class Result(NamedTuple):
    """A line (from 1), the key of its text (None: it is no answer to this teacher's requests), the vector float32 [D]
    or what failed, whether the text itself is at fault, so that asking again would change nothing, and the model that
    the service names, "" if it names none.
    """

    number: int
    key: bytes | None
    vector: np.ndarray | None = None
    failure: str = ""
    refused: bool = False
    model: str = ""


def request_files(
    name: str, body: Mapping[str, Any], texts: Iterable[tuple[bytes, str]]
) -> Iterator[tuple[list[bytes], bytes]]:
    """Keys and content of each file of requests for keyed texts; no file is larger than a service takes.

    The teacher's name is a part of every custom_id, and `body` is what every request holds beside its text.
    """
    keys: list[bytes] = []
    content = bytearray()
    for key, text in texts:
        request = {"custom_id": f"{name}-{key.hex()}", "method": "POST", "url": "/v1/embeddings"}
        line = json.dumps({**request, "body": {**body, "input": text}}).encode() + b"\n"
        if keys and (len(keys) == MOST_REQUESTS or len(content) + len(line) > _MOST_BYTES):
            yield keys, bytes(content)
            keys, content = [], bytearray()
        keys.append(key)
        content += line
    if keys:
        yield keys, bytes(content)


def read_results(lines: Iterable[bytes], name: str) -> Iterator[Result]:
    """Read a file of results."""
    for number, content in enumerate(lines, start=1):
        try:
            line = _ResultLine.model_validate_json(content)
            owner, _, digits = line.custom_id.rpartition("-")
            key = bytes.fromhex(digits) if owner == name else None
        except ValueError:
            key = None
        if key is None:
            yield Result(number, None)
        elif line.response is None or line.response.status_code != 200:
            status = "" if line.response is None else f"HTTP {line.response.status_code}: "
            told = read_failure(json.dumps(line.error or (line.response and line.response.body) or {}).encode())
            unfit = line.response is not None and line.response.status_code in _UNFIT
            yield Result(number, key, None, status + told, unfit)
        else:
            try:
                vector = read_embeddings(body := line.response.body or {}, 1).vectors[0]
                named = body.get("model") if isinstance(body, dict) else None
                yield Result(number, key, vector, model=named if isinstance(named, str) else "")
            except UnreadableError as problem:
                yield Result(number, key, None, f"it answered with {problem}")
