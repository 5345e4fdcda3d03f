"""The batch API of a service, in OpenAI's shape: files of requests go up, a request a line, jobs are made of them, and
files of results come down, a result a line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, WrapValidator

from distilvec.errors import EnvironmentProblem
from distilvec.teachers.embeddings import UnreadableError, or_none, read_embeddings, read_failure
from distilvec.teachers.endpoint import LONGEST_WAIT, Endpoint
from distilvec.teachers.pace import retry_after

#: What OpenAI takes in one file; a little less than its 200 MB.
MOST_REQUESTS, _MOST_BYTES = 50_000, 190_000_000
#: Answers that say that the text cannot be embedded.
_UNFIT = {400, 413, 422}


class BatchEndpoint(Endpoint):
    """An endpoint that also takes jobs; errors as of `asked`."""

    def upload(self, file: Path) -> str:
        """Send a file of requests; returns its id."""
        sent = {"file": (file.name, file.read_bytes(), "application/jsonl")}
        return str(self.asked("POST", "/files", data={"purpose": "batch"}, files=sent)["id"])

    def create(self, file: str, name: str) -> str:
        """Make a job of an uploaded file; returns its id, also where an earlier try made it and its answer was lost."""
        body = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}

        def found() -> dict[str, Any] | None:
            jobs = self.asked("GET", "/batches").get("data") or []
            return next((each for each in jobs if (each.get("metadata") or {}).get("name") == name), None)

        made = found() or self.asked("POST", "/batches", found, json={**body, "metadata": {"name": name}})
        return str(made["id"])

    def download(self, file: str, into: Path) -> Iterator[bytes]:
        """The lines of a file of results, which lies in `into` until they were read."""
        self.asked("GET", f"/files/{file}/content", into=into)
        with into.open("rb") as lines:
            yield from lines
        into.unlink()

    def asked(
        self,
        method: str,
        path: str,
        instead: Callable[[], dict[str, Any] | None] = lambda: None,
        into: Path | None = None,
        **sent: Any,
    ) -> dict[str, Any]:
        """Return the answer to a request, tried `attempts` times, or what `instead` knows before another try; {} if it
        went into a file.

        Raises:
            EnvironmentProblem: the service lets nobody in, does not know the path, or does not answer.
        """
        import httpx2

        url = self.url.copy_with(path=self.url.path.removesuffix("/embeddings") + path)
        for attempt in range(self._api.attempts):
            if attempt and (found := instead()) is not None:
                return found
            wait = None
            try:
                with self._client.stream(method, url, **sent) as answer:
                    wait = retry_after(answer.headers)
                    if into is not None and answer.is_success:
                        with into.open("wb") as file:
                            file.writelines(answer.iter_bytes())
                        return {}
                    content = b"".join(islice(answer.iter_bytes(65_536), 1024))  # 64 MiB at most
                if answer.is_success:
                    return dict(json.loads(content))
                if answer.status_code == 404:
                    remedy = (
                        "Leave out api.batch if it has no batch API; remove the store's `batch` if it forgot a job."
                    )
                    what = f"the service answers HTTP 404 to {url.path}: {self._said(content)}"
                    raise EnvironmentProblem(what, where=self._where, remedy=remedy)
                self._refuse(answer.status_code, content)
                problem = f"HTTP {answer.status_code}: {self._said(content)}"
            except (httpx2.HTTPError, TypeError, ValueError) as error:
                problem = self._hidden(f"{type(error).__name__}: {str(error)[:200]}")
            if attempt + 1 < self._api.attempts:
                patience = wait or min(2.0**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)
                self._tell(problem, patience)
                self._patiently(patience)
        what = f"{self._api.attempts} requests for {path} failed, the last so: {problem}"
        raise EnvironmentProblem(what, where=self._where, remedy="What came is kept; run the same command again later.")


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
