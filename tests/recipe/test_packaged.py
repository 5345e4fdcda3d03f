"""The recipes that the package brings: listed, printed, and the papers' settings on each of their data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilvec.errors import DistilvecError
from distilvec.recipe import Recipe
from distilvec.recipe.packaged import ALPHA, SETS, listing, names, read

FOLDER = Path(__file__).resolve().parents[2] / "src/distilvec/recipe/packaged"


def test_a_name_gives_the_file(tmp_path: Path) -> None:
    assert set(names()) == {file.stem for file in FOLDER.glob("*.yaml")}
    for name in names():
        assert read(name) == read(f"{name}.yaml") == (FOLDER / f"{name}.yaml").read_text()
    lines = listing().splitlines()
    assert all(line.count("(") == line.count(")") and line.count("`") % 2 == 0 for line in lines)
    assert [line.split()[0] for line in lines] == names() and all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in ALPHA for data, _ in zip(SETS, ALPHA[name])])
def test_the_papers_settings_on_each_of_their_sets(name: str, data: str, tmp_path: Path) -> None:
    """All that tells two sets apart is changed, and nothing else; what is written down is SciTail's."""
    file = tmp_path / "recipe.yaml"
    file.write_text(read(name, data))
    recipe, written = Recipe.load(file), Recipe.load(FOLDER / f"{name}.yaml")
    assert recipe.task is not None and written.task is not None
    assert recipe.task.alpha == ALPHA[name][list(SETS).index(data)]
    assert written.task.alpha == ALPHA[name][list(SETS).index("scitail")]
    assert recipe.task.kind == SETS[data].kind and str(recipe.task.test).endswith(f"{data}.test.jsonl")
    assert str(recipe.corpus.path).endswith(f"{data}.train.jsonl")
    assert recipe.corpus.text == ("text" if recipe.task.kind == "classification" else ["text1", "text2"])
    assert recipe.corpus.label == ("score" if recipe.task.kind == "similarity" else "label")
    assert data == "scitail" or "scitail" not in read(name, data)
    assert read(name, data).count("\n") - read(name).count("\n") in (0, -1), "an encoding of pairs, or none"
    if recipe.method.name == "distillmoe":
        assert recipe.method.first.options["moe_weight"] == (0.7 if data in ("patent", "control") else 0.8)
        assert written.method.first.options["moe_weight"] == 0.8
    for same in ("student", "optimizer", "training"):
        assert getattr(recipe, same) == getattr(written, same)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("start-text", None, "'start-text'.*\"start-texts\""),
        ("paper-cdm", "sick", "paper-cdm .*'sick'.*scitail"),
        ("paper-emo-supervised", "mnli", "paper-emo-supervised .*'mnli'.*stsb"),
        ("paper-talas", "sick", "paper-talas .*--data .*paper-cdm"),
    ],
)
def test_unknown_packaged_recipes_are_named(name: str, data: str | None, said: str) -> None:
    with pytest.raises(DistilvecError, match=said):
        read(name, data)
