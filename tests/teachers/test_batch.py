"""A service asked through its batch API: jobs are remembered, checked and taken again, and no text is paid twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.teachers.batch_serving import BatchService, batches
from tests.teachers.serving import vector

from distilvec.choosing.dry_run import plan
from distilvec.cli.main import main
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, Pending
from distilvec.flow.ray import teach_alone
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.teachers import batch_endpoint
from distilvec.teachers.sections import ApiSection

TEXTS = [f"text {number} of a{'t' * (number % 7)}" for number in range(40)]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchService]:
    monkeypatch.setattr(batch_endpoint.random, "uniform", lambda low, high: 0.001)
    with batches() as running:
        yield running


def recipe_of(service: BatchService, folder: Path, **api: Any) -> Recipe:
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    section = {"name": "big", "api": {"url": service.url, "model": "m", "batch": True, **api}}
    data = {
        "corpus": {"path": str(folder / "texts.txt"), "holdout": 0},
        "teachers": [section],
        "output": str(folder / "out"),
    }
    return Recipe.build(data, where="test")


def write_recipe(service: BatchService, folder: Path, **api: Any) -> Path:
    recipe_of(service, folder)
    section = {"name": "big", "api": {"url": service.url, "model": "m", "batch": True, **api}, "prompt": "say: "}
    data = {"corpus": {"path": "texts.txt", "holdout": 0}, "teachers": [section], "output": str(folder / "out")}
    (folder / "recipe.yaml").write_text(json.dumps(data))
    return folder / "recipe.yaml"


def called(*words: Any) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0


def stored(folder: Path) -> SignalStore:
    return SignalStore.open(folder / "out/stores/big")


def right(folder: Path, texts: list[str] = TEXTS) -> bool:
    """Tell whether the store has the right vectors for these texts, and no others."""
    from distilvec.corpus.keys import content_keys

    store = stored(folder)
    rows = store.rows(content_keys(texts))
    found = store.read(rows)
    return len(store) == len(texts) and np.allclose(found, np.stack([vector(text) for text in texts]), atol=1e-3)


def test_a_job_is_sent_once_and_taken_when_it_is_done(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(
        Pending, match=r"teacher big: 0 of 40 texts.*job-0 validating.*2030-03-17 17:46 UTC.*again"
    ) as sent:
        teach_alone(recipe)
    assert "\n" not in str(sent.value) and sent.value.exit_code == 75
    service.jobs["job-0"] |= {"status": "in_progress", "request_counts": {"completed": 12}}
    with pytest.raises(Pending, match="12 of 40 texts.*job-0 in_progress"):
        teach_alone(recipe)
    assert service.batched == TEXTS and service.jobs["job-0"]["endpoint"] == "/v1/embeddings"
    service.finish("job-0")
    ((store, filled),) = teach_alone(recipe)
    assert filled.taught == 40 and right(tmp_path)
    assert {each.name for each in (store.path / "batch").iterdir()} == {"refused"} and not (
        store.path / "answers"
    ).exists()
    ((_, filled),) = teach_alone(recipe)
    assert filled.taught == 0 and len(service.jobs) == 1
    # Apart from the probe of each start, and the texts that show whether batches matter, all texts came by the job.
    assert not set(TEXTS) & set(service.answered)


def test_failures_and_losses_are_asked_again_and_refused_texts_are_not(
    service: BatchService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(Pending):
        teach_alone(recipe)
    missing = {TEXTS[3]: 500, TEXTS[4]: "lost", TEXTS[5]: {"response": None, "error": {"message": "took too long"}}}
    numbers = {"data": [{"index": 0, "embedding": [1.0, None, 3.0]}]}
    missing[TEXTS[6]] = {"response": {"status_code": 200, "body": numbers}}
    foreign = {"custom_id": "big-" + "00" * 16}
    service.finish("job-0", {**missing, TEXTS[7]: foreign, TEXTS[8]: {"custom_id": 5}, TEXTS[9]: 400})
    with pytest.raises(Pending, match="0 of 6 texts.*job-1"):
        teach_alone(recipe)
    assert right(tmp_path, [*TEXTS[:3], *TEXTS[10:]])  # what came is in the store
    assert Counter(service.batched) == {**dict.fromkeys(TEXTS, 1), **dict.fromkeys(TEXTS[3:9], 2)}
    assert "33 of 40 texts are answered, 1 refused" in caplog.text
    service.finish("job-1")
    teach_alone(recipe)
    assert right(tmp_path, [text for text in TEXTS if text != TEXTS[9]])
    teach_alone(recipe)  # what was refused is remembered
    assert len(service.jobs) == 2


def test_what_an_expired_job_answered_is_taken(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(Pending):
        teach_alone(recipe)
    service.finish("job-0", status="expired", last=25)
    with pytest.raises(Pending, match="0 of 15 texts"):
        teach_alone(recipe)
    assert service.batched[40:] == TEXTS[25:]
    service.finish("job-1", status="expired", last=0)
    with pytest.raises(DistilvecError, match=r"big: job job-1 \(expired\): 0 of 15 texts.*again") as caught:
        teach_alone(recipe)
    assert not isinstance(caught.value, Pending)
    with pytest.raises(Pending, match="0 of 15 texts"):
        teach_alone(recipe)
    service.finish("job-2")
    teach_alone(recipe)
    assert right(tmp_path)


def test_a_state_that_is_not_known_is_no_end(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    for status in ("queued", "in_progress", "throttled"):
        with pytest.raises(Pending, match="job-0"):
            teach_alone(recipe)
        service.jobs["job-0"]["status"] = status
    service.finish("job-0")
    teach_alone(recipe)
    assert right(tmp_path) and service.batched == TEXTS


@pytest.mark.parametrize("broken", [".jsonl", ".keys", ".json"])
def test_a_job_that_a_full_disk_stops_is_made_later(
    service: BatchService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    recipe, write = recipe_of(service, tmp_path), Path.write_bytes

    def full(file: Path, content: bytes) -> int:
        if file.suffix == broken and file.parent.name == "batch":
            raise OSError(28, "No space left on device", str(file))
        return write(file, content)

    def no_record(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(file))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        if broken == ".json":
            patched.setattr("distilvec.teachers.batch.write_text", no_record)
        with pytest.raises((EnvironmentProblem, OSError)):
            teach_alone(recipe)
    assert not service.jobs
    with pytest.raises(Pending, match="0 of 40 texts"):
        teach_alone(recipe)
    service.finish("job-0")
    teach_alone(recipe)
    assert right(tmp_path) and service.batched == TEXTS and not set(TEXTS) & set(service.answered)


def test_a_vector_of_another_width_is_named_and_asked_for_again(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(Pending):
        teach_alone(recipe)
    wide = {"data": [{"index": 0, "embedding": [0.1] * 7}]}
    service.finish("job-0", {TEXTS[37]: {"response": {"status_code": 200, "body": wide}}})
    with pytest.raises(
        DataError, match=r"big: job job-0 \(completed\): line 3 of its results.*width 7, not 6.*api.dimensions.*again"
    ):
        teach_alone(recipe)
    with pytest.raises(Pending):
        teach_alone(recipe)
    assert service.batched[40:] == [TEXTS[37]]
    service.finish("job-1")
    teach_alone(recipe)
    assert right(tmp_path)


def test_a_job_that_the_service_does_not_take_says_why(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(Pending):
        teach_alone(recipe)
    service.jobs["job-0"] |= {"status": "failed", "errors": {"data": [{"message": "model m is not in batches"}]}}
    with pytest.raises(DistilvecError, match=r"job-0 \(failed\).*model m is not in batches.*again"):
        teach_alone(recipe)
    service.jobs.pop("job-0")
    with pytest.raises(Pending, match="job-0 validating"):
        teach_alone(recipe)
    service.jobs.clear()
    with pytest.raises(EnvironmentProblem, match="no /batches/job-0"):
        teach_alone(recipe)


def test_nothing_is_waited_for_behind_the_last_try() -> None:
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    endpoint = batch_endpoint.BatchEndpoint(ApiSection(url="http://127.0.0.1:9/v1", model="m", attempts=2), wait=wait)
    with pytest.raises(EnvironmentProblem, match="2 requests for /batches failed"):
        endpoint.asked("GET", "/batches")
    assert len(waited) == 1


def test_a_job_whose_answer_was_lost_is_found_again(service: BatchService, tmp_path: Path) -> None:
    recipe = recipe_of(service, tmp_path)
    service.drop_created = 1
    with pytest.raises(Pending):
        teach_alone(recipe)
    assert len(service.jobs) == 1
    # Killed between the service's answer and the file that remembers it:
    (record,) = (tmp_path / "out/stores/big/batch").glob("*.json")
    told = json.loads(record.read_text())
    record.write_text(json.dumps({"file": told["file"]}))
    with pytest.raises(Pending):
        teach_alone(recipe)
    assert len(service.jobs) == 1 and service.batched == TEXTS


def test_a_file_has_no_more_requests_than_a_service_takes(
    service: BatchService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_endpoint, "MOST_REQUESTS", 15)
    recipe = recipe_of(service, tmp_path)
    with pytest.raises(Pending, match="0 of 40 texts"):
        teach_alone(recipe)
    assert [len(service.requests(job)) for job in service.jobs] == [15, 15, 10]
    service.finish("job-1")
    with pytest.raises(Pending, match="0 of 25 texts"):
        teach_alone(recipe)
    for job in ("job-0", "job-2"):
        service.finish(job)
    teach_alone(recipe)
    assert right(tmp_path) and service.batched == TEXTS


def test_the_dry_run_knows_jobs_and_their_price(service: BatchService, tmp_path: Path) -> None:
    said = plan(recipe_of(service, tmp_path, price=10), teaching_only=True).text()
    assert "40 texts to encode in batch jobs, within a day" in said
    assert "about 40 requests" in said and "1 batch job, 0.00 at 10 per million tokens" in said
    assert not service.jobs


def test_shards_do_not_send_jobs(service: BatchService, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="big.*--shard"):
        teach_alone(recipe_of(service, tmp_path), (0, 2))
    assert not service.jobs


def test_the_command_ends_in_one_line_while_a_job_is_under_way(
    service: BatchService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipe(service, tmp_path)
    assert called("teach", tmp_path / "recipe.yaml") == 75
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("distilvec: teacher big: 0 of 40 texts")


def answers(file: Path, into: Path, prompt: str = "say: ", **changes: Any) -> None:
    """Answer a file of requests as a service does; `changes` replace parts of the third line's body."""
    lines = []
    for number, request in enumerate(map(json.loads, file.read_text().splitlines())):
        text = request["body"]["input"]
        assert text.startswith(prompt) and request["method"] == "POST" and request["url"] == "/v1/embeddings"
        body = {"data": [{"index": 0, "embedding": vector(text.removeprefix(prompt)).tolist()}]}
        body |= changes if number == 2 else {}
        lines.append({"custom_id": request["custom_id"], "response": {"status_code": 200, "body": body}})
    into.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_files_for_people_who_upload_by_hand(
    service: BatchService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, hand, results = write_recipe(service, tmp_path), tmp_path / "hand", tmp_path / "results.jsonl"
    service.shutdown()  # nobody is asked
    assert called("teach", recipe, "--batch-files", hand) == 0
    assert "big-1.jsonl: 40 requests" in capsys.readouterr().out
    answers(hand / "big-1.jsonl", results)
    kept = results.read_text().splitlines(keepends=True)
    results.write_text("".join(kept[:25]))
    assert called("teach", recipe, "--take", results) == 0
    assert "25 rows, 25 new, 15 missing" in capsys.readouterr().out
    assert called("teach", recipe, "--batch-files", hand) == 0
    assert "big-1.jsonl: 15 requests" in capsys.readouterr().out
    (tmp_path / "rest.jsonl").write_text("".join(kept[25:]) + "half a li")
    assert called("teach", recipe, "--take", results, "--take", tmp_path / "rest.jsonl") == 0
    assert "40 rows, 15 new, 0 missing" in capsys.readouterr().out
    assert right(tmp_path)
    assert called("teach", recipe, "--batch-files", hand) == 0
    assert "lack nothing" in capsys.readouterr().out


def test_results_that_do_not_fit_are_refused(
    service: BatchService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, hand, results = write_recipe(service, tmp_path), tmp_path / "hand", tmp_path / "results.jsonl"
    assert called("teach", recipe, "--batch-files", hand) == 0
    assert called("teach", recipe, "--take", hand / "big-1.jsonl") == 3  # the requests themselves
    assert "big-1.jsonl: no line is an answer" in capsys.readouterr().err
    answers(hand / "big-1.jsonl", results, data=[{"index": 0, "embedding": [1.0] * 7}])
    assert called("teach", recipe, "--take", results) == 3
    assert "line 3 has a vector of width 7, not 6" in (said := capsys.readouterr().err) and "39 rows" in said
    assert len(stored(tmp_path)) == 39
    answers(hand / "big-1.jsonl", results)
    results.write_text(results.read_text().replace("big-", "other-"))
    assert called("teach", recipe, "--take", results) == 3
    assert "no line is an answer" in capsys.readouterr().err


def test_results_of_another_model_are_said_and_of_another_width_refused(
    service: BatchService, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    hand, results = tmp_path / "hand", tmp_path / "results.jsonl"
    assert called("teach", write_recipe(service, tmp_path), "--batch-files", hand) == 0
    answers(hand / "big-1.jsonl", results)
    results.write_text(results.read_text().replace('"data"', '"model": "other", "data"'))
    asks = write_recipe(service, tmp_path, dimensions=256)
    assert called("teach", asks, "--take", results) == 3
    assert "256 dimensions are asked for, and line 1 has 6" in capsys.readouterr().err
    assert not (tmp_path / "out/stores/big/store.json").exists()
    assert called("teach", write_recipe(service, tmp_path), "--take", results) == 0
    assert 'line 1 of the results says that it is of "other"' in caplog.text


def test_a_recipe_without_a_service_has_no_batch_files(
    service: BatchService, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(service, tmp_path)
    data = json.loads(recipe.read_text()) | {"teachers": [{"model": str(tiny_bert)}]}
    recipe.write_text(json.dumps(data))
    assert called("teach", recipe, "--batch-files", tmp_path / "hand") == 2
    assert "teachers: no teacher is a service" in capsys.readouterr().err
