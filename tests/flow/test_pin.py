"""Revisions: of models and data of the hub, asked for and written into the saved recipe; with a hub's cache on disk."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.jobs import tiny_recipe

from distilvec.corpus import hub
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.mine import mine_recipe
from distilvec.flow.pin import pin
from distilvec.flow.run import train
from distilvec.modules.opening import locate
from distilvec.recipe import Recipe
from distilvec.scorers.load import open_scorer

OLD, NEW, DATA = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def cache(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with two commits of me/tiny, the newer one without its head's last layer."""
    import huggingface_hub.constants as constants

    place = tmp_path / "hub" / "models--me--tiny"
    for commit in (OLD, NEW):
        shutil.copytree(tiny_bert, place / "snapshots" / commit)
    (place / "refs").mkdir()
    for name, commit in (("main", NEW), ("v1", OLD)):
        (place / "refs" / name).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return place


def recipe(output: Path, **sections: Any) -> Recipe:
    parts = {
        "corpus": {"path": "texts.txt"},
        "teachers": [{"model": "me/tiny"}],
        "student": {"shrink": {"of": "teacher", "layers": 1}},
        "method": {"name": "cosine"},
        "output": str(output),
    }
    return Recipe.build(parts | sections)


def test_a_revision_behind_a_hub_id(cache: Path, tiny_bert: Path) -> None:
    assert locate("me/tiny").name == NEW and locate("me/tiny@v1").name == OLD and locate(f"me/tiny@{OLD}").name == OLD
    with pytest.raises(EnvironmentProblem, match="me/tiny@v9"):
        locate("me/tiny@v9")
    with pytest.raises(DistilvecError, match="a folder has no revisions"):
        locate(f"{tiny_bert}@main")


def test_models_are_pinned_to_commits(cache: Path, tiny_bert: Path, tmp_path: Path) -> None:
    found = pin(recipe(tmp_path / "out"))
    assert found.teachers[0].revision == NEW and found.teachers[0].address == f"me/tiny@{NEW}"
    assert found.student is not None and found.student.revision is None  # it is made of the teacher
    own = pin(recipe(tmp_path / "out", student={"shrink": {"of": "me/tiny", "layers": 1}, "revision": "v1"}))
    assert own.student is not None and own.student.revision == OLD
    for weights in cache.glob("snapshots/*/model.safetensors"):  # fetched later, when the corpus was found to be good
        weights.unlink()
    assert pin(recipe(tmp_path / "out")).teachers[0].revision == NEW
    local = recipe(tmp_path / "out", teachers=[{"model": str(tiny_bert)}])
    assert pin(local) == local


def test_pinned_commits_are_used_again(cache: Path, tmp_path: Path) -> None:
    """The saved recipe's commits hold, whatever the branch means by now; a revision that is asked for wins."""
    first = pin(recipe(tmp_path, teachers=[{"model": "me/tiny", "revision": "v1"}]))
    (tmp_path / "recipe.yaml").write_text(first.to_yaml())
    assert pin(recipe(tmp_path)).teachers[0].revision == OLD
    assert pin(recipe(tmp_path, teachers=[{"model": "me/tiny", "revision": "main"}])).teachers[0].revision == NEW
    (tmp_path / "recipe.yaml").write_text("what: is this")
    assert pin(recipe(tmp_path)).teachers[0].revision == NEW


def test_scorers_are_pinned_to_commits(cache: Path, tmp_path: Path) -> None:
    scorers = [{"model": "me/tiny", "revision": "v1"}, {"name": "own", "scores": "scores.csv"}]
    sections = {"corpus": {"path": "pairs.csv", "text": ["query", "document"]}, "method": {"name": "margin_mse"}}
    asked = recipe(tmp_path, scorers=scorers, **sections)
    found = pin(asked)
    assert found.scorers[0].revision == OLD and found.scorers[1] == asked.scorers[1]
    assert asked.scorers[0].revision == "v1", "the recipe that was given stays as it is"
    (tmp_path / "recipe.yaml").write_text(found.to_yaml())
    again = recipe(tmp_path, scorers=[{"model": "me/tiny"}, scorers[1]], **sections)
    assert pin(again).scorers[0].address == f"me/tiny@{OLD}"
    with pytest.raises(DistilvecError, match=f"^me/tiny@{OLD}: "):  # it judges no pairs, but it was opened
        open_scorer(pin(again).scorers[0])
    with pytest.raises(DistilvecError, match=r"scorers\.0\.revision: unknown key .*goes with model"):
        recipe(tmp_path, scorers=[{"scores": "scores.csv", "revision": "v1"}], **sections)


