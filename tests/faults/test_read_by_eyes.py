"""What was found by reading: each as the smallest case that shows it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.jobs import Job, identity_of
from tests.judging.embedders import words

from distilvec import folders
from distilvec.choosing.dry_run import plan
from distilvec.corpus import read_corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.files import alone_in
from distilvec.flow import start
from distilvec.flow.demo import demo_recipe
from distilvec.flow.finetune import finetune
from distilvec.flow.judge import predictor_of
from distilvec.flow.output import output_folder
from distilvec.flow.run import run, train
from distilvec.judging import CachedEncoder, ClassificationTask, RetrievalTask, load_task
from distilvec.judging.bootstrap import make_score, paired_bootstrap
from distilvec.judging.loading import read_tasks
from distilvec.judging.scores import Outputs
from distilvec.modules.task_head import TaskHead
from distilvec.recipe import Recipe
from distilvec.report import Record, compare_table
from distilvec.report.sections.layers import pooled_blocks
from distilvec.students import load_student
from distilvec.teachers import load_teacher
from distilvec.training.checkpoint import newest_checkpoint


def recipe(folder: Path, teacher: Path, texts: Any, **sections: Any) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": texts, "holdout": 0.3},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"model": str(teacher)},
            "method": {"name": "cosine"},
            "training": {"max_steps": 2, "epochs": 2, "batch_size": 8, "use_cpu": True},
            "judging": {"speed": False},
            "output": str(folder / "out"),
            **sections,
        }
    )


# runs and their folders


def test_another_recipe_goes_on_from_nobodys_checkpoint(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """The first run is finished; the second is stopped before its first step, and resumed."""
    train(recipe(tmp_path, tiny_bert, sentences[:60]))
    checkpoints = tmp_path / "out" / "checkpoints"
    assert newest_checkpoint(checkpoints) is not None
    other = recipe(tmp_path, tiny_bert, sentences[:60], optimizer={"lr": 0.5})
    output_folder(other, resume=False)
    assert newest_checkpoint(checkpoints) is None
    trained = load_student(train(other, resume=True)).state_dict()
    anew = recipe(tmp_path / "anew", tiny_bert, sentences[:60], optimizer={"lr": 0.5})
    expected = load_student(train(anew)).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in trained.items())


def test_a_kill_while_a_finished_run_is_set_aside_loses_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file was the last to be moved, nobody goes on from its checkpoints or writes over its report."""
    rename, moved, files = Path.rename, 0, ["student/modules.json", "report.json", "report.md", "run.jsonl"]
    for most in range(20):
        first = recipe(tmp_path / str(most), tmp_path, ["a"])
        other = recipe(tmp_path / str(most), tmp_path, ["a"], optimizer={"lr": 0.5})
        out = output_folder(first, resume=False)
        (out / "student").mkdir()
        for name in files:
            (out / name).write_text("{}")
        checkpoint = out / "checkpoints" / "checkpoint-3"
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer_state.json").write_text('{"global_step": 3, "log_history": []}')
        folders.update(out, finished=True)
        moved = 0

        def killed(place: Path, target: Path, most: int = most) -> Path:
            nonlocal moved
            if moved == most:
                raise KeyboardInterrupt
            moved += 1
            return rename(place, target)

        monkeypatch.setattr(Path, "rename", killed)
        with contextlib.suppress(KeyboardInterrupt):
            output_folder(other, resume=False)
        monkeypatch.undo()
        try:
            output_folder(other, resume=True)
        except DistilvecError as refused:
            assert "another recipe" in str(refused)
        else:
            assert newest_checkpoint(out / "checkpoints") is None
        output_folder(other, resume=False)
        assert newest_checkpoint(out / "checkpoints") is None and list(out.glob("checkpoints-before*/checkpoint-3"))
        for name in files:
            assert not (out / name).exists() and len(list(out.glob(f"before-*/{name}"))) == 1, (most, name)
        if moved < most:
            break
    assert 5 < moved < 15, "each was the last once"


