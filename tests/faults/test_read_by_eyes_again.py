"""What a third reading found: each as the smallest case that shows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.test_read_by_eyes import recipe

import distilvec
from distilvec import plain_yaml
from distilvec.choosing.dry_run import plan
from distilvec.errors import DistilvecError
from distilvec.flow.bench import FACTORS
from distilvec.flow.compare import compare
from distilvec.flow.run import run, train
from distilvec.flow.variants import changed
from distilvec.methods.table import available
from distilvec.recipe import Recipe
from distilvec.students import load_student


class Counted:
    """A teacher that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked += len(texts)
        return np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)


# runs and their folders


def test_another_corpus_under_an_equal_recipe_is_another_run(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    sections: dict[str, Any] = {"training": {"max_steps": 2, "batch_size": 8, "use_cpu": True}}
    first = distilvec.distill(own.embed, str(tiny_bert), sentences[:60], "cosine", tmp_path / "out", **sections)
    student = (first.folder / "student" / "model.safetensors").read_bytes()
    distilvec.train(own.embed, str(tiny_bert), sentences[60:140], "cosine", tmp_path / "out", **sections)
    before = tmp_path / "out" / "before-1"
    assert (before / "student" / "model.safetensors").read_bytes() == student and (before / "report.json").is_file()
    assert not (tmp_path / "out" / "report.json").exists()
    distilvec.train(own.embed, str(tiny_bert), sentences[60:140], "cosine", tmp_path / "out", **sections)
    assert not (tmp_path / "out" / "before-2").exists()


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
def test_what_training_refuses_is_refused_before_the_teacher_is_asked(
    sections: dict[str, Any], said: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """And before anything of the run before is moved; a dry run says it too."""
    own = Counted()
    plain = {
        "corpus": {"path": sentences[:120], "holdout": 0.35},
        "teachers": [{"name": "own", "call": own.embed}],
        "student": {"model": str(tiny_bert)},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
    }
    merged = {**plain, **{key: {**plain.get(key, {}), **value} for key, value in sections.items()}}  # type: ignore[dict-item]
    (tmp_path / "out" / "student").mkdir(parents=True)
    shutil.copytree(tiny_bert, tmp_path / "out" / "student", dirs_exist_ok=True)
    (tmp_path / "out" / "recipe.yaml").write_text(recipe(tmp_path, tiny_bert, sentences[:60]).to_yaml())
    wrong = recipe(tmp_path, tiny_bert, sentences[:60], **merged)
    for call in (train, plan):
        with pytest.raises(DistilvecError, match=said):
            call(wrong)  # type: ignore[operator]
    assert own.asked <= 2  # how wide its vectors are, twice
    assert not (tmp_path / "out" / "before-1").exists()


def test_the_card_of_train_is_about_what_ships(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = Counted()
    given = recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "own", "call": own.embed}],
        method={"name": "leaf"},
    )
    folder = train(given)
    width = load_student(folder).get_embedding_dimension()
    assert width == 4 and f"| dimensions | {width} |" in (folder / "README.md").read_text()


def test_code_that_may_run_runs_when_the_student_is_compressed(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(tiny_bert, strange)
    config = json.loads((strange / "config.json").read_text())
    names = {"AutoConfig": "code.StrangeConfig", "AutoModel": "code.StrangeModel"}
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "strange", "auto_map": names}))
    (strange / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n\n\nclass StrangeConfig(BertConfig):\n"
        "    model_type = 'strange'\n\n\nclass StrangeModel(BertModel):\n    config_class = StrangeConfig\n"
    )
    student = {"model": str(strange), "trust_remote_code": True}
    judging = {"speed": False, "compression": True}
    found = run(recipe(tmp_path, tiny_bert, sentences[:90], student=student, judging=judging))
    assert found.record.compression is not None
    assert any(row.name == "float16 weights" for row in found.record.compression.rows)


