"""The batch API of a service, in OpenAI's shape: files go up, jobs are made of them, and results come down."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from distilvec.errors import EnvironmentProblem
from distilvec.teachers.endpoint import LONGEST_WAIT, Endpoint
from distilvec.teachers.pace import retry_after


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
