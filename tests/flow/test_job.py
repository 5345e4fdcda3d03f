"""A recipe opened: every part is made once, copies of the untrained student are equal, sections may be missing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.disk import full_beyond
from tests.jobs import Job, check_job, ship_student, train_student

import distilvec
from distilvec.choosing.choose import source_of
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow import start
from distilvec.flow.checks import _held_out_vectors
from distilvec.flow.prepare import REQUIRED
from distilvec.flow.run import run, train
from distilvec.folders import seal
from distilvec.judging import MtebTask
from distilvec.methods.table import resolve
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher
from distilvec.teachers.text import TextTeacher
from distilvec.training.checkpoint import read_state

STUDENTS: dict[str, dict[str, Any]] = {
    "cut": {"shrink": {"of": "tiny", "layers": 1, "vocabulary": 200}},
    "fresh": {"fresh": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 400}},
    "static": {"static": {"of": "tiny", "dimensions": 16}},
    "mixture": {"shrink": {"of": "tiny", "layers": 2}, "upcycle": {"experts": 2, "top_k": 1, "every": 1}},
    "model": {"model": "tiny"},
}


def recipe(place: Path, teacher: Path, texts: list[str], **sections: Any) -> Recipe:
    student = sections.pop("student", STUDENTS["cut"])
    if "model" in student:
        student = {"model": str(teacher)}
    return Recipe.build(
        {
            "corpus": {"path": texts, "holdout": 0.3},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": student,
            "method": {"name": "cosine"},
            "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
            "judging": {"speed": False},
            "output": str(place / "out"),
            **sections,
        }
    )


def state(model: SentenceTransformer) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", STUDENTS)
def test_copies_of_the_untrained_student_are_equal_and_separate(
    kind: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    given = recipe(tmp_path, tiny_bert, sentences[:60], student=STUDENTS[kind])
    job = Job(given)
    info = job.student_info
    first, second = job.student(), job.student()
    made = start.make_student(given.student, given.teachers, job.corpus, given.training.seed)
    texts = sentences[:5]
    for other in (second, made):
        assert state(first).keys() == state(other).keys()
        assert all(torch.equal(value, state(other)[name]) for name, value in state(first).items())
        assert (first.encode(texts) == other.encode(texts)).all(), "tokenizer and settings too"
    assert info.width == first.get_embedding_dimension()
    with torch.no_grad():
        next(first.parameters()).add_(1.0)
    assert torch.equal(next(second.parameters()), next(job.student().parameters())), "nobody sees another's changes"


@pytest.mark.parametrize("kind", ["cut", "static", "auto"])
def test_an_unknown_teacher_name_lists_the_teachers(
    kind: str, tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    section = {"auto": {"of": "teacher"}} if kind == "auto" else _named(STUDENTS[kind], "teacher")
    given = recipe(tmp_path, tiny_bert, sentences[:60], student=section)
    with pytest.raises(DistilvecError, match=r"^teacher: .* Teachers of this recipe: tiny\.$"):
        source_of(given) if kind == "auto" else Job(given).student()
    if kind != "auto":
        with pytest.raises(DistilvecError, match=r"^teacher: .* Teachers of this recipe: tiny\.$"):
            run(given)


def _named(section: dict[str, Any], name: str) -> dict[str, Any]:
    return {kind: {**sizes, "of": name} for kind, sizes in section.items()}


def test_a_run_makes_each_part_once(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"student": 0, "needs": 0}
    make, needs = start.make_student, resolve("cosine").needs

    def made(*args: Any) -> Any:
        counts["student"] += 1
        return make(*args)

    def asked(*args: Any) -> Any:
        counts["needs"] += 1
        return needs(*args)

    monkeypatch.setattr(start, "make_student", made)
    monkeypatch.setattr(resolve("cosine"), "needs", asked)
    given = recipe(tmp_path, tiny_bert, sentences)
    run(given)
    assert counts == {"student": 1, "needs": 1}
    run(given, resume=True)
    assert counts == {"student": 1, "needs": 2}, "the untrained student lies in the folder"


def test_the_seconds_of_calls_before_count(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = recipe(tmp_path, tiny_bert, sentences)
    run(given)
    cost = Record.load(tmp_path / "out")["cost"]
    assert cost is not None and cost.training_seconds is not None
    (file,) = (tmp_path / "out" / "checkpoints").glob(f"checkpoint-{cost.steps}/ranks.pt")
    (kept,) = torch.load(file)
    assert 0 < kept["sums"]["seconds"] <= cost.training_seconds
    kept["sums"]["seconds"] += 1000
    torch.save([kept], file)
    seal(file.parent, "checkpoint", hashed=True)
    run(given, resume=True)
    again = Record.load(tmp_path / "out")["cost"]
    assert again is not None and again.training_seconds is not None
    assert 1000 < again.training_seconds < 1100, "not counted twice; two steps take no time, but opening may"


def test_another_student_is_not_taken_for_the_one_that_lies_there(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    first = Job(recipe(tmp_path, tiny_bert, sentences[:60])).student()
    fewer = recipe(tmp_path, tiny_bert, sentences[:40])
    again = Job(fewer).student()
    assert first.tokenizer.get_vocab() != again.tokenizer.get_vocab(), "other texts have other pieces"
    assert len(list((tmp_path / "out" / start.FOLDER).iterdir())) == 1
    seeded = recipe(tmp_path, tiny_bert, sentences[:60], training={"seed": 1}, student=STUDENTS["fresh"])
    other = recipe(tmp_path, tiny_bert, sentences[:60], training={"seed": 2}, student=STUDENTS["fresh"])
    one, two = (state(Job(each).student()) for each in (seeded, other))
    assert not all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_partner_killed_while_writing_leaves_no_half_student(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(recipe(tmp_path, tiny_bert, sentences[:60]))
    monkeypatch.setattr(start, "say_without_pooler", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(DistilvecError, match=r"/out/start/\w+: .*\(No space left on device\)"):
        job.student()
    assert list((tmp_path / "out" / start.FOLDER).iterdir()) == []
    monkeypatch.undo()
    assert job.student().encode(["a"]).shape == (1, 32)


def test_a_full_disk_is_said_where_the_untrained_student_is_written(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    job = Job(recipe(tmp_path, tiny_bert, sentences[:60]))
    _ = job.corpus
    with full_beyond(40_000), pytest.raises(EnvironmentProblem, match=r"/start/\w+: .*File too large.*ulimit -f"):
        job.student()
    assert not list((tmp_path / "out/start").iterdir())


@pytest.mark.parametrize("what", ["kernels", "task"])
def test_a_full_disk_while_shipping_leaves_the_older_student_whole(tmp_path: Path, tiny_bert: Path, what: str) -> None:
    words = [f"word {number}" for number in range(40)]
    (tmp_path / "texts.jsonl").write_text(
        "".join(f'{{"text": "{text}", "label": "{number % 2}"}}\n' for number, text in enumerate(words))
    )
    more: dict[str, Any] = {"method": {"name": "gaussian", "width": 2000, "keep_kernels": True}}
    if what == "task":  # a head that is larger than the student
        more = {"task": {"kind": "classification", "label": "label"}}
    corpus = {"path": str(tmp_path / "texts.jsonl"), "text": "text", "label": "label", "holdout": 0.2}
    job = Job(recipe(tmp_path, tiny_bert, [], corpus=corpus, **more))
    student, fitted = train_student(job)
    folder = job.output / "student"
    ship_student(job, student, fitted.method, folder)
    largest = max(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if what == "task":
        assert job.task is not None and job.task.head is not None
        job.task.head.linear = torch.nn.Linear(largest, 1)
    before = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert folder / what in folder.iterdir()
    with full_beyond(2 * largest), pytest.raises(EnvironmentProblem, match=r"/out/student: .*ulimit -f"):
        ship_student(job, student, fitted.method, folder)
    assert {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert not [path.name for path in job.output.iterdir() if path.name.startswith(".student")]


def test_clean_takes_the_untrained_student_of_a_finished_run(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    from distilvec.cli.disk import clean

    given = recipe(tmp_path, tiny_bert, sentences)
    kept = tmp_path / "out" / start.FOLDER
    train(given)
    assert all(piece.path.parent != kept for piece in clean(tmp_path, dry_run=False)) and any(kept.iterdir())
    run(given, resume=True)
    (kept / "mine.txt").write_text("mine")
    clean(tmp_path, dry_run=False)
    assert [file.name for file in kept.iterdir()] == ["mine.txt"]
    assert run(given).student.encode(["a"]).shape == (1, 32), "it is made again"


def test_teaching_and_training_in_one_folder(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = recipe(tmp_path, tiny_bert, sentences[:60], cache=str(tmp_path / "cache"))
    job = Job(given)
    assert job.student_info.width == 32  # as teaching asks: the untrained student is in the output folder
    job.teach()
    assert run(given, resume=True).student.encode(["a"]).shape == (1, 32)


def test_a_run_without_a_teacher_says_so(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = recipe(tmp_path, tiny_bert, sentences, teachers=[], method={"name": "simcse"}, student=STUDENTS["model"])
    done = run(given)
    page = (tmp_path / "out" / "report.md").read_text()
    assert "no teacher" in done.record.title and "no teacher in this run" in page
    assert (
        done.record["agreement"] is None
        and done.record["scores"].model("teacher") is None
        and "kept" not in done.report
    )
    assert (tmp_path / "out" / "report.html").is_file()
    assert not (tmp_path / "out" / "stores").exists()
    assert SentenceTransformer(str(tmp_path / "out" / "student"), device="cpu").encode(["a"]).shape == (1, 32)
    assert Recipe.load(tmp_path / "out" / "recipe.yaml").teachers == []


def test_pairs_train_without_a_teacher_from_python(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    rows = [{"anchor": one, "positive": two} for one, two in zip(sentences[:40], sentences[40:80], strict=True)]
    student = distilvec.train(
        None,
        student=str(tiny_bert),
        corpus={"path": rows, "text": ["anchor", "positive"]},
        method="mnrl",
        output=tmp_path / "out",
        training={"max_steps": 2, "batch_size": 8, "use_cpu": True},
    )
    assert student.encode(["a"]).shape == (1, 32)


@pytest.mark.parametrize(
    ("command", "lacking", "where"),
    [("run", "corpus", "corpus"), ("teach", "teachers", "teachers or scorers")],
)
def test_a_command_names_the_section_that_it_misses(
    command: str, lacking: str, where: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    assert any(lacking in key for key in REQUIRED[command])
    content = recipe(tmp_path, tiny_bert, sentences).model_dump(mode="json")
    content[lacking] = [] if lacking == "teachers" else None
    with pytest.raises(DistilvecError) as caught:
        Job(Recipe.build(content)).require(command)
    assert caught.value.where == where and caught.value.exit_code == 2


def test_a_method_that_learns_from_a_teacher_wants_one(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    with pytest.raises(DistilvecError, match='^teachers: .*"cosine".*simcse, mnrl, sft') as caught:
        train(recipe(tmp_path, tiny_bert, sentences, teachers=[], student=STUDENTS["model"]))
    assert caught.value.where == "teachers" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("live", [False, True])
def test_a_teacher_rests_while_its_student_trains(
    live: bool, tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[str] = []
    monkeypatch.setattr(TextTeacher, "rest", lambda self: rested.append(self.card.name))
    teachers = [{"name": "tiny", "model": str(tiny_bert), "live": live}]
    train_student(Job(recipe(tmp_path, tiny_bert, sentences, teachers=teachers)))
    assert rested == ([] if live else ["tiny"])


def test_a_trained_job_gives_the_untrained_student_still(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    job = Job(recipe(tmp_path, tiny_bert, sentences))
    before = state(job.student())
    trained, _ = train_student(job)
    after = state(job.student())
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not all(torch.equal(value, after[name]) for name, value in state(trained).items())


def test_adapters_are_trained_in_place_of_the_weights_and_merged(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    student = {"model": str(tiny_bert), "lora": {"rank": 4, "dropout": 0.0}}
    given = recipe(tmp_path, tiny_bert, sentences, optimizer={"lr": 1e-2})
    given = given.model_copy(update={"student": type(given.student).model_validate(student)})
    job = Job(given)
    trained, fitted = train_student(job)
    before, after = state(job.student()), state(trained)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert after.keys() == before.keys() and fitted.trained < sum(value.numel() for value in before.values()) / 2
    assert changed and all(name.endswith(".weight") and "encoder" in name and "Norm" not in name for name in changed)


def test_adapters_where_there_is_nothing_to_adapt_are_refused_before_any_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    given = recipe(tmp_path, tiny_bert, sentences, student={**STUDENTS["static"], "lora": {}})
    with pytest.raises(DistilvecError, match=r"student\.lora: .*no transformer"):
        train_student(Job(given))
    assert not (tmp_path / "out" / "stores").exists()
    wrong = {"fresh": {}, "max_length": 8, "extend_length": True}
    with pytest.raises(DistilvecError, match="extend_length goes with"):
        Recipe.build({"method": {"name": "simcse"}, "student": wrong})


def test_held_out_items_are_of_the_whole_corpus(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """Not of its beginning: files and domains follow one another."""
    job = Job(recipe(tmp_path, tiny_bert, sentences))
    _ = job.taught
    every, few = job.held_out_rows(), job.held_out_rows(limit=20)
    assert len(few) == 20 and set(few.tolist()) < set(every.tolist()) and (np.diff(few) > 0).all()
    assert (few < np.median(every)).sum() in range(5, 16)
    assert (few == job.held_out_rows(limit=20)).all()


def test_a_held_out_text_that_recurs_is_compared_once(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """Any model finds a text's copies, and three of them are two of its ten nearest neighbours."""
    rows = [{"question": sentences[row % 40], "answer": f"{sentences[row]} {row}"} for row in range(120)]
    corpus = {"path": rows, "text": ["question", "answer"], "holdout": 0.4}
    job = Job(recipe(tmp_path, tiny_bert, [], corpus=corpus))
    _ = job.taught
    texts, vectors = job.held_out()
    every = job.corpus.texts(job.corpus.holdout_rows)
    assert len(every) > len(set(every)) and texts == list(dict.fromkeys(every))
    assert vectors is not None
    np.testing.assert_allclose(vectors, load_teacher(model=str(tiny_bert)).encode(texts), atol=1e-2)
    assert _held_out_vectors(job.prepared) == len(texts)


