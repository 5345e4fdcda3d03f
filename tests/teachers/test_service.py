"""A service as a teacher: whatever it answers, no row is lost, and none is paid for twice."""

from __future__ import annotations

import json
import signal
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.teachers.serving import WIDTH, Service, serving, vector
from tests.training.starting import Starter

from distilvec.choosing.dry_run import plan
from distilvec.cli.disk import pieces
from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow.ray import teach_alone
from distilvec.flow.run import run
from distilvec.flow.stored import StoredTeacher
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.teachers import endpoint, load_teacher
from distilvec.teachers.answers import Answers
from distilvec.teachers.describe import check_teacher
from distilvec.teachers.pace import Pace
from distilvec.teachers.sections import ApiSection

TEXTS = [f"text {number} of a{'t' * (number % 7)}" for number in range(200)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint.random, "uniform", lambda low, high: 0.001)


def teacher_of(service: Service, batch_size: int = 16, **api: Any) -> Any:
    return load_teacher(name="big", api={"url": service.url, "model": "m", **api}, batch_size=batch_size)


def same(found: np.ndarray, texts: list[str]) -> bool:
    return bool(np.allclose(found, np.stack([vector(text) for text in texts]), atol=1e-6))


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_rows_come_back_in_the_order_of_the_texts(encoding: str | None) -> None:
    with serving() as service:
        teacher = teacher_of(service, encoding=encoding, dimensions=WIDTH, extra={"input_type": "document"})
        assert same(teacher.encode(TEXTS), TEXTS)
        probes = 2 if encoding == "base64" else 1  # base64 is compared with plain numbers
        assert service.answered == {**dict.fromkeys(TEXTS, 1), "A probe.": probes}
        assert all(body["input_type"] == "document" and body["dimensions"] == WIDTH for body in service.bodies)
        del service.bodies[probes - 1]
        assert all(body.get("encoding_format") == encoding for body in service.bodies)
        assert teacher.card.source == "m at 127.0.0.1" and teacher.card.kind == "service"


def test_rows_without_an_index_have_that_of_their_place() -> None:
    with serving(lambda number, texts: "unnumbered") as service:
        assert same(teacher_of(service).encode(TEXTS[:20]), TEXTS[:20])


