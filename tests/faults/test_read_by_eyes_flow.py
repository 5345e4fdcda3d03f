"""What a second reading found in corpora, runs, judging and claims: each as the smallest case that shows it."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.faults.test_read_by_eyes import recipe

import distilvec
from distilvec import plain_yaml
from distilvec.choosing.choose import texts_read
from distilvec.choosing.scale import scale
from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError
from distilvec.files import alone_in
from distilvec.flow.compare import compare
from distilvec.flow.pin import pin
from distilvec.flow.run import run, train
from distilvec.judging import PerceptronTask, load_task
from distilvec.judging.identity import content_digest
from distilvec.training.checkpoint import newest_checkpoint


class Embedder:
    """Holds what cannot be copied, as clients of services do."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), Counter[str]()

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked.update(texts)
        return np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)


# recipes and corpora


def test_a_method_of_an_object_is_no_copy_of_it(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = Embedder()
    given = recipe(tmp_path, tiny_bert, sentences[:60], teachers=[{"name": "own", "call": own.embed}])
    assert pin(given).teachers[0].call == own.embed
    train(given)
    assert own.asked


def test_rows_without_columns_do_not_shift_the_labels_of_others(tmp_path: Path) -> None:
    rows: list[Any] = [{"text": "aaa", "label": "x"}, "bbb", {"text": "ccc", "label": "y"}, {"text": "d", "label": "x"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.texts() == ["aaa", "ccc", "d"] and corpus.label_names is not None and corpus.labels is not None
    assert [corpus.label_names[code] for code in corpus.labels] == ["x", "y", "x"]
    assert corpus.audit.rejected == {"no columns": 1}


def test_half_a_character_in_a_label_is_rejected(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": "good"}, {"text": "two", "label": "good \ud83d"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.audit.rejected == {"not UTF-8": 1}


def test_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """In a process of its own: what collects tests' output takes no such names."""
    code = (
        "from pathlib import Path\nfrom distilvec.corpus import read_corpus\n"
        "Path('caf\\udce9.txt').write_text('one text\\nanother text\\n')\n"
        "read_corpus(Path('caf\\udce9.txt'), 'corpus', holdout=0.0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert len(Corpus.open(tmp_path / "corpus")) == 2


@pytest.mark.parametrize("labels", [[1, "007", "7"], [1, 7, "007"]])
def test_codes_among_numbers_are_rejected(labels: list[Any], tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    assert read_corpus(rows, tmp_path, label="label", holdout=0.0).audit.rejected == {"bad label": 1}


def test_a_key_that_is_there_twice_is_named() -> None:
    with pytest.raises(yaml.YAMLError, match='line 3: "training" is there a second time'):
        plain_yaml.read("training: {epochs: 1}\noutput: out\ntraining: {seed: 3}\n")
    assert plain_yaml.read("a: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


def test_an_output_in_the_home_folder(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    training = {"max_steps": 1, "batch_size": 8, "use_cpu": True}
    distilvec.train(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus=sentences[:40],
        method="cosine",
        output="~/out",
        training=training,
    )
    assert (tmp_path / "home/out/student").is_dir() and not list((tmp_path / "here").iterdir())


def test_the_texts_of_a_run_at_work_are_not_replaced(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    out = tmp_path / "out"
    training = {"max_steps": 1, "batch_size": 8, "use_cpu": True}
    distilvec.train(
        str(tiny_bert), student=str(tiny_bert), corpus=sentences[:40], method="cosine", output=out, training=training
    )
    before = (out / "given" / "corpus.jsonl").read_text()
    with alone_in(out), pytest.raises(DistilvecError, match="another run is at work"):
        distilvec.train(
            str(tiny_bert),
            student=str(tiny_bert),
            corpus=sentences[:30],
            method="cosine",
            output=out,
            training=training,
        )
    assert (out / "given" / "corpus.jsonl").read_text() == before
    assert [file.name for file in (out / "given").glob("[!.]*")] == ["corpus.jsonl"]


# runs


@pytest.mark.parametrize(
    "changes", [{"corpus": {"path": "texts.jsonl", "text": "txt"}}, {"training": {"best": "nothing", "max_steps": 2}}]
)
def test_what_fails_at_once_takes_no_checkpoints_away(
    changes: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences[:60]))
    train(recipe(tmp_path, tiny_bert, "texts.jsonl"))
    saved = (tmp_path / "out/recipe.yaml").read_text()
    with pytest.raises(DistilvecError):
        train(recipe(tmp_path, tiny_bert, "texts.jsonl", **changes))
    assert newest_checkpoint(tmp_path / "out/checkpoints") is not None
    assert (tmp_path / "out/recipe.yaml").read_text() == saved


def test_a_teacher_that_lacks_the_tasks_texts_is_left_out_of_a_comparison(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = sorted(set(sentences))

    def some(asked: list[str]) -> list[np.ndarray | None]:
        return [None if "strange" in text else np.array([len(text), text.count("e"), 1.0]) for text in asked]

    rows = [{"text1": "a strange text", "text2": f"text {number}", "score": number} for number in range(30)]
    task = {"name": "closeness", "kind": "similarity", "test": rows}
    given = recipe(tmp_path, tiny_bert, texts, teachers=[{"name": "some", "call": some}], judging={"tasks": [task]})
    found = compare(given, ["cosine"], seeds=1)
    assert "some" not in found.compared.entries and "cosine" in found.compared.entries


@pytest.fixture
def strange_model(tiny_bert: Path, tmp_path: Path) -> Path:
    """A BERT whose classes come with it."""
    folder = shutil.copytree(tiny_bert, tmp_path / "strange")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "code.StrangeConfig", "AutoModel": "code.StrangeModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n\n\n"
        "class StrangeConfig(BertConfig):\n    model_type = 'strange'\n\n\n"
        "class StrangeModel(BertModel):\n    config_class = StrangeConfig\n"
    )
    return folder


def test_a_student_with_code_of_its_own_is_opened_again(
    tmp_path: Path, strange_model: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    student = {"model": str(strange_model), "trust_remote_code": True}
    done = run(recipe(tmp_path, tiny_bert, sentences[:60], student=student))
    assert (done.folder / "report.html").is_file()
    with pytest.raises(DistilvecError, match="trust_remote_code"):
        distilvec.load(done.folder / "student")
    distilvec.load(done.folder / "student", trust_remote_code=True).encode(["a text"])


# judging and choosing


def test_probes_of_perceptrons_know_numbers_however_they_are_spelt() -> None:
    items = [f"item {number}" for number in range(12)]
    train_part = items, ["0.0", "1.0", "2.0"] * 4
    test_part = [f"test {number}" for number in range(6)], ["0", "1", "2"] * 2
    task = PerceptronTask("spelt", train_part, test_part)
    assert task.label_names == ["0.0", "1.0", "2.0"], "as they were spelt first"


def test_what_excludes_nothing_is_refused(tmp_path: Path) -> None:
    files = {name: f"{name}.jsonl" for name in ("queries", "corpus", "qrels")}
    with pytest.raises(DistilvecError, match="exclude is for the rows of test"):
        load_task({"name": "found", "kind": "retrieval", **files, "exclude": ["a query"]}, tmp_path)
    with pytest.raises(DistilvecError, match="retrieval takes test, or queries"):
        load_task({"name": "found", "kind": "retrieval", **files, "test": "pairs.jsonl"}, tmp_path)


def test_other_pictures_under_the_same_names_are_another_task(tmp_path: Path) -> None:
    found = []
    rows = [{"image": f"{number}.png", "label": "ab"[number % 2]} for number in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for shade in (0, 90):
        for number in range(12):
            Image.new("RGB", (4, 4), (shade + number, 0, 0)).save(tmp_path / f"{number}.png")
        spec = {"name": "pictures", "kind": "perceptron", "probe": "images", "train": "rows.jsonl", "seeds": 1}
        found.append(content_digest(load_task(spec, tmp_path)))
    assert found[0] != found[1]


def test_titles_count_where_the_first_document_has_none(tmp_path: Path) -> None:
    parts = {
        "queries": [{"_id": "q", "text": "a query"}],
        "corpus": [{"_id": "a", "text": "A text"}, {"_id": "b", "title": "A title", "text": "of this"}],
        "qrels": [{"query_id": "q", "doc_id": "a", "relevance": 1}],
    }
    for name, rows in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task({"name": "found", "kind": "retrieval", **{name: f"{name}.jsonl" for name in parts}}, tmp_path)
    assert "A title of this" in set(task.texts())


def test_of_pairs_both_texts_count_in_a_forecast(
    tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distilvec.choosing.scale.rates.SECONDS", 0.1)
    rows = [{"a": f"query {number}", "b": f"document {number}"} for number in range(900)]
    corpus = {"path": rows, "text": ["a", "b"]}
    training = {"max_steps": 10, "batch_size": 8}
    given = recipe(tmp_path, tiny_bert, rows, corpus=corpus, method={"name": "mnrl"}, training=training)
    assert texts_read(given, read_corpus(rows, tmp_path / "corpus", text=["a", "b"])) == 160
    seen: dict[str, float] = {}

    def quick(student: Any, method: Any, sample: Any, taught: Any, training: Any, optimizer: Any) -> Any:
        seen["batch"] = training["batch_size"]
        return type("Fitted", (), {"seconds": 1.0, "tokens": 1, "trained": 1, "heads": 0})()

    monkeypatch.setattr("distilvec.choosing.scale.rates.short_training", quick)
    monkeypatch.setattr("distilvec.choosing.scale.rates.PROBE_STEPS", 5)
    assert scale(given, 10**6).rates.training == 5 * 8 * 2


# claims


@pytest.fixture
def verdicts() -> Any:
    return importlib.import_module("experiments.harness.verdicts")


@pytest.mark.parametrize(
    "ragged", [{"a": {0: 1.0}, "b": {1: 1.0}, "c": {2: 1.0}}, {"a": {0: 1, 1: 1}, "b": {1: 1, 2: 1}, "c": {0: 1, 2: 1}}]
)
def test_seeds_that_no_set_has_all_of_make_no_verdict(ragged: Any, verdicts: Any) -> None:
    found = verdicts.judge("better", ragged)
    assert found.verdict == "not tested" and found.p is None