def test_two_runs_in_one_folder_are_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = recipe(tmp_path, tiny_bert, sentences[:60])
    train(given)
    before = (tmp_path / "out" / "recipe.yaml").read_text()
    with alone_in(tmp_path / "out"):
        for start_it in (run, train):
            with pytest.raises(DistilvecError, match=r"/out: another run is at work here"):
                start_it(recipe(tmp_path, tiny_bert, sentences[:60], optimizer={"lr": 0.5}))
    assert (tmp_path / "out" / "recipe.yaml").read_text() == before
    assert newest_checkpoint(tmp_path / "out" / "checkpoints") is not None
    assert not (tmp_path / "out" / "run.lock").exists()


def test_a_fine_tuning_under_way_is_left_alone(tmp_path: Path, tiny_bert: Path) -> None:
    rows = [{"text": f"row {number}", "label": "ab"[number % 2]} for number in range(8)]
    work = tmp_path / ".model.finetune"
    work.mkdir()
    (work / ".distilvec.json").write_text(json.dumps({"made_by": "distilvec", "files": {"output": ["student"]}}))
    with alone_in(tmp_path, ".model.finetune.lock"), pytest.raises(DistilvecError, match="another run is at work"):
        finetune(tiny_bert, rows, tmp_path / "model", training={"max_steps": 1, "use_cpu": True})
    assert work.is_dir()


# corpora


@pytest.mark.parametrize(
    ("before", "after"), [("pos,neg,pos,neg", "neg,pos,neg,pos"), ("0.1,0.9,0.5,0.2", "5,1,3,4.5")]
)
def test_other_labels_for_the_same_texts_are_another_corpus(before: str, after: str, tmp_path: Path) -> None:
    found = []
    for name, labels in (("a", before), ("b", after)):
        rows = "".join(f"text {number},{label}\n" for number, label in enumerate(labels.split(",")))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
        found.append(read_corpus(tmp_path / f"{name}.csv", tmp_path / name, label="label", holdout=0.0).fingerprint)
    assert found[0] != found[1]