@pytest.mark.parametrize("length", [20, 164, 300])
def test_a_key_is_hidden_before_the_message_is_cut(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "sk-" + "a1" * (length // 2))
    with serving(lambda number, texts: 401) as service, pytest.raises(EnvironmentProblem) as caught:
        teacher_of(service, key_env="BIG_KEY")
    assert "Bearer ***" in str(caught.value) and "a1a1" not in str(caught.value)


@pytest.mark.parametrize("fault", ["drop", "html", "missing", "twice", "half", 500, 503, 522, 429])
def test_temporary_errors_are_retried(fault: Any) -> None:
    with serving(lambda number, texts: fault if number % 3 == 1 else None) as service:
        assert same(teacher_of(service).encode(TEXTS), TEXTS)
        assert service.answered == dict.fromkeys([*TEXTS, "A probe."], 1)


@pytest.mark.parametrize("said", ["7", "date"])
def test_retry_after_is_obeyed_by_all_threads(said: str) -> None:
    waits: list[float] = []
    after = formatdate(time.time() + 7.5, usegmt=True) if said == "date" else said
    with serving(lambda number, texts: {"retry_after": after} if number == 0 else None) as service:
        asked = endpoint.Endpoint(
            ApiSection(url=service.url, model="m"), wait=lambda seconds: bool(waits.append(seconds))
        )
        assert same(asked.embed(TEXTS[:2]), TEXTS[:2])
        assert asked._pace.reserve(0) > 5, "who asks next waits too"
    assert len(waits) == 1 and 5 < waits[0] <= 7.5


@pytest.mark.parametrize("said", ["0", "past"])
def test_a_retry_after_of_zero_still_waits(said: str) -> None:
    waits: list[float] = []
    after = formatdate(time.time() - 60, usegmt=True) if said == "past" else said
    with serving(lambda number, texts: {"retry_after": after} if number < 3 else None) as service:
        asked = endpoint.Endpoint(
            ApiSection(url=service.url, model="m"), wait=lambda seconds: bool(waits.append(seconds))
        )
        assert same(asked.embed(TEXTS[:2]), TEXTS[:2])
    assert len(waits) == 3 and 0 < waits[0] <= waits[1] <= waits[2], "as where nothing is said"


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("html", DataError, r"^big: 3 requests .*holds no vectors: <!doctype"),
        ("missing", DataError, r"^big: 3 requests .* 0 vectors for 1"),
        ("nan", DataError, r"^big: 3 requests .*not finite"),
        ("drop", EnvironmentProblem, r"^big: 3 requests .*Error: "),
        (500, EnvironmentProblem, r"^big: 3 requests .*HTTP 500: fault 500"),
        (401, EnvironmentProblem, r"^big: .*HTTP 401: fault 401 for Bearer \*\*\*\).*key_env"),
        (404, EnvironmentProblem, r"^big: .*HTTP 404: .*/v1/embeddings was asked"),
        (302, EnvironmentProblem, r"^big: .*HTTP 302: "),
        (400, DistilvecError, r"^big: .*'A probe\.' \(HTTP 400: fault 400"),
    ],
)
def test_permanent_errors_are_reported(fault: Any, kind: type, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "sk-secret")
    with serving(lambda number, texts: fault) as service, pytest.raises(kind, match=said) as caught:
        teacher_of(service, attempts=3, key_env="BIG_KEY")
    assert "sk-secret" not in str(caught.value)
    assert set(service.keys) == {"Bearer sk-secret"}
    assert len(service.bodies) == (3 if fault in ("html", "missing", "nan", "drop", 500) else 1)


def test_one_that_takes_short_texts_only_is_a_teacher_of_short_texts() -> None:
    """What it is tried with is longer than some services read."""
    with serving(lambda number, texts: 413 if max(map(len, texts)) > 400 else None) as service:
        report = check_teacher(teacher_of(service), TEXTS[:20], "text")
    assert not any("another vector" in warning for warning in report.warnings)


def test_it_has_nothing_for_the_one_text_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda number, texts: 413 if TEXTS[37] in texts else None) as service:
        found = teacher_of(service, batch_size=64).encode(TEXTS[:64])
        assert service.answered[TEXTS[0]] == 1 and len(service.bodies) <= 3 + 2 * 6
    assert np.flatnonzero(np.isnan(found).all(axis=1)).tolist() == [37]
    assert same(np.delete(found, 37, axis=0), [*TEXTS[:37], *TEXTS[38:64]])
    assert f"{TEXTS[37]!r} (HTTP 413" in caplog.text


@pytest.mark.parametrize("fault", ["many", "all"])
def test_it_stops_where_the_service_refuses_more_than_some_texts(fault: str) -> None:
    """Many: the texts are none for this service. All, by now: the account or the model is no longer what it was."""
    refused = {*TEXTS[::2]} if fault == "many" else {*TEXTS, "A probe."}
    with serving(lambda number, texts: 400 if number and refused & {*texts} else None) as service:
        said = r"^big: .*as 20 of \d+ so far" if fault == "many" else r"^big: .*'A probe\.' \(HTTP 400"
        with pytest.raises(DistilvecError, match=said):
            teacher_of(service, batch_size=8, concurrency=1).encode(TEXTS)


