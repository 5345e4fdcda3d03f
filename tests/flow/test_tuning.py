"""Tuning the learning rate of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.jobs import tiny_recipe

from distilvec.flow.bench import FACTORS
from distilvec.flow.compare import compare
from distilvec.flow.variants import changed


def test_tuning_run_scales_warmup_and_does_not_evaluate(tmp_path: Path, tiny_bert: Path) -> None:
    training = {"epochs": 3, "batch_size": 8, "warmup_steps": 9}
    given = tiny_recipe(
        tmp_path, tiny_bert, "texts.jsonl", training={**training, "best": "agreement_cosine", "evaluate_every": 5}
    )
    short = changed(given, epochs=1.0, items=48)
    assert short.training.warmup_steps == pytest.approx(9 / 18) and short.training.best is None
    steps = tiny_recipe(
        tmp_path, tiny_bert, "texts.jsonl", training={"max_steps": 30, "batch_size": 8, "warmup_steps": 3}
    )
    short = changed(steps, epochs=1.0, items=48)
    assert short.training.max_steps == 6
    assert short.training.warmup_steps == pytest.approx(3 / 30)


def test_tuning_a_training_that_keeps_its_best(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    training = {
        "epochs": 1, "batch_size": 8, "use_cpu": True,
        "best": "agreement_cosine", "evaluate_every": 3, "save_every": 3,
    }  # fmt: skip
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"text1": sentences[n], "text2": sentences[n + 1], "score": n % 5} for n in range(20)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [{"name": "pairs", "kind": "similarity", "test": str(pairs)}]
    given = tiny_recipe(
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
    assert "Checkpoints" not in found.table(), "what is judged is not held out of this corpus"


@pytest.mark.parametrize(("best", "told"), [("agreement_cosine", True), (None, False)])
def test_checkpoints_that_were_chosen_on_what_is_judged_are_reported(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], best: str | None, told: bool
) -> None:
    training = {"max_steps": 2, "batch_size": 8, "use_cpu": True, "best": best, "evaluate_every": 1}
    corpus = {"path": sentences[:120], "holdout": 0.4}
    found = compare(tiny_recipe(tmp_path, tiny_bert, None, corpus=corpus, training=training), ["cosine"], seeds=1)
    note = "Checkpoints were chosen by agreement on all held-out items, also on those that are judged."
    assert (note in found.notes) == told
