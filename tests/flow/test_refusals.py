"""What a run refuses before the teacher embeds anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.functions import CountingFunction, lengths
from tests.jobs import Job, check_job, tiny_recipe
from tests.scorers.settings import settings

from distilvec.choosing.dry_run import plan
from distilvec.errors import DistilvecError
from distilvec.flow.ray.ranks import teach_alone
from distilvec.flow.run import run, train
from distilvec.folders import claim
from distilvec.recipe import Recipe


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"training": {"best": "agreement_cosine"}}, "needs evaluations"),
        ({"training": {"patience": 3, "evaluate_every": 1}}, "patience"),
        ({"training": {"best": "agreement_cosine", "evaluate_every": 4, "save_every": 6}}, "multiple"),
        ({"training": {"dataloader_drop_last": True, "batch_size": 500}}, "no whole batch"),
        ({"corpus": {"holdout": 0.01}, "training": {"evaluate_every": 1}}, "nothing to evaluate on"),
        ({"optimizer": {"sharpness": {"kind": "disam"}}}, "compares domains"),
        ({"student": {"router_balance": 0.1}}, "mixtures"),
        (
            {"method": {"name": "relational"}, "training": {"best": "agreement_index_recall", "evaluate_every": 1}},
            "rec",
        ),
    ],
)
def test_bad_training_settings_are_refused_before_teaching(
    sections: dict[str, Any], said: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """And before anything of the run before is moved; a dry run says it too."""
    own = CountingFunction()
    plain = {
        "corpus": {"path": sentences[:120], "holdout": 0.35},
        "teachers": [{"name": "own", "call": own.embed}],
        "student": {"model": str(tiny_bert)},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
    }
    merged = {**plain, **{key: {**plain.get(key, {}), **value} for key, value in sections.items()}}  # type: ignore[dict-item]
    (claim(tmp_path / "out") / "student").mkdir()
    shutil.copytree(tiny_bert, tmp_path / "out" / "student", dirs_exist_ok=True)
    (tmp_path / "out" / "recipe.yaml").write_text(tiny_recipe(tmp_path, tiny_bert, sentences[:60]).to_yaml())
    wrong = tiny_recipe(tmp_path, tiny_bert, sentences[:60], **merged)
    for call in (train, plan):
        with pytest.raises(DistilvecError, match=said):
            call(wrong)  # type: ignore[operator]
    assert own.asked <= 2  # how wide its vectors are, twice
    assert not (tmp_path / "out" / "before-1").exists()


@pytest.mark.parametrize("vectors", [True, False])
def test_neighbours_without_an_embedding_teacher_are_refused(
    vectors: bool, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """Said before any training."""
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences[:60]))
    np.save(tmp_path / "v.npy", lengths(sentences[:60]))
    given = {"name": "t", "vectors": str(tmp_path / "v.npy"), "texts": str(corpus)}
    sections: dict[str, Any] = {"teachers": [given]} if vectors else {"teachers": [], "method": {"name": "simcse"}}
    judging = {"speed": False, "tasks": [{"name": "near", "kind": "neighbours", "corpus": str(corpus)}]}
    with pytest.raises(DistilvecError, match=r"task near.*nearest neighbours .* teacher: FOLDER"):
        train(tiny_recipe(tmp_path, tiny_bert, str(corpus), judging=judging, **sections))
    assert not (tmp_path / "out" / "student").exists()


@pytest.mark.parametrize("method", [{"name": "talas", "tamd_weight": 0}, {"name": "dskd", "sentence_weight": 0}])
def test_teacher_space_without_a_map_is_refused_before_teaching(
    method: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    given = tiny_recipe(
        tmp_path, tiny_bert, sentences[:60], method=method, student={"model": str(tiny_bert), "space": "teacher"}
    )
    with pytest.raises(DistilvecError, match="no map into the teacher's space"):
        train(given)
    assert not (tmp_path / "out" / "stores").exists() or not list((tmp_path / "out" / "stores").rglob("*.arrow"))


@pytest.mark.parametrize("method", ["margin_mse", "score_kl", "a second one"])
def test_ranking_methods_refuse_pairs_without_negatives(
    method: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = CountingFunction()
    options: Any = {"name": method, "preset": "paper"}
    if method == "a second one":
        options = [{"name": "cosine"}, {"name": "margin_mse"}]
    given = settings(tmp_path, tiny_bert, sentences[:40], method=options, teachers=[{"name": "own", "call": own.embed}])
    given["corpus"] |= {"text": ["q", "d"]}
    with pytest.raises(DistilvecError, match=r"^corpus\.text: .*no query .* has two.*distilvec mine"):
        check_job(Job(Recipe.build(given)))
    assert own.asked <= 2


def clicked(own: CountingFunction, table: Path) -> dict[str, Any]:
    """Sections of a recipe with a teacher that counts and a table of scores."""
    return {
        "method": [{"name": "cosine"}, {"name": "score_kl"}],
        "teachers": [{"name": "own", "call": own.embed}],
        "scorers": [{"name": "clicks", "scores": str(table)}],
    }


def test_broken_scorers_are_refused_before_teaching(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = CountingFunction()
    table = tmp_path / "clicks.jsonl"
    table.write_text(json.dumps({"query": "q", "document": "d"}) + "\n")
    given = settings(tmp_path, tiny_bert, sentences[:40], **clicked(own, table))
    made = Recipe.build(given)
    for look in (lambda: check_job(Job(made)), lambda: teach_alone(made)):
        with pytest.raises(DistilvecError, match="score"):
            look()
    nobody = Recipe.build(given | {"scorers": [{"model": "nobody/x"}]})
    with pytest.raises(DistilvecError, match="nobody/x"):
        check_job(Job(nobody))
    assert own.asked <= 6, "how wide its vectors are"


def test_scores_of_other_pairs_are_refused_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = CountingFunction()
    table = tmp_path / "clicks.jsonl"
    table.write_text(json.dumps({"query": "q", "document": "d", "score": 1.0}) + "\n")
    given = settings(tmp_path, tiny_bert, sentences[:40], **clicked(own, table))
    made = Recipe.build(given)
    for look in (lambda: check_job(Job(made)), lambda: teach_alone(made)):
        with pytest.raises(DistilvecError, match=r"^scorer clicks: it has no score for any of the [\d,]+ pairs"):
            look()
    assert own.asked <= 6, "how wide its vectors are"


def test_scorers_of_single_texts_are_refused_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = CountingFunction()
    teachers = [{"name": "own", "call": own.embed}]
    given = settings(tmp_path, tiny_bert, sentences[:40], teachers=teachers, method={"name": "cosine"})
    given["corpus"] = {"path": sentences[:40]}
    with pytest.raises(DistilvecError, match=r"^corpus\.text: scorers judge queries and documents"):
        teach_alone(Recipe.build(given))
    assert own.asked <= 2, "how wide its vectors are"


def test_method_on_pairs_refuses_single_texts_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = CountingFunction()
    made = tiny_recipe(
        tmp_path,
        tiny_bert,
        [],
        corpus={"path": [{"q": text} for text in sentences[:60]], "text": ["q"]},
        method={"name": "mnrl"},
        teachers=[{"name": "own", "call": own.embed}],
    )
    with pytest.raises(DistilvecError, match=r"^corpus\.text: this method trains on pairs"):
        run(made)
    assert own.asked <= 2, "how wide its vectors are"


def test_pairs_with_several_labels_are_not_all_answers(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    pairs = [{"q": a, "d": b, "alike": i % 2} for i, (a, b) in enumerate(zip(sentences[:60], sentences[60:120]))]

    def prepared(rows: list[dict[str, Any]], **method: Any) -> None:
        corpus = {"path": rows, "text": ["q", "d"], "label": "alike"}
        check_job(Job(tiny_recipe(tmp_path, tiny_bert, [], corpus=corpus, method=method)))

    with pytest.raises(DistilvecError, match=r"^corpus\.label: mnrl takes every pair for an anchor and its positive"):
        prepared(pairs, name="mnrl")
    prepared([{**pair, "alike": 1} for pair in pairs], name="mnrl")
    prepared(pairs, name="cosine")


def test_workers_with_a_live_teacher_are_refused_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    made = tiny_recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "tiny", "model": str(tiny_bert), "live": True}],
        training={"max_steps": 1, "batch_size": 8, "use_cpu": True, "dataloader_num_workers": 1},
    )
    with pytest.raises(DistilvecError, match=r"^training\.dataloader_num_workers: .*live"):
        check_job(Job(made))


def test_evaluating_on_held_out_texts_without_vectors_is_refused(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = list(dict.fromkeys(sentences))[:120]
    given: dict[str, Any] = {
        "corpus": {"path": texts, "holdout": 0.3},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True, "evaluate_every": 1},
    }
    corpus = Job(tiny_recipe(tmp_path, tiny_bert, texts, **given)).corpus
    trained = corpus.texts(corpus.train_rows)
    np.save(tmp_path / "vectors.npy", CountingFunction().embed(trained))
    (tmp_path / "trained.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in trained))
    files = {"vectors": str(tmp_path / "vectors.npy"), "texts": str(tmp_path / "trained.jsonl")}
    made = tiny_recipe(tmp_path, tiny_bert, texts, **given, teachers=[{"name": "files", **files}])
    with pytest.raises(DistilvecError, match=r"^training\.evaluate_every: .*fewer than 20 have a vector"):
        check_job(Job(made))