def test_texts_without_a_task_still_have_a_free_baseline(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    record = run(recipe(tmp_path, tiny_bert, sentences, optimizer={"lr": 1e-12})).record
    found = {row.role: row.averages.get("neighbours") for row in record["scores"].models}
    assert set(found) == {"teacher", "untrained", "free", "student"}
    assert all(score is not None for score in found.values())
    assert found["teacher"].value == 1 and 0 < found["untrained"].value < 1
    assert found["student"].value == pytest.approx(found["untrained"].value, abs=0.01)
    assert any("On the teacher's nearest neighbours, student cannot be told apart" in each for each in record.alarms)
    compared = {(each.b, each.group) for each in record["scores"].comparisons}
    assert compared == {("untrained student", "neighbours"), ("free baseline", "neighbours")}


def test_a_student_that_starts_as_its_teacher_raises_no_alarm_about_that_teachers_neighbours(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """As one that goes on learning, with the model that it was as a teacher: it can only lose by this measure."""
    record = run(recipe(tmp_path, tiny_bert, sentences, student={"model": ""}, optimizer={"lr": 1e-12})).record
    found = {row.role: row.averages["neighbours"].value for row in record["scores"].models}
    assert found["untrained"] > 0.99
    assert not any("nearest neighbours" in each for each in record.alarms)


def test_the_report_says_that_the_checkpoint_was_chosen_where_it_is_measured(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    training = {"max_steps": 2, "evaluate_every": 1, "best": "eval_agreement_cosine"}
    record = run(recipe(tmp_path, tiny_bert, sentences, training=training, judging={"speed": False})).record
    assert any("checkpoint was chosen by agreement" in note for note in record["notes"].lines)
    items = record["agreement"].values["items"]
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert f"by chance {1000 / (items - 1):.1f} % among {items}" in page


def test_the_report_says_what_is_odd_about_the_tasks_texts(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(sentences[:40])]
    tasks: list[dict[str, Any]] = [{"name": "mine", "kind": "classification", "train": rows, "test": rows[:30]}]
    ids = [{"_id": f"{side}{n}", "text": sentences[n]} for n in range(10) for side in "ab"]
    judged = [{"query_id": n, "doc_id": f"b{n}", "relevance": 1} for n in range(10)]
    queries = [{"_id": n, "text": sentences[n][:20]} for n in range(10)]
    tasks.append({"name": "found", "kind": "retrieval", "corpus": ids, "queries": queries, "qrels": judged})
    training = {"max_steps": 1}
    run(recipe(tmp_path, tiny_bert, sentences, training=training, judging={"speed": False, "tasks": tasks}))
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "30 of the 30 test items of the task mine are among its training items" in page
    assert "Task found: 10 documents have the text of another one and count as that one." in page


def test_the_report_says_where_training_texts_were_not_looked_for(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mteb", reason="the extra mteb is not installed")
    from mteb.mocks.mock_tasks import MockSTSTask

    task = MtebTask(MockSTSTask())
    monkeypatch.setattr("distilvec.judging.load_tasks", lambda given: [task])
    record = run(recipe(tmp_path, tiny_bert, sentences, judging={"speed": False, "tasks": ["mock"]})).record
    assert any(task.name in note and "MTEB" in note for note in record["notes"].lines)


def test_judging_asks_the_teacher_only_for_what_its_store_lacks(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """A function that is paid for each text: every text of the corpus once, and the task's own once."""
    model, asked = SentenceTransformer(str(tiny_bert), device="cpu"), []

    def embed(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.asarray(model.encode(texts))

    rows = [{"text": text, "label": "long" if len(text) > 60 else "short"} for text in sentences]
    own = [{"text": f"a text of the task, number {n}", "label": "long"} for n in range(30)]
    task = {"name": "own", "kind": "classification", "protocol": "tuned", "train": rows[:60], "test": rows[60:90] + own}
    given = {
        "corpus": {"path": rows, "label": "label", "holdout": 0.3},
        "teachers": [{"name": "paid", "call": embed}],
        "student": {"model": str(tiny_bert)},
        "judging": {"speed": False, "tasks": [task]},
    }
    done = run(recipe(tmp_path, tiny_bert, sentences, **given))
    (score,) = done.record["scores"].model("teacher").scores.values()
    assert 0 <= score.value <= 1
    counted = Counter(asked)
    again = {text for text, count in counted.items() if count > 1}
    assert not again & {row["text"] for row in rows}, "what is asked again is what every function is tried with"
    assert {row["text"] for row in own} <= counted.keys()


def test_training_texts_in_a_labelled_test_file_are_said(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": text, "label": "long" if len(text) > 60 else "short"} for text in sentences]
    file = tmp_path / "test.jsonl"
    lines = [*rows, {"text": "", "label": "long"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    task = {"kind": "classification", "label": "label", "test": str(file)}
    given = {"corpus": {"path": rows, "holdout": 0.3}, "method": {"name": "sft"}, "task": task}
    done = run(recipe(tmp_path, tiny_bert, sentences, **given))
    count = done.record["corpus"].overlap["task.test"]
    assert count == done.record["corpus"].trained_on > 0
    assert f"{count} training texts are in task.test too" in caplog.text
    assert "Rows of the task's test file that were left out: 1 empty." in done.record["notes"].lines


@pytest.mark.parametrize("teacher", ["call", "vectors"])
def test_joint_pairs_are_not_given_to_teachers_of_plain_texts(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], teacher: str
) -> None:
    rows = [{"a": text, "b": text[::-1], "label": len(text) % 2} for text in sentences]
    vectors = tmp_path / "v.npy"
    np.save(vectors, np.ones((len(rows), 4), np.float32))
    sources = {"call": lambda texts: np.ones((len(texts), 4)), "vectors": str(vectors)}
    given = {
        "corpus": {"path": rows, "text": ["a", "b"], "label": "label"},
        "task": {"kind": "pairs", "label": "label"},
        "teachers": [
            {"name": "plain", teacher: sources[teacher]} | ({"texts": str(vectors)} if teacher == "vectors" else {})
        ],
        "student": {"model": str(tiny_bert)},
    }
    with pytest.raises(DistilvecError, match="encoding: separate"):
        run(recipe(tmp_path, tiny_bert, sentences, **given))


def test_prompts_not_used_in_training_are_reported(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu", prompts={"query": "query: ", "document": ""})
    model.save(str(tmp_path / "prompted"))
    made = recipe(tmp_path, tiny_bert, sentences, student={"shrink": {"of": str(tmp_path / "prompted"), "layers": 1}})
    check_job(Job(made))
    assert "('query: '), with which it is judged and served" in caplog.text
    caplog.clear()
    check_job(Job(recipe(tmp_path, tiny_bert, sentences, output=str(tmp_path / "other"))))
    assert "prompts of its own" not in caplog.text


@pytest.mark.parametrize("given", ["query: ", "query"])
def test_a_student_cut_out_of_its_teacher_reads_with_the_teachers_prompt(
    given: str, tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    SentenceTransformer(str(tiny_bert), device="cpu", prompts=prompts).save(str(tmp_path / "prompted"))
    teacher = {"name": "tiny", "model": str(tmp_path / "prompted"), "prompt": given}
    # All blocks are kept, so both give the same vectors before training.
    student = {"shrink": {"of": "tiny", "layers": [1, 2, 3]}}
    job = Job(recipe(tmp_path, tiny_bert, sentences, teachers=[teacher], student=student))
    check_job(job)
    assert "prompts of its own" not in caplog.text
    made, (taught,) = job.start.open(), job.taught
    vectors = taught.store.read(taught.store.rows(job.corpus.teacher_keys[:20]))
    for encode in (made.encode, made.encode_query, made.encode_document):
        np.testing.assert_allclose(encode(job.corpus.texts(np.arange(20))), vectors, atol=2e-3)
    unlike = made.encode(job.corpus.texts(np.arange(20)), prompt="")
    assert np.abs(unlike - vectors).max() > 0.01
    other = recipe(tmp_path, tiny_bert, sentences, teachers=[teacher | {"prompt": ""}], student=student)
    keys = [start.start_key(each.student, each.teachers, job.corpus, 0) for each in (job.recipe, other)]
    assert keys[0] != keys[1], "a student that was made for another prompt is not taken"


def test_statistics_of_a_shared_store_are_those_of_the_corpus(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """Mean and deviation are those of the corpus, not of all that is in a store that recipes share."""
    many, few = (
        recipe(tmp_path / name, tiny_bert, texts, cache=str(tmp_path / "cache"))
        for name, texts in (("many", sentences), ("few", sentences[:40]))
    )
    (whole,), job = Job(many).taught, Job(few)
    (part,) = job.taught
    assert len(part.store) == len(whole.store) > len(job.corpus)
    found = part.info_on(job.corpus)
    vectors = part.store.read(part.store.rows(job.corpus.teacher_keys))
    np.testing.assert_allclose(found.mean, vectors.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.std, vectors.std(0), atol=1e-6)
    assert not np.allclose(found.mean, part.info.mean, atol=1e-4)
    assert torch.equal(whole.info_on(Job(many).corpus).mean, whole.info.mean)


def test_a_training_goes_on_in_its_precision(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether bfloat16 pays is measured, and a busy machine may say otherwise when the training is taken up again."""
    training = {"max_steps": 4, "save_every": 2, "save_total_limit": None, "batch_size": 8, "use_cpu": True}
    wanted = recipe(tmp_path, tiny_bert, sentences[:80], training=training)
    monkeypatch.setattr("distilvec.training.distributed.bfloat16_pays", lambda device=None: True)
    weights = (train(wanted) / "model.safetensors").read_bytes()
    checkpoints = tmp_path / "out" / "checkpoints"
    shutil.rmtree(checkpoints / "checkpoint-4")
    shutil.rmtree(tmp_path / "out" / "student")
    monkeypatch.setattr("distilvec.training.distributed.bfloat16_pays", lambda device=None: False)
    assert (train(wanted, resume=True) / "model.safetensors").read_bytes() == weights
    assert read_state(checkpoints / "checkpoint-4").data["precision"] == "bf16"