def test_a_combined_store_is_checked_for_damage(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    first, second = Counted(), Counted()
    teachers = [{"name": "t", "call": first.embed}, {"name": "u", "call": second.embed}]
    given = recipe(tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate")
    train(given)
    (folder,) = (tmp_path / "out" / "stores").glob("t+u-concatenate-*")
    part = next(folder.glob("sentence-*.arrow"))
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    part.write_bytes(damaged)
    again = recipe(
        tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate", training={"max_steps": 3}
    )
    try:
        train(again)
    except DistilvecError as error:
        assert part.name in str(error) or str(folder) in str(error)
    store = next((tmp_path / "out" / "stores").glob("t+u-concatenate-*"))
    assert bytes(damaged) not in [each.read_bytes() for each in store.glob("sentence-*.arrow")]


# recipes


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("task", [None, {"kind": "classification"}])
def test_a_resolved_recipe_can_be_read_again(name: str, task: dict[str, Any] | None) -> None:
    made = {
        "corpus": {"path": "texts.jsonl", "text": ["q", "a"] if task is None else "text", "label": task and "label"},
        "teachers": [{"name": "t", "model": "some/model"}],
        "student": {"model": "some/student"},
        "method": {"name": name},
        "task": task,
    }
    try:
        first = Recipe.build(made)
    except DistilvecError:
        return  # a method for other items
    again = Recipe.build(plain_yaml.read(first.to_yaml()))
    assert again.to_yaml() == first.to_yaml()
    assert task is None or first.student is None or first.student.space == "own"


def test_live_is_about_models(tmp_path: Path, tiny_bert: Path) -> None:
    for source in ({"call": len}, {"api": {"url": "http://localhost:1", "model": "m"}}, {"vectors": "v.npy"}):
        with pytest.raises(DistilvecError, match="live is about a model's token states"):
            recipe(tmp_path, tiny_bert, "texts.jsonl", teachers=[{"name": "t", "live": True, **source}])


# comparisons


def test_a_tuned_rate_warms_up_for_its_share_and_follows_no_metric(tmp_path: Path, tiny_bert: Path) -> None:
    training = {"epochs": 3, "batch_size": 8, "warmup_steps": 9, "lr_scheduler_type": "reduce_lr_on_plateau"}
    given = recipe(
        tmp_path, tiny_bert, "texts.jsonl", training={**training, "best": "agreement_cosine", "evaluate_every": 5}
    )
    short = changed(given, epochs=1.0, items=48)
    assert short.training.arguments["warmup_steps"] == pytest.approx(9 / 18)
    assert short.training.arguments["lr_scheduler_type"] == "cosine" and short.training.best is None
    steps = recipe(tmp_path, tiny_bert, "texts.jsonl", training={"max_steps": 30, "batch_size": 8, "warmup_steps": 3})
    short = changed(steps, epochs=1.0, items=48)
    assert short.training.arguments["max_steps"] == 6
    assert short.training.arguments["warmup_steps"] == pytest.approx(3 / 30)


def test_rates_of_a_schedule_that_follows_a_metric_can_be_tuned(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    training = {
        "epochs": 1, "batch_size": 8, "use_cpu": True, "lr_scheduler_type": "reduce_lr_on_plateau",
        "best": "agreement_cosine", "evaluate_every": 3, "save_every": 3,
    }  # fmt: skip
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"text1": sentences[n], "text2": sentences[n + 1], "score": n % 5} for n in range(20)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [{"name": "pairs", "kind": "similarity", "test": str(pairs)}]
    given = recipe(
        tmp_path,
        tiny_bert,
        None,
        corpus={"path": sentences[:120], "holdout": 0.4},
        training=training,
        judging={"speed": False, "tasks": tasks},
    )
    found = compare(given, ["cosine"], seeds=1, tune=True)
    assert len(found.tried["cosine"]) == len(FACTORS)
    assert (tmp_path / "out" / "baselines" / "recipe.yaml").is_file()