def test_a_pinned_teacher_and_student_open(cache: Path, tmp_path: Path) -> None:
    from distilvec.flow.start import make_student
    from distilvec.teachers import Reading
    from distilvec.teachers.table import open_teacher

    config = cache / "snapshots" / OLD / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prompts": {"query": "old: "}}))
    asked = recipe(tmp_path, teachers=[{"model": "me/tiny", "revision": "v1"}])
    teacher = open_teacher(asked.teachers[0], Reading())
    assert teacher.prompts == {"query": "old: "}  # type: ignore[attr-defined]
    assert teacher.card.source == "me/tiny@v1"
    student = recipe(tmp_path, student={"model": "me/tiny", "revision": OLD}).student
    assert student is not None
    made = make_student(student, [], _NoTexts(), 0)  # type: ignore[arg-type]
    assert made.prompts["query"] == "old: "


class _NoTexts:
    texts = train_rows = prompts = ()


def test_a_model_of_the_hub_is_fine_tuned(cache: Path, tmp_path: Path) -> None:
    from distilvec.flow.finetune import finetune
    from distilvec.tasks.predictor import Predictor

    rows = [{"text": f"row {number} of {'ab'[number % 2]}", "label": "ab"[number % 2]} for number in range(8)]
    made = finetune("me/tiny", rows, tmp_path / "model", training={"max_steps": 1, "use_cpu": True})
    assert len(Predictor.load(made).predict(["a text"])) == 1
    assert NEW in (made / "report" / "recipe.yaml").read_text()


def test_data_are_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_builder", lambda address: _Builder())
    asked = recipe(tmp_path, corpus={"path": "hub:me/texts@en"}, teachers=[], student=None, method={"name": "simcse"})
    found = pin(asked)
    assert found.corpus is not None and found.corpus.revision == DATA
    monkeypatch.setattr(hub, "_builder", lambda address: pytest.fail("the hub is asked for what is known"))
    assert hub.fingerprint(hub.HubAddress.read("hub:me/texts@en", DATA)) != hub.fingerprint(
        hub.HubAddress.read("hub:me/texts@de", DATA)
    )
    assert pin(found).corpus == found.corpus
    monkeypatch.setattr(hub, "_builder", lambda address: _Builder())
    further = {"documents": {"path": "hub:me/texts", "text": "body"}}
    mined = pin(recipe(tmp_path, teachers=[], student=None, method={"name": "simcse"}, mining=further), mining=True)
    assert mined.mining.documents is not None and mined.mining.documents.revision == DATA
    with pytest.raises(DistilvecError, match=r"^corpus\.revision: "):
        from distilvec.corpus import read_corpus

        read_corpus(["a text"], tmp_path / "corpus", revision="main")


class _Builder:
    """As `datasets` describes files of the hub."""

    hash = "h"

    class config:
        class files:
            origin_metadata = [("me/texts", DATA), ("me/texts", DATA)]

        data_files = {"train": files}


class Embedder:
    """Holds what cannot be copied, as clients of services do."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), Counter[str]()

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked.update(texts)
        return np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)


def test_bound_method_as_teacher_is_not_copied(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = Embedder()
    given = tiny_recipe(tmp_path, tiny_bert, sentences[:60], teachers=[{"name": "own", "call": own.embed}])
    assert pin(given).teachers[0].call == own.embed
    train(given)
    assert own.asked


def test_mining_pins_hub_data_and_other_commands_do_not(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `mine`, which keeps the commit for when it goes on; a run that reads none of them does not ask the hub."""
    from distilvec.flow import mine as mining
    from distilvec.flow.pin import pin

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(mining, "pin", lambda given, saved, **how: asked.append({"saved": saved, **how}) or given)
    rows = [{"q": text.rsplit(" ", 2)[0], "d": text} for text in sentences[:60]]
    made = tiny_recipe(tmp_path, tiny_bert, sentences[:60], corpus={"path": rows, "text": ["q", "d"], "holdout": 0.1})
    mine_recipe(made)
    saved = tmp_path / "out" / "mining.yaml"
    assert asked == [{"saved": saved, "mining": True}] and "corpus:" in saved.read_text()
    documents = {"documents": {"path": "hub:nobody/texts", "text": "body"}}
    free = pin(Recipe.build(made.model_dump() | {"mining": documents}))
    assert free.mining.documents is not None and free.mining.documents.revision is None
