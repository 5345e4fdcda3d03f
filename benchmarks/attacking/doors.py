"""Readers of JSON: a command or a function for each file, and the right value where one is known.

An `AssertionError` says that something was taken silently and came out wrong.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from attacking import children, jobs

TEXTS = ["a first text about rivers", "another one, on the price of bread"]
WIDTH = 3
ANSWER = {
    "object": "list",
    "data": [
        {"object": "embedding", "index": 0, "embedding": [0.5, 0.25, 0.125]},
        {"object": "embedding", "index": 1, "embedding": [0.25, 0.5, -0.5]},
    ],
    "model": "m",
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}
FAILURE = {"error": {"message": "no", "type": "t", "param": None, "code": "c"}, "detail": "d", "message": "m"}
REQUEST = {
    "input": TEXTS,
    "model": "served",
    "encoding_format": "float",
    "dimensions": 16,
    "input_type": "query",
    "user": "u",
}
ROW = {"text": "the fifth text", "label": "a", "domain": "x", "role": "query", "id": 5}
PAIR_ROW = {"text1": "one text", "text2": "another", "score": 3}
SCORE_ROW = {"query": "a question", "document": "an answer", "score": 0.5}
VECTOR_ROW = {"text": "the fifth text", "vector": [0.5, 0.25, 0.125]}


def _same(mine: Any, theirs: Any, what: str) -> None:
    if np.shape(mine) != np.shape(theirs) or not np.allclose(mine, theirs, atol=1e-4):
        raise AssertionError(f"accepted, and {what} differ")


def _same_bytes(mine: Path, theirs: Path) -> None:
    if mine.read_bytes() != theirs.read_bytes():
        raise AssertionError(f"accepted, and {mine.name} differs")


# folders


def model(rng: random.Random, inputs: Path, folder: Path) -> int | None:
    """A model as a student, as a teacher, or in a command; its vectors are those that sentence-transformers gets."""
    from distilvec.students import load_student
    from distilvec.teachers import load_teacher

    door = rng.random()
    if door > 0.97:
        words = ["--set", "student.model=out", "--set", "training.max_steps=2", "-o", "trained"]
        return children.call(["train", str(inputs / "plain.yaml"), *words])
    if door > 0.9:
        return children.call(["evaluate", "out", "-t", str(inputs / "task.yaml")])
    if door > 0.85:
        return children.call(["shrink", "out", "-o", "smaller", "--layers", "1"])
    if door < 0.5:
        vectors = np.asarray(load_student(folder / "out", device="cpu").encode(TEXTS))
    else:
        vectors = np.asarray(load_teacher(model=folder / "out", device="cpu").encode(TEXTS))
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise AssertionError("accepted, and its vectors are no numbers")
    _same(vectors, _plainly(folder / "out"), "its vectors and those of sentence-transformers")
    return None


def _plainly(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(TEXTS)


def table(rng: random.Random, inputs: Path, folder: Path) -> None:
    """A table of word pieces; what nothing refuses reads as much as before, and is scaled as before."""
    from distilvec.students import load_student

    mine, theirs = (load_student(place, device="cpu").encode(TEXTS) for place in (folder / "out", inputs / "table"))
    if not np.isfinite(mine).all():
        raise AssertionError("accepted, and its vectors are no numbers")
    _same(np.shape(mine), np.shape(theirs), "the shapes")


def adapted(rng: random.Random, inputs: Path, folder: Path) -> None:
    """Adapters of a teacher."""
    from distilvec.teachers import load_teacher

    load_teacher(model=inputs / "bert", adapters=[str(folder / "out")], device="cpu").encode(TEXTS)


def finished(rng: random.Random, inputs: Path, folder: Path) -> int | None:
    """A run that is done: trained again, looked at, cleaned, taught from, its report read."""
    from distilvec.report.record import Record

    words = rng.choice((
        ["train", str(inputs / "both.yaml"), "-o", "out", "--resume"],
        ["run", str(inputs / "both.yaml"), "-o", "out", "--resume"],
        ["teach", str(inputs / "both.yaml"), "-o", "out"],
        ["size", "out"],
        ["clean", "out", "--yes", *(each for what in ("derived", "tokens", "left over") for each in ("--what", what))],
        [],
    ))  # fmt: skip
    if not words:
        Record.load(folder / "out").to_json()
        return None
    code = children.call(words)
    if not code and words[0] in ("train", "run"):
        _same_bytes(folder / "out/student/model.safetensors", inputs / "finished/student/model.safetensors")
    if not code and words[0] == "teach":
        _same_stores(folder / "out", inputs / "finished")
    return code


def unfinished(rng: random.Random, inputs: Path, folder: Path) -> int | None:
    """A training that was killed, gone on with."""
    code = children.call(["train", str(inputs / "both.yaml"), "-o", "out", "--resume"])
    if not code:
        _same_bytes(folder / "out/student/model.safetensors", inputs / "finished/student/model.safetensors")
        _same_stores(folder / "out", inputs / "finished")
    return code


def _same_stores(mine: Path, theirs: Path) -> None:
    from distilvec.store import SignalStore

    for card in theirs.glob("stores/*/store.json"):
        one, other = (SignalStore.open(place / "stores" / card.parent.name, verify=True) for place in (mine, theirs))
        keys = other.keys(np.arange(len(other)))
        rows = one.rows(keys)
        if (rows < 0).any() or (one.read(rows) != other.read(other.rows(keys))).any():
            raise AssertionError(f"accepted, and the store {card.parent.name} differs")


def _again(command: str, inputs: Path) -> int:
    job = next(each for each in jobs.jobs(inputs) if each.command == command)
    return children.call(job.again)


def compared(rng: random.Random, inputs: Path, folder: Path) -> int:
    """A comparison that is done, made again: the same scores."""
    code = _again("compare", inputs)
    if not code and (different := jobs.same_json(folder / "out", inputs / "compared", "compare.json")):
        raise AssertionError(f"accepted, and {different}")
    return code


def planned(rng: random.Random, inputs: Path, folder: Path) -> int:
    return _again("plan", inputs)


def finetuned(rng: random.Random, inputs: Path, folder: Path) -> int | None:
    """Fine-tuned again by an equal call, which has nothing to do, or opened for predictions."""
    from distilvec.tasks.predictor import Predictor

    if rng.random() < 0.5:
        code = _again("finetune", inputs)
        if not code:
            _same_bytes(folder / "out/model.safetensors", inputs / "finetuned/model.safetensors")
        return code
    found = [Predictor.load(place, device="cpu").predict(TEXTS) for place in (folder / "out", inputs / "finetuned")]
    if list(found[0]) != list(found[1]):
        raise AssertionError("accepted, and the predictions differ")
    return None


def exported(rng: random.Random, inputs: Path, folder: Path) -> None:
    from distilvec.export import load_onnx

    mine, theirs = (load_onnx(place, threads=1).encode(TEXTS) for place in (folder / "out", inputs / "exported"))
    _same(mine, theirs, "its vectors")


def mined(rng: random.Random, inputs: Path, folder: Path) -> int:
    code = _again("mine", inputs)
    if not code:
        _same_bytes(folder / "out/mined.jsonl", inputs / "mined/mined.jsonl")
    return code


# services


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, content = self.server.answer(body["input"])  # type: ignore[attr-defined]
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _service(answer: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.answer = answer  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    port = int(server.server_address[1])
    children.FRIENDS.add(port)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _whole(texts: list[str]) -> dict[str, Any]:
    rows = [{"index": place, "embedding": [0.5, 0.25, len(text) / 64]} for place, text in enumerate(texts)]
    return {"data": rows, "usage": {"prompt_tokens": 9}}


def answered(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    """An answer to two texts: the vectors that were sent, or an error."""
    from distilvec.teachers import load_teacher

    with _service(lambda texts: (200, content if texts == TEXTS else _whole(texts))) as url:
        teacher = load_teacher(api={"url": url, "model": "m", "attempts": 1, "timeout": 5})
        vectors = np.asarray(teacher.encode(TEXTS))
    sent = [row["embedding"] for row in (content["data"] if "embedding" in field else ANSWER["data"])]  # type: ignore[attr-defined]
    _same(vectors, np.asarray(sent, np.float32), "its vectors")


def failed(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    """A failure with odd words: an error, or no vector."""
    from distilvec.teachers import load_teacher

    status = rng.choice((400, 401, 404, 413, 422, 429, 500, 503, 302, 200))
    with _service(lambda texts: (200, _whole(texts)) if texts == ["A probe."] else (status, content)) as url:
        teacher = load_teacher(api={"url": url, "model": "m", "attempts": 1, "timeout": 5})
        vectors = np.asarray(teacher.encode(TEXTS))
    if np.isfinite(vectors).any():  # a text that is refused by itself has a row of NaN
        raise AssertionError("a failure was taken for vectors")


def asked(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> int:
    """A request to `serve`: an answer with the right vectors, or a refusal in JSON."""
    from starlette.testclient import TestClient

    from distilvec.serving import application
    from distilvec.students import load_student

    served = load_student(inputs / "full", device="cpu")
    with TestClient(application(served, "served"), raise_server_exceptions=True) as client:
        answer = client.post("/v1/embeddings", content=json.dumps(content))
    if answer.status_code != 200:
        if not 400 <= answer.status_code < 500 or not answer.json()["error"]["message"]:
            raise AssertionError(f"HTTP {answer.status_code}: {answer.text[:200]}")
        return 2
    given = content["input"]
    right = served.encode_query([given] if isinstance(given, str) else given)
    if content.get("input_type") != "query":
        right = served.encode([given] if isinstance(given, str) else given)
    if content.get("encoding_format") in ("float", None):
        _same([row["embedding"] for row in answer.json()["data"]], right, "its vectors")
    return 0


# rows


def _rows(folder: Path, whole: dict[str, Any], content: Any) -> Path:
    """Ten rows, the fifth of which is the given one."""
    texts = [f"{number} texts about something" for number in range(10)]
    rows = [{key: f"{texts[n]} {key}" if isinstance(value, str) and key not in ("label", "role", "domain") else value
             for key, value in whole.items()} for n in range(10)]  # fmt: skip
    for number in range(0, 10 * ("label" in whole), 2):
        rows[number]["label"] = "b"
    rows[4] = content
    (folder / "tmp/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "tmp/rows.jsonl"


def corpus_row(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    from distilvec.corpus import read_corpus

    columns = {name: name for name in ("label", "domain", "role") if rng.random() < 0.6}
    read_corpus(_rows(folder, ROW, content), folder / "out", strict=rng.random() < 0.3, **columns)


def label_row(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    _task(inputs, {"kind": "classification", "train": str(_rows(folder, ROW, content))}, "train.jsonl")


def pair_row(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    from distilvec.judging import load_task

    load_task({"name": "t", "kind": "similarity", "test": str(_rows(folder, PAIR_ROW, content))})


def _task(inputs: Path, section: dict[str, Any], test: str) -> None:
    from distilvec.judging import load_task

    load_task({"name": "t", "test": str(inputs / test), **section})


def score_row(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    from distilvec.scorers.score_file import TableScorer

    TableScorer(_rows(folder, SCORE_ROW, content))


def vector_row(rng: random.Random, inputs: Path, folder: Path, content: Any, field: tuple[Any, ...]) -> None:
    """A table with vectors: those of the other rows stay what they are."""
    from distilvec.teachers import load_teacher

    teacher = load_teacher(vectors=str(_rows(folder, VECTOR_ROW, content)))
    vectors = np.asarray(teacher.encode(["0 texts about something text"]))
    _same(vectors, np.asarray([VECTOR_ROW["vector"]], np.float32), "the vectors of other rows")
