"""Students that write, from recipe to shipped folder, report and comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.writing import built, items

import distilvec
from distilvec import folders
from distilvec.choosing.choose import choose
from distilvec.cli.disk import pieces
from distilvec.corpus import read_corpus
from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.compare import compare
from distilvec.flow.finetune import finetune
from distilvec.flow.push import push
from distilvec.flow.run import Run, run
from distilvec.judging.generation import asked, write, writer_of
from distilvec.recipe import Recipe
from distilvec.report import Record

ROWS = [{"text1": "a", "text2": "b", "label": 1}, {"text1": "c", "text2": "d", "label": 0}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of prompts with answers, some of them empty, and two causal models."""
    folder = tmp_path_factory.mktemp("writing-run")
    rows = items(84)
    for name, part in (("train", rows[:60]), ("test", rows[60:72]), ("validation", rows[72:])):
        empty = [{"prompt": "nothing follows", "answer": " "}] * 2 if name == "train" else []
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*part, *empty]))
    for kind in ("gpt2", "qwen3"):
        built(kind, folder)
    return folder


def recipe(home: Path, method: str = "distillmoe", **changes: Any) -> dict[str, Any]:
    options = {"layers": 2, "width": 16} if method == "distillmoe" else {}
    made: dict[str, Any] = {
        "corpus": {"path": str(home / "train.jsonl"), "text": ["prompt", "answer"], "holdout": 0.45},
        "teachers": [{"name": "big", "model": str(home / "models" / "qwen3")}],
        "student": {"model": str(home / "models" / "gpt2")},
        "method": {"name": method, **options},
        "task": {"kind": "generation", "longest": 4, "samples": 1},
        "training": {"epochs": 1, "batch_size": 8, "use_cpu": True},
        "optimizer": {"lr": 1e-3},
        "output": str(home / "out" / method),
    }
    for key, values in changes.items():
        made[key] = {**made[key], **values} if isinstance(values, dict) else values
    return made


@pytest.fixture(scope="module")
def done(home: Path) -> Run:
    validation = {"evaluate_every": 1, "best": "task_likelihood"}
    task = {"test": str(home / "test.jsonl"), "validation": str(home / "validation.jsonl")}
    return run(Recipe.build(recipe(home, task=task, training=validation)))


def test_the_shipped_folder_writes_without_distilvec(done: Run) -> None:
    from transformers import pipeline

    student = done.folder / "student"
    assert not (student / "modules.json").exists()
    assert "auto_map" not in (student / "config.json").read_text()  # classes of transformers alone
    writing = pipeline("text-generation", model=str(student), device="cpu")
    found = writing("a prompt\n", max_new_tokens=3, do_sample=False, return_full_text=False)[0]["generated_text"]
    with asked(writer := writer_of(done.student, "student")):
        assert found.strip() == write(writer, ["a prompt"], 3)[0][0]


def test_the_head_is_dropped_and_the_model_is_whole(done: Run, home: Path) -> None:
    from safetensors import safe_open

    def names(folder: Path) -> set[str]:
        with safe_open(folder / "model.safetensors", "np") as file:
            return set(file.keys())

    assert names(done.folder / "student") == names(home / "models" / "gpt2")


def test_report_and_card_say_what_it_writes(done: Run) -> None:
    record = Record.load(done.folder)
    assert {each.model for each in record["writing"].scores} == {"big", "untrained student", "student"}
    assert {each.task for each in record["writing"].scores} == {"answers"}
    assert record["writing"].answers[0].written.keys() == {"big", "untrained student", "student"}
    assert record["corpus"].rejected == {"empty": 2}
    assert not record.sections.keys() & {"agreement", "spaces", "layers", "collapse"}
    report, page = ((done.folder / name).read_text() for name in ("report.md", "report.html"))
    for text in (report, page):
        assert "ROUGE-L" in text and "bits per byte" in text
        assert "mean cosine" not in text and "nearest neighbours" not in text
    card = (done.folder / "student" / "README.md").read_text()
    assert 'pipeline("text-generation"' in card and "library_name: transformers" in card
    assert "sentence-transformers" not in card.partition("### Made with")[0]


def test_the_best_by_likelihood_is_kept(done: Run) -> None:
    measured = [
        entry["eval_task_likelihood"] for entry in done.record["training"].log if "eval_task_likelihood" in entry
    ]
    assert len(measured) >= 3
    from distilvec.kinds.writing.running import answer_metrics, read_items

    made = Recipe.build(recipe(done.folder.parent.parent))
    found = answer_metrics(done.student, read_items(made, str(done.folder.parent.parent / "validation.jsonl")))
    assert found["likelihood"] == pytest.approx(max(measured), abs=1e-4)


def test_files_are_read_as_the_corpus_is(home: Path, tmp_path: Path) -> None:
    from distilvec.kinds.writing.running import read_items

    row = {"prompt": "Is it late?\n\n", "answer": " yes"}
    (tmp_path / "spaced.jsonl").write_text(json.dumps(row) + "\n")
    corpus = read_corpus([row], tmp_path / "corpus", text=["prompt", "answer"], joint=True, holdout=0.0)
    found = read_items(Recipe.build(recipe(home)), str(tmp_path / "spaced.jsonl"))
    assert found == [split_pair(text) for text in corpus.texts()] == [("Is it late?", "yes")]


