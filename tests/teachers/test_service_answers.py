"""Answers of a service that can be read but are not what was meant, limits that it does not say, and slow ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.teachers.serving import Service, serving, vector

from distilvec.errors import DataError, EnvironmentProblem
from distilvec.teachers import answers as answers_module
from distilvec.teachers import endpoint, load_teacher
from distilvec.teachers.answers import Answers
from distilvec.teachers.embeddings import UnreadableError, read_embeddings, read_failure, scattered
from distilvec.teachers.endpoint import Endpoint
from distilvec.teachers.sections import ApiSection

TEXTS = [f"text {number} of a{'t' * (number % 7)}" for number in range(200)]
SAID = "batch size is invalid, it should not be larger than 10"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint.random, "uniform", lambda low, high: 0.001)


def teacher_of(service: Service, batch_size: int = 64, **api: Any) -> Any:
    return load_teacher(name="big", api={"url": service.url, "model": "m", **api}, batch_size=batch_size)


def same(found: np.ndarray, texts: list[str]) -> bool:
    return bool(np.allclose(found, np.stack([vector(text) for text in texts]), atol=1e-6))


# other numbers than were meant


@pytest.mark.parametrize(("kind", "said"), [("<f2", "3 numbers.* 6 numbers"), (">f4", "6 numbers"), ("<f8", "12 numb")])
def test_base64_of_another_precision_is_refused(kind: str, said: str) -> None:
    with serving(lambda number, texts: kind) as service:
        with pytest.raises(DataError, match=rf"^big: .*{said}.*api\.encoding: float"):
            teacher_of(service, encoding="base64", attempts=1)
        assert same(teacher_of(service, encoding="float").encode(TEXTS[:9]), TEXTS[:9])


@pytest.mark.parametrize(("dimensions", "kind"), [(6, "<f2"), (None, "i1")])
def test_base64_that_does_not_fit_names_the_encoding(dimensions: int | None, kind: str) -> None:
    with serving(lambda number, texts: kind) as service, pytest.raises(DataError, match=r"api\.encoding: float"):
        teacher_of(service, encoding="base64", attempts=1, dimensions=dimensions)


def test_unrequested_base64_is_decoded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda number, texts: "packed") as service:
        assert same(teacher_of(service).encode(TEXTS[:9]), TEXTS[:9])
        assert [body.get("encoding_format") for body in service.bodies[:3]] == [None, "float", None]
    assert "big: " in caplog.text and "base64" in caplog.text


@pytest.mark.parametrize("width", [32, 384, 3072])
def test_another_precision_is_recognised_by_the_exponents(width: int) -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 300.0):
        real = (rng.standard_normal(width) * scale).astype(np.float32)
        real[0] *= 100  # some models have a few large numbers
        assert not scattered(real) and not scattered(np.where(rng.random(width) < 0.9, 0, real))
        for kind in ("<f2", "<f8", ">f4"):
            misread = np.frombuffer(real.astype(kind).tobytes(), "<f4")
            assert scattered(misread[np.isfinite(misread)]), kind


def test_base64_of_another_precision_is_refused_where_no_plain_numbers_come() -> None:
    packed = np.random.default_rng(0).standard_normal(64).astype("<f2").tobytes()
    with serving(lambda number, texts: packed) as service, pytest.raises(DataError, match="^big: .*base64.*32 numb"):
        teacher_of(service, encoding="base64")


def test_plain_numbers_are_asked_for_once() -> None:
    with serving() as service:
        teacher_of(service).encode(TEXTS[:9])
        assert [len(body["input"]) for body in service.bodies] == [1, 9]


def test_another_width_than_the_first() -> None:
    """Also of one half of a request whose other half had the right one."""
    for fault in ({1: "wider"}, {1: 413, 3: "wider"}):
        asked = serving(lambda number, texts, fault=fault: fault.get(number))  # type: ignore[misc]
        with asked as service, pytest.raises(DataError, match="^big: .* 6 .* 7"):
            teacher_of(service, concurrency=1).encode(TEXTS[:8])


# what a service counts and says


def test_a_count_of_tokens_that_no_text_has_is_left_out() -> None:
    with serving(lambda number, texts: "count") as service:
        teacher = teacher_of(service, batch_size=16, tokens_per_minute=6e6)
        assert same(teacher.encode(TEXTS), TEXTS)
        assert teacher.cost(["abcd"], 100)[1] == 100, "a token for four bytes, as long as nobody counted"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"data": [{"embedding": [1, null]}]}', r"data\.0\.embedding"),
        (b'{"data": [{"embedding": [[1, 2]]}]}', r"data\.0\.embedding"),
        (b'{"data": [{"embedding": {"a": 1}}]}', r"data\.0\.embedding"),
        (b'{"data": [{"embedding": [1], "index": 1e400}]}', r"data\.0\.index"),
        (b'{"data": [{"embedding": [1], "index": 7}]}', r"\[7\]"),
        (b'{"data": [7]}', r"data\.0"),
        (b'{"data": [{"embedding": []}]}', "finite"),
        (b'{"data": [{"embedding": [1e300]}]}', "finite"),
        (b'{"data": [{"embedding": "AAA"}]}', "padding"),
        (b'{"data": [{"embedding": "AAAA"}]}', r"api\.encoding"),
        (b'{"data": {"a": 1}}', "no vectors"),
        (b"[" * 100_000, "no vectors"),
        (b"7", "no vectors"),
    ],
)
def test_answers_of_other_types(content: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        read_embeddings(content, 1)


@pytest.mark.parametrize("usage", ["7", '"many"', '{"prompt_tokens": {"a": 1}}', '{"prompt_tokens": -4}', "[1]"])
def test_vectors_are_read_whatever_the_usage_is(usage: str) -> None:
    found = read_embeddings(f'{{"data": [{{"embedding": [1, "0.5"]}}], "usage": {usage}}}'.encode(), 1)
    assert found.vectors.tolist() == [[1, 0.5]] and found.tokens is None and not found.packed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "no quota", "code": 7}}', "no quota"),
        (b'{"error": "no\\n quota"}', "no quota"),
        (b'{"error": null, "detail": "no quota"}', "no quota"),
        (b'{"error": {"code": 7}, "message": "no quota"}', "no quota"),
        (b"no quota", "no quota"),
        (b'{"detail": [{"msg": "x"}]}', '{"detail": [{"msg": "x"}]}'),
    ],
)
def test_error_messages_of_a_service_are_shown(content: bytes, said: str) -> None:
    assert read_failure(content) == said


ODD = [
    "null",
    "true",
    "7",
    "-1",
    "1e400",
    f"1{'0' * 400}",
    "NaN",
    '""',
    '"x"',
    '"AAAA"',
    "[]",
    "[[]]",
    "{}",
    '[{"a": 1}]',
]
FIELDS = [
    "?",
    '{"data": ?}',
    '{"data": [?]}',
    '{"data": [{"embedding": ?}]}',
    '{"data": [{"embedding": [?]}]}',
    '{"data": [{"embedding": [1, ?]}]}',
    '{"data": [{"embedding": [1], "index": ?}]}',
    '{"data": [{"embedding": [1]}], "usage": ?}',
    '{"data": [{"embedding": [1]}], "usage": {"prompt_tokens": ?}}',
    '{"data": [{"embedding": [1]}], "usage": {"total_tokens": ?}}',
    '{"error": ?}',
    '{"error": {"message": ?}}',
    '{"detail": ?}',
    '{"message": ?}',
]


@pytest.mark.parametrize("field", FIELDS)
def test_every_type_in_every_field(field: str) -> None:
    for value in ODD:
        content = field.replace("?", value).encode()
        try:
            found = read_embeddings(content, 1)
            assert np.isfinite(found.vectors).all() and (found.tokens or 1) <= 10_000_000
        except UnreadableError as problem:
            assert len(str(problem)) < 300
        assert isinstance(read_failure(content), str)


# a limit that is found


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_most_texts_of_a_request_are_found_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda number, texts: status if len(texts) > 10 else None) as service:
        assert same(teacher_of(service, concurrency=1).encode(TEXTS), TEXTS)
        sizes = [len(body["input"]) for body in service.bodies]
        assert service.answered == dict.fromkeys([*TEXTS, "A probe."], 1)
    assert sizes == [1, 64, 32, 16, *[8] * 25]
    said = [record.getMessage() for record in caplog.records if "batch_size" in record.getMessage()]
    assert len(said) == 1 and "big: " in said[0] and "8 texts" in said[0] and f"fault {status}" in said[0]


def test_several_at_once_find_the_same_limit() -> None:
    with serving(lambda number, texts: 413 if len(texts) > 10 else None) as service:
        assert same(teacher_of(service, concurrency=4).encode(TEXTS * 3), TEXTS * 3)
        sizes = [len(body["input"]) for body in service.bodies]
    # Each may have one request of each size under way when another finds the limit.
    assert sum(size > 10 for size in sizes) <= 4 * 3


def test_a_refused_text_is_not_taken_for_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    bad = {TEXTS[3]}
    with serving(lambda number, texts: 413 if bad & {*texts} else None) as service:
        teacher_of(service, concurrency=1).encode(TEXTS)
        sizes = [len(body["input"]) for body in service.bodies]
    assert sizes[-3:] == [64, 64, 8] and "batch_size" not in caplog.text


def test_long_texts_that_are_too_much_together_set_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    texts = [*TEXTS[:64], *(text * 20 for text in TEXTS[:64]), *TEXTS[64:128]]
    with serving(lambda number, asked: 413 if sum(map(len, asked)) > 12_000 else None) as service:
        assert same(teacher_of(service, concurrency=1).encode(texts), texts)
        sizes = [len(body["input"]) for body in service.bodies]
    assert sizes == [1, 64, 64, 32, 32, 64] and "batch_size" not in caplog.text


def test_answers_before_a_broken_part_are_kept() -> None:
    came: list[str] = []
    with serving(lambda number, texts: 413 if len(texts) > 10 else 500 if TEXTS[20] in texts else None) as service:
        asked = Endpoint(ApiSection(url=service.url, model="m", attempts=1))
        with pytest.raises(EnvironmentProblem, match="HTTP 500"):
            asked.embed(TEXTS[:40], lambda texts, vectors: came.extend(texts) if same(vectors, list(texts)) else None)
    assert sorted(came) == sorted(TEXTS[:20])


# slow ones


@pytest.mark.parametrize("fault", ["drip", "drip from the first byte"])
def test_a_whole_answer_comes_in_time_or_not_at_all(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WHOLE", 1)
    with serving(lambda number, texts: fault) as service:
        started = time.monotonic()
        with pytest.raises(EnvironmentProblem, match=r"^teacher: 2 requests .*whole after 0.5 s"):
            Endpoint(ApiSection(url=service.url, model="m", timeout=0.5, attempts=2)).embed(TEXTS[:8])
        assert time.monotonic() - started >= 1


def test_time_is_counted_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WHOLE", 1)
    with serving(seconds=0.1) as service:
        asked = Endpoint(ApiSection(url=service.url, model="m", timeout=1.0, attempts=1))
        for start in range(0, 88, 8):  # together longer than one may take, over one connection
            assert same(asked.embed(TEXTS[start : start + 8]), TEXTS[start : start + 8])


def test_answers_folder_is_not_removed_while_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "answers"
    one, two = (Answers(folder, "ab" * 16, 3).__enter__() for _ in range(2))
    one.__exit__(None, None, None)
    two.add([bytes(16)], np.ones((1, 3), np.float32))
    two.__exit__(None, None, None)
    assert len(list(folder.glob("*.bin"))) == 1
    lock = answers_module.locked

    def after_its_end(file: Path, **options: Any) -> Any:
        file.with_suffix(".bin").unlink()
        return lock(file, **options)

    monkeypatch.setattr(answers_module, "locked", after_its_end)
    with Answers(folder, "ab" * 16, 3) as three:
        assert len(three) == 0 and not three.left
    assert not folder.exists()
