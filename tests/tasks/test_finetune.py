"""A real fine-tuning that learns, its folder in a new process, interruption, adapters, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import create_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tests.tasks import labelled
from tests.training.starting import Starter

from distilvec.errors import DataError, DistilvecError
from distilvec.files import alone_in
from distilvec.flow.finetune import _digest, finetune, finetune_scores
from distilvec.recipe import Recipe, TrainingSection
from distilvec.report import Record
from distilvec.report.summary import verdict
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.predictor import Predictor

QUICK: dict[str, Any] = {
    "training": {"epochs": 4, "batch_size": 16},
    "optimizer": {"lr": 2e-3, "heads_lr": 1e-2},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("labelled")
    return {
        "train": labelled.write(folder / "train.jsonl", labelled.texts(200)),
        "test": labelled.write(folder / "test.jsonl", labelled.texts(60, seed=1)),
        "pairs": labelled.write(folder / "pairs.jsonl", labelled.pairs(200)),
        "pairs test": labelled.write(folder / "pairs-test.jsonl", labelled.pairs(60, seed=1)),
    }


@pytest.fixture(scope="module")
def tuned(tiny_bert: Path, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "model"
    return finetune(tiny_bert, files["train"], folder, validation=files["test"], test=files["test"], **QUICK)


def test_it_learns_and_says_how_well(tuned: Path, files: dict[str, Path]) -> None:
    scores = finetune_scores(tuned)
    assert scores["test"]["accuracy"] > 0.7
    assert set(scores["test"]) == {"accuracy", "macro_f1", "macro_precision", "macro_recall"}
    examples = read_examples(files["test"], "text", "label")
    predicted = Predictor.load(tuned, device="cpu").predict(examples.inputs)
    share = np.mean([guess == label for guess, label in zip(predicted, examples.labels, strict=True)])
    assert share == pytest.approx(scores["test"]["accuracy"], abs=1e-4)
    assert not list(tuned.parent.glob(".*"))
    record = json.loads((tuned / "task" / "finetune.json").read_text())
    assert record["train"] == {"rows": 200, "left_out": {}} and record["task"]["kind"] == "classification"


def test_it_is_reported_like_any_run(tuned: Path) -> None:
    report = Record.load(tuned / "report")
    scores = finetune_scores(tuned)
    assert report["supervised"].scores["student"] == pytest.approx(scores["test"], abs=1e-5)
    measured = [entry["eval_task_accuracy"] for entry in report["training"].log if "eval_task_accuracy" in entry]
    assert len(measured) == 4 and max(measured) == pytest.approx(scores["validation"]["accuracy"], abs=1e-5)
    assert report.alarms == [] and verdict(report).startswith("On the task's test file its own head has an accuracy of")
    assert report["lineage"].teachers == [] and report["rerun"].recipe["method"]["name"] == "sft"
    assert {file.name for file in (tuned / "report").iterdir()} >= {
        "report.md",
        "report.html",
        "recipe.yaml",
        "run.jsonl",
    }
    card = (tuned / "README.md").read_text()
    assert "A plain sentence-transformers model" in card and "has an accuracy of" in card
    assert str(tuned.parent) not in card + (tuned / "report" / "report.md").read_text()


def test_the_licence_and_the_name_of_the_model_stay_with_it(tiny_bert: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_bert, tmp_path / "licensed", copy_function=shutil.copyfile)
    (model / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n# Mine\n")
    data = labelled.write(tmp_path / "a.jsonl", labelled.texts(20))
    card = (finetune(model, data, tmp_path / "out", training={"max_steps": 1}) / "README.md").read_text()
    assert "license: cc-by-nc-4.0" in card.split("---")[1] and "Mine" not in card


def test_a_call_has_the_digest_that_it_had_in_versions_before(tmp_path: Path) -> None:
    """By which finished work is known; the hashes are of the version that had a trainer of its own for this."""
    one = Examples(["a text", "another"], ["yes", "no"], "x")
    two = Examples([("a", "b"), ("c", "d")], [1.0, 2.5], "x")
    adapted = {"model": "org/model", "lora": {}}
    recipe = {
        "corpus": {"path": "rows.jsonl", "label": "label", "holdout": 0, "repeated": True},
        "student": adapted, "method": {"name": "sft"}, "output": str(tmp_path),
        "task": {"kind": "classification", "label": "label", "alpha": 1.0, "validation": "other.jsonl"},
        "training": {"epochs": 3, "batch_size": 16, "seed": 3}, "optimizer": {"lr": 1e-3, "heads_lr": 1e-3},
    }  # fmt: skip
    assert _digest(Recipe.build(recipe), {"train": one, "test": one}) == "a35d2140eb8b4ede856ef3ab2d9c4281"
    recipe |= {
        "corpus": {"path": "rows.jsonl", "text": ["text1", "text2"], "label": "score"},
        "student": {"model": "org/model", "max_length": 64, "extend_length": True, "pooling": "mean"},
        "task": {"kind": "similarity", "label": "score", "alpha": 1.0, "encoding": "separate"},
        "training": {"epochs": 3, "batch_size": 16}, "optimizer": {"lr": 2e-5, "heads_lr": 1e-3},
    }  # fmt: skip
    assert _digest(Recipe.build(recipe), {"train": two, "validation": two}) == "e48e40fda5d0673817a077be4b7010ef"


def test_values_in_place_of_files_and_a_text_that_comes_twice(tiny_bert: Path, tmp_path: Path) -> None:
    rows = labelled.texts(20)
    rows += rows[:4]
    out = finetune(
        tiny_bert, iter(rows), tmp_path / "out", validation=rows[:8], test=rows[:6],
        training={"epochs": 1, "batch_size": 8}, optimizer={"sharpness": {"kind": "sam"}},
    )  # fmt: skip
    record = json.loads((out / "task" / "finetune.json").read_text())
    assert [record[name]["rows"] for name in ("train", "validation", "test")] == [24, 8, 6]
    assert Record.load(out / "report")["cost"].steps == 3 and [file.name for file in tmp_path.iterdir()] == ["out"]


def test_it_may_read_longer_texts_than_the_model_does_by_itself(tiny_bert: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.max_seq_length = 16
    model.save(str(tmp_path / "short"))
    data = labelled.write(tmp_path / "a.jsonl", labelled.texts(20))
    out = finetune(tmp_path / "short", data, tmp_path / "out", max_length=32, training={"max_steps": 1})
    assert SentenceTransformer(str(out), device="cpu").max_seq_length == 32


def test_a_new_process_embeds_without_distilvec_and_predicts_the_same_with_it(
    start: Starter, tuned: Path, tiny_bert: Path, files: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    inputs = read_examples(files["test"], "text", "label").inputs
    here = Predictor.load(tuned, device="cpu")
    code = """
        import sys, json
        from sentence_transformers import SentenceTransformer
        texts = json.loads(sys.argv[2])
        print(json.dumps(SentenceTransformer(sys.argv[1], device="cpu").encode(texts).tolist()))
    """
    vectors = last_line(start.elsewhere(code, tuned, json.dumps(sentences[:3]), place=tmp_path))
    code = """
        import sys, json
        from distilvec.tasks.predictor import Predictor
        predictor, inputs = Predictor.load(sys.argv[1], device="cpu"), json.loads(sys.argv[2])
        chances = predictor.probabilities(inputs).tolist()
        print(json.dumps([predictor.predict(inputs), chances, predictor.labels]))
    """
    ended, output = start.code(code, tuned, json.dumps(inputs)).wait()
    assert ended == 0, output
    labels, chances, names = last_line(output)
    own = here.encode(sentences[:3])
    np.testing.assert_allclose(vectors, own, atol=1e-5)
    before = SentenceTransformer(str(tiny_bert), device="cpu").encode(sentences[:3])
    assert np.abs(before - own).max() > 1e-2
    assert labels == here.predict(inputs) and names == here.labels == sorted(labelled.WORDS)
    np.testing.assert_allclose(chances, here.probabilities(inputs), atol=1e-5)
    np.testing.assert_allclose(np.sum(chances, axis=1), 1, atol=1e-5)
    assert [here.predict([text])[0] for text in inputs[:5]] == labels[:5]


@pytest.mark.parametrize(("task", "label"), [("pairs", "label"), ("similarity", "score")])
@pytest.mark.parametrize("encoding", ["joint", "separate"])
def test_pairs_and_similarity(
    tiny_bert: Path, files: dict[str, Path], tmp_path: Path, task: Any, label: str, encoding: Any
) -> None:
    out = finetune(
        tiny_bert, files["pairs"], tmp_path / "out",
        task=task, label=label, encoding=encoding, test=files["pairs test"], **QUICK,
    )  # fmt: skip
    scores = finetune_scores(out)["test"]
    predictor = Predictor.load(out, device="cpu")
    same = read_examples(files["pairs test"], ("text1", "text2"), label)
    found = predictor.predict(same.inputs)
    if encoding == "separate":  # a joint pair asks more of three random layers
        assert scores["accuracy" if task == "pairs" else "spearman"] > 0.8
    if task == "pairs":
        assert set(found) <= {"0", "1"} and predictor.probabilities(same.inputs).shape == (60, 2)
    else:
        assert scores == pytest.approx(predictor.evaluate(same), abs=1e-4)
        assert -6 < min(found) < max(found) < 11  # scores from 0 to 5, not standardised ones
        with pytest.raises(DistilvecError, match=r"\bregression\b.*Use predict"):
            predictor.probabilities(same.inputs)
    with pytest.raises(DistilvecError, match=r"pairs .*\binput 0\b.*'a single text'"):
        predictor.predict(["a single text"])


def test_adapters_are_trained_alone_and_merged(tiny_bert: Path, files: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    lora = {"rank": 8, "alpha": 16, "dropout": 0.0}
    options = {"training": {"epochs": 8, "batch_size": 16}, "optimizer": {"lr": 1e-2, "heads_lr": 1e-2}}
    out = finetune(tiny_bert, files["train"], tmp_path / "out", lora=lora, test=files["test"], **options)
    assert finetune_scores(out)["test"]["accuracy"] > 0.7
    assert "A plain sentence-transformers model" in (out / "README.md").read_text()
    before, after = load_file(tiny_bert / "model.safetensors"), load_file(out / "model.safetensors")
    assert not [name for name in after if "lora" in name]
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in after if name.endswith(".weight") and "encoder" in name and "Norm" not in name}


def test_an_equal_call_finds_the_work_done_and_another_does_it_again(
    tiny_bert: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"training": {"epochs": 1, "batch_size": 32}}
    out = finetune(tiny_bert, files["train"], tmp_path / "out", **options)
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    assert finetune(tiny_bert, files["train"], tmp_path / "out", **options) == out
    model = shutil.copytree(tiny_bert, tmp_path / "copied", copy_function=shutil.copyfile)
    data = shutil.copyfile(files["train"], tmp_path / "copied.jsonl")
    assert finetune(model, data, tmp_path / "out", **options) == out
    later, build = create_model("Later", __base__=TrainingSection, new_key=(int, 1)), Recipe.build
    monkeypatch.setattr(Recipe, "build", lambda data: _newer(build(data), later))
    assert finetune(model, data, tmp_path / "out", **options) == out
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    finetune(tiny_bert, files["train"], tmp_path / "out", training={"epochs": 1, "batch_size": 16})
    assert (out / "model.safetensors").stat().st_mtime_ns != stamp


def _newer(recipe: Recipe, section: type[TrainingSection]) -> Recipe:
    return recipe.model_copy(update={"training": section.model_validate(recipe.training.model_dump())})


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_stopped_and_started_again_it_is_the_same_model(
    start: Starter, tiny_bert: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    code = """
        import sys
        import torch
        torch.set_num_threads(1)
        from distilvec.errors import Interrupted
        from distilvec.flow.finetune import finetune
        try:
            finetune(sys.argv[1], sys.argv[2], sys.argv[3], training={"epochs": 5, "batch_size": 6, "bf16": False})
        except Interrupted as stopped:
            print(stopped)
            sys.exit(9)
    """
    # Fewer steps than those from which on the faster attention is sought: the two might not find the same.
    options: dict[str, Any] = {"training": {"epochs": 5, "batch_size": 6, "bf16": False}}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    log = tmp_path / ".parts.finetune" / "run.jsonl"
    running = start.code(code, tiny_bert, files["train"], parts)
    running.until(lambda: log.exists() and log.read_text().count("\n") >= 2)
    running.kill(signal.SIGTERM)
    ended, told = running.wait()
    assert ended == 9 and "Run the same command again" in told
    assert not parts.exists() and list((log.parent / "checkpoints").glob("checkpoint-*"))
    finetune(str(tiny_bert), str(files["train"]), parts, **options)
    finetune(str(tiny_bert), str(files["train"]), whole, **options)
    for name in ("model.safetensors", "task/head.safetensors"):
        first, second = load_file(whole / name), load_file(parts / name)
        assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert not log.exists()


def test_bad_rows_are_counted_and_said(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [*labelled.texts(60), {"text": "", "label": "praise"}, {"text": "no label"}, *labelled.texts(3)]
    out = finetune(tiny_bert, labelled.write(tmp_path / "a.jsonl", rows), tmp_path / "out", training={"epochs": 1})
    record = json.loads((out / "task" / "finetune.json").read_text())
    assert record["train"] == {"rows": 63, "left_out": {"empty": 1, "missing label": 1}}


def test_impossible_finetuning_is_refused_before_training(
    tiny_bert: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    def refused(match: str, data: Any = files["train"], output: Path = tmp_path / "out", **options: Any) -> None:
        with pytest.raises(DistilvecError, match=match):
            finetune(tiny_bert, data, output, **options)

    refused("^text: pairs .*two .*not text", task="pairs", text="text")
    refused("^text: classification .*text and text2.*pairs or similarity", text=["text", "text2"])
    refused(r'/train\.jsonl: .*"txt".*"text", "label"', text="txt")
    refused(r"^task\.kind: .*blame, other, praise.*kind: pairs", task="similarity", text=["text", "label"])
    refused("^task: encoding .*pairs or similarity", encoding="joint")
    refused(r"^training\.best: .*validation", training={"best": "accuracy"})
    refused(r'^training\.epoch: .*"epochs"', training={"epoch": 3})
    refused(r"^student\.lora\.rank: .*\b0\b", lora={"rank": 0})
    refused(r'^training\.best: .*"acuracy".*"accuracy"', validation=files["test"], training={"best": "acuracy"})
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("x")
    refused("/taken: ", output=taken)
    other = labelled.write(tmp_path / "other.jsonl", [{"text": "x y", "label": "prase"}])
    for unknown in ({"test": other}, {"validation": other}):
        with pytest.raises(DataError, match=r'/other\.jsonl: "prase" .*\b3 classes.*"praise"'):
            finetune(tiny_bert, files["train"], tmp_path / "out", training={"epochs": 1}, **unknown)
    refused("/bert: ", output=tiny_bert)
    scores = [{"text": f"text {n}", "label": n / 10} for n in range(20)]
    refused(r"^task\.kind: .*kind: similarity", data=labelled.write(tmp_path / "scores.jsonl", scores))
    with pytest.raises(DistilvecError):
        finetune(tmp_path / "not there", files["train"], tmp_path / "none")
    assert not list(tmp_path.glob(".none.finetune"))
    assert not list((tmp_path / "out" / "task").glob("*")) and not list(tmp_path.glob(".out.finetune/checkpoints/*"))


@pytest.mark.parametrize("names", [["notes.txt"], ["digest", "notes.txt"], ["digest"]])
def test_a_foreign_folder_at_the_place_of_its_work_stays(
    tmp_path: Path, tiny_bert: Path, files: dict[str, Path], names: list[str]
) -> None:
    work = tmp_path / ".out.finetune"
    work.mkdir()
    for name in names:
        (work / name).write_text("years of work")
    with pytest.raises(DistilvecError, match=rf"\.out\.finetune: .*{names[0]}"):
        finetune(tiny_bert, files["train"], tmp_path / "out", training={"epochs": 1})
    assert {file.name: file.read_text() for file in work.iterdir()} == dict.fromkeys(names, "years of work")


def last_line(output: str) -> Any:
    return json.loads(output.strip().splitlines()[-1])


def test_the_folder_that_one_stands_in_takes_the_model(
    tiny_bert: Path,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert finetune(tiny_bert, files["train"], ".", training={"epochs": 1, "batch_size": 64}) == tmp_path / "here"
    assert (tmp_path / "here" / "modules.json").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["here"] and "before-1" not in caplog.text


def test_finetune_refuses_a_busy_folder(tmp_path: Path, tiny_bert: Path) -> None:
    rows = [{"text": f"row {number}", "label": "ab"[number % 2]} for number in range(8)]
    work = tmp_path / ".model.finetune"
    work.mkdir()
    (work / ".distilvec.json").write_text(json.dumps({"made_by": "distilvec", "files": {"output": ["student"]}}))
    with alone_in(tmp_path, ".model.finetune.lock"), pytest.raises(DistilvecError, match="another run is at work"):
        finetune(tiny_bert, rows, tmp_path / "model", training={"max_steps": 1, "use_cpu": True})
    assert work.is_dir()