def test_teaching_skips_a_refused_text_and_asks_again_next_time(tmp_path: Path, tiny_bert: Path) -> None:
    texts = [f"row {number} says {'so' * number}" for number in range(8)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    refused = {texts[6]}
    with serving(lambda number, asked: 413 if refused & set(asked) else None) as service:
        for _ in range(2):
            ((_, filled),) = teach_alone(recipe_of(tmp_path, tiny_bert, service))
            assert filled.absent == 1
        refused.clear()
        teach_alone(recipe_of(tmp_path, tiny_bert, service))
    assert max(service.answered[text] for text in texts) == 1
    assert len(SignalStore.open(tmp_path / "out/stores/big")) == 8
    assert not (tmp_path / "out/stores/big/answers").exists()


def test_good_halves_of_a_split_request_are_not_requested_again(tmp_path: Path, tiny_bert: Path) -> None:
    texts = [f"row {number} says {'so' * number}" for number in range(8)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    broken = {texts[6]}
    with serving(lambda number, asked: (413 if len(asked) > 4 else 500) if broken & {*asked} else None) as service:
        for _ in range(2):
            with pytest.raises(EnvironmentProblem, match=r"HTTP 500"):
                teach_alone(recipe_of(tmp_path, tiny_bert, service, attempts=2))
        broken.clear()
        teach_alone(recipe_of(tmp_path, tiny_bert, service))
    assert max(service.answered[text] for text in texts) == 1
    assert not (tmp_path / "out/stores/big/answers").exists()


def test_judged_texts_are_requested_once(tmp_path: Path, tiny_bert: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:60]))
    rows = [
        {"text1": f"{text} here", "text2": f"{text} there", "score": place} for place, text in enumerate(TEXTS[:30])
    ]
    (tmp_path / "sts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving() as service:
        for _ in range(2):
            recipe = recipe_of(tmp_path, tiny_bert, service)
            recipe.judging.tasks = [{"name": "sts", "kind": "similarity", "test": str(tmp_path / "sts.jsonl")}]
            assert "sts" in run(recipe).record["scores"].model("teacher").scores
        assert max(service.answered[row["text1"]] for row in rows) == 1
    place = tmp_path / "out/stores/big"
    assert len(SignalStore.open(place)) == 60
    assert {piece.path for piece in pieces(place) if piece.kind == "store"} == {place, place / "judging"}


def test_answers_for_judging_are_kept_when_it_fails(tmp_path: Path, tiny_bert: Path) -> None:
    texts = [f"row {number} says {'so' * number}" for number in range(1, 41)]
    (tmp_path / "texts.txt").write_text("\n".join(texts[:20]))
    broken = {texts[33]}
    with serving(lambda number, asked: 500 if broken & {*asked} else None) as service:
        recipe = recipe_of(tmp_path, tiny_bert, service, attempts=1, concurrency=1)
        teach_alone(recipe)
        teacher = teacher_of(service, attempts=1, concurrency=1, batch_size=8)
        stored = StoredTeacher(teacher, SignalStore.open(tmp_path / "out/stores/big"), "text")
        with pytest.raises(EnvironmentProblem, match="HTTP 500"):
            stored.encode(texts)
        broken.clear()
        assert np.allclose(stored.encode(texts), np.stack([vector(text) for text in texts]), atol=1e-3)
        assert max(service.answered[text] for text in texts) == 1
    assert not (tmp_path / "out/stores/big/judging/answers").exists()


def test_batches_respect_the_limits_of_texts_and_tokens() -> None:
    with serving() as service:
        teacher_of(service, batch_size=50, tokens_per_request=60).encode(TEXTS)
        sizes = [len(body["input"]) for body in service.bodies[1:]]
        assert max(sizes) < 20 and sum(sizes) == len(TEXTS)  # the service counts half a token a letter


@pytest.mark.parametrize(
    ("api", "said"),
    [
        ({"url": "ftp://x/v1"}, r"big: \"ftp://x/v1\""),
        ({"url": "http://me:secret@x/v1"}, "big: .*password.*key_env"),
        ({"url": f"http://{'a' * 300}/v1"}, r"big: \"http://aaaa.*label"),
        ({"url": "http://a..b/v1"}, r"big: \"http://a\.\.b/v1\""),
        ({"key_env": "NO_SUCH_KEY"}, "big: .*NO_SUCH_KEY"),
        ({"modle": "m"}, r"big, api\.modle: .*\"model\""),
    ],
)
def test_impossible_services_are_refused_at_once(api: dict[str, str], said: str) -> None:
    with pytest.raises(DistilvecError, match=said):
        load_teacher(name="big", api={"url": "http://127.0.0.1:9/v1", "model": "m", **api})


def test_the_pace_is_kept_by_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.teachers.pace.time.monotonic", lambda: 100.0)
    pace = Pace(requests_per_second=10, tokens_per_minute=6000)
    assert [round(pace.reserve(tokens), 6) for tokens in (5, 50, 5, 5)] == [0, 0.1, 0.6, 0.7]
    pace.pause(9)
    assert pace.reserve(1) == 9


def test_answers_outlive_their_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.teachers.answers.ROTATE_ROWS", 4)
    keys = [bytes([number] * 16) for number in range(12)]
    vectors = np.arange(36, dtype=np.float32).reshape(12, 3)
    first = Answers(tmp_path, "ab" * 16, 3).__enter__()
    for start in range(0, 12, 2):
        first.add(keys[start : start + 2], vectors[start : start + 2])
    assert len(list(tmp_path.glob("*.bin"))) == 3
    first.kept(7)
    assert len(list(tmp_path.glob("*.bin"))) == 2
    with Answers(tmp_path, "ab" * 16, 3) as second:
        assert len(second) == 0, "the first one lives"
    first.__exit__(None, None, None)
    last = max(tmp_path.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns)
    last.write_bytes(last.read_bytes()[:-5])
    with Answers(tmp_path, "cd" * 16, 3) as other:
        assert len(other) == 0, "another teacher's"
    with Answers(tmp_path, "ab" * 16, 3) as third:
        found = third.find(keys)
        assert [each is not None for each in found] == [False] * 4 + [True] * 7 + [False]
        assert np.array_equal(np.stack([each for each in found if each is not None]), vectors[4:11])
        third.all_kept(keys[:6])
        assert len(list(tmp_path.glob("*.bin"))) == 2, "other shards or corpora may ask about the rest"
    with Answers(tmp_path, "ab" * 16, 3) as fourth:
        fourth.all_kept(keys)
    assert not tmp_path.exists()


def test_a_dry_run_says_what_it_costs(tmp_path: Path, tiny_bert: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    with serving() as service:
        dry = plan(recipe_of(tmp_path, tiny_bert, service, price=2.0), teaching_only=True).text()
    assert "about 25 requests with 1," in dry and "0.00 at 2 per million tokens" in dry


def recipe_of(folder: Path, student: Path, service: Service, **api: Any) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "texts.txt")},
            "teachers": [{"name": "big", "api": {"url": service.url, "model": "m", **api}, "batch_size": 8}],
            "student": {"model": str(student)},
            "method": {"name": "cosine"},
            "output": str(folder / "out"),
        }
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_paid_for_twice(start: Starter, tmp_path: Path, tiny_bert: Path, number: signal.Signals) -> None:
    texts = [f"row {number} says {'so' * (number % 5 + 1)}" for number in range(1200)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    with serving(seconds=0.05) as service:
        recipe = recipe_of(tmp_path, tiny_bert, service)
        (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
        running = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path))
        running.until(lambda: sum(service.answered[text] for text in texts) >= 300)
        running.kill(number)
        code, output = running.wait()
        assert code == (143 if number == signal.SIGTERM else -9), output
        assert sum(service.answered[text] for text in texts) < 1000
        teach_alone(recipe)
    twice = [text for text in texts if service.answered[text] > 1]
    assert all(service.answered[text] >= 1 for text in texts)
    assert len(twice) <= (4 * 8 if number == signal.SIGKILL else 0), "only what was under way is asked again"
    store = SignalStore.open(tmp_path / "out/stores/big", verify=True)
    assert not (store.path / "answers").exists()
    rows = store.rows(content_keys(texts))
    assert np.allclose(store.read(rows), np.stack([vector(text) for text in texts]), atol=1e-3)