def test_methods_are_compared_and_tuned_on_held_out_answers(home: Path) -> None:
    made = recipe(home, "mined", task={"test": str(home / "test.jsonl")}, output=str(home / "compared"))
    found = compare(Recipe.build(made), ["mined"], seeds=1, tune=True)
    assert found.rates.keys() == {"mined"}
    assert all(name in found.table() for name in ("mined", "big", "untrained student"))
    before = {file: file.stat().st_mtime_ns for file in (home / "compared").rglob("scores.json")}
    again = compare(Recipe.build(made), ["mined"], seeds=1, tune=True)
    assert again.table() == found.table()
    assert before == {file: file.stat().st_mtime_ns for file in (home / "compared").rglob("scores.json")}


def test_without_a_test_file_held_out_answers_are_judged(home: Path) -> None:
    done = run(Recipe.build(recipe(home, "sft", teachers=[], output=str(home / "alone"))))
    assert {each.task for each in done.record["writing"].scores} == {"held-out answers"}
    assert not done.record["lineage"].teachers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"name": "talas"}}, 'method.name: method "talas"'),
        ({"student": {"model": None, "fresh": {"layers": 2}}}, "student.model"),
        ({"student": {"space": "teacher"}}, "space"),
        ({"student": {"pooling": "cls"}}, "student.pooling"),
        ({"method": {"name": "matryoshka", "dims": [8]}}, "matryoshka"),
        ({"training": {"mini_batch_size": 4}}, "training.mini_batch_size"),
        ({"corpus": {"text": "prompt"}}, "two text columns"),
        ({"judging": {"tasks": [{"name": "p", "kind": "pairs", "test": ROWS}]}}, "pairs"),
        ({"teachers": [{"name": "v", "call": "numpy:array"}]}, "teachers"),
        ({"task": {"label": "x"}}, "generation has no labels"),
        ({"training": {"best": "task_accuracy", "evaluate_every": 1}}, "task_accuracy"),
    ],
)
def test_impossible_recipes_for_writing_are_refused_before_training(
    home: Path, changes: dict[str, Any], said: str
) -> None:
    made = recipe(home, "sft", output=str(home / "refused"))
    made["judging"] = {}
    for key, values in changes.items():
        made[key] = {**made[key], **values} if isinstance(values, dict) else values
    with pytest.raises(DistilvecError, match=said):
        run(Recipe.build(made))
    assert not (home / "refused" / "student").exists()


def test_a_teacher_that_gives_vectors_is_refused(home: Path, tiny_bert: Path) -> None:
    made = recipe(home, "mined", teachers=[{"name": "bert", "model": str(tiny_bert)}], output=str(home / "vectors"))
    with pytest.raises(DistilvecError):
        run(Recipe.build(made))


def test_options_of_writing_are_for_writing(home: Path) -> None:
    made = recipe(home, "sft", task={"kind": "pairs"})
    with pytest.raises(DistilvecError, match="longest"):
        Recipe.build(made)


def test_a_dry_run_says_what_would_happen(home: Path) -> None:
    from distilvec.choosing.dry_run import plan

    text = plan(Recipe.build(recipe(home, "dskd", output=str(home / "dry")))).text()
    assert "held-out answers" in text and "MB" in text
    assert not (home / "dry").exists()


def test_a_run_with_such_a_student_is_known_as_one(done: Run) -> None:
    assert folders.is_finished(done.folder)
    with pytest.raises(DistilvecError, match=str(done.folder / "student")):
        distilvec.load(done.folder)
    with pytest.raises(EnvironmentProblem, match="switched off"):  # so there is a student with its card
        push(done.folder, "me/small")
    half = done.folder / ".distilvec-tmp-0123456789abcdef"
    shutil.copytree(done.folder / "student", half)
    found = {piece.path: piece.kind for piece in pieces(done.folder.parent)}
    shutil.rmtree(half)
    assert found[done.folder / "student"] == "student" and found[half] == "left over"


def test_training_from_python_gives_a_student_that_writes(home: Path) -> None:
    made = recipe(home, "sft", output=str(home / "python"))
    sections = {name: made[name] for name in ("task", "training", "optimizer")}
    student = distilvec.train(
        None, student=made["student"], corpus=made["corpus"], method="sft", output=home / "python", **sections
    )
    writer = writer_of(student)
    with asked(writer):
        answers, count = write(writer, ["a prompt"], 2)
    assert len(answers) == 1 and 1 <= count <= 2


def test_commands_for_embedders_refuse_a_writing_student(home: Path) -> None:
    made = Recipe.build(recipe(home, "sft", output=str(home / "chosen")))
    with pytest.raises(DistilvecError, match="task.kind"):
        choose(made)
    with pytest.raises(DistilvecError, match="recipe with method sft"):
        finetune(home / "models" / "gpt2", home / "train.jsonl", home / "tuned", task="generation")
    assert not (home / "chosen").exists() and not (home / "tuned").exists()
