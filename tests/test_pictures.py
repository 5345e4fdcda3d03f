"""The pictures of README and the docs, and the recording of README's first run, show what is the current default."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from distilvec.corpus import read_corpus
from distilvec.flow.defaults import kind_of, with_defaults
from distilvec.flow.demo import demo_recipe
from distilvec.recipe.defaults import DEFAULTS
from distilvec.recipe.recipe import YOUNGER

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
    for part, key in YOUNGER:  # which the run behind the pictures may not have known
        for each in (today, shown):
            if not each[part].get(key):
                each[part].pop(key, None)
    for section in ("student", "method", "optimizer"):
        assert today[section] == shown[section], f"{section}: {TAKE}"
    row = DEFAULTS[kind_of(recipe, today["student"])]
    assert (row.batch_size, row.epochs(corpus["trained_on"])) == (
        shown["training"]["batch_size"],
        shown["training"]["epochs"],
    ), TAKE
    tasks = [task["name"] for task in today["judging"]["tasks"]]
    assert [task["name"] for task in shown["judging"]["tasks"]] == tasks, TAKE


def test_the_recording_is_that_of_readmes_program() -> None:
    """And README's excerpt is one of it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    recorded = (ROOT / "docs/assets/first-run.txt").read_text(encoding="utf-8")
    program, excerpt = (re.search(rf"```{name}\n(.*?)```", readme, re.DOTALL) for name in ("python", "text"))
    assert program and excerpt
    again = "run python docs/first_run.py"
    assert f"$ cat first.py\n{program[1]}" in recorded, again
    assert set(excerpt[1].splitlines()) <= set(recorded.splitlines()), again
    texts = int(re.findall(r"as there are ([\d,]+) texts to train on", recorded)[0].replace(",", ""))
    row = DEFAULTS["wide"]
    chosen = f"learning rate {row.lr:g}, {row.epochs(texts)} epochs, batches of {row.batch_size}"
    assert chosen in recorded and row.kind in " ".join(recorded.split()), again
