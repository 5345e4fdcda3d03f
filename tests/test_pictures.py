"""The pictures of README and the docs show a run that is the current default."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from distilvec.corpus import read_corpus
from distilvec.flow.defaults import kind_of, with_defaults
from distilvec.flow.demo import demo_recipe
from distilvec.recipe.defaults import DEFAULTS

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/pictures/report.json"
TAKE = "run `distilvec demo && python docs/pictures.py distilvec-demo`"


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["report.png", "search-page.png"])
def test_a_picture_shows_the_committed_run(name: str) -> None:
    with Image.open(ROOT / "docs/assets" / name) as picture:
        assert picture.info["run"] == hashlib.sha256(RECORD.read_bytes()).hexdigest(), TAKE


def test_every_picture_is_one_of_these() -> None:
    assert {file.name for file in (ROOT / "docs").rglob("*.png")} == {"report.png", "search-page.png"}


def test_the_run_behind_the_pictures_is_the_default(record: Any, tmp_path: Path) -> None:
    shown, corpus = record["sections"]["rerun"]["recipe"], record["sections"]["corpus"]
    recipe = demo_recipe(tmp_path / "demo", texts=200)
    few = read_corpus(recipe.corpus.path, tmp_path / "corpus", domain="package")
    today = with_defaults(recipe, few).model_dump(mode="json")
    for section in ("student", "method", "optimizer"):
        assert today[section] == shown[section], f"{section}: {TAKE}"
    row = DEFAULTS[kind_of(recipe, today["student"])]
    assert (row.batch_size, row.epochs(corpus["trained_on"])) == (
        shown["training"]["batch_size"],
        shown["training"]["epochs"],
    ), TAKE
    tasks = [task["name"] for task in today["judging"]["tasks"]]
    assert [task["name"] for task in shown["judging"]["tasks"]] == tasks, TAKE
