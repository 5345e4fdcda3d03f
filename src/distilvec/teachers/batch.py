"""A service that is asked through its batch API: what a store lacks is sent as jobs, and taken when they are done.

A job is remembered in the store's folder `batch`: `NAME.json` (ids of its file and of itself), `NAME.keys` (16 bytes a
text) and, until the service has it, its file of requests. Without the first, which is written last, there is no job.
`refused` has the keys of texts that the service refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import secrets
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.errors import GO_ON, DataError, Pending
from distilvec.files import write_text
from distilvec.teachers.answers import Answers
from distilvec.teachers.base import TeachingCost
from distilvec.teachers.batch_endpoint import MOST_REQUESTS, BatchEndpoint, Result, read_results, request_files
from distilvec.teachers.endpoint import request_body
from distilvec.teachers.sections import Reading, ServiceSection
from distilvec.teachers.service import FEW, MANY, ServiceTeacher

logger = logging.getLogger(__name__)
#: Answers that are kept at once, bytes of a key, and the states of a job that has ended; services differ in the others.
_BLOCK, _KEY = 1024, 16
_ENDED = ("completed", "failed", "expired", "cancelled")


@dataclasses.dataclass
class Taken:
    """The outcome of results: how many have a vector and how many failed, the keys of texts that the service refuses,
    what it says of the first that failed, and line and width of the first vector of another width.
    """

    answered: int = 0
    failed: int = 0
    refused: set[bytes] = dataclasses.field(default_factory=set)
    failure: str = ""
    wrong: tuple[int, int] | None = None

    def vectors(self, results: Iterable[Result], wanted: set[bytes], width: int) -> Iterator[tuple[bytes, np.ndarray]]:
        """Keys that are wanted, each once, and their vectors float32 [D]; what failed is counted."""
        for number, key, vector, failure, refused, _ in results:
            if key is None or key not in wanted:
                continue
            if vector is not None and len(vector) == width:
                wanted.remove(key)
                self.answered += 1
                yield key, vector
            else:
                self.failed += 1
                self.failure = self.failure or f"line {number}: {failure}"
                self.wrong = self.wrong or (None if vector is None else (number, len(vector)))
                self.refused |= {key} if refused else set()


def open_service(section: ServiceSection, reading: Reading) -> ServiceTeacher:
    """The teacher of a section; errors as of `ServiceTeacher`."""
    return (BatchTeacher if section.api.batch else ServiceTeacher)(section, reading)


class BatchTeacher(ServiceTeacher):
    """A service that is asked by jobs for what a store lacks, and at once for anything else.

    Args:
        seen: an answer float32 [1, D] that came already: then the service is never asked, and the teacher has nothing
            but what `take` was given.
    """

    can = dataclasses.replace(ServiceTeacher.can, later=True)
    _open = BatchEndpoint
    _endpoint: BatchEndpoint

    def __init__(self, section: ServiceSection, reading: Reading, seen: np.ndarray | None = None) -> None:
        if seen is not None:  # nobody needs a key
            section = section.model_copy(update={"api": section.api.model_copy(update={"key_env": None})})
        super().__init__(section, reading, seen)
        self._alone, self._asks = seen is not None, seen is None
        self._without: set[bytes] = set()

    def cost(self, texts: Sequence[str], items: int) -> TeachingCost:
        return super().cost(texts, items)._replace(requests=items, jobs=-(-items // MOST_REQUESTS))

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """As `ServiceTeacher.stream`; rows of NaN for texts that it refused, or that no results came for."""
        keys = [self.key(text) for text in texts]
        known = [None] * len(keys) if self._asks or self.answers is None else self.answers.find(keys)
        lacking = [key in self._without or (each is None and not self._asks) for key, each in zip(keys, known)]
        lacks = np.array(lacking, bool)
        there = np.flatnonzero(~lacks)
        if lacks.any():
            if self.answers is not None:
                self.answers.given(int(lacks.sum()))
            yield np.flatnonzero(lacks), np.full((int(lacks.sum()), self.card.width), np.nan, np.float32)
        for rows, vectors in super().stream([texts[int(row)] for row in there]):
            yield there[rows], vectors

    def take(self, folder: Path, results: Iterable[Result], wanted: set[bytes]) -> Taken:
        """Keep the vectors of results until the store in `folder` has them; only those of keys that are wanted."""
        taken = Taken()
        with Answers(folder / "answers", self.card.fingerprint, self.card.width) as answers:
            there = taken.vectors(results, set(wanted), self.card.width)
            while block := list(itertools.islice(there, _BLOCK)):
                answers.add([key for key, _ in block], np.stack([vector for _, vector in block]))
        return taken

    def order(self, folder: Path, texts: Iterable[str]) -> Pending | None:
        """Take what finished jobs give, and send jobs for the rest; while one is under way, `stream` gives what came.

        Raises:
            Pending: a job is under way, and none came.
            DataError: a job answered nothing, gave a vector of another width, or refuses many texts.
            EnvironmentProblem: the service does not answer, or does not know a job any more.
        """
        if self._alone:
            return None
        place = folder / "batch"
        place.mkdir(parents=True, exist_ok=True)
        for file in place.glob("*.*"):  # of a job that a full disk or a kill kept from being made, or that is settled
            if not file.with_suffix(".json").exists():
                file.unlink()
        under_way: dict[Path, dict[str, Any]] = {}
        problems: list[DataError] = []
        for record in sorted(place.glob("*.json")):
            state = self._state(record)
            if state.get("status") in _ENDED:
                problems += self._settle(folder, record, state)
            else:
                under_way[record] = state
        if problems:
            raise problems[0]
        self._without, asked = _keys(place / "refused"), asked_already(folder)
        with Answers(folder / "answers", self.card.fingerprint, self.card.width) as answers:
            lacking = ((key, self.prompt + text) for text in texts for key in [self.key(text)] if key not in asked)
            todo = (each for each in lacking if answers.find([each[0]])[0] is None)
            for keys, content in request_files(self.card.name, request_body(self._section.api), todo):
                record = place / f"{secrets.token_hex(8)}.json"
                record.with_suffix(".keys").write_bytes(b"".join(keys))
                record.with_suffix(".jsonl").write_bytes(content)
                write_text(record, "{}")
                under_way[record] = self._state(record)
            came, pending = len(answers), self._pending(under_way) if under_way else None
        self._asks = pending is None
        if pending is not None and not came:
            raise pending
        return pending

    def _state(self, record: Path) -> dict[str, Any]:
        """Return what the service says of a job, which is sent where the service does not have it yet."""
        told, requests = json.loads(record.read_text(encoding="utf-8")), record.with_suffix(".jsonl")
        if "file" not in told:
            told["file"] = self._endpoint.upload(requests)
            write_text(record, json.dumps(told))
        if "job" not in told:
            told["job"] = self._endpoint.create(told["file"], record.stem)
            write_text(record, json.dumps(told))
        requests.unlink(missing_ok=True)
        return self._endpoint.asked("GET", f"/batches/{told['job']}")

    def _settle(self, folder: Path, record: Path, state: dict[str, Any]) -> list[DataError]:
        """Take what an ended job gave, and forget the job; returns what went wrong."""
        wanted = _keys(record.with_suffix(".keys"))
        files = [state[kind] for kind in ("output_file_id", "error_file_id") if state.get(kind)]
        lines = itertools.chain(*(self._endpoint.download(file, record.with_suffix(".results")) for file in files))
        taken = self.take(folder, read_results(lines, self.card.name), wanted)
        refused = len(taken.refused)
        many = refused > max(FEW, MANY * len(wanted))
        with (record.parent / "refused").open("ab") as file:
            file.write(b"" if many else b"".join(taken.refused))
        for suffix in (".json", ".keys"):
            record.with_suffix(suffix).unlink()
        job = f"job {state.get('id')} ({state.get('status')})"
        said = f"{job}: {taken.answered:,} of {len(wanted):,} texts are answered, {refused:,} refused"
        (logger.warning if refused else logger.info)("teacher %s: %s", self.card.name, said)
        if taken.wrong is not None:
            said = f"{job}: line {taken.wrong[0]} of its results has width {taken.wrong[1]}, not {self.card.width}"
        elif not many and (taken.answered or refused):
            return []
        else:
            errors = (state.get("errors") or {}).get("data") or [{}]
            said += f" ({str(errors[0].get('message') or taken.failure or 'no results')[:200]})"
        remedy = "Check api.model and api.dimensions; run the same command again to send what is missing."
        return [DataError(said, where=f"teacher {self.card.name}", remedy=remedy)]

    def _pending(self, jobs: dict[Path, dict[str, Any]]) -> Pending:
        """Say in one line how far the jobs are."""
        texts = sum(len(_keys(record.with_suffix(".keys"))) for record in jobs)
        done = sum(int((state.get("request_counts") or {}).get("completed") or 0) for state in jobs.values())
        names = [f"{state.get('id')} {state.get('status')}" for state in jobs.values()][:3]
        ends = [state["expires_at"] for state in jobs.values() if isinstance(state.get("expires_at"), int)]
        until = f", until {datetime.fromtimestamp(max(ends), UTC):%Y-%m-%d %H:%M} UTC at the latest" if ends else ""
        what = (
            f"{done:,} of {texts:,} texts are done in batch jobs ({', '.join(names)}{' ...' * (len(jobs) > 3)}){until}"
        )
        return Pending(what, where=f"teacher {self.card.name}", remedy=f"Later, {GO_ON}.")


def asked_already(folder: Path) -> set[bytes]:
    """The keys of texts that are under way or were refused, for the store in `folder`."""
    jobs = (record.with_suffix(".keys") for record in folder.glob("batch/*.json"))
    return set[bytes]().union(*map(_keys, (*jobs, folder / "batch" / "refused")))


def _keys(file: Path) -> set[bytes]:
    content = file.read_bytes() if file.is_file() else b""
    return {content[start : start + _KEY] for start in range(0, len(content), _KEY)}