def test_codes_with_underscores_are_names(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("text,label\na,1_2\nb,12\nc,3_4\n")
    corpus = read_corpus(tmp_path / "codes.csv", tmp_path / "corpus", label="label", holdout=0.0)
    assert corpus.label_names == ["12", "1_2", "3_4"]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_header_that_is_not_utf8_is_said_to_be_so(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"table.{suffix}"
    separator = "," if suffix == "csv" else "\t"
    file.write_bytes(separator.join(["text", "größe"]).encode("latin-1") + f"\na{separator}b\n".encode())
    with pytest.raises(DataError, match=r"the names of the columns is not UTF-8.*iconv"):
        read_corpus(file, tmp_path / "corpus")


@pytest.mark.parametrize("repeated", [False, True])
def test_a_text_that_was_made_before_it_came_is_trained_on(repeated: bool, tmp_path: Path) -> None:
    long = [" ".join(f"w{number}x{word}" for word in range(10)) for number in range(9000)]
    first = read_corpus(long, tmp_path / "first", made=0.5, holdout=0.3)
    made = sorted(set(first.texts()) - set(long))[:400]
    corpus = read_corpus(long + made, tmp_path / "second", made=0.5, holdout=0.3, repeated=repeated, strict=True)
    held = set(corpus.texts(corpus.holdout_rows))
    assert held and not held & set(corpus.texts(corpus.train_rows))
    assert set(made) <= set(corpus.texts(corpus.train_rows)), "where they were made"
    assert corpus.audit.duplicates == 0
    assert corpus.audit.kept - corpus.audit.made == len(long) + len(made)


# students


def test_the_untrained_student_knows_which_texts_are_held_out(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    keys = set()
    for share in (0.02, 0.3):
        job = Job(recipe(tmp_path, tiny_bert, sentences[:60], corpus={"path": sentences[:60], "holdout": share}))
        keys.add(start.start_key(job.student_section, job.recipe.teachers, job.corpus, 0))
    assert len(keys) == 2


@pytest.mark.parametrize("reads", [{"causal": False}, {"adapters": ["some/adapters"]}])
def test_a_student_is_not_cut_out_of_a_model_that_reads_otherwise(
    reads: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    teachers = [{"name": "tiny", "model": str(tiny_bert), **reads}]
    job = Job(
        recipe(tmp_path, tiny_bert, sentences[:60], teachers=teachers, student={"shrink": {"of": "tiny", "layers": 1}})
    )
    with pytest.raises(DistilvecError, match=r"teacher tiny: .*merged model into a folder"):
        job.student()


def test_a_fresh_student_reads_as_much_as_is_asked(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    size = {"layers": 1, "width": 32, "vocabulary": 301}
    given = recipe(tmp_path, tiny_bert, sentences, student={"fresh": size, "max_length": 512})
    student = Job(given).student()
    assert student.max_seq_length == 512
    assert student[0].model.config.max_position_embeddings == 512


# judging


def test_codes_are_classes_of_their_own() -> None:
    texts = [f"text {number}" for number in range(8)]
    labels = ["007", "7", "1e3", "1000", "1234567890123456789", "1234567890123456790", "1_0", "10"]
    task = ClassificationTask("codes", (texts, labels), (texts, labels))
    assert sorted(task.label_names) == sorted(labels)
    same: list[Any] = [1, 1.0, "1", "1.0", True, 2, "2.0", 2.0]
    assert ClassificationTask("numbers", (texts, same), (texts, same)).label_names.tolist() == ["1", "2"]


def test_texts_of_one_length_are_read_in_their_own_order() -> None:
    asked: list[str] = []

    def model(texts: Sequence[str]) -> np.ndarray:
        asked.extend(texts)
        return words(texts)

    texts = [f"{number:03}" for number in range(50, 0, -1)]
    CachedEncoder(model)([*texts, *texts])
    assert asked == texts


def test_a_list_of_tasks_has_names_and_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, place = tmp_path / "data", tmp_path / "project"
    data.mkdir()
    place.mkdir()
    rows = "".join(json.dumps({"text1": "a b", "text2": f"a {n}", "score": n}) + "\n" for n in range(4))
    (data / "stsb.test.jsonl").write_text(rows)
    (place / "own.jsonl").write_text(rows)
    (place / "more.yaml").write_text("name: more\nkind: similarity\ntest: own.jsonl\n")
    (place / "tasks.yaml").write_text("[stsb, more.yaml, {name: own, kind: similarity, test: own.jsonl}]\n")
    monkeypatch.setenv("DISTILVEC_DATA", str(data))
    monkeypatch.setattr(
        "distilvec.judging.talas_sets.talas_spec",
        lambda name, folder: {"name": name, "kind": "similarity", "test": "stsb.test.jsonl"},
    )
    assert [task.name for task in read_tasks(place / "tasks.yaml")] == ["stsb", "more", "own"]


def test_a_document_may_have_a_title_alone(tmp_path: Path) -> None:
    files = {
        "queries": [{"_id": "q", "text": "a query"}],
        "corpus": [
            {"_id": "a", "title": "A title", "text": ""},
            {"_id": "b", "title": "", "text": "A text"},
            {"_id": "c", "title": "Both", "text": "of them"},
        ],
        "qrels": [{"query_id": "q", "doc_id": "a", "relevance": 1}],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"name": "found", "kind": "retrieval", **{name: f"{name}.jsonl" for name in files}}
    task = load_task(spec, tmp_path)
    assert isinstance(task, RetrievalTask)
    assert set(task.texts()) == {"a query", "A title", "A text", "Both of them"}
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "title": "", "text": ""}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl, line 1, column text: the text is empty"):
        load_task(spec, tmp_path)


def test_seeds_that_are_more_on_one_side_are_drawn_apart() -> None:
    """By hand: each mean scatters by Student's t around its own, beside the items."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 4000)

    def score(right: float) -> Any:
        told = np.where(rng.random(4000) < right, truth, 1 - truth)
        return make_score(task="t", kind="classification", domain=None, outputs=Outputs("accuracy", truth, told))

    own = [score(value) for value in (0.60, 0.70, 0.80, 0.90, 0.95)]
    other = [score(value) for value in (0.55, 0.75, 0.85)]
    table = compare_table({"own": [{"t": each} for each in own], "other": [{"t": each} for each in other]}, "other")
    found = table.differences["own"]["t"]
    sides = [np.array([each.value for each in side]) for side in (own, other)]
    items = paired_bootstrap(own[:3], other).interval
    drawn = rng.normal(0, (items[1] - items[0]) / 3.92, 100_000)
    for side in sides:
        drawn += rng.standard_t(len(side) - 1, 100_000) * np.sqrt(side.var(ddof=1) / len(side))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.15)
    assert found.value == pytest.approx(float(sides[0].mean() - sides[1].mean()))


def test_layers_are_looked_at_as_texts_are_read(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu").eval()
    texts = [f"text {number}" for number in range(4)]
    plain = pooled_blocks(model, [f"query: {text}" for text in texts])
    pair = pooled_blocks(model, ["one\x1etwo"])
    model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    prompted = pooled_blocks(model, texts)
    assert plain is not None and prompted is not None and pair is not None
    np.testing.assert_allclose(prompted, plain, atol=1e-5)
    vector = model.encode([("one", "two")], prompt="")
    pooled = load_student(tiny_bert, device="cpu").eval()
    np.testing.assert_allclose(pooled.encode([("one", "two")]), vector, atol=1e-5)
    np.testing.assert_allclose(
        pair[-1] / np.linalg.norm(pair[-1]), vector / np.linalg.norm(vector), atol=1e-4, err_msg="a pair as one"
    )


def test_a_fine_tuned_teacher_is_scored_as_it_taught(tiny_bert: Path) -> None:
    teacher = load_teacher(model=tiny_bert, prompt="query: ", device="cpu")
    model: Any = teacher.model  # type: ignore[attr-defined]
    head = TaskHead(model.get_embedding_dimension(), labels=["a", "b"])
    texts = ["one text", "another one"]
    plain = predictor_of(SimpleNamespace(model=model, prompt="", wake=lambda: None), head)
    expected = plain.logits([f"query: {text}" for text in texts])
    np.testing.assert_allclose(predictor_of(teacher, head).logits(texts), expected, atol=1e-5)


def test_vectors_from_elsewhere_have_no_speed(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    texts = sorted(set(sentences))
    vectors = np.random.default_rng(0).standard_normal((len(texts), 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "t.txt").write_text("\n".join(texts))
    teachers = [{"name": "elsewhere", "vectors": str(tmp_path / "v.npy"), "texts": str(tmp_path / "t.txt")}]
    run(recipe(tmp_path, tiny_bert, texts, teachers=teachers, judging={"speed": True}))
    rows = {row.role: row for row in Record.load(tmp_path / "out")["scores"].models}
    assert rows["student"].texts_per_second and rows["teacher"].texts_per_second is None


# what is asked before a run


def test_a_dry_run_of_a_teacher_that_lacks_items(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    texts = sorted(set(sentences))
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((len(texts) - 1, 8)).astype(np.float32))
    (tmp_path / "t.txt").write_text("\n".join(texts[:-1]))
    teachers = [{"name": "elsewhere", "vectors": str(tmp_path / "v.npy"), "texts": str(tmp_path / "t.txt")}]
    given = recipe(tmp_path, tiny_bert, texts, teachers=teachers, corpus={"path": texts, "holdout": 0.0})
    assert "elsewhere" in plan(given).text()


def test_other_scores_are_another_comparison(tmp_path: Path, tiny_bert: Path) -> None:
    rows = [{"query": f"query {number}", "document": f"document {number}"} for number in range(40)]
    found = []
    for factor in (1, 2):
        (tmp_path / "scores.jsonl").write_text(
            "".join(json.dumps({**row, "score": factor * number}) + "\n" for number, row in enumerate(rows))
        )
        given = recipe(
            tmp_path,
            tiny_bert,
            rows,
            corpus={"path": rows, "text": ["query", "document"], "holdout": 0.0},
            teachers=[],
            scorers=[{"name": "judge", "scores": str(tmp_path / "scores.jsonl")}],
            method={"name": "score_kl"},
        )
        found.append(identity_of(Job(given)))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fresh": True}, r"--fresh: .*--cross-tokenizer"),
        ({"student": "some/model", "cross_tokenizer": True}, r"--cross-tokenizer: .*--student"),
    ],
)
def test_parts_of_the_demo_that_exclude_each_other(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=said):
        demo_recipe(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
